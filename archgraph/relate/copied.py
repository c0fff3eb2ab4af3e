"""Copy a block into another graph, after the counterpart of the block before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import axis_refs
from archgraph.analysis.structure import Block, structure
from archgraph.analysis.widths import Equation, sized, solve
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Node, Value, refs
from archgraph.graph.passes import reachable, renumber
from archgraph.ops.check import check
from archgraph.ops.infer import infer
from archgraph.relate.alignment import Alignment
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.insert import last_leaf, with_leaves
from archgraph.rewrites.splice import Renaming, behind, names_in_use


def with_copy(host: ArchGraph, graph: ArchGraph, alignment: Alignment, block: Block) -> ArchGraph:
    """Insert a block of another graph into ``host``, and return the new graph.

    The block is inserted after the counterpart of the block before it. Its channels are cut or
    repeated so that it fits there, and its operators, parameters and buffers get unused names. The
    operators that used the result before the new block now use the result of the new block.

    Args:
        host: The graph in which to insert the block.
        graph: The graph of the block.
        alignment: Alignment of both graphs.
        block: The block.

    Raises:
        RewriteError: If the preceding block has no counterpart, or the block does not fit or uses
            results or parameters of other blocks.
        GraphError: If the operators that follow cannot use the block's result.
    """
    spot, after = _spot(host, graph, alignment, block)
    source = _fitted(host, graph, block, spot)
    module = _free_names(host, source, block)
    nodes, updates = _computation(source, block)

    def renamed(leaf: str) -> str:
        prefix, _, last = leaf.rpartition(".")
        path = module(prefix) if prefix else ""
        return f"{path}.{last}" if path else module(last)

    leaves = {leaf: renamed(leaf) for leaf in _own_leaves(source, nodes, block)}
    names = {n.name: f"{n.name}~new" for n in nodes} | {block.entry: spot}
    renaming = Renaming(leaves, lambda node: module(node.scope))
    copies, params, changes = renaming.copy(source, nodes, updates, names)
    # The analysis finds sections again, since the block may lengthen or split one.
    new = behind(host, spot, copies, names[block.exit]).replace(
        params=with_leaves(host, ((after, p) for p in params)),
        updates=(*host.updates, *changes),
        sections=(),
    )
    new = renumber(infer(new))
    check(new)
    return new


def _spot(host: ArchGraph, graph: ArchGraph, alignment: Alignment, block: Block) -> tuple[str, str]:
    """Return the result and the leaf after which the block and its leaves are inserted."""
    pairs = dict(alignment.blocks)
    _check_order(host, graph, pairs, block)
    previous = next((b for b in structure(graph).blocks if b.exit == block.entry), None)
    if previous is None:
        inputs = [[n.name for n in g.nodes if n.op == "input"] for g in (graph, host)]
        if block.entry not in inputs[0] or len(inputs[0]) != len(inputs[1]):
            raise RewriteError("takes a result that no block computes", where=block.name)
        return inputs[1][inputs[0].index(block.entry)], ""
    if previous.name not in pairs:
        raise RewriteError("the block before it has no counterpart", where=block.name)
    before_it = structure(host).block(pairs[previous.name])
    return before_it.exit, last_leaf(host, before_it)


def _check_order(host: ArchGraph, graph: ArchGraph, pairs: Mapping[str, str], block: Block) -> None:
    """Check that the host has no block at this position, unless it or ``block`` is removable."""
    mine, theirs = ([b.name for b in structure(g).blocks] for g in (graph, host))
    index = mine.index(block.name)
    after = [theirs.index(pairs[name]) for name in mine[:index] if name in pairs]
    before = [theirs.index(pairs[name]) for name in mine[index:] if name in pairs]
    gap = structure(host).blocks[max(after, default=-1) + 1 : min(before, default=len(theirs))]
    others = [b for b in gap if b.name not in pairs.values() and not b.removable]
    if others and not block.removable:
        raise RewriteError(
            "the other graph has another block at this position",
            where=block.name,
            found=f"{others[0].name}, which {others[0].reason}",
        )


def _fitted(host: ArchGraph, graph: ArchGraph, block: Block, spot: str) -> ArchGraph:
    """Cut or widen the block's graph so that the block fits its new position."""
    solved = axes(graph)
    there = axes(host).value[spot][0]
    shape = host.node[spot].shape
    equations: list[Equation] = []
    for name in (block.entry, block.exit):
        layouts = solved.value[name][0]
        if len(layouts) != len(there):
            raise RewriteError(
                "computes a result with another number of dimensions",
                where=block.name,
                found=len(layouts),
                expected=len(there),
            )
        for mine, theirs, size in zip(layouts, there, shape, strict=True):
            if isinstance(size, int) and axis_refs(mine):
                equations += sized(block.name, mine, theirs)
    claims, open_ = solve(equations)
    if open_ or any(len(sizes) > 1 for sizes in claims.values()):
        raise RewriteError("does not fit its new position", where=block.name)
    return resized(graph, {axis: sizes[0] for axis, sizes in claims.items()})


