"""The examples that every client has in addition to its own (``public`` of an experiment).

They are a key of the experiment, not an option of a strategy, so that all methods are compared on
the remaining examples. As extras of tasks, they would be in every checkpoint once per client.
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
    """Take the public examples out of the training examples, if they are part of these.

    Args:
        spec: The experiment.
        shares: Positions of training examples, of each client or of all together.
        data: The data of the run.

    Returns:
        The shares without the public examples, and the positions of these.

    Raises:
        DataError: If a share would be left without examples.
    """
    # Also for methods that do not read them, so that all methods train on the same examples.
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
        imagined: Whether to use zeros in place of known data sets.

    Raises:
        RunError: If the strategy needs public examples and there are none; if it does not use
            public examples of another data set; or if their form differs from that of the run's
            data.
    """
    public, where = spec.public, "public"
    if public is None and strategy.public:
        raise RunError(
            f"{spec.strategy_name} learns from examples that every client has",
            where=where,
            found="no `public`",
            expected="public: 200, of the training examples, or a data set, "
            "public: {dataset: mnist, limit: 500}",
        )
    if not isinstance(public, NamedData):
        return None
    if not strategy.public:
        raise RunError(
            f"changes nothing: {spec.strategy_name} does not learn from public examples",
            where=where,
            hint="remove it",
        )
    task = None if spec.task is None else spec.task.kind or OWN
    other = read_data(public, task, check=imagined)
    if (other.kind, other.shape, other.inputs) != (data.kind, data.shape, data.inputs):
        raise RunError(
            "the public data set is of another form than the data of the run",
            where=where,
            found=f"{other.kind} {list(other.shape)} ({other.name})",
            expected=f"{data.kind} {list(data.shape)} ({data.name})",
        )
    return other.train


def public_shard(split: Split, data: Dataset) -> Shard:
    """Return public examples in the form of clients' data."""
    inputs, targets = split.examples(np.arange(len(split)))
    histogram = tuple(class_histogram(targets, data.classes).tolist())
    return Shard(inputs, targets, histogram, padding=split.padding)
