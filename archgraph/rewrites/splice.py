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
from archgraph.ops.schema import schema
from archgraph.rewrites.insert import silent
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
        """Operators of a graph, the leaves and the updates, under their new names."""

        def change(value: Value) -> Value:
            match value:
                case Ref(name):
                    return Ref(names.get(name, name))
                case Leaf(name):
                    return Leaf(self.leaves.get(name, name))
                case _:
                    return value

        return (
            [
                dataclasses.replace(n.mapped(change), name=names[n.name], scope=self.scope(n))
                for n in nodes
            ],
            [
                dataclasses.replace(p, name=self.leaves[p.name], aliases=())
                for p in graph.params
                if p.name in self.leaves
            ],
            [(self.leaves[buffer], replace(value, change)) for buffer, value in updates],
        )


def names_in_use(graph: ArchGraph) -> set[str]:
    """Names that new leaves and modules cannot have."""
    return {n for p in graph.params for n in (p.name, *p.aliases)} | {n.scope for n in graph.nodes}


def behind(graph: ArchGraph, spot: str, nodes: Sequence[Node], end: str) -> ArchGraph:
    """A graph with operators behind a result; whatever read the result reads theirs, ``end``."""
    new = graph.mapped(lambda value: Ref(end) if value == Ref(spot) else value)
    at = next(i for i, n in enumerate(new.nodes) if n.name == spot) + 1
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
        whole: The graph with the copies so far.
        source: The leaf that each new leaf starts from.
        made: The new blocks.
    """

    graph: ArchGraph
    source: dict[str, str] = field(default_factory=dict)
    made: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole = self.graph

    def spot(self, block: Block) -> _Spot:
        """Place behind a block of the original graph."""
        used = (leaf for n in block.nodes for leaf in self.graph.node[n].leaves())
        return _Spot(block.exit, frozenset(used))

    def insert(self, block: Block, spot: _Spot, renaming: Renaming, called: str) -> _Spot:
        """Copy a block behind a spot; whatever read the value there reads the copy's result."""
        plan, leaf = plan_of(self.graph, block), renaming.leaves
        names = {n: f"{n}~{len(self.made) + 1}" for n in plan.nodes} | {block.entry: spot.exit}
        nodes, params, updates = renaming.copy(
            self.graph, map(self.graph.node.__getitem__, plan.nodes), plan.updates, names
        )
        whole = behind(self.whole, spot.exit, nodes, names[block.exit])
        fresh = [p for p in params if p.name not in whole.param]
        self.whole = whole.replace(
            params=_after(whole.params, fresh, lambda p: p.name in spot.leaves),
            updates=_after(whole.updates, updates, lambda u: u[0] in spot.leaves),
        )
        copied = dataclasses.replace(block, name=called, nodes=plan.nodes)
        self.made.append(_renamed(copied, names))
        self.source |= {leaf[old]: old for old in plan.leaves}
        return _Spot(names[block.exit], frozenset(leaf[old] for old in plan.leaves))

    def rewritten(self, like: ArchGraph | None) -> tuple[Rewritten, tuple[Block, ...]]:
        """The finished graph and its new blocks, in ``like``'s order where that has all leaves."""
        whole = self.whole
        if like is not None and all(p.name in like.param for p in whole.params):
            place = {p.name: i for i, p in enumerate(like.params)}
            turn = {k: i for i, (k, _) in enumerate(like.updates)}
            whole = whole.replace(
                params=tuple(sorted(whole.params, key=lambda p: place[p.name])),
                updates=tuple(sorted(whole.updates, key=lambda u: turn.get(u[0], len(turn)))),
            )
        new = renumber(whole)
        check(new)
        entries = {
            p.name: Entry(self.source.get(p.name, p.name), (None,) * len(p.shape))
            for p in new.params
            if p.role != "constant"
        }
        called = {a.name: b.name for a, b in zip(whole.nodes, new.nodes, strict=True)}
        blocks = tuple(_renamed(block, called) for block in self.made)
        return Rewritten.between(self.graph, new, entries), blocks


def _after(items: tuple[T, ...], new: Iterable[T], here: Callable[[T], bool]) -> tuple[T, ...]:
    """Items with new ones behind the last of some of them, or at the end."""
    at = max((i for i, item in enumerate(items) if here(item)), default=len(items) - 1) + 1
    return (*items[:at], *new, *items[at:])


def _renamed(block: Block, names: Mapping[str, str]) -> Block:
    """A block whose operators have other names."""
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
    """What of a block is copied: its operators, what serves only them, their leaves and counters.

    First what leads from the entry to the exit. Then, of what serves nothing else, the operators
    with weights, random numbers or an operand that is copied: masks are shared, tables and noise
    are not. Last what updates the block's buffers.
    """
    members = [n for n in block.nodes if graph.node[n].op != "input"]
    inside = set(members)
    within = inside - {block.entry}

    def uses(name: str) -> Iterable[str]:
        return graph.node[name].uses()

    below = {block.entry}
    for name in members:
        if any(used in below for used in uses(name)):
            below.add(name)
    needed = reachable([block.exit], uses, within)
    copied = needed & below - {block.entry}
    own = set(copied)
    for name in reversed(members):
        if name in needed and graph.users[name] and own.issuperset(graph.users[name]):
            own.add(name)
    learned = {n for n in own if any(graph.param[k].role != "constant" for k in _leaves(graph, n))}
    drawn = {n for n in own if _random(graph.node[n])}
    for name in members:
        if name in learned | drawn or (name in own and any(u in copied for u in uses(name))):
            copied.add(name)
    noise = drawn - below
    for name in reversed(members):
        if name in own and name in fixed(graph) and any(u in noise for u in graph.users[name]):
            noise.add(name)
    copied |= noise
    updates = [
        (buffer, value)
        for buffer, value in graph.updates
        if refs(value) and inside.issuperset([*refs(value), *graph.leaf_users[buffer]])
    ]
    copied |= reachable((n for _, v in updates for n in refs(v)), uses, within - copied)
    nodes = tuple(n for n in members if n in copied)
    mine = tuple(
        leaf
        for leaf in dict.fromkeys(leaf for n in nodes for leaf in _leaves(graph, n))
        if graph.param[leaf].role != "constant" and copied.issuperset(graph.leaf_users[leaf])
    )
    unused = silent(graph).items()
    mine += tuple(name for name, module in unused if module and module.issubset(mine))
    return Plan(nodes, mine, tuple(u for u in updates if u[0] in mine))


def _leaves(graph: ArchGraph, name: str) -> Iterable[str]:
    return graph.node[name].leaves()


def _random(node: Node) -> bool:
    """Whether it draws random numbers: two blocks do not share them."""
    if not node.op.startswith("aten."):
        return False
    return torch.Tag.nondeterministic_seeded in schema(node.op).overload.tags
