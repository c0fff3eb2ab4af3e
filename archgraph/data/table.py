"""Rows of a CSV or Parquet file, for `data: {table: …}`."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archgraph.data.columns import (
    MOST_VALUES,
    Column,
    Features,
    check_columns,
    features,
    targets,
)
from archgraph.data.files import MOST_BYTES, check_size, decode_text, readable
from archgraph.data.rows import Records, check_apart, dataset_of_rows, divided
from archgraph.data.tokens import dataset_of_texts
from archgraph.data.values import Dataset, Split
from archgraph.errors import DataError
from archgraph.hints import optional_module
from archgraph.language.data import ColumnKind, TableData, column_names

if TYPE_CHECKING:
    from pandas import DataFrame

# Names of the columns in which pandas writes row numbers, or reads and writes them again.
INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+")
MOST_TABLE = MOST_BYTES >> 2  # each value becomes a Python object
WHERE = "data.table"


def read_table(spec: TableData, task: str | None = None) -> Dataset:
    """Read the rows of a table in the order of the file.

    Numbers are standardised with the statistics of the training rows, and texts are encoded as
    tokens.

    Raises:
        DataError: If a column does not exist, or a value is missing or does not have the kind of
            its column. The error names the row.
    """
    path = Path(spec.table)
    # The rows of both files together, so that a category has the same columns in both.
    table, count = table_columns(files_of(spec), spec.separator)
    asked, seen = column_names(spec.target), columns_seen(spec, table)
    clients = None
    if spec.client is not None:  # in the first file only: test rows need no client
        column = table[spec.client]
        clients = tuple(dataclasses.replace(column, cells=column.cells[:count]).texts())
    single = isinstance(spec.target, str)
    answers = targets([table[n] for n in asked], task, single=single) if asked else None
    share, first = (None, count) if isinstance(spec.test, str) else (spec.test, None)
    divide = functools.partial(divided, clients=clients, count=first, share=share)
    if answers is None or spec.text is not None:
        columns = [table[name] for name in seen]
        return dataset_of_texts(path.stem, spec, columns, answers, divide)
    inputs = features([(table[name], kind) for name, kind in seen.items()])
    values, labels = answers
    train, test = divide(
        Records({"row": inputs.values if spec.standardise else inputs.values.float()}, values)
    )
    measure = functools.partial(_statistics, inputs.measured) if spec.standardise else None
    data = dataset_of_rows(path.stem, "table", train, test, labels=labels, measure=measure)
    _check_apart(inputs, data.train, spec.table)
    return data


def columns_seen(spec: TableData, table: Mapping[str, Column]) -> dict[str, ColumnKind | None]:
    """Return the input columns, each with the kind that the spec sets, or None.

    Raises:
        DataError: If the spec names a column that does not exist, or there is no input column.
    """
    asked = column_names(spec.target)
    client = () if spec.client is None else (spec.client,)
    seen: dict[str, ColumnKind | None]
    if spec.text is not None:
        seen = dict.fromkeys(column_names(spec.text))
    elif isinstance(spec.columns, Mapping):
        seen = {**spec.columns}
    elif spec.columns is not None:
        seen = dict.fromkeys(spec.columns)
    else:
        seen = {name: None for name in table if name not in (*asked, *client)}
        # If rows are sorted by class, row numbers would give the class away.
        if (index := next(filter(INDEX.fullmatch, seen), None)) is not None:
            raise DataError(
                "row numbers are not a column to learn from",
                where="data.table",
                found=index,
                hint="save the table without its index, or list the input columns: columns: […]",
            )
    inputs = "columns" if spec.text is None else "text"
    check_columns(table, {"target": asked, "client": client, inputs: seen}, inputs)
    return seen


def _statistics(measured: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of features: 0 and 1 for categories, deviation 1 for constants."""
    least, most = rows.aminmax(dim=0)
    # Rounding may change the mean of a constant, whose deviation is then not 0.
    constant = least == most
    deviation = rows.std(0, correction=0)
    mean = torch.where(constant, least, rows.mean(0))
    counted = measured & ~constant & (deviation > 0)
    return torch.where(measured, mean, 0.0), torch.where(counted, deviation, 1.0)


