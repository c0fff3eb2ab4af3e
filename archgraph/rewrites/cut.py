"""Keep, reorder or repeat positions of an architecture's axes."""

from __future__ import annotations

from archgraph.analysis.axes import Axes, axes
from archgraph.analysis.positions import Kept, node_after, param_after, positions, touched
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph
from archgraph.layout.layouts import Layout, fixed_size
from archgraph.ops.table import impossible
from archgraph.states import DimMap, Entry, Rewritten


def cut_axes(graph: ArchGraph, selection: Kept, solved: Axes | None = None) -> Rewritten:
    """Return a graph that keeps only the selected positions of some axes, in the given order.

    Args:
        graph: The architecture.
        selection: Dict from axis name to the positions to keep. A position may be repeated. Axes
            that are not in the dict are not cut.
        solved: The axes to which ``selection`` refers. They may be the axes of another graph with
            the same operators (``graph`` before a block was bypassed). Default: the axes of
            ``graph``.

    Returns:
        The graph with every size and constant recomputed, and the transfer that selects positions.

    Raises:
        RewriteError: If an operator cannot run at the new sizes.
    """
    solved = axes(graph) if solved is None else solved
    maps: dict[Layout, DimMap | None] = {}  # one map for all dimensions of a layout

    def map_of(layout: Layout) -> DimMap | None:
        if not touched(layout, selection):
            return None
        if layout not in maps:
            maps[layout] = DimMap.of(positions(layout, selection), fixed_size(layout))
        return maps[layout]

    entries = {
        param.name: Entry(param.name, tuple(map_of(d) for d in solved.leaf[param.name]))
        for param in graph.params
        if param.role != "constant"  # constants are part of the graph, not of a state
    }
    new = graph.replace(
        params=tuple(param_after(solved, p, selection) for p in graph.params),
        nodes=tuple(node_after(solved, n, selection) for n in graph.nodes),
    )
    # An operator may relate axes that are free separately (a projection and its units).
    for node in new.nodes:
        if reason := impossible(node):
            problem, where = "these sizes are incompatible", node.scope or f"%{node.name}"
            hint = "give one of the two axes another size"
            raise RewriteError(problem, where=where, found=reason, hint=hint)
    return Rewritten.between(graph, new, entries, _notes(solved, selection))


def _notes(solved: Axes, selection: Kept) -> tuple[str, ...]:
    """Return notes on the axes that are cut, and on uncut axes of the same products."""
    beside = {
        name: cut
        for product in solved.products
        for cut in product
        if cut in selection
        for name in product
    }
    return (
        *(
            f"axis {axis.name}: {axis.size} → {len(selection[axis.name])}"
            for axis in solved.all
            if axis.name in selection
        ),
        *(
            f"axis {axis.name}: {axis.size}, kept ({beside[axis.name]} is cut)"
            for axis in solved.free
            if axis.name in beside.keys() - selection.keys()
        ),
    )
