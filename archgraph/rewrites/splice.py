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
from archgraph.rewrites.insert import unused_leaves
from archgraph.states import Entry, Rewritten

Updates = Sequence[tuple[str, Value]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Renaming:
    """Names of a copy: its leaves, and the module paths of its operators."""

    leaves: Mapping[str, str]
    scope: Callable[[Node], str]

    def copy(
        self, graph: ArchGraph, nodes: Iterable[Node], updates: Updates, names: Mapping[str, str]
    ) -> tuple[list[Node], list[Param], list[tuple[str, Value]]]:
        """Return the operators of a graph, the leaves and the updates, under their new names."""

        def change(value: Value) -> Value:
            match value:
                case Ref(name):
                    return Ref(names.get(name, name))
                case Leaf(name):
                    return Leaf(self.leaves.get(name, name))
                case _:
                    return value

        def copied(node: Node) -> Node:
            name, scope = names[node.name], self.scope(node)
            return dataclasses.replace(node.mapped(change), name=name, scope=scope)

        params = (p for p in graph.params if p.name in self.leaves)
        return (
            [copied(node) for node in nodes],
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

    First what leads from the entry to the exit. Then, of what serves nothing else, the operators
    with weights, random numbers or an operand that is copied: masks are shared, tables and noise
    are not. Last what updates the block's buffers.
    """
    members = [n for n in block.nodes if graph.node[n].op != "input"]
    inside = set(members)
    within = inside - {block.entry}

    def uses(name: str) -> Iterable[str]:
        return graph.node[name].uses()

    # What depends on the entry: only this changes with the block's input.
    below = {block.entry}
    for name in members:
        if any(used in below for used in uses(name)):
            below.add(name)
    needed = reachable([block.exit], uses, within)
    copied = needed & below - {block.entry}
    # Grow backwards by what only copied operators use; the rest serves other blocks as well.
    copies = set(copied)
    for name in reversed(members):
        if name in needed and graph.users[name] and copies.issuperset(graph.users[name]):
            copies.add(name)
    learned = {
        n for n in copies if any(graph.param[k].role != "constant" for k in _leaves(graph, n))
    }
    drawn = {n for n in copies if _random(graph.node[n])}
    for name in members:
        if name in learned | drawn or (name in copies and any(u in copied for u in uses(name))):
            copied.add(name)
    # Noise that does not depend on the entry is drawn once per block, with the operators before it.
    noise = drawn - below
    for name in reversed(members):
        if name in copies and name in fixed(graph) and any(u in noise for u in graph.users[name]):
            noise.add(name)
    copied |= noise
    updates = [
        (buffer, value)
        for buffer, value in graph.updates
        if refs(value) and inside.issuperset([*refs(value), *graph.leaf_users[buffer]])
    ]
    copied |= reachable((n for _, v in updates for n in refs(v)), uses, within - copied)
    nodes = tuple(n for n in members if n in copied)
    # A leaf with a user outside of the copy stays shared, like constants, which never change.
    mine = tuple(
        leaf
        for leaf in dict.fromkeys(leaf for n in nodes for leaf in _leaves(graph, n))
        if graph.param[leaf].role != "constant" and copied.issuperset(graph.leaf_users[leaf])
    )
    # A counter that no operator reads belongs to the block whose module holds it.
    unused = unused_leaves(graph).items()
    mine += tuple(name for name, module in unused if module and module.issubset(mine))
    return Plan(nodes, mine, tuple(u for u in updates if u[0] in mine))


def _leaves(graph: ArchGraph, name: str) -> Iterable[str]:
    return graph.node[name].leaves()


def _random(node: Node) -> bool:
    """Return whether it draws random numbers: two blocks do not share them."""
    if not node.op.startswith("aten."):
        return False
    return torch.Tag.nondeterministic_seeded in op_schema(node.op).overload.tags
