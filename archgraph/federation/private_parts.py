"""Private tensors of models, which stay with clients.

A tensor may be private by its name, as part of a model's head, or because the global model does not
have it.

A strategy names the private tensors of an architecture (:meth:`Strategy.private_entries`). The
engine then adds these names to the strategy's tasks, and uses each client's private tensors when it
tests models on the client's data.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from archgraph.analysis.roles import fixed, head, label_rows
from archgraph.federation.strategy import Evaluated, Strategy
from archgraph.federation.tasks import Task
from archgraph.federation.world import World
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.ops.table import statistics
from archgraph.states import Transfer, signature


@per_graph
def named_entries(graph: ArchGraph, patterns: tuple[str, ...]) -> frozenset[str]:
    """Return the names of an architecture's parameters and buffers that match patterns.

    Args:
        graph: The architecture.
        patterns: Names of parameters and buffers, or patterns of names (``fc.*``). A parameter with
            several names (tied weights) matches if any of its names matches.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> graph = trace(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), zeros(2, 3)).graph
        >>> sorted(named_entries(graph, ("0.*", "1.running_*")))
        ['0.bias', '0.weight', '1.running_mean', '1.running_var']
    """
    entries = (graph.param[name] for name in graph.state_names)
    owners = {name: p.name for p in entries for name in (p.name, *p.aliases)}
    matches: set[str] = set()
    for pattern in patterns:
        # An exact name is not interpreted as a pattern: it may contain brackets.
        exact = [pattern] if pattern in owners else []
        matches.update(owners[n] for n in exact or fnmatch.filter(owners, pattern))
    return frozenset(matches)


@per_graph
def classifier(graph: ArchGraph, classes: int = 0) -> frozenset[str]:
    """Return the names of the parameters of a model's head.

    The head consists of all parameters with one row per class, including the parameters of early
    exits. If there are none, as in regression, the head consists of the parameters of the last
    operator that multiplies its input by a weight.

    Args:
        graph: The architecture.
        classes: Number of classes; 0 if targets are not classes.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.LogSoftmax(1))
        >>> graph = trace(net, zeros(1, 3)).graph
        >>> sorted(classifier(graph, 2)), sorted(classifier(graph))
        (['2.bias', '2.weight'], ['2.bias', '2.weight'])
    """
    rows = frozenset(label_rows(graph, classes)) if classes else frozenset[str]()
    last = head(graph)
    if rows or last is None:
        return rows
    node = graph.node[last[0]]
    # Includes weights that are transposed or split before they are used.
    leaves = set(node.leaves()).union(*(fixed(graph).get(used, ()) for used in node.uses()))
    return frozenset(name for name in leaves if graph.param[name].role == "parameter")


@functools.lru_cache(maxsize=1024)
def additions(graph: ArchGraph, transfer: Transfer) -> frozenset[str]:
    """Return the names of trained parameters and statistics that the global model lacks.

    Constants and frozen parameters are not included, since every task sends them.

    Args:
        graph: The architecture.
        transfer: Linear map from the global state to the architecture's.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.rewrites.lora import add_lora
        >>> more = add_lora(trace(nn.Linear(3, 2), zeros(1, 3)).graph, 1)
        >>> len(additions(more.graph, more.transfer))
        2
    """
    changing = {p.name for p in graph.params if p.role == "parameter" and p.trainable}
    changing.update(statistics(graph))
    entries = transfer.entries.items()
    return frozenset(name for name, e in entries if e.source is None and name in changing)


def private_task(strategy: Strategy, world: World, task: Task) -> Task:
    """Return a copy of the task whose ``private`` contains the names of all private tensors.

    Private tensors are the tensors that :meth:`Strategy.private_entries` returns, and all trained
    tensors that the global model lacks. However, a tensor that the global model lacks is not
    private if it is in ``Task.unmerged``, because the strategy itself merges this tensor.
    """
    private = strategy.private_entries(world, task.graph)
    # Transfers from other groups of the state do not concern the global model.
    if task.transfer is not None and task.transfer.source == signature(world.graph):
        private |= additions(task.graph, task.transfer) - task.unmerged
    return replace(task, private=task.private | private) if private - task.private else task


def private_models(
    strategy: Strategy, world: World, models: Iterable[Evaluated], *, every: bool = False
) -> Iterator[Evaluated]:
    """Yield models to test, with ``private=True`` for each model that has private tensors.

    A model with private tensors is omitted if its list of clients is empty (as for the global
    model), because the server has only the initial values of private tensors.

    Args:
        strategy: The method.
        world: The clients and tiers.
        models: Models from :meth:`Strategy.evaluated`.
        every: If True, no model is omitted.
    """
    tiers = world.tiers if world.graph.nodes else ()
    more = {tier.name for tier in tiers if additions(tier.graph, tier.transfer)}
    for model in models:
        private = strategy.private_entries(world, model.graph)
        if model.clients:
            yield replace(model, private=True) if private or model.name in more else model
        elif every or not private:
            yield model
