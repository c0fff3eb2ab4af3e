"""Rows of a CSV or Parquet file, as `data: {table: …}` names them."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archgraph.data.columns import (
    MOST_VALUES,
    Column,
    Features,
    clients,
    features,
    target_columns,
    targets,
)
from archgraph.data.extras import extra
from archgraph.data.files import MOST_BYTES, decode_text
from archgraph.data.rows import SHARE, Records, check_apart, dataset_of_rows, parted
from archgraph.data.values import Dataset
from archgraph.errors import DataError
from archgraph.hints import unknown
from archgraph.language.data import ColumnKind, TableData

MOST_TABLE = MOST_BYTES >> 2  # each value becomes an object of Python's


def read(spec: TableData) -> Dataset:
    """Read the rows in the order of the file; standardise numbers by the training rows.

    Raises:
        DataError: If a column is not there, or a value is missing or of another kind; says in which
            row.
    """
    path = Path(spec.table)
    table = _table(path, spec.separator)
    count = len(next(iter(table.values())).cells)
    asked, seen = target_columns(spec.target), _seen(spec, table)
    owned = None if spec.client is None else clients(table[spec.client])
    if isinstance(spec.test, str):
        more = _table(Path(spec.test), spec.separator)
        table = {name: _longer(table[name], more, spec.test) for name in (*seen, *asked)}
    made = features([(table[name], kind) for name, kind in seen.items()])
    values, labels = targets(spec.target, [table[name] for name in asked])
    rows = Records({"row": made.values if spec.standardise else made.values.float()}, values)
    if isinstance(spec.test, str):
        whole = np.arange(len(rows))
        train, test = rows.at(whole[:count]), rows.at(whole[count:])
        train = dataclasses.replace(train, clients=owned)
    else:
        rows = dataclasses.replace(rows, clients=owned)
        train, test = parted(rows, spec.test or SHARE, "data.test")
    statistics = _statistics(train.inputs["row"], made.measured) if spec.standardise else None
    _check_apart(made, statistics, spec.table)
    return dataset_of_rows(path.stem, "table", train, test, labels=labels, statistics=statistics)


def _seen(spec: TableData, table: Mapping[str, Column]) -> dict[str, ColumnKind | None]:
    """Return the columns that models see, each with the kind that the spec states, if any."""
    asked = target_columns(spec.target)
    client = () if spec.client is None else (spec.client,)
    if isinstance(spec.columns, Mapping):
        seen: dict[str, ColumnKind | None] = {**spec.columns}
    elif spec.columns is not None:
        seen = dict.fromkeys(spec.columns)
    else:
        seen = {name: None for name in table if name not in (*asked, *client)}
    for key, wanted in (("target", asked), ("client", client), ("columns", seen)):
        for name in wanted:
            if name not in table:
                where = f"data.{key}"
                raise DataError("the table has no such column", where=where, **unknown(name, table))
    if both := [name for name in seen if name in (*asked, *client)]:
        raise DataError(
            "is both seen by models and predicted, or the client",
            where="data.columns",
            found=both[0],
            expected="one of them",
            hint=f"leave {both[0]} out of columns",
        )
    if not seen:
        raise DataError(
            "leaves models no column to see",
            where="data.columns",
            found="none",
            expected="a column beside the target",
        )
    return seen


def _statistics(rows: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column of numbers; 0 and 1 of the others; of constants 1, too."""
    least, most = rows.aminmax(dim=0)
    constant = least == most  # whose mean may be rounded
    deviation = rows.std(0, correction=0)
    mean = torch.where(constant, least, rows.mean(0))
    counted = measured & ~constant & (deviation > 0)
    return torch.where(measured, mean, 0.0), torch.where(counted, deviation, 1.0)


def _check_apart(made: Features, statistics: tuple[Tensor, Tensor] | None, where: str) -> None:
    """Raise if models, who see 32 bits, cannot tell most values of a column of numbers apart."""
    exact = made.values[:, made.measured]
    scaled, hint = exact, "leave out standardise: false, or subtract what they have in common"
    if statistics is not None:
        mean, deviation = (each[made.measured] for each in statistics)
        scaled, hint = (
            (exact - mean) / deviation,
            "subtract what they have in common, or use their logarithms",
        )
    pairs = zip(made.names, made.measured.tolist(), strict=True)
    check_apart(exact, scaled.float(), where, [name for name, counts in pairs if counts], hint)


