"""What stands for a graph as an argument: a graph, or what has one, as the result of a rewrite."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

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
    first = next(iter(inspect.signature(function).parameters))
    call: Callable[..., R] = function

    @functools.wraps(function)
    def converting(*args: Any, **keywords: Any) -> R:
        if args:
            args = (graph_of(args[0]), *args[1:])
        elif first in keywords:
            keywords[first] = graph_of(keywords[first])
        return call(*args, **keywords)

    return converting
