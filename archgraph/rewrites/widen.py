"""Widen axes: add positions without changing the function (Net2Wider, FedADP)."""

from __future__ import annotations

from archgraph.analysis.axes import axes
from archgraph.analysis.choice import Positions, Shares, Sizes, chosen_axes
from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.layout.layouts import fixed_size
from archgraph.rewrites.compensation import compensation
from archgraph.rewrites.copies import Copies, copied_positions
from archgraph.rewrites.laws import check_law, same_function
from archgraph.states import DimMap, Entry, Rewritten


@takes_graph
def widen(
    graph: ArchGraph,
    factors: Shares | None = None,
    *,
    sizes: Sizes | None = None,
    positions: Positions | None = None,
    seed: int = 0,
    approximate: bool = False,
    allow_nothing: bool = False,
    verify: bool = False,
) -> Rewritten:
    """Make a network wider without changing its outputs in evaluation mode (Net2WiderNet).

    New positions (indices along an axis, such as channels) are copies of old positions. If a layer
    sums over the axis, its weights are divided by the number of copies. The choice of the copied
    positions depends only on the seed and on the name, the old size and the new size of the axis.
    Server and clients therefore make the same choice. If the new size is a multiple of the old
    size, all positions are copied equally often.

    Args:
        graph: The narrow architecture.
        factors: One factor from 1 to 16 for every width, or a dict from axis to factor. The keys of
            the dict are those of ``shares`` in :func:`take`. For a larger factor, use ``sizes``.
        sizes: Dict from axis to its new number of positions.
        positions: Dict from axis to a list of positions. Position ``i`` of the wide axis is a copy
            of the position of the narrow axis that is item ``i`` of the list.
        seed: Seed for the choice of the copied positions.
        approximate: If True, copy positions even if this changes the outputs. The outputs change if
            the network computes a softmax over the axis. They also change if the network computes a
            norm over the axis, unless all positions are copied equally often.
        allow_nothing: If True, accept factors that change nothing, as in :func:`take`.
        verify: Check that the outputs are the same (three forward passes in float64). If
            ``approximate`` changes the outputs, check only that the network runs and that its
            output depends on its input.

    Raises:
        RewriteError: If an axis cannot be widened exactly (the message gives the reason); if a size
            is impossible; if factors above 1 change no size and ``allow_nothing`` is False.
        AxisError: If an axis does not exist or is pinned.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> wide = widen(trace(net, torch.zeros(1, 3)).graph, sizes={"0.out": 6}, verify=True)
        >>> {p.name: p.shape for p in wide.graph.params if "weight" in p.name}
        {'0.weight': (6, 3), '2.weight': (2, 6)}

    Source: Chen et al., *Net2Net*, ICLR 2016, §2.2; FedADP, Algorithm 2.
    """
    solved = axes(graph)
    sizes_after, chosen = chosen_axes(
        solved, factors, sizes, positions, grow=True, allow_nothing=allow_nothing
    )
    copies = Copies(graph, copied_positions(sizes_after, chosen, seed))
    parts, refused = compensation(copies)
    if refused and not approximate:
        axis, reason = next(iter(refused.items()))
        inexact = "to allow a different function, set approximate: true (in Python "
        hint = f"{inexact}approximate=True); otherwise omit the axis"
        raise RewriteError("cannot be widened exactly", where=axis, found=reason, hint=hint)
    wide = copies.rewritten
    entries = dict(wide.transfer.entries)
    for (leaf, dim), part in parts.items():
        layout = solved.of(leaf)[dim]
        dims = list(entries[leaf].dims)
        dims[dim] = DimMap.of(copies.positions(layout), fixed_size(layout), part)
        entries[leaf] = Entry(leaf, tuple(dims))
    rewritten = Rewritten.between(graph, wide.graph, entries, wide.transfer.notes)
    if verify and refused:  # the function changes: check only that the network runs
        check_law(graph, rewritten, None)
    elif verify:
        same_function(graph, rewritten)
    return rewritten
