"""Insert copies of blocks into a graph, and record the source of each new parameter."""

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
    """New names for the parameters of a copied block, and new module paths for its operators."""

    leaves: Mapping[str, str]
    scope: Callable[[Node], str]

    def change(self, names: Mapping[str, str]) -> Callable[[Value], Value]:
        """Return a function that renames the parameters and operators in a value."""

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
        """Return operators, parameters and updates of buffers under their new names."""
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
    """Return the names that new parameters and modules cannot have."""
    return {n for p in graph.params for n in (p.name, *p.aliases)} | {n.scope for n in graph.nodes}


def behind(graph: ArchGraph, spot: str, nodes: Sequence[Node], end: str) -> ArchGraph:
    """Insert operators after the result ``spot``; users of ``spot`` then use ``end`` instead."""
    new = graph.mapped(lambda value: Ref(end) if value == Ref(spot) else value)
    at = next(i for i, n in enumerate(new.nodes) if n.name == spot) + 1
    # Updates of buffers stay with the original operators: a copy has its own updates.
    return new.replace(nodes=(*new.nodes[:at], *nodes, *new.nodes[at:]), updates=graph.updates)


@dataclass(frozen=True, slots=True)
class _Spot:
    """Position at which a block can be inserted: after a node, and after leaves."""

    exit: str
    leaves: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """The operators, parameters and buffer updates that each copy of a block repeats."""

    nodes: tuple[str, ...]
    leaves: tuple[str, ...]
    updates: Updates


@dataclass
class Splice:
    """A graph into which blocks are inserted.

    Attributes:
        graph: The graph before any insertion.
        extended: The graph with the copies so far.
        source: Dict from each new parameter or buffer to the one from which it is initialised.
        blocks: The new blocks.
    """

    graph: ArchGraph
    source: dict[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.extended = self.graph

    def spot(self, block: Block) -> _Spot:
        """Return the insertion point after a block of the original graph."""
        used = (leaf for n in block.nodes for leaf in self.graph.node[n].leaves())
        return _Spot(block.exit, frozenset(used))

    def insert(self, block: Block, spot: _Spot, renaming: Renaming, called: str) -> _Spot:
        """Insert a copy of a block; return the insertion point after the copy.

        Operators that used the value at ``spot`` then use the result of the copy.
        """
        plan, leaf = plan_of(self.graph, block), renaming.leaves
        # Temporary names until renumbering, since the same block may be copied several times.
        names = {n: f"{n}~{len(self.blocks) + 1}" for n in plan.nodes} | {block.entry: spot.exit}
        nodes, params, updates = renaming.copy(
            self.graph, map(self.graph.node.__getitem__, plan.nodes), plan.updates, names
        )
        extended = behind(self.extended, spot.exit, nodes, names[block.exit])
        # A leaf that the copy shares with the original already exists.
        fresh = [p for p in params if p.name not in extended.param]
        # In the state dict a copy follows its original, as in a deeper model.
        self.extended = extended.replace(
            params=_after(extended.params, fresh, lambda p: p.name in spot.leaves),
            updates=_after(extended.updates, updates, lambda u: u[0] in spot.leaves),
        )
        copied = dataclasses.replace(block, name=called, nodes=plan.nodes)
        self.blocks.append(_renamed(copied, names))
        self.source |= {leaf[old]: old for old in plan.leaves}
        return _Spot(names[block.exit], frozenset(leaf[old] for old in plan.leaves))

    def rewritten(self, like: ArchGraph | None) -> tuple[Rewritten, tuple[Block, ...]]:
        """Return the rewrite and the new blocks.

        If ``like`` has all parameters and buffers of the result, the result has the order of
        ``like``.
        """
        graph = self.extended
        if like is not None and all(p.name in like.param for p in graph.params):
            order = {p.name: i for i, p in enumerate(like.params)}
            # Updates that `like` lacks come last, in the order of their insertion.
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
        # Renumbering keeps the order of the nodes, so they correspond one to one.
        called = {a.name: b.name for a, b in zip(graph.nodes, new.nodes, strict=True)}
        blocks = tuple(_renamed(block, called) for block in self.blocks)
        return Rewritten.between(self.graph, new, entries), blocks


def _after(items: tuple[T, ...], new: Iterable[T], here: Callable[[T], bool]) -> tuple[T, ...]:
    """Insert ``new`` after the last item for which ``here`` is true, else at the end."""
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
    """Return the operators, buffer updates and parameters that a copy of a block repeats.

    1. The operators that compute the block's result (:func:`_copied`).
    2. The updates of the block's buffers, and the operators that compute them.
    3. The parameters, buffers and constants that only these operators use.
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
    """Return the operators that each copy of a block gets, except those that only updates need.

    1. Operators between the block's input and its output.
    2. Operators that only this block uses, if they have weights or draw random numbers, and the
       operators between them and those of 1. Copies therefore share masks, but not tables of
       weights.
    3. Random numbers that do not depend on the block's input, and the operators that only they
       need. Each copy draws its own numbers.
    """
    users, uses = graph.users.__getitem__, operands_in(graph)
    below = reachable([block.entry], users, members | {block.entry})
    needed = reachable([block.exit], uses, members - {block.entry})
    private = needed & below  # 1
    # Extend backwards by operators that only private operators use.
    for name in reversed(block.nodes):
        if name in needed and graph.users[name] and private.issuperset(graph.users[name]):
            private.add(name)
    random = {n for n in private if _random(graph.node[n])}
    learned = {n for n in private if _learned(graph, n)}
    copied = reachable((needed & below) | random | learned, users, private)  # 2
    before = (used for name in random - below for used in uses(name))  # 3
    return copied | reachable(before, uses, private & fixed(graph).keys())


def _learned(graph: ArchGraph, name: str) -> list[str]:
    """Return the leaves of an operator, except constants."""
    return [leaf for leaf in graph.node[name].leaves() if graph.param[leaf].role != "constant"]


def _private_leaves(graph: ArchGraph, names: Sequence[str]) -> tuple[str, ...]:
    """Return the leaves that only these operators use, and the counters of their modules."""
    inside, used = set(names), dict.fromkeys(leaf for n in names for leaf in _learned(graph, n))
    private = tuple(leaf for leaf in used if inside.issuperset(graph.leaf_users[leaf]))
    # A counter that no operator reads belongs to the block that uses the rest of its module.
    unused = unused_leaves(graph).items()
    return private + tuple(n for n, module in unused if module and module.issubset(private))


def _random(node: Node) -> bool:
    """Return whether an operator draws random numbers. Two blocks must not share such numbers."""
    if not node.op.startswith("aten."):
        return False
    return torch.Tag.nondeterministic_seeded in op_schema(node.op).overload.tags
