"""Align: relate two graphs that were written separately, leaf by leaf and axis by axis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from archgraph.analysis.axes import axes, positions, size_after
from archgraph.errors import RewriteError
from archgraph.ir import ArchGraph, Leaf, walk
from archgraph.layout import AxisRef, Layout, Prod, Sum, leaves
from archgraph.transfer import DimMap, Entry, Transfer, signature


def align(client: ArchGraph, whole: ArchGraph) -> Transfer:
    """Transfer from a larger graph's state to that of a smaller graph with the same leaf names.

    The smaller graph may lack blocks and keep only a prefix of every axis. Which axis was cut to
    which size is solved from the shapes: factor by factor where both graphs' layouts are
    alike, then from products and sums with one unknown axis left.

    Args:
        client: The smaller graph.
        whole: The larger one, which has every leaf of the smaller one.

    Returns:
        Transfer from the state of ``whole`` to that of ``client``.

    Raises:
        RewriteError: Names the first leaf that has no counterpart, another operator, or a shape
            that no cut of the larger graph gives.

    Example:
        >>> import torch
        >>> from archgraph.trace import trace
        >>> def net(n):
        ...     layers = torch.nn.Linear(3, n), torch.nn.ReLU(), torch.nn.Linear(n, 2)
        ...     return trace(torch.nn.Sequential(*layers), torch.zeros(1, 3)).graph
        >>> sorted(align(net(4), net(8)).entries)
        ['0.bias', '0.weight', '2.bias', '2.weight']
    """
    solved, own = axes(whole), axes(client)
    place = client.name or "client graph"
    equations: list[tuple[str, Layout, int]] = []
    for param in client.params:
        if param.role == "constant":
            continue
        other = whole.param.get(param.name)
        if other is None or other.role != param.role:
            raise RewriteError(
                "leaf has no counterpart in the larger graph",
                where=f"{place}: {param.name}",
                hint="graphs are aligned by leaf name; give both the same names",
            )
        if _use(client, param.name) != _use(whole, param.name):
            raise RewriteError(
                "leaf is used by different operators",
                where=f"{place}: {param.name}",
                found=_use(client, param.name),
                expected=_use(whole, param.name),
            )
        if len(param.shape) != len(other.shape):
            raise RewriteError(
                "leaf has another rank",
                where=f"{place}: {param.name}",
                found=param.shape,
                expected=other.shape,
            )
        for layout, other_layout in zip(solved.of(param.name), own.of(param.name), strict=True):
            equations += [(param.name, a, b) for a, b in _pairs(layout, other_layout)]
    known: dict[str, int] = {}
    pending = equations
    while pending:
        left = []
        for name, layout, size in pending:
            unknown = [a for a in _axes(layout) if a.name not in known]
            if not unknown:
                continue
            found = list(_solve(layout, size, unknown, known)) if len(set(unknown)) == 1 else []
            if len(found) == 1:
                known[unknown[0].name] = found[0]
            elif size in (1, layout.size):  # only one way to keep nothing more, or everything
                known |= {a.name: 1 if size == 1 else a.size for a in unknown}
            else:
                left.append((name, layout, size))
        if len(left) == len(pending):
            name, layout, size = left[0]
            raise RewriteError(
                "shape can come from several cuts",
                where=f"{place}: {name}",
                found=f"{size} of {layout}",
                hint="say which with take",
            )
        pending = left
    kept = {}
    for axis in solved.all:
        count = known.get(axis.name, axis.size)
        if count != axis.size:
            if not axis.free:
                raise RewriteError(
                    "axis cannot be cut", where=f"{place}: {axis.name}", found=axis.reason
                )
            kept[axis.name] = np.arange(count)
    for name, layout, size in equations:
        if size_after(layout, kept) != size:
            raise RewriteError(
                "shape that no cut of the larger graph gives",
                where=f"{place}: {name}",
                found=size,
                expected=f"{size_after(layout, kept)} of {layout}",
            )
    entries = {
        p.name: Entry(
            p.name,
            tuple(
                DimMap.of(positions(layout, kept), int(full))
                for layout, full in zip(solved.of(p.name), whole.param[p.name].shape, strict=True)
            ),
        )
        for p in client.params
        if p.role != "constant"
    }
    return Transfer(signature(whole), signature(client), entries)


def _pairs(whole: Layout, client: Layout) -> Iterator[tuple[Layout, int]]:
    """What a dimension's size in the smaller graph tells: of each factor or term, if alike."""
    match whole, client:
        case (Prod(a), Prod(b)) | (Sum(a), Sum(b)) if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                yield from _pairs(x, y)
        case _:
            assert isinstance(client.size, int)
            yield whole, client.size


def _axes(layout: Layout) -> list[AxisRef]:
    return [a for a in leaves(layout) if isinstance(a, AxisRef)]


def _use(graph: ArchGraph, leaf: str) -> str:
    """First operator and argument that a leaf is given to."""
    for user in graph.leaf_users.get(leaf, ()):
        node = graph.node[user]
        for argument, value in node.args:
            if any(isinstance(i, Leaf) and i.name == leaf for i in walk(value)):
                return f"{node.op}({argument})"
    return "nothing"


def _solve(
    layout: Layout, size: int, unknown: list[AxisRef], known: dict[str, int]
) -> Iterator[int]:
    """Sizes of the one unknown axis for which the layout has the given size."""
    axis = unknown[0]
    fixed = {k: np.arange(v) for k, v in known.items()}
    for count in range(1, axis.size + 1):
        if size_after(layout, fixed | {axis.name: np.arange(count)}) == size:
            yield count
