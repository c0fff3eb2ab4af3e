"""Numbers of training examples on other machines, in total and per class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from archgraph.data import Dataset
from archgraph.data.partition import class_histogram
from archgraph.federation.world import Uncounted
from archgraph.plain import Json
from archgraph.tables import plural

# An index outside every data set, at which NumPy and PyTorch cannot read.
ELSEWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class ClientRows:
    """Numbers of training examples of a client that stores them on its own machine.

    Attributes:
        examples: Number of examples.
        histogram: Number of examples per class; None if the machine does not report it.
        digest: SHA-256 of the examples, with which a resumed run checks that they are the same.
        targets: Number of targets that are not ignored; None if they are not classes.
        here: Whether this is the client's machine. All training examples on this machine then
            belong to the client.

    Example:
        >>> rows = ClientRows(3, (1, 2), "ab")
        >>> ClientRows.read(rows.report()) == rows, rows.by_label
        (True, ' (1, 2 by class)')
    """

    examples: int
    histogram: tuple[int, ...] | None
    digest: str = ""
    here: bool = False
    targets: int | None = None

    @classmethod
    def of(cls, data: Dataset, digest: str = "") -> Self:
        """Count the training examples of a data set on this machine, in total and per class."""
        counts = class_histogram(data.train.targets, data.classes)
        classes = data.classes is not None and not data.train.targets.dtype.is_floating_point
        single = classes and data.train.targets.dtype != torch.bool
        targets = int(counts.sum()) if single else None
        return cls(len(data.train), tuple(counts.tolist()), digest, here=True, targets=targets)

    @classmethod
    def read(cls, said: Mapping[str, Json]) -> Self:
        """Read a report of another machine (see :meth:`report`)."""
        counts = tuple(map(int, said["histogram"])) if said["counted"] else None
        targets = said["targets"]
        return cls(
            int(said["examples"]),
            counts,
            str(said["digest"]),
            targets=None if targets is None else int(targets),
        )

    def report(self) -> dict[str, Json]:
        """Return a report of these numbers to send to another machine."""
        return {
            "examples": self.examples,
            "histogram": list(self.histogram or ()),
            "counted": self.histogram is not None,
            "digest": self.digest,
            "targets": self.targets,
        }

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of examples per class. Raises an error if the machine does not report it."""
        return Uncounted() if self.histogram is None else self.histogram

    @property
    def by_label(self) -> str:
        """The numbers per class as text; empty if targets are not classes."""
        if self.histogram is None:
            return " (classes not stated)"
        if len(self.histogram) > 10:
            return f" ({plural(sum(n > 0 for n in self.histogram), 'class')})"
        return f" ({', '.join(map(str, self.histogram))} by class)" if self.histogram else ""

    def positions(self) -> np.ndarray:
        """Return the indices of the examples in the data of this machine, int64 ``[example]``."""
        return np.arange(self.examples) if self.here else np.full(self.examples, ELSEWHERE)


NONE = ClientRows(0, ())
