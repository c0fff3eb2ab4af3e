"""Arguments that are a graph, or an object that has a graph, such as a ``Rewritten``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from archgraph.errors import GraphError
from archgraph.graph.ir import ArchGraph

P = ParamSpec("P")
R = TypeVar("R")


class HasGraph(Protocol):
    """An object that has a graph, such as the result of a rewrite."""

    @property
    def graph(self) -> ArchGraph:
        """The graph of the object."""


GraphLike: TypeAlias = ArchGraph | HasGraph


def graph_of(value: GraphLike) -> ArchGraph:
    """Return the graph of an argument.

    Raises:
        GraphError: If the argument does not have a graph. For a module, the hint shows how to
            trace it.
    """
    if isinstance(value, ArchGraph):
        return value
    graph = getattr(value, "graph", None)
    if isinstance(graph, ArchGraph):
        return graph
    # By name: this room does not import torch, so graphs can be read and printed without it.
    module = any(cls.__module__ == "torch.nn.modules.module" for cls in type(value).__mro__)
    raise GraphError(
        "is not an architecture",
        found=type(value).__name__,
        expected="an ArchGraph or Rewritten",
        hint="trace it first: ag.trace(model, example)" if module else None,
    )


def takes_graph(
    function: Callable[Concatenate[ArchGraph, P], R],
) -> Callable[Concatenate[GraphLike, P], R]:
    """Let a function accept any object that has a graph as its first argument."""

    @functools.wraps(function)
    def converting(graph: GraphLike, *args: P.args, **keywords: P.kwargs) -> R:
        return function(graph_of(graph), *args, **keywords)

    return converting  # type: ignore[return-value]  # also by keyword: all name it `graph`
