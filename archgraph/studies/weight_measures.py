"""Measures of a study that are read from the final weights of a run, by name.

==============================================  ==============================================
``weights.MODEL.PLACE.STATISTIC``               a statistic of a weight
``distance.MODEL.BASELINE.PLACE``               mean distance of its maps from the baseline's
``similarity.A.B``, ``….SECTION[.ROW.COLUMN]``  correlation of blocks of two models, matched
``chance.A.B``, ``….SECTION[.ROW.COLUMN]``      what independent weights of their shapes reach
==============================================  ==============================================

A place is ``first`` or ``last`` (convolution), or the name of a parameter. A kind of client stands
for the model of its only client. Rows and columns are positions of blocks in their section; without
them it is the mean over all pairs but those with the first block, whose inputs differ.

The models of a run start from common weights. The second of two models that are compared is
therefore that of another run, whose seed is the next one: both started from weights of their own.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from archgraph.analysis.structure import structure
from archgraph.engine.trained import trained
from archgraph.errors import RunError
from archgraph.federation import Model
from archgraph.hints import unknown
from archgraph.studies.similarity import (
    block_similarity,
    magnitude,
    on_common_prefix,
    weights,
)

# Where a weight stands among the convolutions.
ENDS = {"first": 0, "last": -1}

# Of a weight [out, in, kernel] (other parameters: of one value a map).
STATISTICS: Mapping[str, Callable[[Tensor], float]] = {
    "mean": lambda values: float(values.mean()),
    "std": lambda values: float(values.std(correction=0)),
    "l1": lambda values: float(values.abs().mean()),
    "map_l1": magnitude,
    "q05": lambda values: _quantile(values, 0.05),
    "q50": lambda values: _quantile(values, 0.5),
    "q95": lambda values: _quantile(values, 0.95),
}

# Similarity and chance of a pair of blocks, by section and their positions.
_Pairs = dict[tuple[str, int, int], tuple[float, float]]


@dataclass
class FinalWeights:
    """The models of a finished run, read when a measure first asks for them.

    Attributes:
        folder: The run folder.
        data_root: Folder of the data.
        python: Consent to run the Python code that the run's files name.
    """

    folder: str | os.PathLike[str]
    data_root: str | os.PathLike[str] | None = None
    python: bool = False
    _compared: dict[tuple[str, str, str], _Pairs] = field(default_factory=dict)

    @cached_property
    def models(self) -> Mapping[str, Model]:
        """Architectures with weights, by name."""
        return trained(self.folder, data_root=self.data_root, python=self.python)

    def read(self, measure: str, other: FinalWeights | None = None) -> float | None:
        """Read a measure by its name; None if the run has nothing of the kind.

        Args:
            measure: Its name.
            other: The run of the second model, if two are compared. Default: none.

        Raises:
            RunError: If the name is not complete, or names a model or statistic that is not there.
        """
        kind, *words = measure.split(".")
        least, read = READERS[kind]
        if len(words) < least:  # when it is read: a study does not know the models of its runs
            raise RunError("is not a complete measure", where="measure", found=measure)
        return read(self, words, other)

    def model(self, name: str) -> Model:
        """Return a model by its name, or by that of the kind of client that has only one."""
        # `half/3`: the private model of client 3 of the kind `half`.
        chosen = [m for key, m in self.models.items() if name in (key, key.rpartition("/")[0])]
        if len(chosen) != 1:
            raise RunError(
                f"needs one model called {name}, not {len(chosen)}",
                where=str(self.folder),
                expected=unknown(name, self.models)["expected"],
            )
        return chosen[0]

    def weight(self, name: str, key: str) -> Tensor | None:
        """Return a weight ``[out, in, kernel]`` of a model; None if it has no such parameter."""
        graph, state = self.model(name)
        by_leaf = {weight.leaf: weight for weight in weights(graph)}
        if key in ENDS:
            kernels = [weight for weight in by_leaf.values() if len(weight.order) > 2]
            return kernels[ENDS[key]].of(state) if kernels else None
        if key in by_leaf:
            return by_leaf[key].of(state)
        return state[key].detach().reshape(-1, 1, 1) if key in state else None

    def pairs(self, a: str, b: str, run: FinalWeights) -> _Pairs:
        """Compare the blocks of a model and one of another run, once: similarity and chance."""
        key = a, b, str(run.folder)
        if key not in self._compared:
            one, other = self.model(a), run.model(b)
            # Papers number blocks within their section.
            row, column = (
                {b.name: i for s in structure(m.graph).sections for i, b in enumerate(s.blocks)}
                for m in (one, other)
            )
            self._compared[key] = {
                (section.section, row[x], column[y]): (value, section.chance)
                for section in block_similarity(one.graph, one.state, (other.graph, other.state))
                for x, line in zip(section.rows, section.values, strict=True)
                for y, value in zip(section.columns, line, strict=True)
                if value is not None
            }
        return self._compared[key]


_Reader = Callable[[FinalWeights, Sequence[str], "FinalWeights | None"], "float | None"]


def _statistic(run: FinalWeights, words: Sequence[str], other: FinalWeights | None) -> float | None:
    name, *key, statistic = words  # names of parameters hold dots
    if statistic not in STATISTICS:
        raise RunError("is not a statistic", where="measure", **unknown(statistic, STATISTICS))
    values = run.weight(name, ".".join(key))
    return None if values is None else STATISTICS[statistic](values)


def _distance(run: FinalWeights, words: Sequence[str], other: FinalWeights | None) -> float | None:
    name, baseline, *key = words
    if other is None:  # one seed: there is no other run
        return None
    theirs, ours = run.weight(name, ".".join(key)), other.weight(baseline, ".".join(key))
    if theirs is None or ours is None or theirs.shape[2:] != ours.shape[2:]:
        return None
    theirs, ours = on_common_prefix(theirs, ours)
    return magnitude(theirs - ours)


def _of_pairs(number: int) -> _Reader:
    """Return a reader of the first or second figure of pairs of blocks, averaged."""

    def read(run: FinalWeights, words: Sequence[str], other: FinalWeights | None) -> float | None:
        a, b, *rest = words
        if other is None:
            return None
        chosen = [
            both[number]
            for (section, x, y), both in run.pairs(a, b, other).items()
            if (rest == [] or rest[0] == section)
            # First blocks have other inputs: their pairs are figures only where they are named.
            and (rest[1:] == [str(x), str(y)] if rest[1:] else min(x, y) > 0)
        ]
        return statistics.fmean(chosen) if chosen else None

    return read


# By the beginning of a measure's name: how many words follow at least, and how it is read.
READERS: Mapping[str, tuple[int, _Reader]] = {
    "weights": (3, _statistic),
    "distance": (3, _distance),
    "similarity": (2, _of_pairs(0)),
    "chance": (2, _of_pairs(1)),
}


def of_weights(measure: str) -> bool:
    """Return whether a measure is read from weights.

    >>> of_weights("similarity.one.three.stage1"), of_weights("global_accuracy")
    (True, False)
    """
    return measure.partition(".")[0] in READERS


def _quantile(values: Tensor, share: float) -> float:
    """Return a quantile of sorted values: ``torch.quantile`` refuses large tensors."""
    ordered = values.flatten().sort().values
    return float(ordered[round(share * (len(ordered) - 1))])
