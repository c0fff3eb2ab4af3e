"""Compute the sizes of a graph's axes in a client's model from the shapes of shared parameters."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import appended, axis_refs, size_after
from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Node, Polynomial, Value
from archgraph.layout.layouts import AxisRef, Fixed, Layout, Prod, Sum, fixed_size
from archgraph.ops.equations import StatedSizes
from archgraph.ops.schema import op_schema

# Name of a leaf or an argument, the layout of a dimension of it (or a part of this layout) in the
# larger graph, and the size of the dimension in the smaller graph.
Equation: TypeAlias = tuple[str, Layout, int]
Pairs: TypeAlias = tuple[tuple[str, str], ...]


def matching_parts(mine: Layout, theirs: Layout) -> Iterator[tuple[Layout, Layout]]:
    """Yield pairs of corresponding parts of two layouts, down to where their structure differs."""
    match mine, theirs:
        case (Prod(a), Prod(b)) | (Sum(a), Sum(b)) if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                yield from matching_parts(x, y)
        case _:
            yield mine, theirs


def sized(where: str, full: Layout, client: Layout) -> Iterator[Equation]:
    """Yield the equations for a dimension, one per pair that ``matching_parts`` yields."""
    for part, other in matching_parts(full, client):
        yield where, part, fixed_size(other)


def stated(
    client: ArchGraph, mine: str, full: ArchGraph, theirs: str
) -> Iterator[tuple[str, Layout, Layout]]:
    """Yield pairs of corresponding sizes (heads, groups) in the arguments of two operators."""
    a, b = client.node[mine], full.node[theirs]
    of, other = axes(client).attributes, axes(full).attributes
    for key in dict.fromkeys(key for node in (a, b) for key, _ in node.args):
        if (mine, key) not in of and (theirs, key) not in other:
            continue
        left = flat(of.get((mine, key), _written(a, key)))
        right = flat(other.get((theirs, key), _written(b, key)))
        if len(left) == len(right):
            for x, y in zip(left, right, strict=True):
                if isinstance(x.size, int) and isinstance(y.size, int):
                    yield key, x, y


def _written(node: Node, key: str) -> int | None:
    """Return the value of an argument, or its default, if it is a number; otherwise None."""
    value: Value = node.arg(key)
    if value is None and node.op.startswith("aten."):
        value = op_schema(node.op).by_name[key].default
    return value if isinstance(value, int) else None


def flat(sizes: StatedSizes) -> Sequence[Layout]:
    """List the layouts in an argument that contains sizes; numbers become fixed layouts."""
    if isinstance(sizes, tuple):
        return [layout for size in sizes for layout in flat(size)]
    layout = Fixed(sizes) if isinstance(sizes, (int, Polynomial)) else sizes
    return [] if layout is None else [layout]


class Widths:
    """The sizes of a larger graph's axes in a client's graph that shares parameters with it.

    Each dimension of a shared parameter gives an equation. If the layouts of both graphs have the
    same structure, there is an equation for each factor. The remaining products and sums are solved
    when only one of their axes is unknown.

    Attributes:
        claims: Dict from each axis of the larger graph to its sizes in the client. There are
            several if the equations contradict each other.
        equations: The equations from which the sizes are solved.
        open: Equations with several solutions.
    """

    def __init__(
        self, client: ArchGraph, full: ArchGraph, shared: Pairs, blocks: Pairs, nodes: Pairs
    ) -> None:
        self.solved, narrow = axes(full), axes(client)
        self.gone = _dropped(full, {name for _, name in blocks})
        self.equations: list[Equation] = []
        for a, b in shared:
            if client.param[a].role != "constant":
                for layout, other in zip(self.solved.of(b), narrow.of(a), strict=True):
                    self.equations += sized(a, layout, other)
        for a, b in nodes:
            for key, mine, theirs in stated(client, a, full, b):
                for x, y in matching_parts(mine, theirs):
                    if axis_refs(x) or axis_refs(y):
                        self.equations.append((f"{key} of %{a}", y, fixed_size(x)))
        self.claims, self.open = solve(self.equations, self.gone)

    def selection(self, where: str) -> dict[str, np.ndarray]:
        """For each axis that is narrower in the client, return the positions to keep (the first).

        Raises:
            RewriteError: If no cut of the larger graph has the client's shapes.
        """
        self.decided(where)  # do not guess between several sizes
        counts = {name: sizes[0] for name, sizes in self.claims.items()}
        after = {name: range(count) for name, count in counts.items()}
        selection = {}
        for axis in self.solved.all:
            count = counts.get(axis.name, axis.size)
            if count == axis.size:
                continue
            if not axis.free:
                name = f"{where}: {axis.name}"
                raise RewriteError("axis cannot be cut", where=name, found=axis.reason)
            if count > axis.size:
                problem = f"axis is wider than the larger graph's, of {axis.size}"
                raise RewriteError(problem, where=f"{where}: {axis.name}", found=count)
            selection[axis.name] = np.arange(count)
        for name, layout, size in self.equations:
            # If equations contradict each other, only the first size was used; the others fail.
            if (cut := size_after(layout, after)) != size:
                problem = f"no cut of the larger graph has this shape; expected {cut} of {layout}"
                raise RewriteError(problem, where=f"{where}: {name}", found=size)
        return selection

    def decided(self, where: str) -> None:
        """Check that the shapes determine every size.

        Raises:
            RewriteError: If several sizes are possible. The message names a parameter.
        """
        if self.open:
            name, layout, size = self.open[0]
            raise RewriteError(
                "shape matches several cuts",
                where=f"{where}: {name}",
                found=f"{size} of {layout}",
                hint="choose one with take",
            )


def solve(
    equations: Iterable[Equation], gone: Iterable[str] = ()
) -> tuple[dict[str, list[int]], list[Equation]]:
    """Solve equations of layouts and sizes for the sizes of axes; axes in ``gone`` have size 0.

    Returns:
        A dict from axis to its sizes (several if equations contradict each other), and the
        equations with several solutions.
    """
    claims: dict[str, dict[int, None]] = {name: {0: None} for name in gone}
    distinct = dict.fromkeys(equations)  # layers of equal width repeat equations
    for _, layout, size in distinct:
        if isinstance(layout, AxisRef):
            claims.setdefault(layout.name, {})[size] = None
    left = [e for e in distinct if not isinstance(e[1], AxisRef) and axis_refs(e[1])]
    progress = True
    while progress:
        pending, left = left, []
        for equation in pending:
            known = {axis: range(next(iter(sizes))) for axis, sizes in claims.items()}
            solved = _solved(*equation[1:], known)
            if solved is None:
                left.append(equation)
            claims |= {axis: {size: None} for axis, size in (solved or {}).items()}
        # A solved axis may leave another equation with a single unknown axis.
        progress = 0 < len(left) < len(pending)
    return {axis: list(sizes) for axis, sizes in claims.items()}, left


def _solved(layout: Layout, size: int, known: Mapping[str, range]) -> dict[str, int] | None:
    """Return the sizes of a layout's unknown axes; None if there are several solutions."""
    unknown = {a.name: a.size for a in axis_refs(layout) if a.name not in known}
    if len(unknown) == 1:
        (axis,) = unknown
        count = _root(layout, size, axis, known)
        if count is not None:
            return {axis: count}
    if unknown and size not in (1, layout.size):
        return None
    return unknown if size != 1 else dict.fromkeys(unknown, 1)  # all positions, or one each


def _root(layout: Layout, size: int, axis: str, known: Mapping[str, range]) -> int | None:
    """Return the size of the only unknown axis for which the layout has ``size``."""

    def total(count: int) -> int:
        result = size_after(layout, {**known, axis: range(count)})
        assert isinstance(result, int)
        return result

    # A layout grows with each of its axes, so the count can be found by bisection.
    count = bisect.bisect_left(range(1, size), size, key=total) + 1
    return count if total(count) == size else None


def _dropped(full: ArchGraph, matched: set[str]) -> frozenset[str]:
    """Return the axes that dense blocks append, for blocks that are not in ``matched``."""
    return frozenset(
        name
        for block in structure(full).blocks
        if block.name not in matched
        for name in appended(axes(full), block.terms)
    )
