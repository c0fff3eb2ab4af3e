"""Rows of a CSV or Parquet file, as `data: {table: …}` names them."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.data.columns import (
    MOST_VALUES,
    Column,
    Features,
    features,
    target_columns,
    targets,
)
from archgraph.data.extras import optional_module
from archgraph.data.files import MOST_BYTES, check_size, decode_text
from archgraph.data.rows import Records, check_apart, dataset_of_rows, parted
from archgraph.data.tokens import dataset_of_texts
from archgraph.data.values import Dataset, Split
from archgraph.errors import DataError
from archgraph.hints import unknown
from archgraph.language.data import ColumnKind, TableData, text_columns

Arrow: TypeAlias = Any
"""A value of pyarrow, which has no types and need not be installed."""
MOST_TABLE = MOST_BYTES >> 2  # each value becomes a Python object
WHERE = "data.table"


def read_table(spec: TableData) -> Dataset:
    """Read the rows in the order of the file; standardise numbers by the training rows.

    Texts become tokens.

    Raises:
        DataError: If a column is not there, or a value is missing or of another kind; says in which
            row.
    """
    path = Path(spec.table)
    table = table_columns(path, spec.separator)
    count = len(next(iter(table.values())).cells)
    asked, seen = target_columns(spec.target), columns_seen(spec, table)
    clients = None if spec.client is None else tuple(table[spec.client].texts())
    if isinstance(spec.test, str):
        more = table_columns(Path(spec.test), spec.separator)
        table = {name: _longer(table[name], more, spec.test) for name in (*seen, *asked)}
    # Of the rows of both files together, so that a category has the same columns in both.
    answers = None if spec.target is None else targets(spec.target, [table[n] for n in asked])

    def divide(rows: Records) -> tuple[Records, Records]:
        if not isinstance(spec.test, str):
            return parted(dataclasses.replace(rows, clients=clients), spec.test)
        positions = np.arange(len(rows))
        train, test = rows.at(positions[:count]), rows.at(positions[count:])
        return dataclasses.replace(train, clients=clients), test

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
    """Return the columns that models see, each with the kind that the spec states, if any.

    Raises:
        DataError: If the spec names a column that is not there, or none is left.
    """
    asked = target_columns(spec.target)
    client = () if spec.client is None else (spec.client,)
    seen: dict[str, ColumnKind | None]
    if spec.text is not None:
        seen = dict.fromkeys(text_columns(spec.text))
    elif isinstance(spec.columns, Mapping):
        seen = {**spec.columns}
    elif spec.columns is not None:
        seen = dict.fromkeys(spec.columns)
    else:
        seen = {name: None for name in table if name not in (*asked, *client)}
    inputs = "columns" if spec.text is None else "text"
    for key, names in (("target", asked), ("client", client), (inputs, seen)):
        for name in names:
            if name not in table:
                where = f"data.{key}"
                raise DataError("the table has no such column", where=where, **unknown(name, table))
    # A model that sees the answer would be right without learning anything.
    for name in seen:
        if name in (*asked, *client):
            message = f"{name} is also the target or the client"
            raise DataError(message, where=f"data.{inputs}", hint=f"leave {name} out of {inputs}")
    if not seen:
        raise DataError("leaves models no column to see", where="data.columns")
    return seen


def _statistics(measured: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of columns: 0 and 1 for categories, deviation 1 for constants."""
    least, most = rows.aminmax(dim=0)
    # The mean of a constant may be rounded to another number, and the deviation is then not 0.
    constant = least == most
    deviation = rows.std(0, correction=0)
    mean = torch.where(constant, least, rows.mean(0))
    counted = measured & ~constant & (deviation > 0)
    return torch.where(measured, mean, 0.0), torch.where(counted, deviation, 1.0)


def _check_apart(inputs: Features, train: Split, where: str) -> None:
    """Raise if 32 bits, which models see, merge most values of a column of numbers."""
    exact = inputs.values[:, inputs.measured]
    pairs = zip(inputs.names, inputs.measured.tolist(), strict=True)
    names = [name for name, counts in pairs if counts]
    if train.mean is None or train.std is None:
        hint = "leave out standardise: false, or subtract what they have in common"
        check_apart(exact, exact.float(), where, names, hint)
    else:
        mean, deviation = (each[inputs.measured] for each in (train.mean, train.std))
        check_apart(exact, ((exact - mean) / deviation).float(), where, names)


