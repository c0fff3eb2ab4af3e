"""A block of one graph copied into another, behind its predecessor's counterpart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import Block, structure
from archgraph.analysis.widths import Equation, axis_refs, sized, solve
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Node, Value, refs
from archgraph.graph.passes import reached, renumber
from archgraph.ops.check import check
from archgraph.ops.infer import infer
from archgraph.relate.alignment import Alignment
from archgraph.rewrites.cut import cut
from archgraph.rewrites.insert import last_leaf, with_leaves
from archgraph.rewrites.splice import Renaming, behind, names_in_use


def with_copy(whole: ArchGraph, graph: ArchGraph, alignment: Alignment, block: Block) -> ArchGraph:
    """The whole with a block of another graph in it.

    Find the result behind which the block goes; cut or widen the block's graph so that it fits
    there; then put its operators and leaves, under names that are free, between that result and
    everything that used it.

    Raises:
        RewriteError: If the block has no place in the whole, does not fit, or cannot stand alone.
        GraphError: If what follows does not work on its result.
    """
    spot, place = _spot(whole, graph, alignment, block)
    source = _fitted(whole, graph, block, spot)
    module = _free_names(whole, source, block)
    nodes, updates = _computation(source, block)

    def renamed(leaf: str) -> str:
        prefix, _, last = leaf.rpartition(".")
        path = module(prefix) if prefix else ""
        return f"{path}.{last}" if path else module(last)

    leaves = {leaf: renamed(leaf) for leaf in _own_leaves(source, nodes, block)}
    names = {n.name: f"{n.name}~new" for n in nodes} | {block.entry: spot}
    renaming = Renaming(leaves, lambda node: module(node.scope))
    copies, params, changes = renaming.copy(source, nodes, updates, names)
    new = behind(whole, spot, copies, names[block.exit]).replace(
        params=with_leaves(whole, ((place, p) for p in params)),
        updates=(*whole.updates, *changes),
        sections=(),
    )
    new = renumber(infer(new))
    check(new)
    return new


def _spot(
    whole: ArchGraph, graph: ArchGraph, alignment: Alignment, block: Block
) -> tuple[str, str]:
    """The result behind which the block goes, and the leaf behind which its leaves go."""
    pairs = dict(alignment.blocks)
    mine, theirs = structure(graph).blocks, structure(whole).blocks
    place = {b.name: i for i, b in enumerate(theirs)}
    index = [b.name for b in mine].index(block.name)
    after = [place[pairs[b.name]] for b in mine[:index] if b.name in pairs]
    before = [place[pairs[b.name]] for b in mine[index:] if b.name in pairs]
    begin, end = max(after, default=-1), min(before, default=len(theirs))
    matched = set(pairs.values())
    others = [b for b in theirs[begin + 1 : end] if b.name not in matched and not b.removable]
    if others and not block.removable:
        raise RewriteError(
            "the other graph has a block of its own there",
            where=block.name,
            found=f"{others[0].name}, which {others[0].reason}",
        )
    previous = next((b for b in mine if b.exit == block.entry), None)
    if previous is None:
        inputs = [[n.name for n in g.nodes if n.op == "input"] for g in (graph, whole)]
        if block.entry not in inputs[0] or len(inputs[0]) != len(inputs[1]):
            raise RewriteError("takes a result that no block makes", where=block.name)
        return inputs[1][inputs[0].index(block.entry)], ""
    if previous.name not in pairs:
        raise RewriteError("what comes before it has no counterpart", where=block.name)
    before_it = theirs[place[pairs[previous.name]]]
    return before_it.exit, last_leaf(whole, before_it)


def _fitted(whole: ArchGraph, graph: ArchGraph, block: Block, spot: str) -> ArchGraph:
    """The block's graph, cut or widened so that the block fits where it goes."""
    solved = axes(graph)
    there = axes(whole).value[spot][0]
    shape = whole.node[spot].shape
    equations: list[Equation] = []
    for name in (block.entry, block.exit):
        layouts = solved.value[name][0]
        if len(layouts) != len(there):
            raise RewriteError(
                "makes a result of another rank",
                where=block.name,
                found=len(layouts),
                expected=len(there),
            )
        for mine, theirs, size in zip(layouts, there, shape, strict=True):
            if isinstance(size, int) and axis_refs(mine):
                equations += sized(block.name, mine, theirs)
    claims, open_ = solve(equations)
    if open_ or any(len(sizes) > 1 for sizes in claims.values()):
        raise RewriteError("does not fit where it would go", where=block.name)
    return resized(graph, {axis: sizes[0] for axis, sizes in claims.items()})


