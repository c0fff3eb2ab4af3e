"""The YAML of studies: a table, the experiments of its cells, and comparisons."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from archgraph.errors import SpecError
from archgraph.fields import Base, Mistake, Natural, Place, Version
from archgraph.hints import listed, optional_module, unknown
from archgraph.language.document import Document, FromFile
from archgraph.language.experiment import ExperimentSpec
from archgraph.language.linked import read_experiment
from archgraph.language.yaml import read_document
from archgraph.plain import Json

StudySizeName = Literal["paper", "small"]
# Models without a network, which are baselines for the methods.
TRIVIAL = "majority_class softmax_regression nearest_neighbours".split()

# Keys of an experiment, and `values`. The keys in `_MERGED` are changed setting by setting; all
# other keys are replaced as a whole.
_Changes = dict[str, Json]
_MERGED = frozenset("aggregate attack data engine evaluate local validation values weights".split())
# {name} in a text stands for a value of the row or the column.
_VALUE = re.compile(r"\{(\w+)\}")
# Names of measures. The names of a run's metrics and models are known only after the run.
_MEASURES = re.compile(
    r"(?:validation_)?(?:worst|average|global|local|worst_tenth)_\w+|(?:trained|best_local)_\w+"
    r"|(?:tier|(?:validation_)?(?:models|clients))\..+\.\w+"
    r"|seconds|server_seconds|megabytes_(?:down|up)|macs|mace|epochs|tmac|lost"
)
_REACH = re.compile(r"reach\.(0?\.\d+|1)\.(\w.*)")
_Text = Annotated[str, Field(min_length=1)]


class StudyFigure(Base):
    """A value that the table shows for each cell: a metric of the cell's runs."""

    measure: _Text = Field(
        description="name of a column of `archgraph compare`: worst_accuracy, average_accuracy, "
        "global_accuracy, validation_global_accuracy, global_perplexity, seconds, "
        "local_accuracy (each client is tested on its own classes), local_matched (each client "
        "is tested on its own class distribution), worst_tenth_matched (the same, as the mean "
        "over the worst tenth of the clients), tier.NAME.matched (the same for one tier), "
        "clients.PATTERN.accuracy (mean over the tested models whose name matches, weighted by "
        "their numbers of clients), models.PATTERN.accuracy (unweighted mean over these "
        "models). reach.TARGET.MEASURE: T·E (rounds times local epochs) until MEASURE first "
        "reaches TARGET; a run that never reaches TARGET counts with its whole T·E, and the "
        "table marks the cell. {name} is replaced by the entry `name` of the cell's `values`"
    )
    last: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="average over the tests in the last rounds: a fraction of all rounds (< 1), "
        "or a number of rounds; default: only the last test",
    )
    within: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="use only tests before training has used this number of "
        "multiply–accumulates (forward and backward, all clients together), to compare methods "
        "at equal cost; default: all tests",
    )
    unit: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="unit of the values in the paper, e.g. 1e12"
    )
    digits: Natural = Field(default=2, description="number of digits after the decimal point")

    @property
    def target(self) -> tuple[float, str] | None:
        """Target and measure of ``reach.TARGET.MEASURE``; None for other measures."""
        parts = _REACH.fullmatch(self.measure)
        return None if parts is None else (float(parts[1]), parts[2])

    @property
    def quantity(self) -> str:
        """Metric of the measure, such as `accuracy` for `worst_accuracy`."""
        return "epochs" if self.target else self.measure.replace(".", "_").split("_")[-1]


class StudySize(Base):
    """Changes of the experiments for one size of the study."""

    about: str = Field(default="", description="how this size differs from the paper")
    experiment: _Changes = Field(default={}, description="changes of the experiment in every cell")
    rows: dict[str, _Changes] = Field(
        default={}, description="row → changes of the experiment in its cells"
    )
    columns: dict[str, _Changes] = Field(
        default={},
        description="column, or one part of a combined column name → changes of the experiment "
        "in these cells",
    )
    seeds: Annotated[tuple[Natural, ...], Field(min_length=1)] = Field(
        default=(0,), description="seeds; each cell has one run per seed"
    )
    leave_out: tuple[_Text, ...] = Field(
        default=(), description="additional cells that this size omits"
    )


