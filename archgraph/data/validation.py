"""Hold validation examples out of training, and select the best round with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from archgraph.data import Dataset, Split
from archgraph.data.schemes import ShardIndices
from archgraph.errors import DataError, RunError, SpecError
from archgraph.federation import LearningTask
from archgraph.hints import unknown
from archgraph.language.validation import ValidationSpec
from archgraph.plain import Json
from archgraph.tables import plural


def hold_out(
    shares: ShardIndices, spec: ValidationSpec | None, seed: int, *, ordered: bool = False
) -> tuple[ShardIndices, np.ndarray]:
    """Hold examples of clients out of training.

    Returns the remaining examples of each client, and the examples that are held out.

    Args:
        shares: Indices of each client's examples.
        spec: Fractions to hold out. Default: nothing is held out.
        seed: Seed of the choice.
        ordered: Whether examples are consecutive (windows of a text). Then the last examples of
            each client are held out instead of a random choice.

    Raises:
        DataError: If no training examples would be left, or no example can be held out.

    Example:
        >>> fifth = ValidationSpec(clients=0.2)
        >>> train, held = hold_out((np.arange(10), np.arange(10, 20)), fifth, seed=0)
        >>> [len(share) for share in train], len(held)
        ([8, 8], 4)
    """
    if spec is None:
        return shares, np.arange(0)
    # Independent of the partition's draws, which start from the seed alone.
    random = np.random.default_rng([seed, len(shares)])
    out = np.arange(0)
    for share in shares:
        ascending = np.sort(share)
        order = ascending[::-1] if ordered else random.permutation(ascending)
        # Clients may share examples: first take those that another client already holds out.
        order = order[np.argsort(~np.isin(order, out), kind="stable")]
        out = np.union1d(out, order[: max(round(spec.clients * len(share)), 1)])
    return _without(shares, out, "validation", "hold out a smaller share"), out


def set_aside(
    shares: ShardIndices, count: int, seed: int, *, ordered: bool = False
) -> tuple[ShardIndices, np.ndarray]:
    """Set aside a number of examples, taken from all clients.

    Returns the remaining examples of each client, and the examples that are set aside.

    Args:
        shares: Indices of each client's examples, or of all examples.
        count: Number of examples to set aside.
        seed: Seed of the choice.
        ordered: As for :func:`hold_out`.

    Raises:
        DataError: If a client would have no training examples left.

    Example:
        >>> rest, public = set_aside((np.arange(10), np.arange(10, 20)), 5, seed=0)
        >>> sum(map(len, rest)), len(public)
        (15, 5)
    """
    everything = np.unique(np.concatenate(shares))
    random = np.random.default_rng([seed, len(shares), count])
    drawn = _from_the_end(shares) if ordered else random.permutation(everything)
    public = np.sort(drawn[:count])
    return _without(shares, public, "public", "set fewer examples aside"), public


def _without(shares: ShardIndices, out: np.ndarray, where: str, hint: str) -> ShardIndices:
    """Return the examples of each client without the examples in `out`."""
    rest = tuple(np.setdiff1d(share, out) for share in shares)
    for client, share in enumerate(shares):
        if not len(rest[client]):
            at = f"{where}: client {client}" if len(shares) > 1 else where
            message, size = "leaves no examples to train on", plural(len(share), "example")
            raise DataError(message, where=at, found=size, hint=hint)
    return rest


def _from_the_end(shares: ShardIndices) -> np.ndarray:
    """Return the indices of all examples, the last of each client first.

    Any prefix contains equal fractions of the clients' examples.
    """
    left = [np.arange(len(share))[::-1] / len(share) for share in shares]
    order = np.concatenate(shares)[np.argsort(np.concatenate(left), kind="stable")]
    _, first = np.unique(order, return_index=True)  # clients may share examples
    return order[np.sort(first)]


def subset(split: Split, at: np.ndarray) -> Split:
    """Return some examples of a split."""
    chosen = torch.from_numpy(at)
    beside = {name: more[chosen] for name, more in split.beside.items()}
    return dataclasses.replace(
        split,
        inputs=split.inputs[chosen],
        targets=split.targets[chosen],
        beside=beside,
        again=None,  # held-out and test examples are as first read
    )


def held_out(data: Dataset, at: np.ndarray) -> Dataset:
    """Return the data with the held-out examples as its test split."""
    return dataclasses.replace(data, test=subset(data.train, at))


@dataclass(frozen=True)
class Selection:
    """Selection of the best round by a metric on held-out examples.

    Attributes:
        spec: The experiment's `validation`.
        metric: Name of the metric.
        more: Whether a larger value is better.
    """

    spec: ValidationSpec
    metric: str
    more: bool

    @classmethod
    def of(cls, spec: ValidationSpec, learning: LearningTask) -> Selection:
        """Return the selection of an experiment.

        Raises:
            SpecError: If the selection's metric is not measured.
        """
        metric = spec.metric or learning.judge
        more = learning.better.get(metric)
        if more is None:
            known = [name for name, better in learning.better.items() if better is not None]
            where = "validation.metric"
            raise SpecError("is not measured", where=where, **unknown(metric, known))
        return cls(spec, metric, more)

    def figure(self, line: Mapping[str, Json]) -> float | None:
        """Return the metric's value in a round; None if it was not measured or is not finite.

        Raises:
            RunError: If the metric is not measured for these models.
        """
        if "validation" not in line:
            return None
        figures = line["validation"].get(self.spec.of, {})
        if self.metric not in figures:
            raise RunError(
                "this metric is not measured for these models",
                where="validation.of",
                found=f"{self.metric} of {self.spec.of}",
                hint="metrics of clients need one class per example, or personal models",
            )
        value = figures[self.metric]
        return None if value is None else float(value)

    def best(self, lines: Sequence[Mapping[str, Json]]) -> int | None:
        """Return the best round, the first if tied; None if none was measured."""
        figures = {line["round"]: self.figure(line) for line in lines}
        known = {number: value for number, value in figures.items() if value is not None}
        if not known:
            return None
        return (max if self.more else min)(known, key=lambda number: known[number])

    def chosen(self, lines: Sequence[Mapping[str, Json]]) -> int | None:
        """Return the best round if the run ends with the weights of that round, else None."""
        return self.best(lines) if self.spec.keep == "best" else None

    def exhausted(self, lines: Sequence[Mapping[str, Json]]) -> str:
        """Return the reason why the run stops early; an empty string if it continues."""
        best, patience = self.best(lines), self.spec.patience
        if patience is None:
            return ""
        tested = [line["round"] for line in lines if "validation" in line]
        since = [number for number in tested if best is None or number > best]
        if len(since) < patience:
            return ""
        after = "at all" if best is None else f"after round {best}"
        return f"no better {self.metric} on validation examples {after} in {len(since)} tests"
