"""Choose and record which old position each new position (index) of a wider axis copies."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from archgraph.analysis.axes import Axes, Axis, axes
from archgraph.analysis.positions import axis_refs, position_shares, positions
from archgraph.graph.ir import ArchGraph, Leaf, Node
from archgraph.layout.layouts import Layout
from archgraph.rewrites.cut import cut_axes
from archgraph.states import Rewritten
from archgraph.states.dimension_map import Vector


def drawn(name: str, size: int, wide: int, seed: int) -> npt.NDArray[np.int64]:
    """For each of the ``wide`` new positions of an axis, return the old position that it copies.

    The first ``size`` positions stay. The others copy random old positions, or all old positions in
    turn if ``wide`` is a multiple of ``size``.

    >>> drawn("fc.out", 2, 6, 0), drawn("fc.out", 4, 4, 0)
    (array([0, 1, 0, 1, 0, 1]), array([0, 1, 2, 3]))
    """
    if wide % size == 0:
        return np.arange(wide) % size
    # Seeded by the axis alone: server and clients draw the same, whatever else they widen.
    digest = hashlib.sha256(f"widen/{seed}/{name}/{size}/{wide}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    return np.concatenate([np.arange(size), random.integers(0, size, wide - size)])


def copied_positions(
    sizes: Mapping[Axis, int], positions: Mapping[Axis, npt.NDArray[np.int64]], seed: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Return a dict from each changed axis to the old position that each new position copies.

    ``positions`` lists the old positions for some axes. For axes that are only in ``sizes``,
    :func:`drawn` chooses the old positions.
    """
    sources = {axis: drawn(axis.name, axis.size, size, seed) for axis, size in sizes.items()}
    sources.update(positions)
    return {a.name: i for a, i in sources.items() if not np.array_equal(i, np.arange(a.size))}


def equal_parts(index: npt.NDArray[np.int64]) -> Vector:
    """For each new position, return 1 / (number of copies of the same old position).

    For each old position, the values of all copies add up to exactly 1.

    >>> equal_parts(np.array([0, 1, 0]))
    array([0.5, 1. , 0.5])
    """
    share = 1 / np.bincount(index)[index]
    for position in np.unique(index[np.bincount(index)[index] > 1]):
        places = np.flatnonzero(index == position)
        # The last copy gets the rounding error.
        share[places[-1]] = 1 - np.cumsum(share[places[:-1]])[-1]
    return np.asarray(share)


@dataclass(frozen=True)
class Copies:
    """An architecture, and the old positions that the new positions of its axes copy.

    Attributes:
        graph: The architecture before the copies.
        index: Dict from axis name to the old position that each new position copies.
    """

    graph: ArchGraph
    index: Mapping[str, npt.NDArray[np.int64]]

    @property
    def solved(self) -> Axes:
        """Axes of the architecture before the copies."""
        return axes(self.graph)

    @functools.cached_property
    def rewritten(self) -> Rewritten:
        """The rewrite to the architecture with the copies, without compensating factors."""
        return cut_axes(self.graph, self.index)

    @functools.cached_property
    def _share(self) -> dict[str, Vector]:
        return {name: equal_parts(index) for name, index in self.index.items()}

    def axes_in(self, layout: Layout) -> set[str]:
        """Return the axes with copied positions on which the size of a dimension depends."""
        return {axis.name for axis in axis_refs(layout) if axis.name in self.index}

    def positions(self, layout: Layout) -> npt.NDArray[np.int64]:
        """Return the old position that each new position of a dimension copies."""
        return positions(layout, self.index)

    def parts(self, layout: Layout, axes: Collection[str] | None = None) -> Vector:
        """For each new position of a dimension, return 1 / (number of copies of the same old one).

        Only copies along ``axes`` are counted. Default: along all axes.
        """
        share = self._share
        if axes is not None:
            share = {name: part for name, part in share.items() if name in axes}
        return position_shares(layout, self.index, share)

    def only_user(self, node: Node, leaf: str) -> bool:
        """Return whether a parameter or buffer is only used by this operator, and only once."""
        uses = [*node.operands()].count(Leaf(leaf))
        return uses == 1 and self.graph.leaf_users[leaf] == (node.name,)
