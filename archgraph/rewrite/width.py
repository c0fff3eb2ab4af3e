"""Width: keep some positions of some axes (HeteroFL, FjORD, FedRolex, NeFL, FedFA)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from archgraph.analysis.axes import (
    Axes,
    Axis,
    Kept,
    axes,
    positions,
    size_after,
    sizes_after,
    touched,
)
from archgraph.errors import RewriteError
from archgraph.graph.ir import ArchGraph, Constant, Node, Param, TensorType
from archgraph.layout.layouts import Layout
from archgraph.ops.schema import canonical_args
from archgraph.states import DimMap, Entry, Rewritten, Transfer, signature

# How many positions of an axis stay: a share (ceil), a number, or the positions themselves.
Choice: TypeAlias = "float | int | Sequence[int] | np.ndarray"


def take(
    graph: ArchGraph,
    spec: float | Mapping[str | Axis, Choice],
    *,
    verify: bool = False,
    rounding: str = "ceil",
) -> Rewritten:
    """Keep some positions of some axes; every other size follows from the axes.

    Args:
        graph: The wide architecture.
        spec: One share for every free axis, or shares, sizes or positions by axis name, role or
            pattern; a later entry wins over an earlier one. A share keeps a prefix of
            ``ceil(share · size)`` positions.
        verify: Run the law mask ≡ take on random weights (two forwards in float64).
        rounding: ``ceil`` (HeteroFL, NeFL) or ``floor`` (ScaleFL, RecipFL's small nets).

    Raises:
        RewriteError: For an empty or impossible choice.
        AxisError: For an axis that does not exist or is pinned, with the reason.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> small = take(trace(net, torch.zeros(1, 3)).graph, 0.5)
        >>> {p.name: p.shape for p in small.graph.params if "weight" in p.name}
        {'0.weight': (4, 3), '2.weight': (2, 4)}
    """
    solved = axes(graph)
    kept = _kept(solved, spec, rounding)
    rewritten = cut(graph, kept)
    if verify:
        from archgraph.rewrite.laws import mask_equals_take

        mask_equals_take(graph, rewritten, kept)
    return rewritten


def _kept(
    solved: Axes, spec: float | Mapping[str | Axis, Choice], rounding: str
) -> dict[str, np.ndarray]:
    if isinstance(spec, bool) or not isinstance(spec, (int, float, Mapping)):
        raise RewriteError(
            "nothing to take", found=repr(spec), expected="a share, or choices by axis"
        )
    if isinstance(spec, (int, float)):
        chosen: dict[Axis, Choice] = {a: float(spec) for a in solved.free}
    else:
        chosen = {}
        for key, choice in spec.items():
            names = (solved[key.name],) if isinstance(key, Axis) else solved.match(key)
            chosen.update(dict.fromkeys(names, choice))
    kept = {}
    for axis, choice in chosen.items():
        if not axis.free:
            raise RewriteError("axis cannot be cut", where=axis.name, found=axis.reason)
        index = _positions(axis, choice, rounding)
        if len(index) != axis.size or not np.array_equal(index, np.arange(axis.size)):
            kept[axis.name] = index
    return kept


def _positions(axis: Axis, choice: Choice, rounding: str) -> np.ndarray:
    if isinstance(choice, np.integer):
        choice = int(choice)
    if isinstance(choice, bool) or (isinstance(choice, float) and not 0 < choice <= 1):
        raise RewriteError("a share lies in (0, 1]", where=axis.name, found=choice)
    if isinstance(choice, float):
        exact = round(choice * axis.size, 9)
        count = math.ceil(exact) if rounding == "ceil" else math.floor(exact)
        return np.arange(max(count, 1))
    if isinstance(choice, int):
        if not 1 <= choice <= axis.size:
            raise RewriteError(
                "impossible width", where=axis.name, found=choice, expected=f"1 to {axis.size}"
            )
        return np.arange(choice)
    if isinstance(choice, (str, bytes)) or not isinstance(choice, (Sequence, np.ndarray)):
        raise RewriteError(
            "no choice of positions",
            where=axis.name,
            found=repr(choice),
            expected="a share, a number or positions",
        )
    index = np.asarray(choice)
    if index.size and index.dtype.kind not in "iu":
        raise RewriteError("positions are whole numbers", where=axis.name, found=choice)
    index = index.astype(np.int64)
    if index.ndim != 1 or not len(index) or len(np.unique(index)) != len(index):
        raise RewriteError(
            "positions must be distinct and not empty", where=axis.name, found=choice
        )
    if index.min() < 0 or index.max() >= axis.size:
        raise RewriteError(
            "position outside the axis",
            where=axis.name,
            found=int(index.max() if index.max() >= axis.size else index.min()),
            expected=f"0 to {axis.size - 1}",
        )
    return index


def cut(graph: ArchGraph, kept: Kept) -> Rewritten:
    """Keep given positions of axes by name; the work behind :func:`take`."""
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
        given = dict(node.args) | arguments
        args = (
            canonical_args(node.op, given) if node.op.startswith("aten.") else tuple(given.items())
        )
        node = dataclasses.replace(node, args=args)
    if not changed:
        return node
    return dataclasses.replace(
        node, type=tuple(types) if isinstance(node.type, tuple) else types[0]
    )
