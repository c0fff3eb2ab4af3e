"""Widths: the sizes that one graph's leaves give to the axes of another graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Batch, Node, Ref, Value
from archgraph.layout.layouts import AxisRef, Fixed, Layout, Prod, Sum, leaves
from archgraph.ops import schema
from archgraph.ops.equations import StatedSizes

# A leaf or an argument, the layout of one of its dimensions (or a part of it) in the larger graph,
# and its size in the smaller one.
Equation: TypeAlias = tuple[str, Layout, int]
Pairs: TypeAlias = tuple[tuple[str, str], ...]


def axes_of(layout: Layout) -> list[AxisRef]:
    """The axes that a layout is made of, with repetition."""
    return [a for a in leaves(layout) if isinstance(a, AxisRef)]


def alike(mine: Layout, theirs: Layout) -> Iterator[tuple[Layout, Layout]]:
    """Parts of two layouts side by side, as far as they are built alike."""
    match mine, theirs:
        case (Prod(a), Prod(b)) | (Sum(a), Sum(b)) if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                yield from alike(x, y)
        case _:
            yield mine, theirs


def side_by_side(whole: Layout, client: Layout) -> Iterator[tuple[Layout, int]]:
    """What a dimension's size in the smaller graph tells: of each factor or term, if alike."""
    match whole, client:
        case (Prod(a), Prod(b)) | (Sum(a), Sum(b)) if len(a) == len(b):
            for x, y in zip(a, b, strict=True):
                yield from side_by_side(x, y)
        case _:
            assert isinstance(client.size, int)
            yield whole, client.size


def stated(
    client: ArchGraph, mine: str, whole: ArchGraph, theirs: str
) -> Iterator[tuple[str, Layout, Layout]]:
    """Sizes that the arguments of two operators state, side by side: heads, groups, shapes."""
    a, b = client.node[mine], whole.node[theirs]
    of, other = axes(client).attributes, axes(whole).attributes
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
    """A number that an argument is given as or by default."""
    value: Value = node.arg(key)
    if value is None and node.op.startswith("aten."):
        value = schema(node.op).by_name[key].default
    return value if isinstance(value, int) else None


def flat(sizes: StatedSizes) -> Sequence[Layout]:
    """The layouts in what an argument states."""
    if isinstance(sizes, tuple):
        return [layout for size in sizes for layout in flat(size)]
    if sizes is None:
        return []
    return [Fixed(sizes) if isinstance(sizes, (int, Batch)) else sizes]


def _size(layout: Layout, counts: Mapping[str, int]) -> int:
    """Size of a layout when axes have other sizes."""
    match layout:
        case AxisRef(name, size):
            return counts.get(name, size)
        case Prod(factors):
            return math.prod(_size(f, counts) for f in factors)
        case Sum(terms):
            return sum(_size(t, counts) for t in terms)
        case _:
            assert isinstance(layout.size, int)
            return layout.size


