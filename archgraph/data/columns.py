"""Columns read from a file: numbers, categories, classes, clients."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archgraph.data.files import check_size
from archgraph.data.rows import check_apart, number_classes
from archgraph.errors import DataError
from archgraph.hints import unknown
from archgraph.language.data import ColumnKind
from archgraph.language.mistakes import abbreviate

if TYPE_CHECKING:
    from pandas import Series

Cell = str | int | float | bool | Decimal | None
MOST_CATEGORIES = 1000
MOST_VALUES = 2**28  # after one-hot encoding of categories
MISSING = ("", "nan", "na", "n/a", "null", "none")
# Numbers with a decimal comma, grouped thousands, a percent sign, a currency or a minus sign other
# than the hyphen. Each value would become its own category.
FOREIGN = re.compile(
    r"[-+]?\d[\d.,']*[,'][\d.,']*%?|[-+]?[\d.,]+\s?%"
    r"|[-+]?\d{1,3}([ \xa0\u202f]\d{3})+([.,]\d+)?"
    r"|[-+]?[$€£¥]\s?\d[\d.,']*|[-+]?\d[\d.,']*\s?[$€£¥]|\u2212\d[\d.,']*",
    re.ASCII,
)
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?", re.ASCII)
INTEGER = re.compile(r"[-+]?\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class Column:
    """A column of a table file: its name and its values.

    Attributes:
        name: Name of the column.
        cells: Values of the column, as text or with the types of the file.
        locate: Function from the index of a row to the file and row number that errors show.
    """

    name: str
    cells: Sequence[Cell]
    locate: Callable[[int], str]

    def at(self, row: int) -> str:
        """Return the file, row and column of a value, to show in an error."""
        return f"{self.locate(row)}: {self.name}"

    def error(
        self, row: int, message: str, *, expected: str | None = None, hint: str | None = None
    ) -> DataError:
        """Build an error about the value of a row."""
        cell = abbreviate(self.cells[row])
        return DataError(message, where=self.at(row), found=cell, expected=expected, hint=hint)

    @functools.cached_property
    def _stripped(self) -> Series:
        """Values without leading and trailing blanks."""
        import pandas  # takes half a second

        for row, cell in enumerate(self.cells):
            if not isinstance(cell, str | int | float | Decimal | None):
                raise DataError(
                    "is neither a number nor text",
                    where=self.at(row),
                    found=type(cell).__name__,
                    hint="turn the column into numbers or text, or omit it",
                )
        cells = [cell.strip() if isinstance(cell, str) else cell for cell in self.cells]
        return pandas.Series(cells, dtype=object)

    @functools.cached_property
    def _missing(self) -> np.ndarray:
        """Whether each value is missing, ``[row]``."""
        text = self._stripped.astype(str).str.lower()
        return (self._stripped.isna() | text.isin(MISSING)).to_numpy()

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """Values as float64 ``[row]``, NaN where a value is not a number."""
        import pandas

        return pandas.to_numeric(self._stripped, errors="coerce").to_numpy(np.float64, copy=True)

    @property
    def mostly_numeric(self) -> bool:
        """Whether most values are numbers."""
        return bool((~np.isnan(self._numbers)).sum() * 2 > len(self.cells))

    @property
    def fractional(self) -> int | None:
        """Index of the first row whose value is not an integer; None if there is none."""
        for row, cell in enumerate(self.cells):
            if isinstance(cell, bool) or not INTEGER.fullmatch(str(cell).strip()):
                return row
        return None

    def check_category(self, otherwise: str) -> None:
        """Check that a column that is read as a category does not contain numbers or free text.

        Args:
            otherwise: Hint of the error, for users whose column is a category.

        Raises:
            DataError: If most values are numbers in an unusual notation, or if most values have
                several words and are distinct.
        """
        foreign = [bool(FOREIGN.fullmatch(str(cell).strip())) for cell in self.cells]
        # Plain numbers count, too: in a column of 1,5 and 2, neither kind need be the majority.
        numbers = np.array(foreign) | ~np.isnan(self._numbers)
        if any(foreign) and numbers.sum() * 2 > len(foreign):
            expected = "numbers such as 1.5 for 1,5 or 1234 for 1,234"
            question = "is it a number or a category?"
            raise self.error(foreign.index(True), question, expected=expected, hint=otherwise)
        rows = [row for row, cell in enumerate(self.cells) if len(str(cell).split()) > 2]
        if len(rows) * 2 > len(self.cells) and len(set(self.cells)) * 2 > len(self.cells):
            raise self.error(
                rows[0], "is it a text or a category?", expected=self.as_text, hint=otherwise
            )

    @property
    def as_text(self) -> str:
        """Settings of `data` with which this column would be read as texts, for error messages."""
        return f"text: {self.name}, tokenizer: tokenizer.json, length: 128"

    def sentences(self) -> list[str]:
        """Return the texts unchanged, including leading and trailing blanks.

        Raises:
            DataError: If a text is missing or empty, or all values are numbers.
        """
        for row, cell in enumerate(self.cells):
            if cell is None or not str(cell).strip() or cell != cell:  # NaN differs from itself
                raise self.error(row, "the text is missing", hint="remove the row, or fill it")
            if not isinstance(cell, str):
                raise self.error(
                    row,
                    "is not a text",
                    hint="texts are for a tokenizer; use numbers as columns",
                )
        if (self._missing | ~np.isnan(self._numbers)).all():
            raise self.error(0, "is not a text: all values are numbers", hint="name another column")
        return [str(cell) for cell in self.cells]

    def texts(self) -> list[str]:
        """Return the values as text.

        Raises:
            DataError: If a value is missing.
        """
        self._complete()
        return list(map(str, self._stripped))

    def numbers(self, otherwise: str | None = None) -> np.ndarray:
        """Return the values as float64 ``[row]``.

        Args:
            otherwise: Hint of the error, for users whose column does not contain numbers.

        Raises:
            DataError: If a value is missing, is not a number, or does not fit into float32.
        """
        self._complete()
        values = self._numbers
        # Negated, so that NaN fails the comparison, too.
        for row in np.flatnonzero(~(np.abs(values) <= torch.finfo(torch.float32).max))[:1]:
            if np.isnan(values[row]):
                raise self.error(
                    row, "is not a number", expected="a number, such as -1.5 or 2e3", hint=otherwise
                )
            raise self.error(row, "is too large for 32 bits")
        # From 2**53 on, float64 cannot represent every integer: identifiers could become equal.
        if (np.abs(values) > 2.0**53).any():
            before, after = len(set(self.cells)), len(np.unique(values))
            if after * 2 <= before:
                raise DataError(
                    "values become equal when they are rounded to 64 bits",
                    where=self.at(0),
                    found=f"{after} of {before} different values",
                    hint="omit the column, or subtract a constant from its values",
                )
        return values

    def flags(self) -> np.ndarray:
        """Return values 0 and 1 as bool ``[row]``.

        Raises:
            DataError: If a value is neither 0 nor 1.
        """
        values = self.numbers()
        for row in np.flatnonzero((values != 0) & (values != 1))[:1]:
            raise self.error(row, "is not 0 or 1")
        return values == 1

    def _complete(self) -> None:
        missing = self._missing
        # Missing values are not filled: how to fill them is up to the user.
        for row in np.flatnonzero(missing)[:1]:
            hint = "fill them, remove the rows, or omit the column"
            raise self.error(
                row,
                "a value is missing",
                hint=f"{missing.sum()} of {len(missing)} are missing: {hint}",
            )


class Features(NamedTuple):
    """Columns of a table converted to numeric features.

    Attributes:
        values: Values of the features, float64 ``[row, feature]``.
        measured: True for a column of numbers, False for a one-hot feature, ``[feature]``.
        names: Name of the column from which each feature was computed.
    """

    values: Tensor
    measured: Tensor
    names: tuple[str, ...]


def features(columns: Sequence[tuple[Column, ColumnKind | None]]) -> Features:
    """Convert columns to numbers; a category becomes a one-hot feature for each value.

    The one-hot features are in the order of the sorted values. A column whose kind is None is
    numeric if most of its values are numbers.

    Raises:
        DataError: If a value is missing or does not have the kind of its column, or if a category
            has too many values.

    Example:
        >>> def column(name, *cells):
        ...     return Column(name, cells, str)
        >>> both = features(
        ...     [(column("age", "3", "5"), None), (column("city", "Rom", "Bern"), None)]
        ... )
        >>> both.values.tolist(), both.measured.tolist()
        ([[3.0, 0.0, 1.0], [5.0, 1.0, 0.0]], [True, False, False])
        >>> both.names
        ('age', 'city', 'city')
    """
    # For each column: its numbers and 0, or the codes of its categories and their number.
    parts: list[tuple[np.ndarray, int]] = []
    for column, kind in columns:
        meant = f"for a column of categories, write columns: {{{column.name}: category}}"
        if measures(column, kind):
            parts.append((column.numbers(meant), 0))
            continue
        if kind is None:
            column.check_category(meant)
        codes, names = number_classes(column.texts())
        if len(names) > MOST_CATEGORIES:
            raise DataError(
                "has too many values for a category",
                where=column.at(0),
                found=f"{len(names)} different values",
                expected=f"at most {MOST_CATEGORIES}",
                hint="list the input columns: columns: […]; for texts, write " + column.as_text,
            )
        parts.append((codes.numpy(), len(names)))
    rows, width = len(parts[0][0]), sum(count or 1 for _, count in parts)
    # Before the tensor is created: a category with a thousand values has a thousand columns.
    check_size(rows * width, MOST_VALUES, "table", columns[0][0].locate(0), "values")
    # float64 until columns are standardised: seconds since 1970 differ only in their last digits.
    values = torch.zeros(rows, width, dtype=torch.float64)
    _fill(values, parts)
    measured = [not count for _, count in parts for _ in range(count or 1)]
    pairs = zip(columns, parts, strict=True)
    names_of_features = (c.name for (c, _), (_, count) in pairs for _ in range(count or 1))
    return Features(values, torch.tensor(measured), tuple(names_of_features))


def _fill(values: Tensor, parts: Sequence[tuple[np.ndarray, int]]) -> None:
    """Write columns next to one another: numbers unchanged, categories one-hot."""
    start = 0
    for part, count in parts:
        if count:
            values[torch.arange(len(values)), start + torch.from_numpy(part)] = 1
        else:
            values[:, start] = torch.from_numpy(part)
        start += count or 1


def measures(column: Column, kind: ColumnKind | None) -> bool:
    """Return whether a column is numeric, from its kind or, without a kind, from its values.

    >>> measures(Column("age", ["3", "5"], str), None)
    True
    """
    return kind == "number" or (kind is None and column.mostly_numeric)


def check_columns(known: Collection[str], keys: Mapping[str, Collection[str]], inputs: str) -> None:
    """Check the column names of a spec.

    All columns must exist. There must be input columns. Columns of targets and of clients must not
    be input columns.

    Args:
        known: The columns of the table.
        keys: Dict from key of `data` to the columns that the key names.
        inputs: Key of `data` for the input columns.

    Raises:
        DataError: If the names are invalid. The error names the key and the column.
    """
    for key, names in keys.items():
        for name in names:
            if name not in known:
                message, where = "there is no such column", f"data.{key}"
                raise DataError(message, where=where, **unknown(name, known))
    if not keys[inputs]:
        raise DataError("leaves no input columns", where=f"data.{inputs}")
    # With the answer among its inputs, a model would be right without learning anything.
    for name in keys[inputs]:
        if any(name in names for key, names in keys.items() if key != inputs):
            message = f"{name} is also the target or the client"
            raise DataError(message, where=f"data.{inputs}", hint=f"remove {name} from {inputs}")


def targets(
    columns: Sequence[Column], task: str | None, *, single: bool = True
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the targets and the names of their classes.

    The names are empty if the targets are numbers. Integers are classes if the experiment does not
    set a task, or sets only an objective.

    Args:
        columns: The target columns.
        task: The learning task.
        single: Whether numbers of one column have the shape ``[row]`` instead of ``[row, 1]``.

    Raises:
        DataError: If a value is missing, or does not have the kind that the task learns.

    Example:
        >>> column = Column("y", ["b", "a"], str)
        >>> targets([column], "classification")
        (tensor([1, 0]), ('a', 'b'))
        >>> targets([Column("y", ["1", "2.5"], str)], "regression")
        (tensor([1.0000, 2.5000]), ())
    """
    first = columns[0]
    if task == "multilabel":
        flags = np.stack([column.flags() for column in columns], 1)
        return torch.from_numpy(flags), tuple(column.name for column in columns)
    if task == "regression":
        otherwise = "to predict classes, write task: classification"
        exact = torch.from_numpy(np.stack([column.numbers(otherwise) for column in columns], 1))
        check_apart(exact, exact.float(), first.locate(0), [column.name for column in columns])
        return exact[:, 0].float() if single else exact.float(), ()
    if not single:
        raise DataError(
            "has several columns",
            where="data.target",
            found=f"task: {task}" if task else "no task",
            expected="one column, or task: regression or multilabel",
        )
    texts = first.texts()  # none is missing
    row = first.fractional
    if row is not None and task != "classification":
        raise first.error(
            row,
            "could have several meanings",
            expected="whole numbers (classes), or a task",
            hint="write task: classification, or task: regression; for your own objective, "
            "task: {kind: regression, objective: …}",
        )
    _check_written(first, texts)
    if row is not None:
        return number_classes(texts)
    # Sorted as numbers, not as text: class 10 comes after class 9.
    return number_classes(texts, int)


def _check_written(column: Column, texts: Sequence[str]) -> None:
    """Raise if two classes are the same number in different notations."""
    # In a file with missing values, integers become 1.0: another class than 1 in another file.
    written: dict[Decimal, str] = {}
    for text in filter(NUMBER.fullmatch, dict.fromkeys(texts)):
        if (other := written.setdefault(Decimal(text), text)) != text:
            row, first = texts.index(text), column.locate(texts.index(other))
            raise column.error(row, f"is the same number as {other!r} in {first}")
