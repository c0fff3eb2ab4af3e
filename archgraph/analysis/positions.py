"""Cut parameters and operators to some positions of axes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized

import numpy as np

from archgraph.analysis.axes import Axes, restated
from archgraph.errors import AxisError
from archgraph.graph.ir import Constant, Node, Param, Size, TensorType, Value
from archgraph.graph.polynomial import as_size
from archgraph.layout.layouts import AxisRef, Layout, Prod, Sum, fixed_size, leaves
from archgraph.ops.equations import StatedSizes
from archgraph.ops.schema import canonical_args

# Dict from axis name to the positions that remain. Other axes keep all positions.
Kept = Mapping[str, np.ndarray]


def total(layout: Layout, size: Callable[[Layout], Size]) -> Size:
    """Return the size of a layout.

    Args:
        layout: The layout of a dimension.
        size: Function from an axis or fixed number in the layout to its size.
    """
    match layout:
        case Prod(factors):
            return math.prod(total(factor, size) for factor in factors)
        case Sum(terms):
            return as_size(sum(total(term, size) for term in terms))
        case _:
            return size(layout)


def size_after(layout: Layout, selection: Mapping[str, Sized]) -> Size:
    """Return the size of a layout when some axes keep only some of their positions."""

    def size(part: Layout) -> Size:
        stays = selection.get(part.name) if isinstance(part, AxisRef) else None
        return part.size if stays is None else len(stays)

    return total(layout, size)


def sizes_after(sizes: StatedSizes, selection: Kept) -> Value:
    """Return the new value of an argument that contains sizes of layouts."""
    return restated(sizes, lambda layout: size_after(layout, selection))


def appended(solved: Axes, terms: Iterable[str]) -> list[str]:
    """List the axes of the results that a dense block appends. An axis may occur repeatedly."""
    layouts = (layout for term in terms for layout in solved.value[term][0])
    return [axis.name for layout in layouts for axis in axis_refs(layout)]


def axis_refs(layout: Layout) -> list[AxisRef]:
    """List the axes of a layout. An axis may occur repeatedly."""
    return [a for a in leaves(layout) if isinstance(a, AxisRef)]


def touched(layout: Layout, selection: Kept) -> bool:
    """Return whether a layout contains an axis that is cut."""
    return any(a.name in selection for a in axis_refs(layout))


def position_shares(layout: Layout, selection: Kept, share: Mapping[str, np.ndarray]) -> np.ndarray:
    """For each remaining position of a dimension, return the product of the numbers in ``share``.

    The product has one factor for each axis of the dimension. Axes that are not in ``share`` have
    the factor 1.

    >>> layout = Prod((AxisRef("heads", 2), AxisRef("head_dim", 3)))
    >>> position_shares(layout, {"heads": np.array([0, 1, 1])}, {"heads": np.array([1, 0.5, 0.5])})
    array([1. , 1. , 1. , 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    """
    match layout:
        case AxisRef(name, size):
            return share[name] if name in share else np.ones(len(selection.get(name, range(size))))
        case Prod(factors):
            result = np.ones(1)
            for f in factors:
                result = np.multiply.outer(result, position_shares(f, selection, share)).reshape(-1)
            return result
        case Sum(terms):
            return np.concatenate([position_shares(t, selection, share) for t in terms])
        case _:
            return np.ones(fixed_size(layout))


def positions(layout: Layout, selection: Kept) -> np.ndarray:
    """Return the positions (indices) of a dimension that remain.

    >>> layout = Prod((AxisRef("heads", 2), AxisRef("head_dim", 3)))
    >>> positions(layout, {"head_dim": np.array([0, 2])})
    array([0, 2, 3, 5])
    """
    match layout:
        case AxisRef(name, size):
            return np.asarray(selection[name]) if name in selection else np.arange(size)
        case Prod(factors):
            index = np.zeros(1, dtype=np.int64)
            for f in factors:
                if not isinstance(f.size, int):
                    raise AxisError("a flattened batch axis has no positions")
                index = (index[:, None] * f.size + positions(f, selection)[None, :]).reshape(-1)
            return index
        case Sum(terms):
            parts, offset = [], 0
            for t in terms:
                parts.append(positions(t, selection) + offset)
                offset += fixed_size(t)
            return np.concatenate(parts)
        case _:
            return np.arange(fixed_size(layout))


def param_after(solved: Axes, param: Param, selection: Kept) -> Param:
    """Return a parameter, buffer or constant cut to the remaining positions."""
    layouts = solved.leaf[param.name]
    type_ = _type_after(param.type, layouts, selection)
    if type_ is param.type:
        return param
    value = param.value
    if value is not None:
        value = _constant_after(value, [positions(layout, selection) for layout in layouts])
    return dataclasses.replace(param, type=type_, value=value)


def node_after(solved: Axes, node: Node, selection: Kept) -> Node:
    """Return an operator with the new sizes in the types of its results and in its arguments.

    The operator may be one of the graph, or a replacement with the same name.
    """
    if node.op == "input":
        return node
    stated = {
        key: sizes_after(solved.attributes[node.name, key], selection)
        for key, _ in node.args
        if (node.name, key) in solved.attributes
    }
    # Rebuild arguments only if one changes, because most operators do not change.
    args = node.args
    if any(node.arg(key) != value for key, value in stated.items()):
        by_name = dict(args) | stated
        aten = node.op.startswith("aten.")
        args = canonical_args(node.op, by_name) if aten else tuple(by_name.items())
    types = tuple(
        _type_after(type_, layouts, selection)
        for type_, layouts in zip(node.types, solved.value[node.name], strict=True)
    )
    if args is node.args and all(a is b for a, b in zip(types, node.types, strict=True)):
        return node
    return dataclasses.replace(
        node, args=args, type=types if isinstance(node.type, tuple) else types[0]
    )


def _type_after(type_: TensorType, layouts: Sequence[Layout], selection: Kept) -> TensorType:
    if not any(touched(layout, selection) for layout in layouts):
        return type_
    return TensorType(tuple(size_after(layout, selection) for layout in layouts), type_.dtype)


def _constant_after(value: Constant, index: Sequence[np.ndarray]) -> Constant:
    """Select the remaining positions of every dimension of a constant."""
    # Select bytes, since NumPy lacks some dtypes (bfloat16).
    width = len(value.data) // max(int(np.prod(value.shape)), 1)
    raw = np.frombuffer(value.data, dtype=np.uint8).reshape(*value.shape, width)
    part = raw[np.ix_(*index, np.arange(width))]
    return Constant(value.dtype, part.shape[:-1], part.tobytes())
