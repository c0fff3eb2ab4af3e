"""Operators of a submodel with skipped blocks, determined by the blocks that they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from archgraph.analysis.structure import passes_on, structure
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Ref, per_graph, walk
from archgraph.graph.passes import reachable

Needs: TypeAlias = frozenset[frozenset[str]]
"""Sets of blocks; at least one block of every set must be present."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The blocks that each operator of a graph needs to be part of a submodel.

    Attributes:
        there: Dict from operator to the sets of blocks that it needs.
        read: Blocks that the operator's result needs, so that at least one reader is present.
        within: Dict from each operator that is removed with a block to this block.
        stands_in: Dict from operator to the results of skipped blocks that its result replaces.
    """

    there: Mapping[str, Needs]
    read: Mapping[str, Needs]
    within: Mapping[str, Needs]
    stands_in: Mapping[str, Sequence[str]]


@takes_graph
@per_graph
def presence(graph: ArchGraph) -> Presence:
    """Return the blocks that each operator of a graph needs to be part of a submodel.

    From the last operator to the first:

    1. Outputs and updates of buffers are always read.
    2. A value is read if one of its users is present. If a block is skipped, its bypass is read by
       the readers of its exit.
    3. An operator is present if its value is read and its block is present. Inputs are always
       present.
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
    """Return the block that each operator vanishes with, and the exits that a bypass replaces."""
    within: dict[str, Needs] = {}
    stands_in: dict[str, list[str]] = {}
    for block in (block for block in structure(graph).blocks if block.removable):
        listed = bool(block.terms) and not passes_on(graph, block)
        if not listed:
            stands_in.setdefault(block.bypass, []).append(block.exit)
        # A dense block may prepare the value that it passes on, or end in a list that remains.
        prepared = reachable([block.bypass], lambda name: graph.node[name].uses(), block.nodes)
        stays = prepared | ({block.exit} if listed else set())
        needs = frozenset({frozenset({block.name})})
        within.update((node, needs) for node in block.nodes if node not in stays)
    return within, stands_in


def any_needs(needs: Iterable[Needs]) -> Needs:
    """Return the needs of something that any of several needs suffices for."""
    several = list(needs)
    if not several or not all(several):
        return frozenset()
    joined = several[0]
    for other in several[1:]:
        joined = least({a | b for a in joined for b in other})
    return joined


def least(sets: Collection[frozenset[str]]) -> Needs:
    """Remove the sets that contain another one: they follow from it."""
    return frozenset(one for one in sets if not any(other < one for other in sets))
