"""Splice: copies of blocks put into a graph, and the map to its states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from archgraph.analysis.roles import fixed
from archgraph.analysis.structure import Block
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, Value, per_graph, refs, replace
from archgraph.graph.passes import reachable, renumber
from archgraph.ops.check import check
from archgraph.ops.schema import op_schema
from archgraph.rewrites.insert import operands_in, unused_leaves
from archgraph.states import Entry, Rewritten

Updates = Sequence[tuple[str, Value]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Renaming:
    """Names of a copy: its leaves, and the module paths of its operators."""

    leaves: Mapping[str, str]
    scope: Callable[[Node], str]

    def change(self, names: Mapping[str, str]) -> Callable[[Value], Value]:
        """Return what writes values by new names: of leaves, and these of operators."""

        def changed(value: Value) -> Value:
            match value:
                case Ref(name):
                    return Ref(names.get(name, name))
                case Leaf(name):
                    return Leaf(self.leaves.get(name, name))
                case _:
                    return value

        return changed

    def copy(
        self, graph: ArchGraph, nodes: Iterable[Node], updates: Updates, names: Mapping[str, str]
    ) -> tuple[list[Node], list[Param], list[tuple[str, Value]]]:
        """Return the operators of a graph, the leaves and the updates, under their new names."""
        change = self.change(names)
        params = (p for p in graph.params if p.name in self.leaves)
        return (
            [
                dataclasses.replace(n.mapped(change), name=names[n.name], scope=self.scope(n))
                for n in nodes
            ],
            [dataclasses.replace(p, name=self.leaves[p.name], aliases=()) for p in params],
            [(self.leaves[buffer], replace(value, change)) for buffer, value in updates],
        )


def names_in_use(graph: ArchGraph) -> set[str]:
    """Return the names that new leaves and modules cannot have."""
    return {n for p in graph.params for n in (p.name, *p.aliases)} | {n.scope for n in graph.nodes}


def behind(graph: ArchGraph, spot: str, nodes: Sequence[Node], end: str) -> ArchGraph:
    """Insert operators behind a result; whatever read the result reads ``end`` of theirs."""
    new = graph.mapped(lambda value: Ref(end) if value == Ref(spot) else value)
    at = next(i for i, n in enumerate(new.nodes) if n.name == spot) + 1
    # Updates of buffers stay with the original operators: a copy brings updates of its own.
    return new.replace(nodes=(*new.nodes[:at], *nodes, *new.nodes[at:]), updates=graph.updates)


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where the next block goes: behind a node, and behind the leaves of its block."""

    exit: str
    leaves: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a block is copied; what it shares with other blocks is not."""

    nodes: tuple[str, ...]
    leaves: tuple[str, ...]
    updates: Updates


@dataclass
class Splice:
    """A graph while blocks are inserted.

    Attributes:
        graph: The graph before.
        extended: The graph with the copies so far.
        source: The leaf that each new leaf starts from.
        blocks: The new blocks.
    """

    graph: ArchGraph
    source: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.extended = self.graph

    def spot(self, block: Block) -> _Spot:
        """Return the place behind a block of the original graph."""
        used = (leaf for n in block.nodes for leaf in self.graph.node[n].leaves())
        return _Spot(block.exit, frozenset(used))

    def insert(self, block: Block, spot: _Spot, renaming: Renaming, called: str) -> _Spot:
        """Copy a block behind a spot; whatever read the value there reads the copy's result."""
        plan, leaf = plan_of(self.graph, block), renaming.leaves
        # Names until renumbering: the same block may be copied several times.
        names = {n: f"{n}~{len(self.blocks) + 1}" for n in plan.nodes} | {block.entry: spot.exit}
        nodes, params, updates = renaming.copy(
            self.graph, map(self.graph.node.__getitem__, plan.nodes), plan.updates, names
        )
        extended = behind(self.extended, spot.exit, nodes, names[block.exit])
        # A leaf that the copy shares with the original is there already.
        fresh = [p for p in params if p.name not in extended.param]
        # In state-dict order a copy follows its original, as in a model that was built deeper.
        self.extended = extended.replace(
            params=_after(extended.params, fresh, lambda p: p.name in spot.leaves),
            updates=_after(extended.updates, updates, lambda u: u[0] in spot.leaves),
        )
        copied = dataclasses.replace(block, name=called, nodes=plan.nodes)
        self.blocks.append(_renamed(copied, names))
        self.source |= {leaf[old]: old for old in plan.leaves}
        return _Spot(names[block.exit], frozenset(leaf[old] for old in plan.leaves))

    def rewritten(self, like: ArchGraph | None) -> tuple[Rewritten, tuple[Block, ...]]:
        """Return the finished graph and new blocks, in ``like``'s order if it has all leaves."""
        graph = self.extended
        if like is not None and all(p.name in like.param for p in graph.params):
            order = {p.name: i for i, p in enumerate(like.params)}
            # Updates that `like` does not have come last, in the order of their insertion.
            turn = {k: i for i, (k, _) in enumerate(like.updates)}
            graph = graph.replace(
                params=tuple(sorted(graph.params, key=lambda p: order[p.name])),
                updates=tuple(sorted(graph.updates, key=lambda u: turn.get(u[0], len(turn)))),
            )
        new = renumber(graph)
        check(new)
        entries = {
            p.name: Entry(self.source.get(p.name, p.name), (None,) * len(p.shape))
            for p in new.params
            if p.role != "constant"
        }
        # Renumbering keeps the order of the nodes, so that they correspond one by one.
        called = {a.name: b.name for a, b in zip(graph.nodes, new.nodes, strict=True)}
        blocks = tuple(_renamed(block, called) for block in self.blocks)
        return Rewritten.between(self.graph, new, entries), blocks


