"""Readers of data sets: one for each kind of `data`."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from archgraph.data import folder, function, huggingface, table, text
from archgraph.data.given import dataset_of
from archgraph.data.imagined import imagined_dataset
from archgraph.data.load import load_dataset
from archgraph.data.targets import check_said
from archgraph.data.values import Dataset, row_form
from archgraph.errors import DataError
from archgraph.language.data import (
    DOORS,
    DataSpec,
    FolderData,
    HuggingFaceData,
    NamedData,
    PythonData,
    TableData,
    TextData,
)
from archgraph.language.document import Document, places
from archgraph.language.task import OWN
from archgraph.plain import Json


def _named(spec: NamedData) -> dict[str, Json]:
    names = ("limit", "bptt", "length", "vocabulary", "tokenizer")
    return {"name": spec.dataset, **{name: getattr(spec, name) for name in names}}


READERS: Mapping[type[DataSpec], Callable[[Any, str | None], Dataset]] = {
    NamedData: lambda spec, _: load_dataset(root=spec.root, **_named(spec)),
    PythonData: function.read_function,
    FolderData: lambda spec, _: folder.read_folder(spec),
    TableData: table.read_table,
    HuggingFaceData: huggingface.read_huggingface,
    TextData: lambda spec, _: text.read_running_text(spec),
}
"""Dict from type of spec to the reader, which takes the spec and the learning task."""


def data_from_python(value: object, task: str | None = None) -> Dataset:
    """Return the data set that was passed to :func:`archgraph.run` in Python.

    Args:
        value: A value that :func:`archgraph.data.dataset_of` accepts; or a mapping with the keys of
            ``data: {huggingface: …}``. In the mapping, ``huggingface`` may be a ``Dataset`` or a
            ``DatasetDict``, and ``tokenizer`` a tokenizer of transformers or of tokenizers.
        task: The learning task, as for :func:`read_data`.

    Raises:
        DataError: As :func:`archgraph.data.dataset_of` and :func:`read_data`.
        SpecError: If the mapping has unknown keys or lacks required keys.
    """
    if not isinstance(value, Mapping) or "huggingface" not in value:
        return dataset_of(value, task=task)
    loaded = value["huggingface"]
    saved = isinstance(loaded, str | os.PathLike)
    keys = {**value, "huggingface": os.fspath(loaded) if saved else "data"}
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(keys.get("tokenizer"), "save"):  # of `tokenizers`
            keys["tokenizer"].save(file := f"{folder}/tokenizer.json")
            keys["tokenizer"] = file
        elif hasattr(keys.get("tokenizer"), "save_pretrained"):
            keys["tokenizer"].save_pretrained(folder)
            keys["tokenizer"] = folder
        document = Document("data", keys, dict.fromkeys(places(keys), 0))
        spec = document.validate(HuggingFaceData)
        if spec.partition is not None:
            hint = "write it under `data` of the experiment"
            raise DataError("is not read from an argument", where="data.partition", hint=hint)
        read = functools.partial(huggingface.read_huggingface, loaded=None if saved else loaded)
        return _read_rows(read, spec, task)


def read_data(spec: DataSpec, task: str | None = None, *, check: bool = False) -> Dataset:
    """Return the data set that an experiment names.

    Args:
        spec: The `data` of the experiment, with absolute paths.
        task: The learning task, which determines how the targets of tables and of Python or Hugging
            Face data are converted.
        check: For named data sets, return zeros of the same shapes instead of reading files.

    Raises:
        DataError: If `data` is missing, files are missing or damaged, or examples differ in shape
            or type.
        SpecError: If the spec names Python code that cannot be imported, or that the caller has not
            consented to run.

    Example:
        >>> read_data(NamedData(dataset="digits"))
        Dataset(digits: image (1, 8, 8), 10 classes, 1437 train, 360 test)
    """
    reader = READERS.get(type(spec))
    if reader is None:
        raise DataError(
            "must name the data",
            where="data",
            expected=f"one of {', '.join(DOORS)}",
            hint="in Python, pass it: ag.run(..., data=...)",
        )
    if check and isinstance(spec, NamedData):
        return imagined_dataset(**_named(spec))
    # User data is read for a check, too: only reading it shows whether it is valid.
    return _read_rows(reader, spec, task)


def _read_rows(
    reader: Callable[[Any, str | None], Dataset], spec: DataSpec, task: str | None
) -> Dataset:
    """Return the rows that a spec names; raise if neither task nor spec determines the targets."""
    alone = getattr(spec, "text", None) is not None and getattr(spec, "target", None) is None
    if alone and task not in (None, OWN, "next_token"):
        hint = "write target: with the column to be predicted"
        raise DataError(f"{task} needs a target", where="data", hint=hint)
    data = reader(spec, task)
    if task is None and getattr(spec, "target", None) is not None:
        check_said(row_form(data.train.targets), "data.target")
    return data
