"""The shares and positions that each kind of client has of a global graph."""

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

# Positions of each dimension of a global leaf, for each copy of it.
LeafPositions: TypeAlias = dict[str, list[list[str]]]


def feeding(family: Family, parts: Anatomy) -> dict[str, Json]:
    """Return the shares of each part and the positions of each leaf and axis by kind of client.

    The row of a part has the number of clients that have any of it, the share of its weights as the
    mean over all clients, and the share of each kind. -1 stands for a part without parameters.
    """
    cover, rows, texts = coverage(family), Distinct(), Distinct()
    graph = family.graph

    def row(leaves: Iterable[str]) -> int:
        # A leaf that several operators use counts once.
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
    """Return the positions that a client takes of each global leaf, as texts by dimension."""
    positions: LeafPositions = {}
    for entry in member.transfer.entries.values():
        if entry.source is not None:
            dims = [":" if one is None else str(one) for one in entry.dims]
            positions.setdefault(entry.source, []).append(dims)
    return positions


def _slices(copies: Iterable[Sequence[str]]) -> str:
    return " and ".join(f"[{', '.join(dims)}]" for dims in copies)


def _axes(family: Family, positions: Sequence[LeafPositions]) -> Iterable[tuple[str, ...]]:
    """Yield the positions of each client for each axis: number, and which if a leaf shows them."""
    solved = axes(family.graph)
    # Dimensions of leaves that are exactly one axis: their maps are the positions of the axis.
    plain: dict[str, list[tuple[str, int]]] = {}
    for leaf, dims in solved.leaf.items():
        for number, layout in enumerate(dims):
            if isinstance(layout, AxisRef):
                plain.setdefault(layout.name, []).append((leaf, number))
    sizes = [widths(family.graph, one.transfer) for one in family.clients]

    def text(axis: Axis, size: int | None, dims: LeafPositions) -> str:
        """Return a text such as `32 of 64 [:32]`; empty for an axis without positions."""
        which = next(
            (dims[leaf][-1][i] for leaf, i in plain.get(axis.name, ()) if leaf in dims), ""
        )
        return "" if size is None else f"{size} of {axis.size}" + (f" [{which}]" if which else "")

    for axis in solved.all:
        pairs = zip(sizes, positions, strict=True)
        yield tuple(text(axis, known.get(axis.name), one) for known, one in pairs)
