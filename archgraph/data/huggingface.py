"""A data set of Hugging Face's `datasets`, on disk or in memory, for `data: {huggingface: …}`.

Columns are read as Arrow stores them. The data set cannot choose the code that decodes a column,
files and addresses that it refers to are not read, and nothing is unpickled.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archgraph.data.arrays import array_of, real_numbers
from archgraph.data.columns import Column, check_columns, targets
from archgraph.data.files import MOST_BYTES, check_size
from archgraph.data.folder import read_pictures
from archgraph.data.rows import Records, dataset_of_rows, divided
from archgraph.data.tokens import dataset_of_texts
from archgraph.data.values import Dataset
from archgraph.errors import DataError
from archgraph.hints import listed, optional_module
from archgraph.language.data import HuggingFaceData, column_names

WHERE = "data.huggingface"
TRAIN, TEST = "train", "test"


def read_huggingface(
    spec: HuggingFaceData, task: str | None = None, loaded: object = None
) -> Dataset:
    """Read the rows of a data set's splits, in their order.

    Args:
        spec: The spec, which names the columns.
        task: The learning task, which determines how targets are converted.
        loaded: A data set in memory. Default: the saved data set that the spec names.

    Raises:
        DataError: If this is not a data set of Hugging Face, a column is missing, or examples
            differ in shape.
    """
    path = Path(spec.huggingface)
    splits = _saved(path) if loaded is None else _used(loaded)
    inputs = {name: name for name in column_names(spec.text)} or (
        {"input": spec.inputs} if isinstance(spec.inputs, str) else dict(spec.inputs or {})
    )
    asked = column_names(spec.target)
    _check_splits(spec, splits, list(inputs.values()))
    # As Arrow values: the set's own features would choose the code that decodes them.
    tables = [split.with_format("arrow")[:] for split in splits.values()]
    owners = None if spec.client is None else tuple(_column(path, spec.client, tables).texts())
    count = len(splits[TRAIN]) if TEST in splits else None
    divide = functools.partial(divided, clients=owners, count=count, share=spec.test)
    answers = None
    if asked:
        known = getattr(splits[TRAIN].features[asked[0]], "names", None)
        answers = _targets(spec, [_column(path, name, tables) for name in asked], known, task)
    if answers is None or spec.text is not None:
        columns = [_column(path, name, tables) for name in inputs.values()]
        return dataset_of_texts(path.name, spec, columns, answers, divide)
    tensors = {name: _input(path, column, tables) for name, column in inputs.items()}
    train, test = divide(Records(tensors, answers[0]))
    return dataset_of_rows(path.name, None, train, test, labels=answers[1])


def _check_splits(spec: HuggingFaceData, splits: Mapping[str, Any], inputs: Sequence[str]) -> None:
    """Raise if a split lacks a column, classes differ between splits, or two test splits exist."""
    key, asked = "inputs" if spec.text is None else "text", column_names(spec.target)
    client = () if spec.client is None else (spec.client,)
    for split in splits.values():
        check_columns(split.column_names, {key: inputs, "target": asked, "client": client}, key)
    _check_names({"inputs": inputs, "target": asked}, splits)
    if TEST in splits and spec.test is not None:
        raise DataError("conflicts with the split `test` of the set", where="data.test")


def _saved(path: Path) -> Mapping[str, Any]:
    """Load the splits of a saved set."""
    size = sum(file.stat().st_size for file in path.rglob("*.arrow"))
    check_size(size, MOST_BYTES, "set", path)
    datasets = optional_module("datasets", kind=DataError, where=WHERE)
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "is not a saved data set",
            where=WHERE,
            found=str(error).splitlines()[0] if str(error) else type(error).__name__,
            expected="the folder that `dataset.save_to_disk(folder)` wrote",
        ) from error
    return _used(loaded)


def _used(loaded: object) -> Mapping[str, Any]:
    """Return the splits by name: `train`, then `test` if there is one."""
    splits: dict[str, Any] = dict(loaded) if isinstance(loaded, Mapping) else {TRAIN: loaded}
    known = optional_module("datasets", kind=DataError, where=WHERE).Dataset
    if other := [split for split in splits.values() if not isinstance(split, known)]:
        raise DataError(
            "is not a data set of Hugging Face",
            where=WHERE,
            found=type(other[0]).__name__,
            expected="a Dataset or DatasetDict of `datasets`, in Python, or a folder",
            hint="examples of a stream cannot be indexed: convert it to a Dataset",
        )
    if TRAIN not in splits:
        raise DataError(
            "lacks the training split", where=WHERE, found=", ".join(splits), expected=TRAIN
        )
    return {name: splits[name] for name in (TRAIN, TEST) if name in splits}


def _check_names(columns: Mapping[str, Sequence[str]], splits: Mapping[str, Any]) -> None:
    """Raise if splits number their classes differently."""
    for key, name in ((key, name) for key, names in columns.items() for name in names):
        train, *test = (_class_names(split.features[name]) for split in splits.values())
        # Cells are numbers: 1 would be different classes in training and in tests.
        if test and test[0] != train:
            raise DataError(
                "splits differ in the names or the order of classes",
                where=f"data.{key}",
                found=f"{name}: {TEST}: {listed(test[0], 5) or 'none'}",
                expected=f"{listed(train, 5) or 'none'}, as {TRAIN} has it",
                hint=f"dataset.cast_column({name!r}, …) gives both the same names",
            )


def _class_names(feature: Any) -> tuple[str, ...]:
    """Return the class names of a feature, or of its items; empty if the feature is a number."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return tuple(getattr(feature, "names", None) or ())


