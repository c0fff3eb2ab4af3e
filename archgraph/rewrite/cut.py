"""Cut: an architecture with some positions of its axes, kept in order, rearranged or repeated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from archgraph.analysis.axes import Axes, axes
from archgraph.analysis.positions import Kept, positions, size_after, sizes_after, touched
from archgraph.graph.ir import ArchGraph, Constant, Node, Param, TensorType
from archgraph.layout.layouts import Layout
from archgraph.ops.schema import canonical_args
from archgraph.states import DimMap, Entry, Rewritten, Transfer, signature


def cut(graph: ArchGraph, kept: Kept) -> Rewritten:
    """The architecture with these positions of its axes alone, in this order.

    Args:
        graph: The architecture.
        kept: Positions by axis name, which may repeat; an axis that is not named stays whole.

    Returns:
        The graph with every size and constant recomputed, and the transfer that selects.
    """
    solved = axes(graph)
    maps: dict[Layout, tuple[int, DimMap | None]] = {}

    def dim(layout: Layout) -> tuple[int, DimMap | None]:
        if layout not in maps:
            index = positions(layout, kept)
            assert isinstance(layout.size, int)
            maps[layout] = (len(index), DimMap.of(index, layout.size))
        return maps[layout]

    params: list[Param] = []
    entries: dict[str, Entry] = {}
    for param in graph.params:
        layouts = solved.leaf[param.name]
        whole = not any(touched(d, kept) for d in layouts)
        cuts = [
            (s, None) if not touched(d, kept) else dim(d)
            for s, d in zip(param.shape, layouts, strict=True)
        ]
        if param.role != "constant":
            entries[param.name] = Entry(param.name, tuple(m for _, m in cuts))
        if whole:
            params.append(param)
            continue
        shape = tuple(size for size, _ in cuts)
        value = param.value
        if value is not None:
            value = _cut_constant(value, [positions(d, kept) for d in layouts])
        params.append(dataclasses.replace(param, type=TensorType(shape, param.dtype), value=value))
    nodes = tuple(_cut_node(solved, n, kept) for n in graph.nodes)
    new = graph.replace(params=tuple(params), nodes=nodes)
    return Rewritten(new, Transfer(signature(graph), signature(new), entries))


def _cut_constant(value: Constant, index: Sequence[np.ndarray]) -> Constant:
    width = len(value.data) // max(int(np.prod(value.shape)), 1)
    raw = np.frombuffer(value.data, dtype=np.uint8).reshape(*value.shape, width)
    part = raw[np.ix_(*index, np.arange(width))]
    return Constant(value.dtype, part.shape[:-1], part.tobytes())


def _cut_node(solved: Axes, node: Node, kept: Kept) -> Node:
    if node.op == "input":
        return node
    types = []
    changed = False
    for type_, layouts in zip(node.types, solved.value[node.name], strict=True):
        if any(touched(d, kept) for d in layouts):
            changed = True
            shape = tuple(size_after(d, kept) for d in layouts)
            type_ = TensorType(shape, type_.dtype)
        types.append(type_)
    arguments = {
        k: sizes_after(solved.attributes[node.name, k], kept)
        for k, _ in node.args
        if (node.name, k) in solved.attributes
    }
    if arguments and any(node.arg(k) != v for k, v in arguments.items()):
        args_by_name = dict(node.args) | arguments
        args = (
            canonical_args(node.op, args_by_name)
            if node.op.startswith("aten.")
            else tuple(args_by_name.items())
        )
        node = dataclasses.replace(node, args=args)
    if not changed:
        return node
    return dataclasses.replace(
        node, type=tuple(types) if isinstance(node.type, tuple) else types[0]
    )
