"""Splice: copies of blocks put into a graph, and the map to its states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from archgraph.analysis.structure import Block
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, Value, per_graph, replace, walk
from archgraph.graph.passes import renumber
from archgraph.ops.check import check
from archgraph.ops.schema import schema
from archgraph.rewrite.leaves import silent
from archgraph.states import Entry, Rewritten, Transfer, signature


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where the next block goes: behind a node, and behind the leaves of its block."""

    exit: str
    leaves: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What of a block is copied; what it shares with other blocks is not."""

    nodes: tuple[str, ...]
    leaves: tuple[str, ...]
    updates: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Renaming:
    """Names of a copy: its leaves, and the module paths of its operators."""

    leaves: Mapping[str, str]
    scope: Callable[[Node], str]


@dataclass
class Splice:
    """A graph while blocks are inserted."""

    graph: ArchGraph
    nodes: list[Node] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    updates: list[tuple[str, Value]] = field(default_factory=list)
    outputs: Value = None
    source: dict[str, str] = field(default_factory=dict)  # new leaf → the one it starts from
    copies: int = 0

    def __post_init__(self) -> None:
        self.nodes, self.params = list(self.graph.nodes), list(self.graph.params)
        self.updates, self.outputs = list(self.graph.updates), self.graph.outputs
        self.plans: dict[str, _Plan] = {}
        self.made: list[Block] = []

    def taken(self) -> set[str]:
        """Names that are in use, which new leaves and modules cannot have."""
        names = {n for p in self.params for n in (p.name, *p.aliases)}
        return names | {n.scope for n in self.nodes}

    def spot(self, block: Block) -> _Spot:
        """Place behind a block of the original graph."""
        used = (leaf for n in block.nodes for leaf in self.graph.node[n].leaves())
        return _Spot(block.exit, frozenset(used))

    def plan(self, block: Block) -> _Plan:
        """Operators between entry and exit, what serves only them, their leaves and counters."""
        if block.name not in self.plans:
            self.plans[block.name] = _plan(self.graph, block)
        return self.plans[block.name]

    def insert(self, block: Block, spot: _Spot, renaming: Renaming, called: str) -> _Spot:
        """Copy a block behind a spot; whatever read the value there reads the copy's result."""
        plan = self.plan(block)
        self.copies += 1
        name = {n: f"{n}~{self.copies}" for n in plan.nodes}
        name[block.entry] = spot.exit
        leaf = renaming.leaves

        def change(value: Value) -> Value:
            match value:
                case Ref(used):
                    return Ref(name.get(used, used))
                case Leaf(used):
                    return Leaf(leaf.get(used, used))
                case _:
                    return value

        copies = []
        for n in (self.graph.node[n] for n in plan.nodes):
            args = tuple((k, replace(v, change)) for k, v in n.args)
            copies.append(
                dataclasses.replace(n, name=name[n.name], args=args, scope=renaming.scope(n))
            )
        end = name[block.exit]
        self.made.append(
            dataclasses.replace(
                block,
                name=called,
                nodes=tuple(name[n] for n in plan.nodes),
                entry=spot.exit,
                exit=end,
                merge=name.get(block.merge, ""),
                shortcut=name.get(block.shortcut, block.shortcut),
                sums=tuple((name[m], name.get(s, s)) for m, s in block.sums),
            )
        )

        def follow(value: Value) -> Value:
            return Ref(end) if value == Ref(spot.exit) else value

        self.nodes = [
            dataclasses.replace(n, args=tuple((k, replace(v, follow)) for k, v in n.args))
            for n in self.nodes
        ]
        self.outputs = replace(self.outputs, follow)
        at = next(i for i, n in enumerate(self.nodes) if n.name == spot.exit)
        self.nodes[at + 1 : at + 1] = copies
        known = {p.name for p in self.params}
        fresh = [
            dataclasses.replace(p, name=leaf[p.name], aliases=())
            for p in self.graph.params
            if p.name in leaf and leaf[p.name] not in known
        ]
        self.source |= {leaf[old]: old for old in plan.leaves}
        at = max(
            (i for i, p in enumerate(self.params) if p.name in spot.leaves),
            default=len(self.params) - 1,
        )
        self.params[at + 1 : at + 1] = fresh
        at = max(
            (i for i, (k, _) in enumerate(self.updates) if k in spot.leaves),
            default=len(self.updates) - 1,
        )
        self.updates[at + 1 : at + 1] = [(leaf[k], replace(v, change)) for k, v in plan.updates]
        return _Spot(end, frozenset(leaf[old] for old in plan.leaves))

    def rewritten(self, like: ArchGraph | None) -> tuple[Rewritten, tuple[Block, ...]]:
        """The finished graph and its new blocks, in ``like``'s order where that has all leaves."""
        params, updates = self.params, self.updates
        if like is not None and all(p.name in like.param for p in params):
            place = {p.name: i for i, p in enumerate(like.params)}
            params = sorted(params, key=lambda p: place[p.name])
            turn = {k: i for i, (k, _) in enumerate(like.updates)}
            updates = sorted(updates, key=lambda u: turn.get(u[0], len(turn)))
        new = renumber(
            self.graph.replace(
                nodes=tuple(self.nodes),
                params=tuple(params),
                updates=tuple(updates),
                outputs=self.outputs,
            )
        )
        check(new)
        entries = {
            p.name: Entry(self.source.get(p.name, p.name), (None,) * len(p.shape))
            for p in new.params
            if p.role != "constant"
        }
        called = {a.name: b.name for a, b in zip(self.nodes, new.nodes, strict=True)}
        blocks = tuple(
            dataclasses.replace(
                b,
                nodes=tuple(called[n] for n in b.nodes),
                entry=called[b.entry],
                exit=called[b.exit],
                merge=called.get(b.merge, ""),
                shortcut=called.get(b.shortcut, ""),
                sums=tuple((called[m], called[s]) for m, s in b.sums),
            )
            for b in self.made
        )
        return Rewritten(new, Transfer(signature(self.graph), signature(new), entries)), blocks