def _longer(column: Column, more: Mapping[str, Column], file: str) -> Column:
    """Append to a column the cells of that column in the file of test rows."""
    if column.name not in more:
        message = "lacks a column of the training table"
        raise DataError(message, where=file, **unknown(column.name, more))
    other, count = more[column.name], len(column.cells)

    def locate(row: int) -> str:
        return column.locate(row) if row < count else other.locate(row - count)

    return Column(column.name, [*column.cells, *other.cells], locate)


def table_columns(path: Path, separator: str) -> dict[str, Column]:
    """Read a table; return its columns by name.

    Raises:
        DataError: If it is not a table, or has no rows.
    """
    check_size(path.stat().st_size, MOST_TABLE, "file", path)
    match path.suffix.lower():
        case ".csv":
            table = _csv(path, separator)
        case ".parquet":
            table = _parquet(path)
        case _:
            raise DataError("is not a table", where=str(path), expected=".csv or .parquet")
    if not table or not len(next(iter(table.values())).cells):
        raise DataError("the table has no rows", where=str(path))
    return table


def _csv(path: Path, separator: str) -> dict[str, Column]:
    """Read a CSV file, whose first line names the columns."""
    # Not pandas.read_csv: it fills short rows, shifts long ones, renames columns of one name, and
    # does not say in which line of the file a value stands.
    text = decode_text(path.read_bytes(), str(path), "save it as UTF-8")
    csv.field_size_limit(MOST_TABLE)  # a text may be longer than what Python expects of a cell
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[Sequence[str]] = []
    lines: list[int] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        for row in reader:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                message = f"a row has {len(row)} values, the header {len(header)} names"
                raise DataError(message, where=f"{path}:{reader.line_num}")
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        where = f"{path}:{reader.line_num}"
        raise DataError("is not CSV", where=where, found=str(error)) from error
    _check_header(header, f"{path}:1")
    other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
    if other is not None and other != separator:
        hint = f"write separator: {json.dumps(other)}"
        raise DataError(
            "the table has one column only", where=f"{path}:1", found=header[0], hint=hint
        )

    def locate(row: int) -> str:
        return f"{path}:{lines[row]}"

    return {name: Column(name, [row[i] for row in rows], locate) for i, name in enumerate(header)}


def _parquet(path: Path) -> dict[str, Column]:
    """Read a Parquet file as Python values."""
    parquet = optional_module("pyarrow.parquet", WHERE)
    try:
        schema = parquet.read_schema(path)
        _check_header(schema.names, str(path))
        texts = [one.name for one in schema if _is_text(one.type)]
        # A text that occurs a million times is in the file once: so it stays until it is counted.
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            metadata = file.metadata
            values = metadata.num_rows * metadata.num_columns
            check_size(values, MOST_VALUES, "table", path, "values")
            # Of what is decompressed: a small file may hold a large table.
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            check_size(sum(g.total_byte_size for g in groups), MOST_BYTES, "table", path)
            table = file.read()
        check_size(sum(map(_text_bytes, table.columns)), MOST_BYTES, "table", path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of both
        raise DataError("is not a Parquet file", where=str(path), found=str(error)) from error

    def locate(row: int) -> str:
        return f"{path}: row {row + 1}"

    columns = {}
    for name in table.column_names:
        try:
            columns[name] = Column(name, table.column(name).to_pylist(), locate)
        except (ValueError, OverflowError) as error:  # a time that Python cannot express, say
            raise DataError("cannot be read", where=f"{path}: {name}", found=str(error)) from error
    return columns


def _check_header(names: Sequence[str], where: str) -> None:
    """Raise unless each column has a name of its own."""
    for i, name in enumerate(names):
        if not name or name in names[:i]:
            raise DataError("columns need different names", where=where, found=repr(name))


def _is_text(kind: object) -> bool:
    types = optional_module("pyarrow.types", WHERE)
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _text_bytes(column: Arrow) -> int:
    """Return the bytes of a column of texts, repetitions included; 0 for other columns."""
    compute, types = (optional_module(f"pyarrow.{name}", WHERE) for name in ("compute", "types"))
    if not types.is_dictionary(column.type):
        return 0
    lengths = (compute.binary_length(one.dictionary).take(one.indices) for one in column.chunks)
    return sum(compute.sum(one).as_py() or 0 for one in lengths)
