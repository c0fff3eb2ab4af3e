"""Split tensors by the axes (such as channels) to which their dimensions belong."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum

# A tensor and, for each of its dimensions, the name of its axis or None.
NamedPiece: TypeAlias = "tuple[Tensor, tuple[str | None, ...]]"


def pieces(tensor: Tensor, layouts: Sequence[Layout]) -> Iterator[NamedPiece]:
    """Split a tensor into pieces in which each dimension belongs to at most one axis.

    A dimension that is a product of axes, such as heads times head size, becomes one dimension per
    axis. A dimension that concatenates axes is split into one piece per axis.

    Args:
        tensor: A parameter, buffer, constant or result of an operator of a graph.
        layouts: For each dimension, how it is composed of axes, from :func:`archgraph.axes`.

    Example:
        >>> heads, width, rest = AxisRef("heads", 2), AxisRef("head_dim", 3), AxisRef("out", 4)
        >>> layouts = (Sum((Prod((heads, width)), rest)),)
        >>> [(tuple(piece.shape), names) for piece, names in pieces(torch.zeros(10), layouts)]
        [((2, 3), ('heads', 'head_dim')), ((4,), ('out',))]
    """
    for at, layout in enumerate(layouts):
        before, after = tuple(layouts[:at]), tuple(layouts[at + 1 :])
        if isinstance(layout, Sum):
            sizes = [term.size for term in layout.terms]
            for part, term in zip(tensor.split(sizes, at), layout.terms, strict=True):
                yield from pieces(part, (*before, term, *after))
            return
        if isinstance(layout, Prod):
            # At most one factor is the batch, whose size the layout leaves open.
            sizes = [f.size if isinstance(f.size, int) else -1 for f in layout.factors]
            yield from pieces(tensor.unflatten(at, sizes), (*before, *layout.factors, *after))
            return
    yield tensor, tuple(d.name if isinstance(d, AxisRef) else None for d in layouts)


def position_sums(
    tensor: Tensor, layouts: Sequence[Layout], axes: Collection[str]
) -> dict[str, Tensor]:
    """Sum the elements of a tensor that belong to each position (index) of each axis.

    An element that belongs to a position through several dimensions counts once.

    Args:
        tensor: A parameter, buffer, constant or result of an operator of a graph.
        layouts: For each dimension, how it is composed of axes.
        axes: Names of the axes. The result omits axes that the tensor does not have.

    Example:
        >>> width = AxisRef("width", 2)
        >>> position_sums(torch.tensor([[1, 2], [3, 4]]), (width, width), {"width"})
        {'width': tensor([6, 9])}
    """
    sums: dict[str, Tensor] = {}
    for piece, names in pieces(tensor, layouts):
        for axis, total in sums_of_piece(piece, names, axes).items():
            sums[axis] = sums[axis] + total if axis in sums else total
    return sums


def sums_of_piece(
    piece: Tensor, names: Sequence[str | None], axes: Collection[str]
) -> dict[str, Tensor]:
    """Sum the elements of a piece for each position of each axis, like :func:`position_sums`."""
    return {
        axis: _union(piece, [dim for dim, name in enumerate(names) if name == axis])
        for axis in dict.fromkeys(names)
        if axis is not None and axis in axes
    }


def _union(piece: Tensor, dims: Sequence[int]) -> Tensor:
    """Sum by the position along any of the dimensions, by inclusion-exclusion over diagonals."""
    total = piece.new_zeros(piece.shape[dims[0]])
    for count in range(1, len(dims) + 1):
        for together in itertools.combinations(dims, count):
            # Equal subscripts select a diagonal; subscript 0 is the axis, others are summed.
            subscripts = [0 if dim in together else dim + 1 for dim in range(piece.dim())]
            total = total - (-1) ** count * torch.einsum(piece, subscripts, [0])
    return total
