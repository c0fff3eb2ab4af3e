"""Rows of a CSV or Parquet file, as `data: {table: …}` names them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from archgraph.engine.data.columns import (
    Column,
    clients,
    features,
    target_columns,
    targets,
)
from archgraph.engine.data.extras import extra
from archgraph.engine.data.files import MOST_BYTES, decoded
from archgraph.engine.data.rows import SHARE, Records, dataset_of_rows, parted
from archgraph.engine.data.values import Dataset
from archgraph.errors import DataError
from archgraph.hints import unknown
from archgraph.language.data import TableData

MOST_VALUES = 2**28
"""Values of a table, once categories are columns of 0 and 1."""


def read(spec: TableData) -> Dataset:
    """The rows, in the order of the file; numbers standardised by those to train on.

    Raises:
        DataError: If a column is not there, or a value is missing or of another kind; says in which
            row.
    """
    path = Path(spec.table)
    table = _table(path, spec.separator)
    count = len(next(iter(table.values())).cells)
    if isinstance(spec.test, str):
        more = _table(Path(spec.test), spec.separator)
        table = {name: _longer(column, more, spec.test) for name, column in table.items()}
    asked = target_columns(spec.target)
    kinds: Mapping[str, object] = spec.columns if isinstance(spec.columns, Mapping) else {}
    taken = (*asked, *filter(None, [spec.client]))
    names = tuple(spec.columns or (name for name in table if name not in taken))
    for key, wanted in (("target", asked), ("client", taken[len(asked) :]), ("columns", names)):
        for name in wanted:
            if name not in table:
                where = f"data.{key}"
                raise DataError("the table has no such column", where=where, **unknown(name, table))
    if both := [name for name in names if name in taken]:
        raise DataError(
            "is both seen by models and predicted, or the client",
            where="data.columns",
            found=both[0],
            expected="one of them",
            hint=f"leave {both[0]} out of columns",
        )
    if not names:
        raise DataError("leaves models no column to see", where="data.columns", found="none")
    made = features([(table[name], kinds.get(name)) for name in names])  # type: ignore[misc]
    if made.values.numel() > MOST_VALUES:
        raise DataError(
            "the table is too large",
            where=str(path),
            found=f"{list(made.values.shape)} values",
            expected=f"at most {MOST_VALUES:,}",
        )
    values, labels = targets(spec.target, [table[name] for name in asked])
    owned = None if spec.client is None else clients(table[spec.client])
    rows = Records({"row": made.values}, values, owned)
    if isinstance(spec.test, str):
        whole = torch.arange(len(rows)).numpy()
        train, test = rows.at(whole[:count]), rows.at(whole[count:])
    else:
        train, test = parted(rows, spec.test or SHARE, "data.test")
    statistics = _statistics(train.inputs["row"], made.measured) if spec.standardise else None
    return dataset_of_rows(path.stem, "table", train, test, labels=labels, statistics=statistics)


def _statistics(rows: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column of numbers; 0 and 1 of the others, and of constants."""
    exact = rows.double()
    deviation = exact.std(0, correction=0)
    counted = measured & (deviation > 0)
    mean = torch.where(measured, exact.mean(0), 0.0)
    return mean.float(), torch.where(counted, deviation, 1.0).float()


def _longer(column: Column, more: Mapping[str, Column], file: str) -> Column:
    """A column with that of the file of test rows behind it."""
    if column.name not in more:
        raise DataError("the table has no such column", where=file, **unknown(column.name, more))
    other = more[column.name]
    cells, places = [*column.cells, *other.cells], [*column.places, *other.places]
    return Column(column.name, cells, places)


def _table(path: Path, separator: str) -> dict[str, Column]:
    """Columns by name."""
    if path.stat().st_size > MOST_BYTES:
        raise DataError(
            "file too long",
            where=str(path),
            found=f"{path.stat().st_size:,} bytes",
            expected=f"at most {MOST_BYTES:,} bytes",
        )
    readers = {".csv": _csv, ".parquet": _parquet}
    if path.suffix.lower() not in readers:
        raise DataError(
            "is not a table",
            where=str(path),
            found=path.suffix or "no ending",
            expected=" or ".join(readers),
        )
    table = readers[path.suffix.lower()](path, separator)
    if not table or not len(next(iter(table.values())).cells):
        raise DataError("the table has no rows", where=str(path), expected="a header, and rows")
    return table


def _csv(path: Path, separator: str) -> dict[str, Column]:
    """Columns of a CSV file: text, whose first line names them."""
    text = decoded(path.read_bytes(), str(path), "save it as UTF-8")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[Sequence[str]] = []
    places: list[str] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        for row in reader:
            if not row:  # an empty line
                continue
            place = f"{path}:{reader.line_num}"
            if len(row) != len(header):
                raise DataError(
                    "a row has another number of values",
                    where=place,
                    found=len(row),
                    expected=f"{len(header)}, as the first line has names",
                )
            rows.append(row)
            places.append(place)
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise DataError("is not CSV", where=where, found=str(error)) from error
    for i, name in enumerate(header):
        if not name or name in header[:i]:
            raise DataError(
                "columns need different names",
                where=f"{path}:1",
                found=repr(name),
                expected="a name for each column, each once",
            )
    other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
    if other is not None and other != separator:
        raise DataError(
            "the table has one column only",
            where=f"{path}:1",
            found=header[0],
            expected=f"names with {separator!r} between them",
            hint=f"write separator: {other!r}" if other != "\t" else 'write separator: "\\t"',
        )
    return {name: Column(name, [row[i] for row in rows], places) for i, name in enumerate(header)}


def _parquet(path: Path, separator: str) -> dict[str, Column]:
    """Columns of a Parquet file."""
    parquet = extra("pyarrow.parquet", "data", "data.table")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of both
        raise DataError("is not a Parquet file", where=str(path), found=str(error)) from error
    places = [f"{path}: row {number}" for number in range(1, table.num_rows + 1)]
    return {
        name: Column(name, table.column(name).to_pylist(), places) for name in table.column_names
    }
