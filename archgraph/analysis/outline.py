"""Write the computation of a graph line by line, without names."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Value, per_graph, replace, show
from archgraph.notebook import preformatted


class Outline(NamedTuple):
    """The computation of an architecture, without names.

    Attributes:
        lines: One line per operator. Lines for parameters, buffers and constants follow the first
            operator that uses them.
        leaves: Names of the parameters, buffers and constants, in the order of their numbers in the
            lines.
    """

    lines: tuple[str, ...]
    leaves: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Outline: {len(self.lines)} lines, {len(self.leaves)} leaves>"

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return preformatted(repr(self).strip("<>"), self.lines)


@takes_graph
@per_graph
def outline(graph: ArchGraph) -> Outline:
    """Return a text form of an architecture that uses numbers instead of names.

    The text has one line per operator. The lines of two graphs are equal if both graphs have the
    same operators, connected in the same way, and if all results, parameters, buffers and constants
    have the same shapes and dtypes. In this case, parameters with the same number correspond to
    each other.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> drawn = outline(trace(nn.Linear(3, 2), zeros(1, 3)).graph)
        >>> drawn.lines[1], drawn.leaves
        ('%1: float32[batch, 2] = aten.linear(input=%0, weight=#0, bias=#1)', ('weight', 'bias'))
    """
    nodes = {node.name: f"{index}" for index, node in enumerate(graph.nodes)}
    used = [name for node in graph.nodes for name in node.leaves()]
    every = dict.fromkeys([*used, *dict(graph.updates), *graph.param])
    places = {name: f"#{i}" for i, name in enumerate(every)}

    def unnamed(value: Value) -> Value:
        match value:
            case Ref(name):
                return Ref(nodes[name])
            case Leaf(name):
                return Leaf(places[name])
            case _:
                return value

    lines: list[str] = []
    declared: set[str] = set()

    def declare(leaf: str) -> None:
        if leaf not in declared:
            declared.add(leaf)
            param = dataclasses.replace(graph.param[leaf], name=places[leaf], aliases=())
            lines.append(str(param))

    for node in graph.nodes:
        args = tuple((key, replace(value, unnamed)) for key, value in node.args)
        lines.append(str(Node(nodes[node.name], node.op, args, node.type)))
        for leaf in node.leaves():
            declare(leaf)
    for buffer, value in graph.updates:
        declare(buffer)
        lines.append(f"update {places[buffer]} = {show(replace(value, unnamed))}")
    lines.append(f"return {show(replace(graph.outputs, unnamed))}")
    for leaf in places:  # also unused leaves, because they are part of the state
        declare(leaf)
    return Outline(tuple(lines), tuple(places))