class Widths:
    """The sizes that a client gives the axes of a whole with which it shares leaves.

    Factor by factor where both graphs' layouts are alike, then from products and sums with one
    unknown axis left.

    Args:
        client: One graph.
        whole: The other.
        shared: Pairs of leaves (client's, whole's).
        blocks: Pairs of blocks; what the whole's other dense blocks append is left out.
        nodes: Pairs of operators; some state sizes in their arguments.

    Attributes:
        claims: By axis of the whole: the sizes that the client's leaves give it; several where the
            client has several axes for it.
        equations: What they are solved from.
        open: Equations that several sizes fulfil.
    """

    def __init__(
        self, client: ArchGraph, whole: ArchGraph, shared: Pairs, blocks: Pairs, nodes: Pairs
    ) -> None:
        self.solved, own = axes(whole), axes(client)
        self.gone = _dropped(whole, {name for _, name in blocks})
        self.equations: list[Equation] = []
        for a, b in shared:
            if client.param[a].role != "constant":
                for layout, other in zip(self.solved.of(b), own.of(a), strict=True):
                    parts = side_by_side(layout, other)
                    self.equations += [(a, part, size) for part, size in parts]
        for a, b in nodes:
            for key, mine, theirs in stated(client, a, whole, b):
                for x, y in alike(mine, theirs):
                    if axes_of(x) or axes_of(y):
                        assert isinstance(x.size, int)
                        self.equations.append((f"{key} of %{a}", y, x.size))
        self.claims, self.open = solve(self.equations, self.gone)

    def kept(self, place: str) -> dict[str, np.ndarray]:
        """The first positions of each axis that the client has less of.

        Args:
            place: What messages call the client.

        Raises:
            RewriteError: If the client is not a cut of the whole.
        """
        self.decided(place)
        counts = {name: sizes[0] for name, sizes in self.claims.items()}
        kept = {}
        for axis in self.solved.all:
            count = counts.get(axis.name, axis.size)
            if count == axis.size:
                continue
            if not axis.free:
                raise RewriteError(
                    "axis cannot be cut", where=f"{place}: {axis.name}", found=axis.reason
                )
            if count > axis.size:
                raise RewriteError(
                    "axis is wider than the larger graph's",
                    where=f"{place}: {axis.name}",
                    found=count,
                    expected=f"at most {axis.size}",
                )
            kept[axis.name] = np.arange(count)
        for name, layout, size in self.equations:
            if _size(layout, counts) != size:
                raise RewriteError(
                    "shape that no cut of the larger graph gives",
                    where=f"{place}: {name}",
                    found=size,
                    expected=f"{_size(layout, counts)} of {layout}",
                )
        return kept

    def decided(self, place: str) -> None:
        """Check that every size follows from the shapes.

        Raises:
            RewriteError: Names a leaf whose shape does not tell.
        """
        if self.open:
            name, layout, size = self.open[0]
            raise RewriteError(
                "shape can come from several cuts",
                where=f"{place}: {name}",
                found=f"{size} of {layout}",
                hint="say which with take",
            )


def solve(
    equations: Iterable[Equation], gone: Iterable[str] = ()
) -> tuple[dict[str, list[int]], list[Equation]]:
    """Sizes of axes from the sizes of layouts that hold them.

    Args:
        equations: Places, layouts, and their sizes.
        gone: Axes of which nothing is left.

    Returns:
        The sizes found for each axis, several where equations contradict each other; equations
        that several sizes fulfil.
    """
    claims: dict[str, list[int]] = {name: [0] for name in gone}

    def claim(axis: str, size: int) -> None:
        sizes = claims.setdefault(axis, [])
        if size not in sizes:
            sizes.append(size)

    pending: list[Equation] = []
    for name, layout, size in dict.fromkeys(equations):
        if isinstance(layout, AxisRef):
            claim(layout.name, size)
        elif axes_of(layout):
            pending.append((name, layout, size))
    while pending:
        known = {name: sizes[0] for name, sizes in claims.items()}
        left: list[Equation] = []
        for name, layout, size in pending:
            unknown = list(dict.fromkeys(a for a in axes_of(layout) if a.name not in known))
            if not unknown:
                continue
            count = _root(layout, size, unknown[0].name, known) if len(unknown) == 1 else None
            if count is not None:
                solved = {unknown[0].name: count}
            elif size in (1, layout.size):  # one way to keep nothing more, or everything
                solved = {a.name: 1 if size == 1 else a.size for a in unknown}
            else:
                left.append((name, layout, size))
                continue
            known |= solved
            for axis, value in solved.items():
                claim(axis, value)
        if len(left) == len(pending):
            return claims, left
        pending = left
    return claims, []


def _root(layout: Layout, size: int, axis: str, known: Mapping[str, int]) -> int | None:
    """Size of the one unknown axis for which a layout has the given size."""
    low, high = 1, size
    while low < high:
        middle = (low + high) // 2
        if _size(layout, {**known, axis: middle}) < size:
            low = middle + 1
        else:
            high = middle
    return low if low > 0 and _size(layout, {**known, axis: low}) == size else None


def _dropped(whole: ArchGraph, matched: set[str]) -> frozenset[str]:
    """Axes that go with dense blocks that are not matched: what these append."""
    dropped: set[str] = set()
    for block in structure(whole).blocks:
        if block.name in matched or block.kind != "dense" or not block.merge:
            continue
        inside = set(block.nodes)
        lists = (v for _, v in whole.node[block.merge].args if isinstance(v, tuple))
        terms = [i.name for v in lists for i in v if isinstance(i, Ref) and i.name in inside]
        layouts = (d for term in terms for d in axes(whole).value[term][0])
        dropped |= {a.name for layout in layouts for a in axes_of(layout)}
    return frozenset(dropped)
