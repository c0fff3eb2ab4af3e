"""What remains of layouts when axes keep some of their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sized

import numpy as np

from archgraph.errors import AxisError
from archgraph.graph.ir import Size, Value
from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum, leaves
from archgraph.ops.equations import StatedSizes

Kept = Mapping[str, np.ndarray]  # positions kept, by axis name; an axis not named keeps all


def size_after(layout: Layout, kept: Mapping[str, Sized]) -> Size:
    """Size of a layout when some axes keep only some positions."""
    match layout:
        case AxisRef(name, size):
            return len(kept[name]) if name in kept else size
        case Prod(factors):
            total: Size = 1
            for f in factors:
                total = size_after(f, kept) * total
            return total
        case Sum(terms):
            return sum(s for s in (size_after(t, kept) for t in terms) if isinstance(s, int))
        case _:
            return layout.size


def sizes_after(sizes: StatedSizes, kept: Kept) -> Value:
    """Value of an argument that states the sizes of layouts."""
    if isinstance(sizes, tuple):
        return tuple(sizes_after(s, kept) for s in sizes)
    if sizes is None or isinstance(sizes, int):
        return sizes
    return size_after(sizes, kept)


def touched(layout: Layout, kept: Kept) -> bool:
    """Whether a layout contains an axis that is cut."""
    return any(isinstance(a, AxisRef) and a.name in kept for a in leaves(layout))


def shares(layout: Layout, kept: Kept, share: Mapping[str, np.ndarray]) -> np.ndarray:
    """A number for each position that stays: the product of those of its axes.

    Args:
        layout: A dimension's layout.
        kept: Positions kept, repeated or not, by axis.
        share: The number of each kept position, by axis; an axis not named has ones.

    >>> layout = Prod((AxisRef("heads", 2), AxisRef("head_dim", 3)))
    >>> shares(layout, {"heads": np.array([0, 1, 1])}, {"heads": np.array([1, 0.5, 0.5])})
    array([1. , 1. , 1. , 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    """
    match layout:
        case AxisRef(name, size):
            return share[name] if name in share else np.ones(len(kept.get(name, range(size))))
        case Prod(factors):
            result = np.ones(1)
            for f in factors:
                result = np.multiply.outer(result, shares(f, kept, share)).reshape(-1)
            return result
        case Sum(terms):
            return np.concatenate([shares(t, kept, share) for t in terms])
        case _:
            assert isinstance(layout.size, int)
            return np.ones(layout.size)


def positions(layout: Layout, kept: Kept) -> np.ndarray:
    """Positions of a dimension that stay, in order: Kronecker for products, blocks for sums.

    >>> layout = Prod((AxisRef("heads", 2), AxisRef("head_dim", 3)))
    >>> positions(layout, {"head_dim": np.array([0, 2])})
    array([0, 2, 3, 5])
    """
    match layout:
        case AxisRef(name, size):
            return np.asarray(kept[name]) if name in kept else np.arange(size)
        case Prod(factors):
            index = np.zeros(1, dtype=np.int64)
            for f in factors:
                if not isinstance(f.size, int):
                    raise AxisError("a flattened batch axis has no positions")
                index = (index[:, None] * f.size + positions(f, kept)[None, :]).reshape(-1)
            return index
        case Sum(terms):
            parts, offset = [], 0
            for t in terms:
                parts.append(positions(t, kept) + offset)
                assert isinstance(t.size, int)
                offset += t.size
            return np.concatenate(parts)
        case _:
            assert isinstance(layout.size, int)
            return np.arange(layout.size)
