"""The examples that every client has beside its own (``public`` of an experiment)."""

from __future__ import annotations

import numpy as np

from archgraph.data import Dataset, Split
from archgraph.data.doors import read_data
from archgraph.data.partition import class_histogram
from archgraph.data.schemes import ShardIndices
from archgraph.data.validation import set_aside, subset
from archgraph.errors import RunError
from archgraph.federation import Shard, Strategy
from archgraph.language import ExperimentSpec
from archgraph.language.task import OWN


def public_examples(
    spec: ExperimentSpec,
    strategy: Strategy,
    data: Dataset,
    shares: ShardIndices,
    *,
    imagined: bool = False,
) -> tuple[ShardIndices, Split | None]:
    """Return the shares of clients without the public examples, and these.

    Args:
        spec: The experiment.
        strategy: Its strategy.
        data: The data of the run.
        shares: Positions of each client's examples.
        imagined: Whether zeros stand in for known data sets.

    Raises:
        RunError: If the strategy needs public examples and there are none, reads none of another
            data set, or these are of another form than the run's.
        DataError: If a client would have nothing to train on.
    """
    public, where = spec.public, "public"
    if public is None:
        if strategy.public:
            raise RunError(
                f"{spec.strategy_name} learns from examples that every client has",
                where=where,
                found="no `public`",
                expected="public: 200, of the training examples, or a data set, "
                "public: {dataset: mnist, limit: 500}",
            )
        return shares, None
    if isinstance(public, int):
        # For other methods, too: what they are compared on is trained on by no client.
        shares, at = set_aside(shares, public, spec.seed, ordered=data.consecutive)
        return shares, subset(data.train, at)
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
    return shares, other.train


def public_shard(split: Split | None, data: Dataset) -> Shard | None:
    """Return public examples as clients see them."""
    if split is None:
        return None
    inputs, targets = split.examples(np.arange(len(split)))
    histogram = tuple(class_histogram(targets, data.classes).tolist())
    return Shard(inputs, targets, histogram, padding=split.padding)