def _longer(column: Column, more: Mapping[str, Column], file: str) -> Column:
    """Append to a column the cells of that column in the file of test rows."""
    if column.name not in more:
        raise DataError("the table has no such column", where=file, **unknown(column.name, more))
    other, count = more[column.name], len(column.cells)

    def place(row: int) -> str:
        return column.place(row) if row < count else other.place(row - count)

    return Column(column.name, [*column.cells, *other.cells], place)


def _table(path: Path, separator: str) -> dict[str, Column]:
    """Columns by name."""
    if path.stat().st_size > MOST_TABLE:
        raise DataError(
            "file too long",
            where=str(path),
            found=f"{path.stat().st_size:,} bytes",
            expected=f"at most {MOST_TABLE:,} bytes",
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
    text = decode_text(path.read_bytes(), str(path), "save it as UTF-8")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[Sequence[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        for row in reader:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                raise DataError(
                    "a row has another number of values",
                    where=f"{path}:{reader.line_num}",
                    found=len(row),
                    expected=f"{len(header)}, as the first line has names",
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise DataError("is not CSV", where=where, found=str(error)) from error
    _check_header(header, f"{path}:1")
    other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
    if other is not None and other != separator:
        raise DataError(
            "the table has one column only",
            where=f"{path}:1",
            found=header[0],
            expected=f"names with {separator!r} between them",
            hint=f"write separator: {other!r}" if other != "\t" else 'write separator: "\\t"',
        )

    def place(row: int) -> str:
        return f"{path}:{lines[row]}"

    return {name: Column(name, [row[i] for row in rows], place) for i, name in enumerate(header)}


def _parquet(path: Path, separator: str) -> dict[str, Column]:
    """Columns of a Parquet file."""
    parquet = extra("pyarrow.parquet", "data", "data.table")
    try:
        schema = parquet.read_schema(path)
        _check_header(schema.names, str(path))
        texts = [one.name for one in schema if _is_text(one.type)]
        # A text that occurs a million times is in the file once: so it stays until it is counted.
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            _check_size(file.metadata, path)
            table = file.read()
        _check_bytes(sum(map(_text_bytes, table.columns)), path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of both
        raise DataError("is not a Parquet file", where=str(path), found=str(error)) from error

    def place(row: int) -> str:
        return f"{path}: row {row + 1}"

    return {name: Column(name, _cells(table, name, path), place) for name in table.column_names}


def _check_header(names: Sequence[str], where: str) -> None:
    """Raise unless each column has a name of its own."""
    for i, name in enumerate(names):
        if not name or name in names[:i]:
            raise DataError(
                "columns need different names",
                where=where,
                found=repr(name),
                expected="a name for each column, each once",
            )


def _check_size(metadata: Any, path: Path) -> None:
    """Raise if a Parquet file becomes too large once it is decompressed."""
    groups = range(metadata.num_row_groups)
    values = metadata.num_rows * metadata.num_columns
    if values > MOST_VALUES:
        raise DataError(
            "the table is too large",
            where=str(path),
            found=f"{values:,} values",
            expected=f"at most {MOST_VALUES:,} values",
        )
    _check_bytes(sum(metadata.row_group(i).total_byte_size for i in groups), path)


def _check_bytes(found: int, path: Path) -> None:
    if found > MOST_BYTES:
        raise DataError(
            "the table is too large",
            where=str(path),
            found=f"{found:,} bytes",
            expected=f"at most {MOST_BYTES:,} bytes",
        )


def _is_text(kind: Any) -> bool:
    types = extra("pyarrow.types", "data", "data.table")
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _text_bytes(column: Any) -> int:
    """Bytes of a column of texts, each counted as often as it occurs; 0 for other columns."""
    compute, types = (
        extra(f"pyarrow.{name}", "data", "data.table") for name in ("compute", "types")
    )
    if not types.is_dictionary(column.type):
        return 0
    lengths = (compute.binary_length(one.dictionary).take(one.indices) for one in column.chunks)
    return sum(compute.sum(one).as_py() or 0 for one in lengths)


def _cells(table: Any, name: str, path: Path) -> list[Any]:
    """Return a column of a Parquet file as Python values."""
    try:
        cells: list[Any] = table.column(name).to_pylist()
    except (ValueError, OverflowError) as error:  # a time that Python cannot express, say
        raise DataError("cannot be read", where=f"{path}: {name}", found=str(error)) from error
    return cells
