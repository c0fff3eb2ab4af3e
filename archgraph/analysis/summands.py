"""Summands: which of the two operands of a sum is a branch, and which one it is added to."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from dataclasses import dataclass

from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.ops.table import row


@dataclass(frozen=True, slots=True)
class Summand:
    """An operand of a sum of two results that has no other use.

    Attributes:
        sum: The sum.
        name: The operand.
        other: The other operand.
        private: Operators whose paths to any output all lead through the operand.
        enters: Results that the private operators take from elsewhere.
    """

    sum: str
    name: str
    other: str
    private: frozenset[str]
    enters: frozenset[str]


@per_graph
def summands(graph: ArchGraph) -> tuple[Summand, ...]:
    """Return the branches of all sums of two results, in topological order of the sums."""
    result, outputs = list[Summand](), set(graph.output_refs())
    order = {node.name: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        names = tuple(dict.fromkeys(node.uses()))
        for name, other in (names, names[::-1]) if len(names) == 2 and row(node.op).merges else ():
            if graph.users[name] != (node.name,) or name in outputs:
                continue
            private = _private(graph, name, order, outputs)
            enters = {used for n in private for used in graph.node[n].uses()} - private
            result.append(Summand(node.name, name, other, frozenset(private), frozenset(enters)))
    return tuple(result)


def _private(graph: ArchGraph, name: str, order: Mapping[str, int], outputs: Set[str]) -> set[str]:
    """Return the operators whose paths to any output all lead through a result."""
    private = {name}
    waiting = [-order[used] for used in graph.node[name].uses()]
    heapq.heapify(waiting)
    while waiting:  # in reverse order, so that all users of a candidate are decided
        candidate = graph.nodes[-heapq.heappop(waiting)].name
        if candidate in private or candidate in outputs:
            continue
        if private.issuperset(graph.users[candidate]):
            private.add(candidate)
            for used in graph.node[candidate].uses():
                heapq.heappush(waiting, -order[used])
    return private