def _plan(graph: ArchGraph, block: Block) -> _Plan:
    members = [n for n in block.nodes if graph.node[n].op != "input"]
    inside = set(members)
    below = {block.entry}
    for name in members:
        if any(u in below for u in graph.node[name].uses()):
            below.add(name)
    below.discard(block.entry)
    needed: set[str] = set()
    pending = [block.exit]
    while pending:
        name = pending.pop()
        if name in inside and name not in needed and name != block.entry:
            needed.add(name)
            pending.extend(graph.node[name].uses())
    copied = needed & below
    own = set(copied)  # what serves nothing but this block
    for name in reversed(members):
        if name in needed and graph.users[name] and own.issuperset(graph.users[name]):
            own.add(name)
    fed = _fed(graph)
    for name in members:
        node = graph.node[name]
        if name in own and (
            any(graph.param[leaf].role != "constant" for leaf in node.leaves())
            or _random(node)
            or any(u in copied for u in node.uses())
        ):
            copied.add(name)
    noise = {name for name in copied - below if _random(graph.node[name])}
    for name in reversed(members):  # masks are shared, tables and noise are not
        if name in own and name not in fed and any(u in noise for u in graph.users[name]):
            noise.add(name)
    copied |= noise
    updates = []
    for buffer, value in graph.updates:
        roots = [i.name for i in walk(value) if isinstance(i, Ref)]
        if roots and inside.issuperset(roots) and inside.issuperset(graph.leaf_users[buffer]):
            updates.append((buffer, value))
            pending = roots
            while pending:
                name = pending.pop()
                if name in inside and name not in copied and name != block.entry:
                    copied.add(name)
                    pending.extend(graph.node[name].uses())
    nodes = tuple(n for n in members if n in copied)
    used = dict.fromkeys(leaf for n in nodes for leaf in graph.node[n].leaves())
    mine = tuple(
        leaf
        for leaf in used
        if graph.param[leaf].role != "constant" and copied.issuperset(graph.leaf_users[leaf])
    )
    unused = silent(graph).items()
    mine += tuple(name for name, module in unused if module and module.issubset(mine))
    return _Plan(nodes, mine, tuple(u for u in updates if u[0] in mine))


@per_graph
def _fed(graph: ArchGraph) -> frozenset[str]:
    """Operators that depend on an input."""
    fed: set[str] = set()
    for node in graph.nodes:
        if node.op == "input" or any(u in fed for u in node.uses()):
            fed.add(node.name)
    return frozenset(fed)


def _random(node: Node) -> bool:
    """Whether it draws random numbers: two blocks do not share them."""
    if not node.op.startswith("aten."):
        return False
    return torch.Tag.nondeterministic_seeded in schema(node.op).overload.tags
