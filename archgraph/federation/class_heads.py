"""Heads of clients that have some of the classes: rows of the global model's head.

Strategies send, merge and test architectures with all classes. What a client of a kind with
``classes`` gets is cut behind them: its head has a row for each of its classes, and its transfer
says which rows of the global head these are, so that kinds that share classes share rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.errors import RewriteError
from archgraph.federation.state import GLOBAL
from archgraph.federation.strategy import Evaluated
from archgraph.federation.tasks import Task
from archgraph.federation.world import Client, World
from archgraph.graph.ir import ArchGraph, Ref, walk
from archgraph.layout.layouts import AxisRef
from archgraph.rewrites.cut import cut_axes
from archgraph.states import Rewritten, State, Transfer


@functools.lru_cache(maxsize=1024)
def class_cut(graph: ArchGraph, count: int, classes: tuple[int, ...]) -> Rewritten:
    """Keep some of the classes that a network answers with, at all of its exits.

    1. Solve the axes as if nobody read the outputs, whose sizes otherwise stay.
    2. The class axes are those of outputs, of one position for each class, that no later layer
       sums over (else they are features).
    3. Each is cut as a free axis is.

    Args:
        graph: The architecture.
        count: Number of its classes.
        classes: Those that stay, in their new order.

    Raises:
        RewriteError: If no axis of an output can be cut to them; says why.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 10))
        >>> cut = class_cut(trace(net, zeros(1, 3)).graph, 10, (0, 1, 5))
        >>> {p.name: p.shape for p in cut.graph.params if "weight" in p.name}
        {'0.weight': (10, 3), '2.weight': (3, 10)}
    """
    solved = axes(graph.replace(outputs=()))  # step 1
    outputs = [value.name for value in walk(graph.outputs) if isinstance(value, Ref)]
    dims = [d for name in outputs for result in solved.value[name] for d in result]
    summed = {contraction.layout for contraction in solved.contractions}
    heads = {d.name for d in dims if isinstance(d, AxisRef) and d.size == count} - {
        d.name for d in summed if isinstance(d, AxisRef)
    }  # step 2
    reasons = [solved[name].reason for name in sorted(heads) if not solved[name].free]
    if reasons or not heads:
        raise RewriteError(
            "the head cannot be cut to some of the classes",
            where=graph.name or "model",
            found=reasons[0] if reasons else f"no layer with a unit for each of {count} classes",
            hint="end the model with a linear layer that has an output for each class",
        )
    return cut_axes(graph, dict.fromkeys(heads, np.array(classes)), solved)  # step 3


@functools.lru_cache(maxsize=1024)
def _composed(first: Transfer, then: Transfer) -> Transfer:
    return first >> then


def model_of(world: World, client: Client) -> ArchGraph:
    """Return what a client runs: its tier's architecture, with the head of its classes."""
    graph = world.tier_of(client.id).graph
    return class_cut(graph, world.classes, client.classes).graph if client.classes else graph


def class_task(world: World, task: Task) -> Task:
    """Return a task with the head of its client's classes; the task itself where it has all."""
    classes = world.clients[task.client].classes
    if not classes:
        return task
    graph, cut = class_cut(task.graph, world.classes, classes)
    # The task may lack what its client has already.
    state = cut.pull(task.state, copy=False, partial=True)
    transfer = None if task.transfer is None else _composed(task.transfer, cut)
    return replace(task, graph=graph, state=state, transfer=transfer)


def class_models(world: World, models: Iterable[Evaluated]) -> Iterator[Evaluated]:
    """Yield models as their clients have them: with a head of a kind's classes, for each such kind.

    The global model stays as it is, beside them. A model of clients of several kinds is one model
    for each kind with classes of its own, as ``NAME+KIND``, and one for all others.

    Args:
        world: Who takes part.
        models: What the strategy answers for.
    """
    for model in models:
        kinds: dict[str, list[int]] = {}
        for client in model.clients:
            owner = world.clients[world.clients[client].owner]
            kinds.setdefault(owner.name if owner.classes else "", []).append(client)
        others = tuple(kinds.pop("", ()))
        if others or model.name == GLOBAL or not model.clients:
            yield replace(model, clients=others)
        for kind, clients in kinds.items():
            classes = world.clients[clients[0]].classes
            graph, cut = class_cut(model.graph, world.classes, classes)
            alone = len(clients) == len(model.clients) and model.name != GLOBAL
            yield replace(
                model,
                name=model.name if alone else f"{model.name}+{kind}",
                graph=graph,
                state=cut.pull(model.state, copy=False),
                clients=tuple(clients),
                states=model.states and functools.partial(_version, model, cut),
                classes=classes,
            )


def _version(model: Evaluated, cut: Transfer, client: int) -> State:
    assert model.states is not None
    return cut.pull(model.states(client))
