"""Determine which operators remain in a submodel with skipped blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from archgraph.analysis.structure import passes_on, structure
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Ref, per_graph, walk
from archgraph.graph.passes import reachable

Needs: TypeAlias = frozenset[frozenset[str]]
"""Condition on a submodel: it must have at least one block of every set."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Conditions on the blocks of a submodel under which each operator remains.

    Attributes:
        there: Dict from operator to the condition under which the operator remains.
        read: Dict from operator to the condition under which another operator uses its result.
        within: Dict from each operator that is removed with a block to the condition that the block
            remains.
        stands_in: Dict from operator to the results of blocks that its result replaces if the
            blocks are skipped.
    """

    there: Mapping[str, Needs]
    read: Mapping[str, Needs]
    within: Mapping[str, Needs]
    stands_in: Mapping[str, Sequence[str]]


@takes_graph
@per_graph
def presence(graph: ArchGraph) -> Presence:
    """Return the conditions under which each operator of a graph remains in a submodel.

    From the last operator to the first:

    1. Outputs and new values of buffers are always used.
    2. A value is used if one of its users remains. If a block is skipped, the users of its output
       use its input instead.
    3. An operator remains if its value is used and its block remains. Inputs always remain.
    """
    within, stands_in = _parts(graph)
    always = {r.name for r in walk(graph.outputs) if isinstance(r, Ref)}  # 1
    always |= {r.name for _, value in graph.updates for r in walk(value) if isinstance(r, Ref)}
    read: dict[str, Needs] = {}
    there: dict[str, Needs] = {}
    for node in reversed(graph.nodes):
        readers = [there[user] for user in graph.users[node.name]]  # 2
        readers += [read[end] for end in stands_in.get(node.name, ())]
        free = node.name in always or not readers
        read[node.name] = frozenset() if free else any_needs(readers)
        needs = least(read[node.name] | within.get(node.name, frozenset()))
        there[node.name] = frozenset() if node.op == "input" else needs  # 3
    return Presence(there, read, within, stands_in)


def _parts(graph: ArchGraph) -> tuple[dict[str, Needs], dict[str, list[str]]]:
    """Return :attr:`Presence.within` and :attr:`Presence.stands_in`."""
    within: dict[str, Needs] = {}
    stands_in: dict[str, list[str]] = {}
    for block in (block for block in structure(graph).blocks if block.removable):
        listed = bool(block.terms) and not passes_on(graph, block)
        if not listed:
            stands_in.setdefault(block.bypass, []).append(block.exit)
        # Operators of a dense block on its input remain, and its concatenation may remain.
        prepared = reachable([block.bypass], lambda name: graph.node[name].uses(), block.nodes)
        stays = prepared | ({block.exit} if listed else set())
        needs = frozenset({frozenset({block.name})})
        within.update((node, needs) for node in block.nodes if node not in stays)
    return within, stands_in


def any_needs(needs: Iterable[Needs]) -> Needs:
    """Return the condition that at least one of several conditions holds."""
    several = list(needs)
    if not several or not all(several):
        return frozenset()
    joined = several[0]
    for other in several[1:]:
        joined = least({a | b for a in joined for b in other})
    return joined


def least(sets: Collection[frozenset[str]]) -> Needs:
    """Remove each set that contains another set."""
    return frozenset(one for one in sets if not any(other < one for other in sets))