def _computation(source: ArchGraph, block: Block) -> tuple[list[Node], list[tuple[str, Value]]]:
    """The operators that make the block's result or update its counters, and these updates."""
    inside = set(block.nodes) - {block.entry}
    updates = [
        (k, v) for k, v in source.updates if inside.issuperset([*refs(v), *source.leaf_users[k]])
    ]
    ends = [block.exit, *(name for _, v in updates for name in refs(v))]
    needed = reached(ends, lambda name: source.node[name].uses(), inside)
    nodes = [n for n in source.nodes if n.name in needed]
    elsewhere = [u for n in nodes for u in n.uses() if u not in needed and u != block.entry]
    if elsewhere:
        raise RewriteError(f"takes %{elsewhere[0]} from elsewhere", where=block.name)
    return nodes, updates


def _own_leaves(source: ArchGraph, nodes: Sequence[Node], block: Block) -> set[str]:
    """Leaves that operators of the block use, and unused ones of its modules (counters)."""
    names = {n.name for n in nodes}
    used = {leaf for n in nodes for leaf in n.leaves()}
    shared = [k for k in sorted(used) if not names.issuperset(source.leaf_users[k])]
    if shared:
        raise RewriteError(f"shares {shared[0]} with others", where=block.name)
    modules = {name.rpartition(".")[0] for name in used}
    return used | {
        p.name
        for p in source.params
        if p.role != "constant"
        and not source.leaf_users[p.name]
        and p.name.rpartition(".")[0] in modules
    }


def _free_names(whole: ArchGraph, source: ArchGraph, block: Block) -> Callable[[str], str]:
    """New names of the block's modules: their own where those are free."""
    unavailable = names_in_use(whole)
    nodes = [source.node[n] for n in block.nodes]
    used = {leaf for n in nodes for leaf in n.leaves()}
    wanted = {n.scope for n in nodes} | used | {leaf.rpartition(".")[0] for leaf in used}
    wanted = {name for name in wanted if name not in {"", block.name.rpartition(".")[0]}}
    return next(
        rename
        for rename in (_numbered(block.name, count) for count in itertools.count())
        if unavailable.isdisjoint(map(rename, wanted))
    )


def _numbered(block: str, count: int) -> Callable[[str], str]:
    """A function that tells the modules of a copied block from others of their names."""

    def rename(module: str) -> str:
        if not count or not module:
            return module
        if module == block or module.startswith(f"{block}."):
            return f"{block}_{count}{module[len(block) :]}"
        return f"{module}_{count}"

    return rename


def resized(graph: ArchGraph, sizes: Mapping[str, int]) -> ArchGraph:
    """A graph with axes of other sizes, smaller or larger.

    Raises:
        RewriteError: For an axis that cannot change.
    """
    solved = axes(graph)
    kept = {}
    for name, size in sizes.items():
        axis = solved[name]
        if size == axis.size:
            continue
        if not axis.free:
            raise RewriteError(
                "axis cannot have another width",
                where=name,
                found=size,
                expected=axis.size,
                hint=axis.reason,
            )
        kept[name] = np.arange(size) % axis.size
    return cut(graph, kept).graph if kept else graph
