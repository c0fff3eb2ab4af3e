"""What stands for a graph as an argument: a graph, or what has one, as the result of a rewrite."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph

P = ParamSpec("P")
R = TypeVar("R")


class HasGraph(Protocol):
    """Something that has a graph: the result of a rewrite, say."""

    @property
    def graph(self) -> ArchGraph:
        """The graph."""


GraphLike: TypeAlias = ArchGraph | HasGraph


def graph_of(value: GraphLike) -> ArchGraph:
    """Return the graph of an argument.

    Raises:
        GraphError: If there is none; for a module it says how to get one.
    """
    if isinstance(value, ArchGraph):
        return value
    graph = getattr(value, "graph", None)
    if isinstance(graph, ArchGraph):
        return graph
    # By name: this room does not import torch, so that a graph is read and printed without it.
    module = any(cls.__module__ == "torch.nn.modules.module" for cls in type(value).__mro__)
    raise GraphError(
        "is not an architecture",
        found=type(value).__name__,
        expected="an ArchGraph, or the Rewritten of a rewrite",
        hint="trace it first: ag.trace(model, example)" if module else None,
    )


def takes_graph(
    function: Callable[Concatenate[ArchGraph, P], R],
) -> Callable[Concatenate[GraphLike, P], R]:
    """Let a function take what stands for a graph as its first argument."""

    @functools.wraps(function)
    def converting(graph: GraphLike, *args: P.args, **keywords: P.kwargs) -> R:
        return function(graph_of(graph), *args, **keywords)

    return converting  # type: ignore[return-value]  # callable by keyword, too: all say `graph`