def _computation(source: ArchGraph, block: Block) -> tuple[list[Node], list[tuple[str, Value]]]:
    """Return the operators that compute a block's result or updates, and the updates."""
    inside = set(block.nodes) - {block.entry}
    updates = [
        (k, v) for k, v in source.updates if inside.issuperset([*refs(v), *source.leaf_users[k]])
    ]
    ends = [block.exit, *(name for _, v in updates for name in refs(v))]
    needed = reachable(ends, lambda name: source.node[name].uses(), inside)
    nodes = [n for n in source.nodes if n.name in needed]
    elsewhere = [u for n in nodes for u in n.uses() if u not in needed and u != block.entry]
    if elsewhere:
        raise RewriteError(f"takes %{elsewhere[0]} from elsewhere", where=block.name)
    return nodes, updates


def _own_leaves(source: ArchGraph, nodes: Sequence[Node], block: Block) -> set[str]:
    """Return the leaves of the block's operators, and unused ones of its modules (counters)."""
    names = {n.name for n in nodes}
    used = {leaf for n in nodes for leaf in n.leaves()}
    shared = [k for k in sorted(used) if not names.issuperset(source.leaf_users[k])]
    if shared:
        raise RewriteError(f"shares {shared[0]} with other blocks", where=block.name)
    modules = {name.rpartition(".")[0] for name in used}
    return used | {
        p.name
        for p in source.params
        if p.role != "constant"
        and not source.leaf_users[p.name]
        and p.name.rpartition(".")[0] in modules
    }


def _free_names(host: ArchGraph, source: ArchGraph, block: Block) -> Callable[[str], str]:
    """Return a function that renames the block's modules, keeping names that are free."""
    unavailable = names_in_use(host)
    nodes = [source.node[n] for n in block.nodes]
    used = {leaf for n in nodes for leaf in n.leaves()}
    needed = {n.scope for n in nodes} | used | {leaf.rpartition(".")[0] for leaf in used}
    needed = {name for name in needed if name not in {"", block.name.rpartition(".")[0]}}
    return next(
        rename
        for rename in (_numbered(block.name, count) for count in itertools.count())
        if unavailable.isdisjoint(map(rename, needed))
    )


def _numbered(block: str, count: int) -> Callable[[str], str]:
    """Return a function that adds a number to the module names of a copied block."""

    def rename(module: str) -> str:
        if not count or not module:
            return module
        if module == block or module.startswith(f"{block}."):
            return f"{block}_{count}{module[len(block) :]}"
        return f"{module}_{count}"

    return rename


def resized(graph: ArchGraph, sizes: Mapping[str, int]) -> ArchGraph:
    """Return the graph with some of its axes made smaller or larger.

    Raises:
        RewriteError: If an axis cannot be resized.
    """
    solved = axes(graph)
    chosen = {}
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
        # A larger size repeats positions, as widening does.
        chosen[name] = np.arange(size) % axis.size
    return cut_axes(graph, chosen).graph if chosen else graph
