"""Tests of clients' models after local training, before aggregation (FedFA, §5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from archgraph.engine.evaluate import Evaluator, mean_of
from archgraph.federation import GLOBAL, Evaluated, LearningTask, Predict, ServerState, State, Task
from archgraph.federation.metrics import derived

# Metrics of a client's model after local training.
LocalTest: TypeAlias = Callable[[Task, State], Mapping[str, float]]
_Way = tuple[Predict | None, Literal["stored", "recompute"]]


def local_test(evaluator: Evaluator, state: ServerState) -> LocalTest:
    """Return a function that tests the model that a client returns.

    The model is tested in the same way as the strategy's models.

    Args:
        evaluator: The experiment's evaluator.
        state: The server's state, which determines how the strategy tests each client's model.
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
            ways.setdefault(client, way)  # FedGKT tests a model alone, then with the server's model

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
    """Return a dict with the mean metrics of the tested clients' models under ``trained``.

    The dict is empty if no client's model was tested.

    Example:
        >>> from archgraph.federation import TASKS
        >>> rows = [{"trained": {"accuracy": 0.5}}, {"trained": {"accuracy": 1.0}}, {"trained": {}}]
        >>> trained_together(rows, TASKS["classification"])
        {'trained': {'accuracy': 0.75}}
    """
    figures = [row["trained"] for row in rows if row["trained"]]
    return {"trained": derived(mean_of(figures), learning.metrics)} if figures else {}
