"""Summands: which of the two results that a sum adds is a branch, and which one it is added to."""

from __future__ import annotations

from dataclasses import dataclass

from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.ops.table import row


@dataclass(frozen=True, slots=True)
class Summand:
    """One of the two results that a sum adds, used there alone.

    Attributes:
        sum: The sum.
        name: The result.
        other: The other one.
        private: Operators all of whose ways to an output lead through the result.
        enters: Results that these take from elsewhere.
    """

    sum: str
    name: str
    other: str
    private: frozenset[str]
    enters: frozenset[str]


@per_graph
def summands(graph: ArchGraph) -> tuple[Summand, ...]:
    """Return what the sums of two results add, in topological order of the sums."""
    result: list[Summand] = []
    outputs = graph.output_refs()
    for node in graph.nodes:
        names = tuple(dict.fromkeys(node.uses()))
        for name, other in (names, names[::-1]) if len(names) == 2 and row(node.op).merges else ():
            if graph.users[name] != (node.name,) or name in outputs:
                continue
            private, pending = {name}, [*graph.node[name].uses()]
            while pending:
                candidate = pending.pop()
                if candidate not in outputs and private.issuperset(graph.users[candidate]):
                    private.add(candidate)
                    pending += graph.node[candidate].uses()
            enters = {used for n in private for used in graph.node[n].uses()} - private
            result.append(Summand(node.name, name, other, frozenset(private), frozenset(enters)))
    return tuple(result)
