"""Who feeds what of a global graph: each kind of client's share, and the positions it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from archgraph.analysis.axes import axes
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


def feeding(family: Family, parts: Anatomy) -> dict[str, Json]:
    """Return the shares of every part, and positions of every leaf and axis, by kind of client.

    A part's row holds the number of clients that have any of it, the share of its weights that such
    a client has on average, and each kind's share; -1 stands for a part without parameters.
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

    entries = [_slices(member) for member in family.clients]
    return {
        "clients": [[member.name, member.count] for member in family.clients],
        **by_part(parts, of),
        "leaves": [row([param.name]) for param in graph.params],
        "positions": [
            texts.add(tuple(one.get(p.name, "") for one in entries)) for p in graph.params
        ],
        "axes": [texts.add(one) for one in _axes(family)],
        "rows": rows.rows,
        "texts": texts.rows,
    }


def _slices(member: Tier) -> dict[str, str]:
    """Write what a client takes of each global leaf; a leaf that it copies has two entries."""
    sources: dict[str, list[str]] = {}
    for entry in member.transfer.entries.values():
        if entry.source is not None:
            dims = (":" if one is None else str(one) for one in entry.dims)
            sources.setdefault(entry.source, []).append(f"[{', '.join(dims)}]")
    return {name: " and ".join(texts) for name, texts in sources.items()}


def _axes(family: Family) -> Iterable[tuple[str, ...]]:
    """Yield each client's positions per axis: how many, and which if a leaf tells."""
    solved = axes(family.graph)
    # Leaves of which a dimension is the axis alone: their maps are the axis's positions.
    plain: dict[str, list[tuple[str, int]]] = {}
    for leaf, dims in solved.leaf.items():
        for number, layout in enumerate(dims):
            if isinstance(layout, AxisRef):
                plain.setdefault(layout.name, []).append((leaf, number))
    kinds = [(widths(family.graph, one.transfer), _maps(one)) for one in family.clients]
    for axis in solved.all:
        yield tuple(_text(axis.name, axis.size, plain, *kind) for kind in kinds)


def _maps(member: Tier) -> dict[tuple[str, int], str]:
    """Return the positions that a client takes of each dimension of the global leaves."""
    return {
        (entry.source, number): ":" if one is None else str(one)
        for entry in member.transfer.entries.values()
        if entry.source is not None
        for number, one in enumerate(entry.dims)
    }


def _text(
    axis: str,
    size: int,
    plain: Mapping[str, Sequence[tuple[str, int]]],
    sizes: Mapping[str, int],
    maps: Mapping[tuple[str, int], str],
) -> str:
    """Write `32 of 64 [:32]`; empty for an axis without positions."""
    if axis not in sizes:
        return ""
    positions = next((maps[name] for name in plain.get(axis, ()) if name in maps), "")
    return f"{sizes[axis]} of {size}" + (f" [{positions}]" if positions else "")