class StudySpec(FromFile):
    """A table of experiments: each row and column changes settings of one shared experiment."""

    archgraph: Version = 1
    study: _Text = Field(
        description="paper and table that the study reproduces, e.g. RecipFL, Table 3"
    )
    about: str = Field(default="", description="notes for readers of the table")
    experiment: _Changes = Field(description="keys of the experiment that all cells share")
    rows: Annotated[dict[str, _Changes], Field(min_length=1)] = Field(
        description="row → changes of the experiment. {trivial: NAME}: the row shows the results "
        f"of a model without hidden layers, one of {', '.join(TRIVIAL)}"
    )
    columns: dict[str, _Changes] | tuple[dict[str, _Changes], ...] = Field(
        default_factory=lambda: {"": _Changes()},
        description="column → changes of the experiment. With several mappings, every "
        "combination of their entries is a column, which is named `a, b`; the entries of the "
        "last mapping vary fastest",
    )
    figures: Annotated[dict[str, StudyFigure | _Text], Field(min_length=1)] = Field(
        description="values that the table shows for each cell: name → the name of a metric, "
        "or a metric with options"
    )
    published: dict[str, tuple[float | None, ...]] = Field(
        default={},
        description="row → list of published numbers: for each column, one number per entry of "
        "`figures`; null: the paper does not report the number. The table shows them below the "
        "measured values",
    )
    compare: tuple[Annotated[tuple[_Text, ...], Field(min_length=2, max_length=2)], ...] = Field(
        default=(),
        description="pairs of rows, or pairs of columns (or parts of combined column names). "
        "For each pair, the table shows the difference between runs with the same seeds, with "
        "its confidence interval: rows in every column, columns in every row",
    )
    leave_out: tuple[_Text, ...] = Field(
        default=(),
        description="cells that the study omits: a row, a column, a part of combined column "
        "names, or `row | column`; * and ? are wildcards",
    )
    sizes: dict[StudySizeName, StudySize] = Field(
        default={"paper": StudySize()},
        description="sizes of the study. paper: the published settings; small: for two CPU cores",
    )

    @property
    def parts(self) -> tuple[Mapping[str, _Changes], ...]:
        """The dicts in ``columns``. Each column of the table combines one key of each dict."""
        return (self.columns,) if isinstance(self.columns, dict) else self.columns

    @property
    def read(self) -> dict[str, StudyFigure]:
        """Dict from each name in ``figures`` to its metric, including the metric's options."""
        return {
            k: StudyFigure(measure=v) if isinstance(v, str) else v for k, v in self.figures.items()
        }

    @property
    def _cell_names(self) -> str:
        """Patterns of cells, for errors."""
        rows, columns = ", ".join(self.rows), listed(list(filter(None, self.combined())), 8)
        text = f"ROW, COLUMN or 'ROW | COLUMN', with * and ?; rows: {rows}"
        return f"{text}; columns: {columns}" if columns else text

    def combined(self) -> dict[str, tuple[str, ...]]:
        """Return a dict from each column name, such as ``a, b``, to its parts ``("a", "b")``.

        A column combines one key of each dict in ``columns``. These keys are its parts.
        """
        combinations = itertools.product(*self.parts)
        return {", ".join(filter(None, names)): names for names in combinations}

    def addresses(self) -> Iterator[_Address]:
        """Yield a tuple (row, column, parts of the column's name) for each cell of the table.

        Cells that ``leave_out`` omits are included.
        """
        for row, (column, parts) in itertools.product(self.rows, self.combined().items()):
            yield row, column, parts

    def matching(self, patterns: Sequence[str]) -> frozenset[tuple[str, str]]:
        """Return the cells that match at least one pattern, as pairs of row and column.

        The patterns are written as in ``leave_out``.

        Raises:
            SpecError: If a pattern does not match any cell.
        """
        cells: set[tuple[str, str]] = set()
        for pattern in patterns:
            of_pattern = {c[:2] for c in self.addresses() if _matches(pattern, c)}
            if not of_pattern:
                raise SpecError(
                    "does not match any cell",
                    where=self.study,
                    found=pattern,
                    expected=self._cell_names,
                )
            cells |= of_pattern
        return frozenset(cells)

    def printed(self, row: str, column: str, figure: str) -> float | None:
        """Return the published value of a metric in a cell, or None if none was published."""
        start = list(self.combined()).index(column) * len(self.figures)
        values = self.published.get(row)
        return None if values is None else values[start + list(self.figures).index(figure)]

    def compared(self, pair: Sequence[str]) -> Iterator[tuple[_Pair, _Pair]]:
        """Yield the pairs of cells that are compared for one item of ``compare``.

        If the item names two rows, their cells are compared in each column. If the item names two
        columns, their cells are compared in each row. If the item names two parts of column names,
        such as ``a`` and ``b``, each column with the part ``a`` is compared with the column that
        has ``b`` in its place. Cells that ``leave_out`` omits are included. Each cell is a tuple of
        row name and column name.
        """
        one, other = pair
        for row, column, parts in self.addresses():
            if row == one:
                yield (row, column), (other, column)
            elif one in parts:
                changed = (other if part == one else part for part in parts)
                yield (row, column), (row, ", ".join(filter(None, changed)))

    def _check_left_out(self, keys: Place, patterns: Sequence[str]) -> None:
        """Raise an error if a pattern does not match any cell."""
        for i, pattern in enumerate(patterns):
            if not any(_matches(pattern, cell) for cell in self.addresses()):
                raise Mistake(
                    "does not omit any cell",
                    place=(*keys, i),
                    found=pattern,
                    expected=self._cell_names,
                )

    @pydantic.model_validator(mode="after")
    def _complete(self) -> StudySpec:
        expected = len(self.combined()) * len(self.figures)
        for row, values in self.published.items():
            _known(row, self.rows, ("published", row), "row")
            # A missing number would shift all following numbers to other columns.
            if len(values) != expected:
                raise Mistake(
                    f"has {len(values)} numbers instead of {expected}, one for each column and "
                    "figure",
                    place=("published", row),
                )
        parts = [name for part in self.parts for name in part]
        for size, changes in self.sizes.items():
            for i, seed in enumerate(changes.seeds):
                # A paired test would count one run twice.
                if seed in changes.seeds[:i]:
                    keys: Place = ("sizes", size, "seeds", i)
                    raise Mistake("occurs twice", place=keys, found=seed)
            for row in changes.rows:
                _known(row, self.rows, ("sizes", size, "rows", row), "row")
            for name in changes.columns:
                key = ("sizes", size, "columns", name)
                _known(name, (*parts, *self.combined()), key, "column")
        self._check_left_out(("leave_out",), self.leave_out)
        for size, changes in self.sizes.items():
            self._check_left_out(("sizes", size, "leave_out"), changes.leave_out)
        for i, (one, other) in enumerate(self.compare):
            _known(one, (*self.rows, *parts), ("compare", i, 0), "row or column")
            # Only names of one mapping can be exchanged.
            alike = next(of for of in (self.rows, *self.parts) if one in of)
            _known(other, alike, ("compare", i, 1), "row or column")
            if one == other:
                raise Mistake(
                    "compares a row or column with itself", place=("compare", i), found=one
                )
        return self


