"""Parameters and operators after a cut: the sizes and numbers that remain of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from archgraph.analysis.axes import Axes
from archgraph.analysis.positions import Kept, positions, size_after, sizes_after, touched
from archgraph.graph.ir import Constant, Node, Param, Size, TensorType
from archgraph.layout.layouts import Layout
from archgraph.ops.schema import canonical_args


def param_after(solved: Axes, param: Param, kept: Kept) -> Param:
    """A leaf with the positions that stay, in its shape and in the value that it comes with.

    Args:
        solved: Axes of the graph.
        param: A leaf of the graph.
        kept: Positions kept, by axis name.

    Returns:
        The leaf itself where none of its dimensions is cut.
    """
    layouts = solved.leaf[param.name]
    type_ = _type_after(param.type, layouts, kept)
    if type_ is param.type:
        return param
    value = param.value
    if value is not None:
        value = _constant_after(value, [positions(layout, kept) for layout in layouts])
    return dataclasses.replace(param, type=type_, value=value)


def node_after(solved: Axes, node: Node, kept: Kept) -> Node:
    """An operator with the sizes that stay, in its results and in the arguments that state sizes.

    Args:
        solved: Axes of the graph.
        node: An operator of the graph, or one that stands in its place under the same name.
        kept: Positions kept, by axis name.

    Returns:
        The operator itself where nothing of it is cut.
    """
    if node.op == "input":
        return node
    stated = {
        key: sizes_after(solved.attributes[node.name, key], kept)
        for key, _ in node.args
        if (node.name, key) in solved.attributes
    }
    args = node.args
    if any(node.arg(key) != value for key, value in stated.items()):
        by_name = dict(args) | stated
        aten = node.op.startswith("aten.")
        args = canonical_args(node.op, by_name) if aten else tuple(by_name.items())
    types = tuple(
        _type_after(type_, layouts, kept)
        for type_, layouts in zip(node.types, solved.value[node.name], strict=True)
    )
    if args is node.args and all(a is b for a, b in zip(types, node.types, strict=True)):
        return node
    return dataclasses.replace(
        node, args=args, type=types if isinstance(node.type, tuple) else types[0]
    )


def _type_after(type_: TensorType, layouts: Sequence[Layout], kept: Kept) -> TensorType:
    if not any(touched(layout, kept) for layout in layouts):
        return type_
    shape: tuple[Size, ...] = tuple(size_after(layout, kept) for layout in layouts)
    return TensorType(shape, type_.dtype)


def _constant_after(value: Constant, index: Sequence[np.ndarray]) -> Constant:
    """The numbers at these positions of every dimension."""
    width = len(value.data) // max(int(np.prod(value.shape)), 1)
    raw = np.frombuffer(value.data, dtype=np.uint8).reshape(*value.shape, width)
    part = raw[np.ix_(*index, np.arange(width))]
    return Constant(value.dtype, part.shape[:-1], part.tobytes())
