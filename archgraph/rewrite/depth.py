"""Depth: leave blocks out, shorten sections, repeat their last block (FedFA, FedADP, NeFL)."""

from __future__ import annotations

import dataclasses
import itertools
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import numpy as np
import torch

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import Kept, positions, size_after, sizes_after, touched
from archgraph.analysis.structure import Block, Section, Structure, structure
from archgraph.errors import GraphError, RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import (
    ArchGraph,
    Batch,
    Leaf,
    Mode,
    Node,
    Param,
    Ref,
    TensorType,
    Value,
    per_graph,
    replace,
    same,
    walk,
)
from archgraph.graph.passes import prune, renumber
from archgraph.layout.layouts import AxisRef, leaves
from archgraph.ops.check import check
from archgraph.ops.schema import canonical_args, schema
from archgraph.ops.table import row
from archgraph.rewrite.leaves import silent, tidied
from archgraph.states import DimMap, Entry, Rewritten, Transfer, signature

Names: TypeAlias = Sequence[tuple[str, tuple[str, ...]]]  # block names by section

# -- fewer blocks -------------------------------------------------------------------------------


@takes_graph
def skip(
    graph: ArchGraph,
    blocks: str | Iterable[str] = (),
    *,
    keep: Mapping[str, Sequence[int]] | None = None,
    keep_projection: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Leave blocks out: the value that enters each stands in for the value that left it.

    From a dense block the term that it appends goes, and with it the width of all that reads it.

    Args:
        graph: The architecture.
        blocks: Names or patterns (``layer2.1``, ``layer*.1``).
        keep: A 1 for every block that stays and a 0 for every block that goes, by section, as
            NeFL's tables list them; of these blocks projection shortcuts stay.
        keep_projection: Keep the projection shortcut of a block, so that only its body goes; a
            block that changes the shape can then be left out too (NeFL).
        verify: Compare with the original that runs with these blocks bypassed (two forwards in
            float64).

    Raises:
        RewriteError: For a block that cannot be left out, with the reason.
        GraphError: For a block that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> [p.name for p in skip(trace(net, torch.zeros(1, 4)).graph, "1").graph.params]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    found = structure(graph)
    bypass: dict[str, str] = {}  # a node whose value another one's stands in for
    terms: dict[str, str] = {}  # what dense blocks append: the exit after which it is read
    gone: set[str] = set()
    flagged = _flagged(found, keep or {})
    for block in (*found.matching(blocks), *flagged):
        projected = block.shortcut not in ("", block.entry)
        if projected and (keep_projection or block in flagged):
            bypass[block.merge] = block.shortcut
            continue
        if not block.removable:
            raise RewriteError(
                "block cannot be left out",
                where=block.name,
                found=block.reason,
                hint="keep_projection=True leaves its body out" if projected else None,
            )
        gone.add(block.name)
        bypass[block.exit] = block.entry
        if block.kind == "dense":
            before = set(block.nodes)
            joined = _references(graph.node[block.merge])
            terms |= {name: block.exit for name in joined if name in before}
    if not bypass:
        return Rewritten.identity(graph)
    solved = axes(graph)
    empty = np.zeros(0, dtype=np.int64)
    kept = {
        leaf.name: empty
        for name in terms
        for layout in solved.value[name][0]
        for leaf in leaves(layout)
        if isinstance(leaf, AxisRef)
    }
    names = [
        (s.name, tuple(b.name for b in s.blocks if b.name not in gone)) for s in found.sections
    ]
    rewritten = _with_sections(_without(graph, bypass, terms, kept), graph, found, names)
    if verify:
        dense = set(terms.values())
        _bypassed(graph, rewritten, {k: v for k, v in bypass.items() if k not in dense}, kept)
    return rewritten


def _flagged(found: Structure, keep: Mapping[str, Sequence[int]]) -> list[Block]:
    """Blocks whose flag is 0."""
    gone = []
    for name, flags in keep.items():
        blocks = found.section(name).blocks
        if len(flags) != len(blocks) or not set(flags) <= {0, 1}:
            raise RewriteError(
                "needs a flag for every block",
                where=name,
                found=list(flags),
                expected=f"{len(blocks)} numbers, 0 or 1, for {blocks[0].name} to "
                f"{blocks[-1].name}",
            )
        gone += [block for block, flag in zip(blocks, flags, strict=True) if not flag]
    return gone


@takes_graph
def shorten(graph: ArchGraph, depths: Mapping[str, int], *, verify: bool = False) -> Rewritten:
    """Shorten sections: leave out their last removable blocks.

    Args:
        graph: The architecture.
        depths: Number of blocks to keep, by section; a section that is not named stays.
        verify: As in :func:`skip`.

    Raises:
        RewriteError: For a depth that the section cannot have; gives the range.
        GraphError: For a section that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
        >>> [
        ...     len(s.blocks)
        ...     for s in structure(
        ...         shorten(trace(net, torch.zeros(1, 4)).graph, {"0": 2}).graph
        ...     ).sections
        ... ]
        [2, 1]
    """
    found = structure(graph)
    out: list[str] = []
    for name, depth in whole(depths).items():
        section = found.section(name)
        free = [b.name for b in section.blocks if b.removable]
        most = len(section.blocks)
        least = max(most - len(free), 1)
        if not least <= depth <= most:
            fixed = [b for b in section.blocks if not b.removable]
            hint = f"{fixed[0].name} stays: it {fixed[0].reason}" if fixed else None
            raise RewriteError(
                "impossible depth",
                where=name,
                found=depth,
                expected=f"{least} to {most}" if least < most else str(most),
                hint=hint,
            )
        out += free[len(free) - (most - depth) :]
    return skip(graph, out, verify=verify)


def _without(
    graph: ArchGraph, bypass: Mapping[str, str], terms: Mapping[str, str], kept: Kept
) -> Rewritten:
    """Draw values from elsewhere, drop terms of lists, and remove what nothing needs any more."""

    def source(name: str) -> str:
        while name in bypass:
            name = bypass[name]
        return name

    def change(value: Value) -> Value:
        return Ref(source(value.name)) if isinstance(value, Ref) else value

    def drop(value: Value) -> Value:
        if not isinstance(value, tuple):
            return value
        return tuple(v for v in value if not (isinstance(v, Ref) and v.name in terms))

    nodes = tuple(
        dataclasses.replace(n, args=tuple((k, replace(drop(v), change)) for k, v in n.args))
        for n in graph.nodes
    )
    entries: dict[str, Entry] = {}
    params = []
    for param in graph.params:
        dims: tuple[DimMap | None, ...] = (None,) * len(param.shape)
        if kept:
            param, dims = _resized(graph, param, kept)
        params.append(param)
        entries[param.name] = Entry(param.name, dims)
    if kept:
        nodes = tuple(_resized_node(graph, n, kept) for n in nodes)
    new = prune(
        graph.replace(
            params=tuple(params),
            nodes=nodes,
            outputs=replace(graph.outputs, change),
            updates=tuple((k, replace(v, change)) for k, v in graph.updates),
        )
    )
    new = renumber(tidied(graph, new))
    check(new)
    return Rewritten(
        new,
        Transfer(signature(graph), signature(new), {n: entries[n] for n in new.state_names}),
    )


def _resized(graph: ArchGraph, param: Param, kept: Kept) -> tuple[Param, tuple[DimMap | None, ...]]:
    layouts = axes(graph).of(param.name)
    cut = [touched(layout, kept) for layout in layouts]
    if not any(cut) or param.value is not None:
        return param, (None,) * len(layouts)
    index = [positions(a, kept) for a in layouts]
    dims = tuple(
        DimMap.of(i, size) if c and len(i) else None
        for c, i, size in zip(cut, index, param.shape, strict=True)
    )
    type_ = TensorType(tuple(len(i) for i in index), param.dtype)
    return dataclasses.replace(param, type=type_), dims


def _resized_node(graph: ArchGraph, node: Node, kept: Kept) -> Node:
    if node.op == "input":
        return node
    solved = axes(graph)
    types = tuple(
        TensorType(tuple(size_after(d, kept) for d in layouts), t.dtype)
        for t, layouts in zip(node.types, solved.value[node.name], strict=True)
    )
    sizes = {
        k: sizes_after(solved.attributes[node.name, k], kept)
        for k, _ in node.args
        if (node.name, k) in solved.attributes
    }
    given = dict(node.args) | sizes
    args = canonical_args(node.op, given) if node.op.startswith("aten.") else tuple(given.items())
    return dataclasses.replace(
        node, args=args, type=types if isinstance(node.type, tuple) else types[0]
    )


def _references(node: Node) -> list[str]:
    """Operands that an operator takes in lists."""
    lists = (v for _, v in node.args if isinstance(v, tuple))
    return [i.name for v in lists for i in v if isinstance(i, Ref)]


def _with_sections(
    rewritten: Rewritten, before: ArchGraph, found: Structure, names: Names
) -> Rewritten:
    """Keep the sections: the user's own, and those that could not be found again.

    Dropping blocks can take away what the analysis goes by (the last residual block of a section,
    the repetition of a layer); the sections are then written into the graph.
    """
    kinds = {s.name: s.kind for s in found.sections}
    given = {b for _, blocks in before.sections for b in blocks}
    if given:
        wanted = [
            (name, tuple(b for b in blocks if b in given or name in dict(before.sections)))
            for name, blocks in names
        ]
    elif _names(structure(rewritten.graph)) == [(n, b) for n, b in names if b]:
        return rewritten
    else:
        wanted = [(name, blocks) for name, blocks in names if kinds.get(name) == "stage"]
    sections = tuple((name, blocks) for name, blocks in wanted if blocks)
    graph = rewritten.graph.replace(sections=sections)
    try:
        structure(graph)
    except GraphError:  # what is left has no such blocks any more
        return rewritten
    return Rewritten(graph, rewritten.transfer)


def _names(found: Structure) -> list[tuple[str, tuple[str, ...]]]:
    return [(s.name, tuple(b.name for b in s.blocks)) for s in found.sections]


# -- more blocks --------------------------------------------------------------------------------


@takes_graph
def graft(
    graph: ArchGraph,
    depths: Mapping[str, int],
    *,
    like: ArchGraph | None = None,
    verify: bool = False,
) -> Rewritten:
    """Lengthen sections by copies of their last block.

    Where blocks alternate (attention, feed-forward) the copies go on alternating. The copies'
    weights come from the block that they repeat.

    Args:
        graph: The architecture.
        depths: Number of blocks to reach, by section; a section that is not named stays.
        like: An architecture (the global one) whose names the new blocks take, so that the result
            lines up with it; otherwise the number in the last block's name is increased.
        verify: Check that leaving the new blocks out again gives the graph back.

    Raises:
        RewriteError: For a depth below the section's own, a section that ends in a block that
            changes the shape, or one that has no counterpart in ``like``.
        GraphError: For a section that does not exist; names the nearest.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
        >>> deep = graft(trace(net, torch.zeros(1, 4)).graph, {"0": 3})
        >>> deep.transfer.entries["3.weight"].source
        '1.weight'

    Source: Park, Joe-Wong, *Federated Learning with Flexible Architectures*, Algorithm 2.
    """
    return grafted(graph, depths, like=like, verify=verify)[0]


def grafted(
    graph: ArchGraph,
    depths: Mapping[str, int],
    *,
    like: ArchGraph | None = None,
    verify: bool = False,
) -> tuple[Rewritten, tuple[Block, ...]]:
    """What :func:`graft` gives, and the blocks that it inserted."""
    depths = whole(depths)
    found = structure(graph)
    model = structure(like) if like is not None else None
    splice = _Splice(graph)
    names: dict[str, list[str]] = {s.name: [b.name for b in s.blocks] for s in found.sections}
    fresh: list[str] = []
    for name, depth in depths.items():
        section = found.section(name)
        have = len(section.blocks)
        if depth < have:
            raise RewriteError(
                "impossible depth",
                where=name,
                found=depth,
                expected=f"at least {have}",
                hint="shorten leaves blocks out",
            )
        if depth == have:
            continue
        if like is None or model is None:
            added = _extend(splice, section, depth)
        else:
            added = _line_up(splice, section, depth, like, model)
        names[name] = added
        fresh += [b for b in added if b not in {b.name for b in section.blocks}]
    if not fresh:
        return Rewritten.identity(graph), ()
    rewritten, blocks = splice.rewritten(like)
    wanted = [(k, tuple(v)) for k, v in names.items()]
    rewritten = _with_sections(rewritten, graph, found, wanted)
    if like is not None and _names(structure(rewritten.graph.replace(sections=like.sections))) == (
        wanted
    ):
        rewritten = Rewritten(rewritten.graph.replace(sections=like.sections), rewritten.transfer)
    if verify:
        _undone(graph, rewritten, fresh)
    return rewritten, blocks


def whole(depths: Mapping[str, int]) -> dict[str, int]:
    """Depths by section.

    Raises:
        RewriteError: For anything else than whole numbers by name.
    """
    if not isinstance(depths, Mapping):
        raise RewriteError("no depths", found=repr(depths), expected="a number by section")
    for name, depth in depths.items():
        if isinstance(depth, bool) or not isinstance(depth, numbers.Integral):
            raise RewriteError(
                "impossible depth", where=name, found=repr(depth), expected="a whole number"
            )
    return {name: int(depth) for name, depth in depths.items()}


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
class _Renaming:
    """Names of a copy: its leaves, and the module paths of its operators."""

    leaves: Mapping[str, str]
    scope: Callable[[Node], str]


@dataclass
class _Splice:
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
        """Names that no new leaf and no new module can have."""
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

    def insert(self, block: Block, spot: _Spot, renaming: _Renaming, called: str) -> _Spot:
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

        made = []
        for n in (self.graph.node[n] for n in plan.nodes):
            args = tuple((k, replace(v, change)) for k, v in n.args)
            made.append(
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
        self.nodes[at + 1 : at + 1] = made
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
    found: set[str] = set()
    for node in graph.nodes:
        if node.op == "input" or any(u in found for u in node.uses()):
            found.add(node.name)
    return frozenset(found)


def _random(node: Node) -> bool:
    """Whether it draws random numbers: two blocks do not share them."""
    if not node.op.startswith("aten."):
        return False
    return torch.Tag.nondeterministic_seeded in schema(node.op).overload.tags


def _sources(graph: ArchGraph, section: Section, end: str) -> list[Block]:
    """Blocks of a section that can be repeated behind a node.

    Raises:
        RewriteError: If there is none.
    """
    type_ = graph.node[end].type
    found = [
        b
        for b in section.blocks
        if graph.node[b.entry].type == type_ == graph.node[b.exit].type
        and b.kind != "dense"
        and any(row(graph.node[n].op).macs for n in b.nodes)
    ]
    if not found:
        last = section.blocks[-1]
        reason = "appends to the stream" if last.kind == "dense" else last.reason
        raise RewriteError(
            "no block that can be repeated",
            where=section.name,
            found=f"{last.name}, which {reason}" if reason else type_,
            expected="a block whose result has the type of its input",
        )
    return found


def _extend(splice: _Splice, section: Section, depth: int) -> list[str]:
    """Append copies under new numbers; returns all block names of the section."""
    graph = splice.graph
    repeatable = _sources(graph, section, section.blocks[-1].exit)
    bodies = [_layers(graph, b) for b in repeatable]
    count = len(bodies)
    period = next(
        p for p in range(1, count + 1) if all(bodies[i] == bodies[i - p] for i in range(p, count))
    )
    spot = splice.spot(section.blocks[-1])
    names = [b.name for b in section.blocks]
    for k in range(depth - len(section.blocks)):
        block = repeatable[count - period + k % period]
        old = splice.plan(block).leaves
        taken = splice.taken()
        own = block.name.partition("~")[0]
        for steps in itertools.count(1):
            path = _shift(graph, own, old, steps)
            leaf = {name: ".".join(path(name.split("."))) for name in old}
            modules = {name.rpartition(".")[0] for name in leaf.values()} - {""}
            free = not taken & {*leaf.values(), *modules}
            if free and all(name.startswith(f"{own}.") for name in old):
                module = ".".join(path(own.split(".")))
                free = not any(_under(name, module) for name in taken)
            if free:
                break

        def scope(node: Node, path: _Shift = path) -> str:
            return ".".join(path(node.scope.split("."))) if node.scope else ""

        names.append(".".join(path(own.split("."))))
        spot = splice.insert(block, spot, _Renaming(leaf, scope), names[-1])
    return names


def _layers(graph: ArchGraph, block: Block) -> tuple[str, ...]:
    """Operators of a block that own leaves: what tells two kinds of blocks apart."""
    found = (graph.node[n] for n in block.nodes)
    return tuple(
        n.op for n in found if row(n.op).normalises or row(n.op).weighted or row(n.op).macs
    )


def _under(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


_Shift: TypeAlias = "Callable[[Sequence[str]], list[str]]"


def _shift(graph: ArchGraph, block: str, leaf_names: Sequence[str], steps: int) -> _Shift:
    """A function that increases the number in the module paths of a block.

    The number is the last one in the path of the block's module (``layer3.1``); where the block is
    no module of its own, its layers' numbers in their list (``features.40``, ``features.41``).
    Without a number, one is appended.
    """
    paths = [name.split(".")[:-1] for name in leaf_names]
    module: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        module.append(parts[0])
    named = block.split(".")
    if module[: len(named)] == named:
        module = named
    prefix = ".".join([*module, ""])
    shared = any(p.name.startswith(prefix) and p.name not in leaf_names for p in graph.params)
    children = {p[len(module)] for p in paths if len(p) > len(module)}
    numbers = [i for i, part in enumerate(module) if part[-1:].isdigit()]
    listed = shared and bool(children) and all(c.isdigit() for c in children)
    if listed or not module:
        depth = len(module)
    else:
        depth = numbers[-1] if numbers else len(module) - 1

    def shifted(path: Sequence[str]) -> list[str]:
        result = list(path)
        inside = list(path[:depth]) == module[:depth] and len(path) > depth
        if not inside or (depth < len(module) and path[depth] != module[depth]):
            return result
        found = re.search(r"\d+$", path[depth])
        if found:
            result[depth] = path[depth][: found.start()] + str(int(found.group()) + steps)
        elif depth < len(module) or path[depth] in children:
            result[depth] = f"{path[depth]}_{steps + 1}"
        return result

    return shifted


def _line_up(
    splice: _Splice, section: Section, depth: int, like: ArchGraph, model: Structure
) -> list[str]:
    """Insert copies under the names of another graph's blocks; returns the section's blocks."""
    try:
        target = model.section(section.name)
    except GraphError as error:
        raise RewriteError(
            "like has no such section", found=section.name, expected=error.expected
        ) from None
    current = [b.name for b in section.blocks]
    missing = [b for b in target.blocks if b.name not in current]
    wanted = depth - len(current)
    if wanted > len(missing):
        raise RewriteError(
            "impossible depth",
            where=section.name,
            found=depth,
            expected=f"{len(current)} to {len(current) + len(missing)}, as in like",
        )
    spots = {b.name: splice.spot(b) for b in section.blocks}
    ends = {b.name: b.exit for b in section.blocks}  # a node of the type that each block makes
    order = [b.name for b in target.blocks]
    for wish in missing[:wanted]:
        earlier = [n for n in order[: order.index(wish.name)] if n in spots]
        before = earlier[-1] if earlier else current[-1]
        problem = ""
        for block in reversed(_sources(splice.graph, section, ends[before])):
            try:
                renaming = _counterpart(splice, block, like, wish)
            except RewriteError as error:
                problem = problem or str(error)
                continue
            break
        else:
            raise RewriteError(
                "no block of the section has the body of like's",
                where=wish.name,
                found=problem,
            )
        ends[wish.name] = block.exit
        spots[wish.name] = splice.insert(block, spots[before], renaming, wish.name)
        current.insert(current.index(before) + 1, wish.name)
    return current


def _counterpart(splice: _Splice, block: Block, like: ArchGraph, wish: Block) -> _Renaming:
    """Names of a copy of one graph's block as they are in another graph's.

    Raises:
        RewriteError: If the two blocks do not compute the same but for sizes.
    """
    graph = splice.graph
    inside, there = set(block.nodes), set(wish.nodes)
    pairs: dict[str, str] = {}
    named: dict[str, str] = {}
    pending = [(block.exit, wish.exit)]

    def refuse(a: object, b: object) -> NoReturn:
        raise RewriteError("bodies differ", where=block.name, found=a, expected=b)

    while pending:
        a, b = pending.pop()
        if (a == block.entry) != (b == wish.entry):
            refuse(f"%{a}", f"%{b}")
        if pairs.get(a, b) != b:
            refuse(f"%{a}", f"%{b}")
        if a == block.entry or a in pairs or a not in inside or b not in there:
            continue
        pairs[a] = b
        x, y = graph.node[a], like.node[b]
        if x.op != y.op or [k for k, _ in x.args] != [k for k, _ in y.args]:
            refuse(x.op, y.op)
        for (_, v), (_, w) in zip(x.args, y.args, strict=True):
            for i, j in _parallel(v, w):
                match i, j:
                    case Ref(p), Ref(q):
                        pending.append((p, q))
                    case Leaf(p), Leaf(q):
                        if named.setdefault(p, q) != q:
                            refuse(p, q)
                    case (int() | Batch() | float(), int() | Batch() | float()):
                        pass
                    case _ if not same(i, j):
                        refuse(f"{x.op} with {i}", f"{y.op} with {j}")
    plan = splice.plan(block)
    modules = {p.rpartition(".")[0]: q.rpartition(".")[0] for p, q in named.items() if "." in p + q}
    modules |= {graph.node[a].scope: like.node[b].scope for a, b in pairs.items()}
    leaf: dict[str, str] = {}
    for name in plan.leaves:
        prefix, _, last = name.rpartition(".")
        new = named.get(name)
        if new is None and prefix in modules:
            new = f"{modules[prefix]}.{last}" if modules[prefix] else last
        if new is None or new not in like.param:
            refuse(name, f"a leaf of {wish.name}")
        leaf[name] = new
    taken = splice.taken()
    clash = sorted(taken & set(leaf.values()))
    if clash:
        raise RewriteError("leaf exists already", where=wish.name, found=clash[0])
    constants = {leaf for n in plan.nodes for leaf in graph.node[n].leaves()}
    leaf |= {
        p: named[p]
        for p in sorted(constants)
        if p in named and graph.param[p].role == "constant" and named[p] != p
    }

    def scope(node: Node) -> str:
        if node.name in pairs:
            return like.node[pairs[node.name]].scope
        return modules.get(node.scope, node.scope)

    return _Renaming(leaf, scope)


def _parallel(a: Value, b: Value) -> Iterator[tuple[Value, Value]]:
    """Scalars of two values side by side; the values themselves where their forms differ.

    What only one of them does in training (stochastic depth of rate 0 is none) does not count.
    """
    match a, b:
        case tuple(), tuple() if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                yield from _parallel(x, y)
        case Mode(), Mode():
            yield from _parallel(a.train, b.train)
            yield from _parallel(a.eval, b.eval)
        case Mode(), _:
            yield from _parallel(a.eval, b)
        case _, Mode():
            yield from _parallel(a, b.eval)
        case _:
            yield a, b


# -- laws ---------------------------------------------------------------------------------------


def _bypassed(
    graph: ArchGraph, rewritten: Rewritten, bypass: Mapping[str, str], kept: Kept
) -> None:
    """The new network computes what the old one does when values stand in for others.

    Raises:
        RewriteError: If it does not.
    """
    from archgraph.module.build import build
    from archgraph.rewrite import laws

    wide = laws.in_float64(graph)
    state = laws.random_state(wide)
    inputs = laws.random_inputs(wide)
    found = laws.outputs(
        build(laws.in_float64(rewritten.graph), rewritten.transfer.pull(state)).eval(), inputs
    )
    if kept:
        wide, state = laws.masked(wide, state, kept)
    original = build(_with_stand_ins(wide, bypass), state).eval()
    gap = laws.difference(found, laws.outputs(original, inputs))
    if not gap <= 1e-10:
        raise RewriteError(
            "the network is not the original with blocks bypassed",
            where=graph.name or "graph",
            found=f"relative difference {gap:.3g}",
            expected="≤ 1e-10",
        )


def _with_stand_ins(graph: ArchGraph, bypass: Mapping[str, str]) -> ArchGraph:
    """The graph with other results in the place of some."""

    def stand_in(value: Value) -> Value:
        while isinstance(value, Ref) and value.name in bypass:
            value = Ref(bypass[value.name])
        return value

    nodes = tuple(
        dataclasses.replace(n, args=tuple((k, replace(v, stand_in)) for k, v in n.args))
        for n in graph.nodes
    )
    outputs = replace(graph.outputs, stand_in)
    return prune(graph.replace(nodes=nodes, outputs=outputs, updates=()), leaves=False)


def _undone(graph: ArchGraph, rewritten: Rewritten, fresh: Sequence[str]) -> None:
    """The grafted network runs, and without the new blocks it is the original.

    Raises:
        RewriteError: If it is not.
    """
    from archgraph.module.build import build
    from archgraph.rewrite import laws

    before, after = laws.in_float64(graph), laws.in_float64(rewritten.graph)
    state, inputs = laws.random_state(before), laws.random_inputs(before)
    expected = laws.outputs(build(before, state).eval(), inputs)
    found = laws.outputs(build(after, rewritten.transfer.pull(state)).eval(), inputs)
    again = skip(rewritten.graph, fresh).graph

    def plain(value: ArchGraph) -> ArchGraph:
        value = renumber(value)
        return value.replace(params=tuple(sorted(value.params, key=lambda p: p.name)), sections=())

    if [t.shape for t in found] != [t.shape for t in expected] or plain(again) != plain(graph):
        raise RewriteError(
            "leaving the new blocks out does not give the graph back",
            where=graph.name or "graph",
            found=", ".join(fresh),
        )
