"""Find the branches of a graph: operands of additions that nothing else uses."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from dataclasses import dataclass

from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.ops.table import row


@dataclass(frozen=True, slots=True)
class Summand:
    """An operand of an addition of two results that no other operator uses.

    Attributes:
        sum: The addition.
        name: The operand.
        other: The other operand of the addition.
        private: Operators whose result affects outputs only through the operand.
        enters: Results of other operators that the private operators use.
    """

    sum: str
    name: str
    other: str
    private: frozenset[str]
    enters: frozenset[str]


@per_graph
def summands(graph: ArchGraph) -> tuple[Summand, ...]:
    """Return the branches of all additions of two results, in topological order."""
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
    """Return the operators whose result affects outputs only through the result ``name``."""
    private = {name}
    waiting = [-order[used] for used in graph.node[name].uses()]
    heapq.heapify(waiting)
    while waiting:  # in reverse topological order, so that users come before their operands
        candidate = graph.nodes[-heapq.heappop(waiting)].name
        if candidate in private or candidate in outputs:
            continue
        if private.issuperset(graph.users[candidate]):
            private.add(candidate)
            for used in graph.node[candidate].uses():
                heapq.heappush(waiting, -order[used])
    return private