def _check_apart(inputs: Features, train: Split, where: str) -> None:
    """Raise if most different values of a numeric column become equal in float32."""
    exact = seen = inputs.values
    if train.mean is not None and train.std is not None:
        seen = (exact - train.mean) / train.std
    measured = inputs.measured
    names = [name for name, counts in zip(inputs.names, measured.tolist(), strict=True) if counts]
    check_apart(exact[:, measured], seen[:, measured].float(), where, names)


def files_of(spec: TableData) -> list[Path]:
    """Return the file of a table, and the file of its test rows if that is a separate file."""
    return [Path(spec.table), *([Path(spec.test)] if isinstance(spec.test, str) else [])]


def table_columns(files: Sequence[Path], separator: str) -> tuple[dict[str, Column], int]:
    """Read and concatenate tables; return the columns, and the number of rows of the first table.

    Raises:
        DataError: If a file is not a table, or has no rows.
    """
    import pandas  # takes half a second

    first, *others = (_frame(file, separator).astype(object) for file in files)
    below = [frame.reindex(columns=first.columns) for frame in others]
    starts = [0, *itertools.accumulate(map(len, (first, *others)))]

    def locate(row: int) -> str:
        number = bisect.bisect_right(starts, row) - 1
        return f"{files[number]}: row {row - starts[number] + 1}"

    frame = pandas.concat([first, *below])
    columns = {name: Column(name, cells.tolist(), locate) for name, cells in frame.items()}
    return columns, len(first)


def _frame(path: Path, separator: str) -> DataFrame:
    """Read a table."""
    check_size(path.stat().st_size, MOST_TABLE, "file", path)
    match path.suffix.lower():
        case ".csv":
            frame = _csv(path, separator)
        case ".parquet":
            frame = _parquet(path)
        case _:
            raise DataError("is not a table", where=str(path), expected=".csv or .parquet")
    if frame.empty:
        raise DataError("the table has no rows", where=str(path))
    return frame


def _csv(path: Path, separator: str) -> DataFrame:
    """Read a CSV file, whose first row names the columns, as text."""
    import pandas  # takes half a second

    # pandas gets the text, not the path: it would fetch an address, or unpickle other files.
    text = decode_text(path.read_bytes(), str(path), "save it as UTF-8")
    # Read all as text: the class 07 is not the class 7, and `none` may be a word. Read names as a
    # row: pandas would rename the second of two columns with the same name. The errors of pandas
    # are subclasses of ValueError.
    with readable("table", path, "CSV", (ValueError,), hint=None):
        frame = pandas.read_csv(
            io.StringIO(text), sep=separator, header=None, dtype=object, keep_default_na=False
        )
    names = [name.strip() for name in frame.iloc[0]]
    _check_header(names, str(path))
    return frame.iloc[1:].set_axis(names, axis=1)


def _parquet(path: Path) -> DataFrame:
    """Read a Parquet file."""
    parquet = optional_module("pyarrow.parquet", kind=DataError, where=WHERE)
    # pyarrow's errors are subclasses of these.
    errors = (OSError, ValueError, OverflowError)
    with readable("table", path, "Parquet", errors, hint=None), parquet.ParquetFile(path) as file:
        metadata, names = file.metadata, file.schema_arrow.names
        check_size(metadata.num_rows * len(names), MOST_VALUES, "table", path, "values")
        # The size after decompression: a small file may contain a large table.
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        check_size(sum(g.total_byte_size for g in groups), MOST_BYTES, "table", path)
        _check_header(names, str(path))
        return file.read().to_pandas(ignore_metadata=True)


def _check_header(names: Sequence[str], where: str) -> None:
    """Raise unless all columns have different names."""
    for i, name in enumerate(names):
        if not name or name in names[:i]:
            raise DataError("columns need different names", where=where, found=repr(name))
