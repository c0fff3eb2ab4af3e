"""Multiply–accumulates of the clients' training (FedFA, §5.2: MACE, T·E, TMAC)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from archgraph.analysis.cost import cost
from archgraph.engine.experiment import Experiment
from archgraph.federation import Task

MACS = "macs"
"""The key of a client's row."""

# Gradients of the weights and of the inputs cost as much as the forward pass, each. Frozen layers
# count like the others: the skipped gradients depend on their position.
PASSES = 3


def of_client(task: Task, metrics: Mapping[str, float]) -> float:
    """Return the MACs of a client's training: three times those of its forward passes.

    Args:
        task: The client's task.
        metrics: Metrics of its program: ``macs`` of its forward passes, if it does not always run
            the architecture that it was sent; otherwise ``seen``, the number of examples that it
            trained on, counted in every pass.
    """
    forward = metrics.get(MACS)
    return PASSES * (cost(task.graph).macs * metrics["seen"] if forward is None else forward)


def computed(experiment: Experiment, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the MACs of a round.

    Returns:
        ``round``: MACs of the accepted clients' training; see :func:`of_client`.
        ``epoch``: MACE: the number of clients in a round, times the mean over all clients of the
        forward MACs of one pass over their training data.
        ``epochs``: E, the number of passes in a round; the mean over clients if kinds of clients
        differ.
    """
    world = experiment.world
    local = {client.id: experiment.local_of(client.id) for client in world.clients}
    passes = (
        cost(world.tier_of(client.id).graph).macs
        * math.ceil(local[client.id].fraction * client.examples)
        for client in world.clients
    )
    epochs = statistics.mean(options.epochs for options in local.values())
    done = sum(row.get(MACS, 0) for row in rows)
    return {"round": done, "epoch": experiment.rate * sum(passes), "epochs": epochs}
