"""Several tensors joined into one, one split into several, and padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archgraph.graph.ir import TensorType, Value
from archgraph.layout.layouts import Fixed, Layout, concatenation
from archgraph.ops import zeros
from archgraph.ops.equations import PROJECT, Dims, Equations
from archgraph.ops.operator import (
    ALIGNED,
    MOVES,
    Call,
    Growth,
    Operator,
    Rows,
    Spelling,
    ViewWrite,
    alike,
)
from archgraph.ops.types import Args, certain, number, real

ROWS: Rows = {}


# -- joined ---------------------------------------------------------------------------------------


def _cat_axes(eq: Equations) -> list[Dims]:
    """The concatenated dimension is the sum of its parts; the others agree."""
    operands = eq.layouts()
    operands = [o for o in operands if not (len(o) == 1 and o[0].size == 0)]
    return [_joined(eq, operands, eq.dim("dim", len(operands[0])))]


def _joined(eq: Equations, operands: Sequence[Dims], dim: int) -> Dims:
    out: Dims = []
    for d in range(len(operands[0])):
        if d == dim:
            parts = [o[d] for o in operands]
            if all(isinstance(p.size, int) for p in parts):
                out.append(concatenation(parts))
            else:
                out.append(Fixed(eq.node.shape[d]))
        else:
            for other in operands[1:]:
                eq.unify(operands[0][d], other[d])
            out.append(eq.resolve(operands[0][d]))
    return out


def _cat_type(args: Args) -> TensorType:
    """Shapes that agree but for one dimension, which is added up."""
    parts, dim = args.get("tensors"), number(args, "dim", 0, int)
    certain(type(parts) is tuple, parts)
    tensors = real(*(parts or ()))
    rank = len(tensors[0].shape)
    certain(rank >= 2, -rank <= dim < rank, *(len(t.shape) == rank for t in tensors))
    dim %= rank
    certain(len({t.shape[:dim] + t.shape[dim + 1 :] for t in tensors}) == 1)
    sizes = [t.shape[dim] for t in tensors if type(t.shape[dim]) is int]
    certain(len(sizes) == len(tensors))
    first = tensors[0]
    total: Any = sum(sizes)
    return TensorType((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)


def _stacked_axes(eq: Equations) -> list[Dims]:
    """``hstack``, ``vstack``, …: operands of few dimensions get more, then join."""
    unit = Fixed(1)
    operands = eq.layouts()
    if eq.node.op == "aten.column_stack":
        columns = [o if len(o) > 1 else [*(o or [unit]), unit] for o in operands]
        return [_joined(eq, columns, 1)]
    if eq.node.op == "aten.hstack":
        operands = [o or [unit] for o in operands]
        return [_joined(eq, operands, 1 if len(operands[0]) > 1 else 0)]
    operands = [o if len(o) > 1 else [unit, *(o or [unit])] for o in operands]
    if eq.node.op == "aten.vstack":
        return [_joined(eq, operands, 0)]
    return [_joined(eq, [o if len(o) > 2 else [*o, unit] for o in operands], 2)]


def _stack_axes(eq: Equations) -> list[Dims]:
    """Operands agree; a new dimension counts them."""
    operands = eq.layouts()
    for other in operands[1:]:
        for a, b in zip(operands[0], other, strict=True):
            eq.unify(a, b)
    out = [eq.resolve(d) for d in operands[0]]
    out.insert(eq.dim("dim", len(out) + 1), Fixed(len(operands)))
    return [out]


ROWS |= {
    "cat": Operator(_cat_axes, zeros.every, growth=ALIGNED, type=_cat_type),
    **alike(("concat", "concatenate"), Operator(alias="cat")),
    # Its new dimension shifts the operands' dimensions before it.
    "stack": Operator(
        _stack_axes, zeros.every, growth=Growth(scales="all", repeats="any", picks=True)
    ),
    **alike(("hstack", "vstack", "dstack", "column_stack"), Operator(_stacked_axes, zeros.every)),
    "row_stack": Operator(alias="vstack"),
}


# -- split ----------------------------------------------------------------------------------------


def _split_axes(eq: Equations) -> list[Dims]:
    """A dimension cut at given sizes, which a cut recomputes."""
    x, dim = eq.along()
    parts = eq.cut_all(x[dim], [t.shape[dim] for t in eq.node.types])
    if parts is None:
        eq.pin([x[dim]], "split across its factors", PROJECT)
        parts = [Fixed(t.shape[dim]) for t in eq.node.types]
    eq.states("split_sizes", tuple(parts))
    return [[*x[:dim], part, *x[dim + 1 :]] for part in parts]


def _split_spelling(default: int = 0) -> Callable[[Spelling], Call]:
    """A split into parts of given sizes.

    Args:
        default: Dimension that is split where the operator has no such argument; the only one of a
            vector.
    """

    def spelling(call: Spelling) -> Call:
        dim = call.args.get("dim", default if len(call.shapes[0]) > 1 else 0)
        assert isinstance(dim, int)
        cuts = tuple(s[dim] for s in call.shapes)
        args = {"self": call.args["self"], "split_sizes": cuts, "dim": dim}
        return "aten.split_with_sizes", args

    return spelling


def _split_write(write: ViewWrite) -> Call | None:
    """One part of several, where all have a size that is a number."""
    sizes = write.args["split_sizes"]
    if not isinstance(sizes, tuple):
        return None
    cuts = [s for s in sizes if isinstance(s, int)]
    if len(cuts) != len(sizes):
        return None
    start = sum(cuts[: write.index])
    end = start + cuts[write.index]
    dim = write.args.get("dim", 0)
    return write.scattered("aten.slice_scatter", dim=dim, start=start, end=end)


ROWS |= {
    "split_with_sizes": Operator(_split_axes, zeros.first, growth=MOVES, overwritten=_split_write),
    **alike(
        ("chunk", "unsafe_chunk", "split", "unsafe_split", "unsafe_split_with_sizes"),
        Operator(spelling=_split_spelling()),
    ),
    "tensor_split": Operator(spelling=_split_spelling()),
    "hsplit": Operator(spelling=_split_spelling(1)),
    "vsplit": Operator(spelling=_split_spelling(0)),
    "dsplit": Operator(spelling=_split_spelling(2)),
}


# -- padded ---------------------------------------------------------------------------------------


def _pad_axes(eq: Equations) -> list[Dims]:
    """Padding adds terms before and after; on channels they are axes like others."""
    x = eq.arg("self")
    amounts = list(eq.ints("pad"))
    if eq.node.arg("mode", "constant") != "constant":  # the new positions are copies of others
        padded = x[len(x) - len(amounts) // 2 :]
        eq.pin(padded, "padded with its own positions", PROJECT)
        return [[*x[: len(x) - len(padded)], *eq.fixed(eq.node.shape[-len(padded) :])]]
    out = list(x)
    sizes: list[Layout | int] = []
    for position in range(0, len(amounts), 2):
        dim = len(x) - 1 - position // 2
        before, after = amounts[position], amounts[position + 1]
        layout = x[dim]
        if before == after == 0:
            sizes += [0, 0]
        elif isinstance(eq.resolve(layout), Fixed) or before < 0 or after < 0:
            if not isinstance(eq.resolve(layout), Fixed):
                eq.pin([layout], "cropped", PROJECT)
            out[dim] = Fixed(eq.node.shape[dim])
            sizes += [before, after]
        else:
            left = eq.new(before) if before else Fixed(0)
            right = eq.new(after) if after else Fixed(0)
            out[dim] = concatenation((left, layout, right))
            sizes += [left, right]
            if eq.node.arg("value") not in (None, 0):
                eq.taint([left, right])
    eq.states("pad", tuple(sizes))
    return [out]


def _pads_nothing(args: Mapping[str, Value]) -> bool:
    """All amounts are zero."""
    amounts = args.get("pad")
    return isinstance(amounts, tuple) and all(a == 0 for a in amounts)


ROWS |= alike(
    ("pad", "constant_pad_nd"),
    Operator(
        _pad_axes,
        zeros.first,  # new positions that are not zero are noted by the rule
        growth=replace(ALIGNED, picks=False),
        unchanged=_pads_nothing,
    ),
)
