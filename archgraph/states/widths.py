"""Width of each axis after a transfer from an architecture."""

from __future__ import annotations

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.positions import axis_refs, position_shares
from archgraph.analysis.structure import structure
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.layout.layouts import AxisRef
from archgraph.states.transfer import Transfer


@takes_graph
def widths(graph: ArchGraph, transfer: Transfer) -> dict[str, int]:
    """Return the width (such as number of channels) of each axis in a narrower architecture.

    The result is a dict from axis of ``graph`` to width. If a block was removed, the axis of its
    output has the width of the axis of its input. Other axes that the narrower architecture lacks
    are omitted.

    Args:
        graph: The architecture before the transfer.
        transfer: Transfer from a state of ``graph`` to a state of a narrower architecture.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.rewrites.take import take
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> graph = trace(net, zeros(1, 3)).graph
        >>> widths(graph, take(graph, sizes={"0.out": 3}).transfer)["0.out"]
        3
    """
    solved = axes(graph)
    sizes: dict[str, int] = {}
    for entry in transfer.entries.values():
        if entry.source is not None:
            for layout, map_ in zip(solved.of(entry.source), entry.dims, strict=True):
                for axis in axis_refs(layout):
                    # The axis' own position at each position of the layout; 1 where it has none.
                    at = position_shares(layout, {}, {axis.name: np.arange(axis.size) + 2})
                    at = at if map_ is None else at[map_.positions]
                    if count := len(np.unique(at[at > 1])):
                        sizes[axis.name] = max(sizes.get(axis.name, 0), count)
    for block in structure(graph).blocks:
        for before, after in zip(
            *(solved.value[name][0] for name in (block.entry, block.exit)), strict=False
        ):
            if isinstance(before, AxisRef) and isinstance(after, AxisRef):
                if before.size == after.size and before.name in sizes:
                    sizes.setdefault(after.name, sizes[before.name])
    return sizes