def _column(path: Path, name: str, tables: Sequence[Any]) -> Column:
    cells = [cell for table in tables for cell in table.column(name).to_pylist()]
    return Column(name, cells, lambda row: f"{path}: row {row + 1}")


def _targets(
    spec: HuggingFaceData, columns: Sequence[Column], known: Sequence[str] | None, task: str | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return targets and names of classes; the data set's own names if it has any."""
    first, single = columns[0], isinstance(spec.target, str)
    if (
        single and first.cells and isinstance(first.cells[0], list)
    ):  # a class for each token or pixel
        return _stacked(first), ()
    if known is not None and single and task not in ("regression", "multilabel"):
        return torch.from_numpy(first.numbers().astype(np.int64)), tuple(known)
    return targets(columns, task, single=single)


def _input(path: Path, name: str, tables: Sequence[Any]) -> Tensor:
    """Return a column as an input of models: images, or numbers of any shape ``[row, ...]``."""
    column = _column(path, name, tables)
    if column.cells and isinstance(column.cells[0], Mapping):
        return _images(column)
    return _stacked(column)


def _stacked(column: Column) -> Tensor:
    """Stack numbers of equal shape: integers as int64, others as float32."""
    where = f"{WHERE}: {column.name}"
    rows = array_of(column.cells, where)
    if isinstance(rows, np.ndarray):
        hint = f"instead of inputs write {column.as_text}"
        raise DataError("does not consist of numbers", where=where, found="text", hint=hint)
    numbers = real_numbers(rows, where)
    return numbers if numbers.is_floating_point() else numbers.to(torch.int64)


def _images(column: Column) -> Tensor:
    """Decode images stored inside the set, uint8 ``[row, channel, height, width]``."""
    sources: list[tuple[str, Path | io.BytesIO]] = []
    for row, cell in enumerate(column.cells):
        content = cell.get("bytes") if isinstance(cell, Mapping) else None
        if not isinstance(content, bytes):
            raise DataError(
                "the image is not in the set",
                where=column.at(row),
                hint="files that a set refers to are not read; save it with its images embedded",
            )
        sources.append((column.at(row), io.BytesIO(content)))
    return read_pictures(sources)
