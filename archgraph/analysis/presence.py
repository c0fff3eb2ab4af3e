"""What is in a submodel whose blocks are left out: the operators, by the blocks that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from archgraph.analysis.structure import passes_on, structure
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Ref, per_graph, walk
from archgraph.graph.passes import reachable

Needs: TypeAlias = frozenset[frozenset[str]]
"""Of each of these sets of blocks one has to be there."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What the operators of a graph need to be in a submodel.

    Attributes:
        there: The blocks that each needs.
        read: The blocks of which its result needs some reader.
        within: The block that it is part of, by operator that is part of one.
        stands_in: What is left out with its block, by the operator that is read in its place.
    """

    there: Mapping[str, Needs]
    read: Mapping[str, Needs]
    within: Mapping[str, Needs]
    stands_in: Mapping[str, Sequence[str]]


@takes_graph
@per_graph
def presence(graph: ArchGraph) -> Presence:
    """Return which blocks the operators of a graph need to be in a submodel.

    From the last operator to the first:

    1. Results and updates of buffers are always read.
    2. A value is read where one of its users is there; and where a block is left out, what stands
       in for its exit is read by those that read the exit.
    3. An operator is there if its value is read, and so is its block. Inputs always are.
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
    """Return the blocks that operators are left out with, and what then stands in for the exits."""
    within: dict[str, Needs] = {}
    stands_in: dict[str, list[str]] = {}
    for block in (block for block in structure(graph).blocks if block.removable):
        listed = bool(block.terms) and not passes_on(graph, block)
        if not listed:
            stands_in.setdefault(block.bypass, []).append(block.exit)
        # A dense block may prepare what it passes on, or end in a list that stays.
        prepared = reachable([block.bypass], lambda name: graph.node[name].uses(), block.nodes)
        stays = prepared | ({block.exit} if listed else set())
        needs = frozenset({frozenset({block.name})})
        within.update((node, needs) for node in block.nodes if node not in stays)
    return within, stands_in


def any_needs(needs: Iterable[Needs]) -> Needs:
    """Return what is needed by one of several: a choice from each of their sets, joined."""
    several = list(needs)
    if not several or not all(several):
        return frozenset()
    joined = several[0]
    for other in several[1:]:
        joined = least({a | b for a in joined for b in other})
    return joined


def least(sets: Collection[frozenset[str]]) -> Needs:
    """Return what all of some sets need, without those that hold another one and follow from it."""
    return frozenset(one for one in sets if not any(other < one for other in sets))
