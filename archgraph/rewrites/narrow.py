"""Narrow axes, and add the removed weights to the kept weights (FedADP)."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, get_args

import numpy as np

from archgraph.analysis.axes import axes
from archgraph.analysis.choice import Shares, Sizes, chosen_axes
from archgraph.analysis.positions import Kept, positions, touched
from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.layout.layouts import Layout, fixed_size
from archgraph.rewrites.compensation import compensation
from archgraph.rewrites.copies import Copies, drawn
from archgraph.rewrites.cut import cut_axes
from archgraph.states import DimMap, Rewritten
from archgraph.states.dimension_map import Vector

NarrowMode: TypeAlias = Literal["paper", "net2net"]


@takes_graph
def narrow(
    graph: ArchGraph,
    shares: Shares | None = None,
    *,
    sizes: Sizes | None = None,
    mode: NarrowMode = "paper",
    seed: int = 0,
    allow_nothing: bool = False,
) -> Rewritten:
    """Make a network narrower, and add the removed weights to the kept weights.

    The first positions (indices, such as channels) of each axis are kept.

    Args:
        graph: The wide architecture.
        shares: One fraction in (0, 1] for every width, or a dict from axis to fraction, as in
            :func:`take`.
        sizes: Dict from axis to the number of positions to keep.
        mode: With ``paper``, the sum of the removed weights is distributed equally over the kept
            weights, but only in operators that sum over the axis (FedADP, Algorithm 3). ``net2net``
            is the inverse of :func:`widen` with the same seed: each copied position is merged with
            the position from which it was copied. Weights that ``widen`` divides are summed; other
            weights are averaged.
        seed: For ``net2net``, the seed that was passed to :func:`widen`.
        allow_nothing: If True, accept fractions that change nothing, as in :func:`take`.

    Raises:
        RewriteError: If a size is out of range; if fractions below 1 change no size and
            ``allow_nothing`` is False.
        AxisError: If an axis does not exist or is pinned.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> graph = trace(net, torch.zeros(1, 3)).graph
        >>> from archgraph.rewrites.widen import widen
        >>> both = widen(graph, sizes={"0.out": 6}) >> (
        ...     lambda g: narrow(g, sizes={"0.out": 4}, mode="net2net")
        ... )
        >>> all(entry.unchanged for entry in both.transfer.entries.values())
        True

    Source: FedADP, Algorithm 3.
    """
    if mode not in get_args(NarrowMode):
        raise RewriteError("unknown mode", found=mode, expected=", ".join(get_args(NarrowMode)))
    solved = axes(graph)
    counts, _ = chosen_axes(solved, shares, sizes, allow_nothing=allow_nothing)
    sizes_after = {axis: size for axis, size in counts.items() if size < axis.size}
    selection = {a.name: np.arange(n) for a, n in sizes_after.items()}
    narrowed = cut_axes(graph, selection)
    # The copies that widening the narrow graph would make, and the dimensions that it would divide.
    index = {a.name: drawn(a.name, n, a.size, seed) for a, n in sizes_after.items()}
    copies = Copies(narrowed.graph, index)
    factors, _ = compensation(copies)
    entries = dict(narrowed.transfer.entries)
    for leaf, entry in entries.items():
        dims = list(entry.dims)
        for dim, layout in enumerate(copies.solved.of(leaf)):
            factor = factors.get((leaf, dim))
            # The paper adds weights only where an axis is summed over, so the total is preserved.
            if mode == "net2net" and touched(layout, index):
                dims[dim] = _merged(copies, layout, factor)
            elif mode == "paper" and factor is not None and touched(layout, index):
                dims[dim] = _spread(solved.of(leaf)[dim], selection)
        entries[leaf] = dataclasses.replace(entry, dims=tuple(dims))
    return Rewritten.between(graph, narrowed.graph, entries, narrowed.transfer.notes)


def _merged(copies: Copies, layout: Layout, factor: Vector | None) -> DimMap | None:
    """Merge copies with their originals: sum where widening divides weights, otherwise average."""
    rows = copies.positions(layout)
    equal = copies.parts(layout)
    weights = equal if factor is None else equal / factor
    wide = len(rows)
    return DimMap.sparse(rows, np.arange(wide), weights, size=wide, length=fixed_size(layout))


def _spread(layout: Layout, selection: Kept) -> DimMap | None:
    """Add the removed weights to the remaining ones in equal parts (FedADP, Algorithm 3)."""
    size = fixed_size(layout)
    stays = positions(layout, selection)
    length = len(stays)
    # Each remaining position keeps its value and gets 1/length of every removed value.
    matrix = np.full((length, size), 1 / length)
    matrix[:, stays] = np.eye(length)
    rows, columns = matrix.nonzero()
    return DimMap.sparse(rows, columns, matrix[rows, columns], size=size, length=length)
