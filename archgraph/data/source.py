"""Descriptions of the data sets that can be loaded by name.

Each data set has a file in `sets/` with its classes, files and checksums. To add a data set in a
known format, add a file with the keys of :class:`Source`::

    about: MNIST, handwritten digits (LeCun et al., 1998).
    format: idx
    folders: [mnist, MNIST/raw]
    labels: ["0", "1", ...]
    train:
      train-images-idx3-ubyte: {bytes: 47040016, md5: 6bbc9ace898e44ae57da46a324031adb}
      ...
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pydantic
from ruamel.yaml import YAML

from archgraph.errors import DataError
from archgraph.language.elsewhere import suggestion

SETS = Path(__file__).parent / "sets"

_STRICT = pydantic.ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Published:
    """Size and checksum of a published file.

    Attributes:
        bytes: Size of the decompressed content. The stored file may be compressed or not.
        md5: Checksum of the decompressed content.
        gz: If True, `md5` is the checksum of the published `.gz` file, so the `.gz` file must be
            stored.
        archive: If True, the file is an archive. `bytes` and `md5` then describe the stored file.
    """

    __pydantic_config__ = _STRICT

    bytes: int
    md5: str
    gz: bool = False
    archive: bool = False


@dataclass(frozen=True)
class Source:
    """Location and format of a data set.

    Attributes:
        name: Name of the set and of its file.
        about: A description, with the authors.
        format: Format of the files: one of `archgraph.data.load.FORMATS`.
        folders: Folders below the root in the order of search. The root itself is searched last.
        train: Files of training examples, in the order of the format.
        test: Files of test examples; empty if the format takes test examples from the files in
            `train`.
        labels: Name of each class of images.
        shape: Shape of one image.
        examples: Numbers of training and test examples; for continuous text, numbers of tokens.
        words: Number of distinct words of the training text, including the special tokens of pairs;
            0 if unknown.
        key: Key of the labels in a CIFAR batch.
        shipped: Whether archgraph includes the files of the data set.
        published: Address at which the authors publish the files; empty if the files are no longer
            published.
    """

    __pydantic_config__ = _STRICT

    name: str
    about: str
    format: str
    folders: tuple[str, ...]
    train: Mapping[str, Published]
    test: Mapping[str, Published] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    examples: tuple[int, int] = (0, 0)
    words: int = 0
    key: str = "labels"
    shipped: bool = False
    published: str = ""

    @property
    def files(self) -> Mapping[str, Published]:
        """Dict from the name of each file to its size and checksum."""
        return {**self.train, **self.test}


DATASETS: tuple[str, ...] = tuple(sorted(path.stem for path in SETS.glob("*.yaml")))
"""Names of the data sets that `load_dataset` can load."""


@functools.cache
def source(name: str) -> Source:
    """Return the location and format of a data set by its name.

    Raises:
        DataError: If the name is unknown.

    >>> source("digits").labels[:3]
    ('0', '1', '2')
    """
    if name not in DATASETS:
        raise DataError(
            "unknown data set",
            where="data.dataset",
            found=repr(name),
            expected=f"one of {', '.join(DATASETS)}",
            hint=suggestion(name, DATASETS),
        )
    values = YAML(typ="safe").load((SETS / f"{name}.yaml").read_text(encoding="utf-8"))
    return pydantic.TypeAdapter(Source).validate_python({"name": name, **values})
