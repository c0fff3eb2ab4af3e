"""Which weights and channels of the global model each kind of client has."""

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

# Global parameter or buffer → for each copy of it on a client, the slice of each dimension.
LeafPositions: TypeAlias = dict[str, list[list[str]]]


def feeding(family: Family, parts: Anatomy) -> dict[str, Json]:
    """Return which fraction of each part, and which channels of each axis, clients have.

    A row of a part contains the number of clients that have any of its weights, the fraction of its
    weights that a client has (mean over all clients), and this fraction for each kind of client. A
    part without parameters has -1 instead of the index of a row.
    """
    cover, rows, texts = coverage(family), Distinct(), Distinct()
    graph = family.graph

    def row(leaves: Iterable[str]) -> int:
        # A parameter that several operators use counts once.
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
    """Return the slices of each global parameter or buffer that a client has, as texts."""
    positions: LeafPositions = {}
    for entry in member.transfer.entries.values():
        if entry.source is not None:
            dims = [":" if one is None else str(one) for one in entry.dims]
            positions.setdefault(entry.source, []).append(dims)
    return positions


def _slices(copies: Iterable[Sequence[str]]) -> str:
    return " and ".join(f"[{', '.join(dims)}]" for dims in copies)


def _axes(family: Family, positions: Sequence[LeafPositions]) -> Iterable[tuple[str, ...]]:
    """Yield, for each axis, how many of its positions each kind of client has, and which."""
    solved = axes(family.graph)
    # Dimensions of parameters that are exactly one axis: their slices are those of the axis.
    plain: dict[str, list[tuple[str, int]]] = {}
    for leaf, dims in solved.leaf.items():
        for number, layout in enumerate(dims):
            if isinstance(layout, AxisRef):
                plain.setdefault(layout.name, []).append((leaf, number))
    sizes = [widths(family.graph, one.transfer) for one in family.clients]

    def text(axis: Axis, size: int | None, dims: LeafPositions) -> str:
        """Return a text such as `32 of 64 [:32]`; empty if the client does not have the axis."""
        which = next(
            (dims[leaf][-1][i] for leaf, i in plain.get(axis.name, ()) if leaf in dims), ""
        )
        return "" if size is None else f"{size} of {axis.size}" + (f" [{which}]" if which else "")

    for axis in solved.all:
        pairs = zip(sizes, positions, strict=True)
        yield tuple(text(axis, known.get(axis.name), one) for known, one in pairs)
