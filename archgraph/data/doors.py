"""Where data comes from: one row for each kind of `data`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from archgraph.data import folder, function, huggingface, table, text
from archgraph.data.imagined import imagined_dataset
from archgraph.data.load import load_dataset
from archgraph.data.values import Dataset
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
    as_learned,
)


@dataclass(frozen=True)
class Door:
    """How a kind of data is read.

    Attributes:
        read: The data set of what a file says.
        check: The same, or what stands in for it, for a check before a run.
    """

    read: Callable[[Any], Dataset]
    check: Callable[[Any], Dataset]


def _named(spec: NamedData, **more: Any) -> dict[str, Any]:
    names = ("limit", "bptt", "length", "vocabulary", "tokenizer")
    return {"name": spec.dataset, **{name: getattr(spec, name) for name in names}, **more}


def _both(read: Callable[[Any], Dataset]) -> Door:
    """Read the user's data for a check as well: nothing else tells whether it is valid."""
    return Door(read, read)


READERS: Mapping[type[DataSpec], Door] = {
    NamedData: Door(
        # A check reads no file of a known set: its form is in `sets/`.
        lambda spec: load_dataset(**_named(spec, root=spec.root)),
        lambda spec: imagined_dataset(**_named(spec)),
    ),
    PythonData: _both(function.read_function),
    FolderData: _both(folder.read_folder),
    TableData: _both(table.read_table),
    HuggingFaceData: _both(huggingface.read_huggingface),
    TextData: _both(text.read_running_text),
}


def read_data(spec: DataSpec, task: str | None = None, *, check: bool = False) -> Dataset:
    """Return the data that an experiment names.

    Args:
        spec: The `data` of the experiment, with absolute paths.
        task: The learning task: it decides how a target is read if the file does not say.
        check: Use zeros in the form of known data sets, without reading their files.

    Raises:
        DataError: If no data is named, or files are missing, damaged or differ in form.
        SpecError: If it names Python code that may not, or cannot, be imported.

    Example:
        >>> read_data(NamedData(dataset="digits"))
        Dataset(digits: image (1, 8, 8), 10 classes, 1437 train, 360 test)
    """
    door = READERS.get(type(spec))
    if door is None:
        raise DataError(
            "must name the data",
            where="data",
            expected=f"one of {', '.join(DOORS)}",
            hint="in Python, pass it: ag.run(..., data=...)",
        )
    spec = as_learned(spec, task)
    return door.check(spec) if check else door.read(spec)
