"""The examples that every client has in addition to its own (``public`` of an experiment).

``public`` is a key of the experiment, not an option of a strategy, so that all methods train on the
same remaining examples.
"""

from __future__ import annotations

import numpy as np

from archgraph.data import Dataset, Split
from archgraph.data.doors import read_data
from archgraph.data.partition import class_histogram
from archgraph.data.schemes import ShardIndices
from archgraph.data.validation import set_aside
from archgraph.errors import RunError
from archgraph.federation import Shard, Strategy
from archgraph.language import ExperimentSpec
from archgraph.language.data import NamedData
from archgraph.language.task import OWN


def reserve_public(
    spec: ExperimentSpec, shares: ShardIndices, data: Dataset
) -> tuple[ShardIndices, np.ndarray]:
    """Remove the public examples from the clients' training examples.

    Nothing is removed if the public examples are another data set.

    Args:
        spec: The experiment.
        shares: Indices of the training examples, per client or for all clients together.
        data: The data of the run.

    Returns:
        The indices without the public examples, and the indices of the public examples.

    Raises:
        DataError: If a client would be left without examples.
    """
    # Also for methods that do not use public examples, so that all train on the same examples.
    if not isinstance(spec.public, int):
        return shares, np.arange(0)
    return set_aside(shares, spec.public, spec.seed, ordered=data.consecutive)


def other_public(
    spec: ExperimentSpec, strategy: Strategy, data: Dataset, *, imagined: bool = False
) -> Split | None:
    """Return the public examples if they are another data set, else None.

    Args:
        spec: The experiment.
        strategy: Its strategy.
        data: The data of the run.
        imagined: Whether to use zeros in place of built-in data sets (for a dry run).

    Raises:
        RunError: If the strategy needs public examples and there are none, if it does not use the
            other data set, or if the inputs of the other data set have a different form.
    """
    public, where = spec.public, "public"
    if public is None and strategy.public:
        raise RunError(
            f"{spec.strategy_name} needs public examples, which every client has",
            where=where,
            found="no `public`",
            expected="`public: 200` (training examples), or another data set, such as "
            "`public: {dataset: mnist, limit: 500}`",
        )
    if not isinstance(public, NamedData):
        return None
    if not strategy.public:
        raise RunError(
            f"changes nothing: {spec.strategy_name} does not use public examples",
            where=where,
            hint="remove it",
        )
    task = None if spec.task is None else spec.task.kind or OWN
    other = read_data(public, task, check=imagined)
    if (other.kind, other.shape, other.inputs) != (data.kind, data.shape, data.inputs):
        raise RunError(
            "the public data set and the run's data have different forms",
            where=where,
            found=f"{other.kind} {list(other.shape)} ({other.name})",
            expected=f"{data.kind} {list(data.shape)} ({data.name})",
        )
    return other.train


def public_shard(split: Split, data: Dataset) -> Shard:
    """Return public examples as a :class:`Shard`, the type of clients' data."""
    inputs, targets = split.examples(np.arange(len(split)))
    histogram = tuple(class_histogram(targets, data.classes).tolist())
    return Shard(inputs, targets, histogram, padding=split.padding)