_Pair = tuple[str, str]
# A cell: its row, its column, and the parts of the column's name.
_Address = tuple[str, str, tuple[str, ...]]


def _matches(pattern: str, cell: _Address) -> bool:
    row, column, parts = cell
    names = (f"{row} | {column}",) if "|" in pattern else (row, column, *parts)
    return any(fnmatchcase(name, pattern) for name in names)


def _known(name: str, names: Collection[str], keys: Place, kind: str) -> None:
    if name not in names:
        raise Mistake(f"is not a {kind}", place=keys, **unknown(name, names))


@dataclass(frozen=True)
class StudyCell:
    """A cell of a study: the experiment of a row and a column.

    Attributes:
        row: Name of the row.
        column: Name of the column.
        experiment: The experiment, for the first seed.
        figures: Dict from name to metric of the cell's runs, with the cell's values filled in.
        trivial: Name of a model in :data:`TRIVIAL` that replaces the run; empty for a run.
    """

    row: str
    column: str
    experiment: ExperimentSpec
    figures: Mapping[str, StudyFigure]
    trivial: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Row and column."""
        return self.row, self.column


def load_study(path: str | os.PathLike[str]) -> StudySpec:
    """Read a study file. Pass the result to :func:`cells` to get the experiments.

    Raises:
        SpecError: If the study is invalid (the message names file, line and key); if the study
            requires scipy, which is not installed.
    """
    document = read_document(path)
    study = document.validate(StudySpec).read_from(document)
    trivial = {row.get("trivial") for row in study.rows.values()}
    if study.compare or "softmax_regression" in trivial:
        optional_module("scipy", kind=SpecError, where=str(path))
    return study


def cells(study: StudySpec, size: StudySizeName) -> tuple[StudyCell, ...]:
    """Return the cells of a study in one size, row by row.

    Raises:
        SpecError: If the study has no such size, or a cell is not a valid experiment; names file
            and line.
    """
    document = study.document_of(("sizes",))
    changes = study.sizes.get(size)
    if changes is None:
        document.fail(("sizes",), "has no such size", **unknown(size, list(study.sizes)))
    left_out = (*study.leave_out, *changes.leave_out)
    # Many cells may show the same run. They share its experiment, which is named after the first
    # cell.
    part, known = functools.cache(document.sub), dict[str, ExperimentSpec]()
    return tuple(
        _cell(study, size, address, part, known)
        for address in study.addresses()
        if not any(_matches(pattern, address) for pattern in left_out)
    )


def _cell(
    study: StudySpec,
    size: StudySizeName,
    address: _Address,
    part: Callable[[Place], Document],
    known: dict[str, ExperimentSpec],
) -> StudyCell:
    row, column, names = address
    in_columns: list[Place] = [
        ("columns", name) if isinstance(study.columns, dict) else ("columns", i, name)
        for i, name in enumerate(names)
    ]
    # Later parts override earlier ones: shared keys, then row and column, then size.
    keys: list[Place] = [
        ("experiment",),
        ("rows", row),
        *in_columns,
        ("sizes", size, "experiment"),
        ("sizes", size, "rows", row),
        *(("sizes", size, "columns", name) for name in dict.fromkeys((*names, column))),
    ]
    merged, values, trivial = _merged([part(key) for key in keys])
    if trivial and trivial not in TRIVIAL:
        study.document_of(("rows", row)).fail(
            ("rows", row, "trivial"), "is not a trivial model", **unknown(trivial, TRIVIAL)
        )
    data = {
        "name": ", ".join(filter(None, (study.study, row, column))),
        "seed": study.sizes[size].seeds[0],
        **merged.data,
    }
    document = Document(merged.file, data, merged.lines)
    figures = {
        name: _with_values(study, document, name, figure, values)
        for name, figure in study.read.items()
    }
    # Compared as text: 1, 1.0 and True are equal in Python but not in an experiment.
    run = repr({**data, "name": "", "trivial": trivial})
    if run not in known:
        known[run] = read_experiment(document)
    return StudyCell(row, column, known[run], figures, trivial)


def _with_values(
    study: StudySpec,
    document: Document,
    name: str,
    figure: StudyFigure,
    values: Mapping[str, Json],
) -> StudyFigure:
    """Return a metric with the cell's values filled into its name."""
    keys = ("figures", name)
    measure = str(_filled(document, figure.measure, values, keys))
    filled = figure.model_copy(update={"measure": measure})
    read = filled.target[1] if filled.target else measure
    if not _MEASURES.fullmatch(read):
        metric = read.rpartition("_")[2]
        names = [f"{which}_{metric}" for which in ("average", "worst", "global", "local")]
        names += ["trained_" + metric, "seconds", "macs", "megabytes_down", "models.NAME." + metric]
        study.document_of(keys).fail(keys, "is not a known metric", **unknown(read, names))
    return filled


