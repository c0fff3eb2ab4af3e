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
"""Key of a client's multiply–accumulates in its record."""

# The gradients of the weights cost as much as the forward pass, as do the gradients of the inputs.
# Frozen layers count like other layers: which gradients are skipped depends on their position.
PASSES = 3


def of_client(task: Task, metrics: Mapping[str, float]) -> float:
    """Return the MACs of a client's training: three times the MACs of its forward passes.

    Args:
        task: The client's task.
        metrics: Metrics of its program. If the program does not always run the full model, it
            reports the MACs of its forward passes as ``macs``. Otherwise ``seen`` is used, the
            number of examples that it trained on, counted in every pass.
    """
    forward = metrics.get(MACS)
    return PASSES * (cost(task.graph).macs * metrics["seen"] if forward is None else forward)


def computed(experiment: Experiment, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the MACs of a round's training.

    Returns:
        ``round``: Total MACs of the accepted clients; see :func:`of_client`.
        ``epoch``: MACE of the paper: the forward MACs of one pass over a client's training data,
            averaged over all clients, times the number of clients in a round.
        ``epochs``: E of the paper: the number of passes in a round, averaged over clients if it
            differs between kinds of clients.
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
