"""Clients' models after local training and before aggregation (FedFA, §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from archgraph.engine.evaluate import Evaluator, mean_of
from archgraph.federation import GLOBAL, Evaluated, LearningTask, Predict, ServerState, State, Task
from archgraph.federation.metrics import derived

# Figures of a client's model after local training.
LocalTest: TypeAlias = Callable[[Task, State], Mapping[str, float]]
_Way = tuple[Predict | None, Literal["stored", "recompute"]]


def local_test(evaluator: Evaluator, state: ServerState) -> LocalTest:
    """Return a test of clients' returned models, done as the strategy tests its models.

    Args:
        evaluator: The experiment's evaluator.
        state: The server's state, from which the strategy derives the test of each client's model.
    """
    setup = evaluator.experiment
    ways: dict[int, _Way] = {}
    common: _Way = None, "stored"
    for model in setup.strategy.evaluated(setup.world, state):
        way = model.predict, model.statistics
        if model.name == GLOBAL:
            common = way
            continue
        for client in model.clients:
            ways.setdefault(client, way)  # FedGKT's: alone, then with the server

    def tested(task: Task, returned: State) -> Mapping[str, float]:
        if setup.world.clients[task.client].of is not None:
            return {}  # an additional model: only a client's own model is tested
        predict, statistics = ways.get(task.client, common)
        model = Evaluated("trained", task.graph, returned, predict=predict, statistics=statistics)
        return evaluator.of_client(model, task.client)

    return tested


def trained_together(
    rows: Iterable[Mapping[str, Any]], learning: LearningTask
) -> dict[str, Mapping[str, float]]:
    """Return the mean over accepted clients, as ``trained`` of an evaluation; empty if none.

    Example:
        >>> from archgraph.federation import TASKS
        >>> rows = [{"trained": {"accuracy": 0.5}}, {"trained": {"accuracy": 1.0}}, {"trained": {}}]
        >>> trained_together(rows, TASKS["classification"])
        {'trained': {'accuracy': 0.75}}
    """
    figures = [row["trained"] for row in rows if row["trained"]]
    return {"trained": derived(mean_of(figures), learning.metrics)} if figures else {}
