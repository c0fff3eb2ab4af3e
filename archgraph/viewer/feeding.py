"""Who feeds what of a global graph: each kind of client's share, and the positions it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from archgraph.analysis.axes import Axis, axes
from archgraph.display.cover import coverage
from archgraph.display.labels import count_parameters
from archgraph.federation.family import Family
from archgraph.federation.world import Tier
from archgraph.layout.layouts import AxisRef
from archgraph.plain import Json
from archgraph.states.widths import widths
from archgraph.viewer.anatomy import Anatomy
from archgraph.viewer.distinct import Distinct
from archgraph.viewer.overlays import by_part

# By global leaf: the positions of each of its dimensions, once for every copy of it.
LeafPositions: TypeAlias = dict[str, list[list[str]]]


def feeding(family: Family, parts: Anatomy) -> dict[str, Json]:
    """Return the shares of every part, and positions of every leaf and axis, by kind of client.

    A part's row holds the number of clients that have any of it, the share of its weights that a
    client has, mean over all, and each kind's share; -1 stands for a part without parameters.
    """
    cover, rows, texts = coverage(family), Distinct(), Distinct()
    graph = family.graph

    def row(leaves: Iterable[str]) -> int:
        # Each leaf once, though several operators may use it.
        sizes = {k: count_parameters(graph, (k,)) for k in dict.fromkeys(leaves) if k in cover}
        reach, shares = cover.reach(sizes), cover.shares(sizes)
        if reach is None or shares is None:
            return -1
        return rows.add((reach.clients, reach.weights, shares))

    def of(nodes: Iterable[str]) -> int:
        return row(leaf for name in nodes for leaf in graph.node[name].leaves())

    positions = [_positions(member) for member in family.clients]
    return {
        "clients": [[member.name, member.count] for member in family.clients],
        **by_part(parts, of),
        "leaves": [row([param.name]) for param in graph.params],
        "positions": [
            texts.add(tuple(_slices(one.get(p.name, ())) for one in positions))
            for p in graph.params
        ],
        "axes": [texts.add(one) for one in _axes(family, positions)],
        "rows": rows.rows,
        "texts": texts.rows,
    }


def _positions(member: Tier) -> LeafPositions:
    """Write what a client takes of each dimension of a global leaf; it may copy one twice."""
    positions: LeafPositions = {}
    for entry in member.transfer.entries.values():
        if entry.source is not None:
            dims = [":" if one is None else str(one) for one in entry.dims]
            positions.setdefault(entry.source, []).append(dims)
    return positions


def _slices(copies: Iterable[Sequence[str]]) -> str:
    return " and ".join(f"[{', '.join(dims)}]" for dims in copies)


def _axes(family: Family, positions: Sequence[LeafPositions]) -> Iterable[tuple[str, ...]]:
    """Yield each client's positions per axis: how many, and which if a leaf tells."""
    solved = axes(family.graph)
    # Leaves of which a dimension is the axis alone: their maps are the axis's positions.
    plain: dict[str, list[tuple[str, int]]] = {}
    for leaf, dims in solved.leaf.items():
        for number, layout in enumerate(dims):
            if isinstance(layout, AxisRef):
                plain.setdefault(layout.name, []).append((leaf, number))
    sizes = [widths(family.graph, one.transfer) for one in family.clients]

    def text(axis: Axis, size: int | None, dims: LeafPositions) -> str:
        """Write `32 of 64 [:32]`; empty for an axis without positions."""
        which = next(
            (dims[leaf][-1][i] for leaf, i in plain.get(axis.name, ()) if leaf in dims), ""
        )
        return "" if size is None else f"{size} of {axis.size}" + (f" [{which}]" if which else "")

    for axis in solved.all:
        pairs = zip(sizes, positions, strict=True)
        yield tuple(text(axis, known.get(axis.name), one) for known, one in pairs)