def _merged(parts: Sequence[Document]) -> tuple[Document, Mapping[str, Json], str]:
    """Merge parts of a file. Return the experiment, the cell's values and its trivial model.

    1. A later part replaces a key. In a mapping of settings, it replaces only the settings that it
       contains.
    2. Line numbers are merged, too, so that errors point to the part that a setting comes from.
    3. `null` removes a setting. Values are filled into the remaining texts.
    """
    data: dict[str, Json] = {}
    lines: dict[Place, int] = {(): 1}
    for part in parts:
        for key, value in (part.data or {}).items():  # 1
            both = key in _MERGED and isinstance(value, dict) and isinstance(data.get(key), dict)
            fresh: list[Place] = [(key, inner) for inner in value] if both else [(key,)]  # 2
            lines = _replaced(lines, part.lines, fresh)
            lines.setdefault((key,), part.lines.get((key,), 1))
            data[key] = {**data[key], **value} if both else value
            if both:  # 3
                data[key] = {k: v for k, v in data[key].items() if v is not None}
    values, trivial = data.pop("values", {}), data.pop("trivial", "")
    if trivial:  # the strategy is not used; this one accepts any family
        data["strategy"] = {"standalone": {}}
    settings = {key: value for key, value in data.items() if value is not None}
    document = Document(parts[0].file, settings, lines)
    return Document(document.file, _filled(document, settings, values, ()), lines), values, trivial


def _replaced(
    lines: Mapping[Place, int], later: Mapping[Place, int], fresh: Sequence[Place]
) -> dict[Place, int]:
    """Return line numbers in which some keys come from a later part."""
    before = {k: v for k, v in lines.items() if not any(_below(k, f) for f in fresh)}
    return before | {k: v for k, v in later.items() if any(_below(k, f) for f in fresh)}


def _below(keys: Place, above: Place) -> bool:
    return keys[: len(above)] == above


def _filled(document: Document, value: Json, values: Mapping[str, Json], keys: Place) -> Json:
    """Insert the study's values into texts.

    A text that is only `{name}` becomes the value itself.
    """
    match value:
        case dict():
            return {k: _filled(document, v, values, (*keys, k)) for k, v in value.items()}
        case tuple() | list():
            return tuple(_filled(document, v, values, (*keys, i)) for i, v in enumerate(value))
        case str():
            for name in _VALUE.findall(value):
                if name not in values:
                    document.fail(
                        keys, "is not in the `values` of the cell", **unknown(name, values)
                    )
            only = _VALUE.fullmatch(value)
            if only is not None:  # not converted to text: a number stays a number
                return values[only[1]]
            return _VALUE.sub(lambda match: str(values[match[1]]), value)
        case _:
            return value