def _after(items: tuple[T, ...], new: Iterable[T], here: Callable[[T], bool]) -> tuple[T, ...]:
    """Return the items with new ones behind the last of some of them, or at the end."""
    at = max((i for i, item in enumerate(items) if here(item)), default=len(items) - 1) + 1
    return (*items[:at], *new, *items[at:])


def _renamed(block: Block, names: Mapping[str, str]) -> Block:
    """Rename the operators of a block."""
    return dataclasses.replace(
        block,
        nodes=tuple(names[n] for n in block.nodes),
        entry=names[block.entry],
        exit=names[block.exit],
        merge=names.get(block.merge, ""),
        shortcut=names.get(block.shortcut, block.shortcut),
        sums=tuple((names[m], names.get(s, s)) for m, s in block.sums),
    )


@per_graph
def plan_of(graph: ArchGraph, block: Block) -> Plan:
    """Plan the copy of a block: its operators, what serves only them, their leaves and counters.

    1. What computes its result (:func:`_copied`).
    2. What updates its buffers.
    3. The leaves of both that nothing else has.
    """
    members = {n for n in block.nodes if graph.node[n].op != "input"}
    copied = _copied(graph, block, members)  # 1
    updates = [  # 2
        (buffer, value)
        for buffer, value in graph.updates
        if refs(value) and members.issuperset([*refs(value), *graph.leaf_users[buffer]])
    ]
    behind_updates = (name for _, value in updates for name in refs(value))
    copied |= reachable(behind_updates, operands_in(graph), members - {block.entry} - copied)
    nodes = tuple(n for n in block.nodes if n in copied)
    leaves = _private_leaves(graph, nodes)  # 3
    return Plan(nodes, leaves, tuple(u for u in updates if u[0] in leaves))


def _copied(graph: ArchGraph, block: Block, members: set[str]) -> set[str]:
    """Return the operators that each copy of a block has; those that only updates need are apart.

    1. What leads from the entry to the exit: only this changes with the block's input.
    2. Of what serves nothing else: operators with weights or random numbers, and what they and
       those of 1 lead to. So masks are shared, tables and noise are not.
    3. Noise that does not depend on the entry, and the operators before it: each block draws its
       own.
    """
    users, uses = graph.users.__getitem__, operands_in(graph)
    below = reachable([block.entry], users, members | {block.entry})
    needed = reachable([block.exit], uses, members - {block.entry})
    private = needed & below  # 1
    # Grow backwards by what only private operators use; the rest serves other blocks as well.
    for name in reversed(block.nodes):
        if name in needed and graph.users[name] and private.issuperset(graph.users[name]):
            private.add(name)
    random = {n for n in private if _random(graph.node[n])}
    learned = {n for n in private if _learned(graph, n)}
    copied = reachable((needed & below) | random | learned, users, private)  # 2
    before = (used for name in random - below for used in uses(name))  # 3
    return copied | reachable(before, uses, private & fixed(graph).keys())


def _learned(graph: ArchGraph, name: str) -> list[str]:
    """Return the leaves of an operator, but constants."""
    return [leaf for leaf in graph.node[name].leaves() if graph.param[leaf].role != "constant"]


def _private_leaves(graph: ArchGraph, names: Sequence[str]) -> tuple[str, ...]:
    """Return the leaves that only these operators use, and the counters of their modules."""
    inside, used = set(names), dict.fromkeys(leaf for n in names for leaf in _learned(graph, n))
    private = tuple(leaf for leaf in used if inside.issuperset(graph.leaf_users[leaf]))
    # A counter that no operator reads belongs to the block whose module holds it.
    unused = unused_leaves(graph).items()
    return private + tuple(n for n, module in unused if module and module.issubset(private))


def _random(node: Node) -> bool:
    """Return whether it draws random numbers: two blocks do not share them."""
    if not node.op.startswith("aten."):
        return False
    return torch.Tag.nondeterministic_seeded in op_schema(node.op).overload.tags
