"""Operators that only move values: views, transposes, copies, concatenation, padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, Polynomial, Ref, Size, TensorType, Value
from archgraph.layout.layouts import Fixed, Layout, concatenation, fixed_size, product
from archgraph.ops import zeros
from archgraph.ops.backward import INPUT, NOTHING, PASSES, STOPS, Backward
from archgraph.ops.equations import PROJECT, Dims, Dirt, Equations
from archgraph.ops.layers import TorchLayer, same_options
from archgraph.ops.operands import shape_of
from archgraph.ops.operator import ALIGNED, COPIES, MOVES, Call, Operator, Spelling, ViewWrite, rows
from archgraph.ops.pointwise import CURVE
from archgraph.ops.starts import leafless_identity
from archgraph.ops.types import Args, certain, listed, number, real

# Every position of the operand moves somewhere else, with its zeros.
_moved = Operator(zero=zeros.first, pointwise=True, growth=MOVES, backward=PASSES)


# -- operators with several results ---------------------------------------------------------------
def _getitem_axes(eq: Equations) -> list[Dims]:
    """Return the layout of one of several results."""
    source = eq.node.arg("source")
    assert isinstance(source, Ref)
    return [eq.values[source.name][eq.integer("index")]]


def _getitem_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where one of several results may be nonzero."""
    source = eq.node.arg("source")
    assert isinstance(source, Ref)
    return [eq.dirt[source.name][eq.integer("index")]]


# -- another shape --------------------------------------------------------------------------------
def _reshape_axes(eq: Equations) -> list[Dims]:
    """Group the factors of the dimensions in another way; a cut recomputes the target shape."""
    x = eq.of(eq.node.args[0][1])
    dims = eq.solver.regroup(x, eq.node.shape)
    if dims is None:
        eq.pin(x, "reshaped across its factors", PROJECT)
        dims = eq.fixed(eq.node.shape)
    eq.states(eq.node.args[1][0], tuple(dims))
    return [dims]


def _reshape_spelling(call: Spelling) -> Call:
    """Write an operator as a reshape to the result's shape."""
    return "aten.reshape", {"self": call.args["self"], "shape": call.shapes[0]}


def _reshape_write(write: ViewWrite) -> Call:
    """Write into a reshaped view by reshaping its contents to the original shape."""
    return "aten.reshape", {"self": write.part, "shape": write.shape}


def _inverse_write(op: str = "") -> Callable[[ViewWrite], Call]:
    """Write into a view with the inverse of the operator that created it (default: itself)."""
    return lambda write: (op or write.op, {"self": write.part})


def _reshape_layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.Flatten`` if dimensions are merged, ``nn.Unflatten`` if one is split."""
    before, after = shape_of(graph, node.arg("self")), node.shape
    joins = len(before) > len(after)
    longer, shorter = (before, after) if joins else (after, before)
    count = len(longer) - len(shorter) + 1
    if count == 1:
        return None
    for start in range(1, len(shorter)):  # from the second dimension: the first is the batch
        end = start + count
        middle = [size for size in longer[start:end] if isinstance(size, int)]
        joined = (*longer[:start], math.prod(middle), *longer[end:])
        if len(middle) < count or joined != shorter:
            continue
        kind: type[nn.Module] = nn.Flatten if joins else nn.Unflatten
        options: dict[str, Any] = {"dim": start, "unflattened_size": tuple(middle)}
        if joins:
            options = {"start_dim": start, "end_dim": -1 if end == len(longer) else end - 1}
        return TorchLayer(kind, options, inputs=(node.arg("self"),))
    return None


_view = replace(_moved, rule=_reshape_axes, spelling=_reshape_spelling)


def _unsqueeze_axes(eq: Equations) -> list[Dims]:
    """Insert a new dimension of size 1."""
    x = list(eq.arg("self"))
    x.insert(eq.dim("dim", len(x) + 1), Fixed(1))
    return [x]


def _squeeze_axes(eq: Equations) -> list[Dims]:
    """Remove dimensions of size 1."""
    x = eq.arg("self")
    stated = eq.ints("dim")
    dims = {d % len(x) for d in stated} if stated else set(range(len(x)))
    return [[layout for d, layout in enumerate(x) if not (d in dims and layout.size == 1)]]


_VIEWS = {
    "input": Operator(backward=STOPS),
    "getitem": Operator(
        _getitem_axes,
        _getitem_zero,
        pointwise=True,
        growth=replace(MOVES, identity=leafless_identity),
        backward=PASSES,
    ),
    "reshape": replace(_view, unchanged=True, overwritten=_reshape_write, layer=_reshape_layer),
    "view": _view,
    "_unsafe_view flatten unflatten view_as reshape_as ravel": Operator(spelling=_reshape_spelling),
    "atleast_1d atleast_2d atleast_3d": Operator(spelling=_reshape_spelling),
    "unsqueeze": replace(_moved, rule=_unsqueeze_axes, overwritten=_reshape_write),
    "squeeze": replace(_moved, rule=_squeeze_axes, overwritten=_reshape_write),
}


# -- another order --------------------------------------------------------------------------------
def _permute_axes(eq: Equations) -> list[Dims]:
    """Reorder the dimensions."""
    x = eq.arg("self")
    return [[x[d % len(x)] for d in eq.ints("dims")]]


def _permute_write(write: ViewWrite) -> Call:
    """Write into the permuted tensor by permuting the view back, in the inverse order."""
    order = write.args["dims"]
    assert isinstance(order, tuple)
    dims = [d % len(order) for d in order if isinstance(d, int)]
    return "aten.permute", {"self": write.part, "dims": tuple(map(dims.index, range(len(dims))))}


def _transpose_axes(eq: Equations) -> list[Dims]:
    """Swap two dimensions."""
    x = list(eq.arg("self"))
    a, b = eq.dim("dim0", len(x)), eq.dim("dim1", len(x))
    x[a], x[b] = x[b], x[a]
    return [x]


def _transpose_write(write: ViewWrite) -> Call:
    """Write into a transposed view by swapping the two dimensions again."""
    dims = [v for k, v in write.args.items() if k != "self"]
    return "aten.transpose.int", {"self": write.part, "dim0": dims[0], "dim1": dims[1]}


def _turned_axes(eq: Equations) -> list[Dims]:
    """Swap the last two dimensions."""
    x = eq.arg("self")
    return [[*x[:-2], *reversed(x[-2:])]]


def _movedim_axes(eq: Equations) -> list[Dims]:
    """Move some dimensions; the others keep their order."""
    x = eq.arg("self")
    source, target = ([d % len(x) for d in eq.ints(name)] for name in ("source", "destination"))
    moved = dict(zip(target, source, strict=True))
    rest = (d for d in range(len(x)) if d not in source)
    return [[x[moved[d] if d in moved else next(rest)] for d in range(len(x))]]


_turned = replace(_moved, rule=_turned_axes)

_ORDERS = {
    "permute": replace(_moved, rule=_permute_axes, overwritten=_permute_write),
    "transpose": replace(_moved, rule=_transpose_axes, overwritten=_transpose_write),
    "swapaxes swapdims": Operator(alias="transpose.int"),
    "t numpy_T mT": replace(_turned, overwritten=_inverse_write()),
    "matrix_H": _turned,
    # Conjugates of complex numbers: they are moved, and their values change.
    "mH adjoint": Operator(_turned_axes, zeros.first, pointwise=True),
    "movedim": replace(_moved, rule=_movedim_axes),
    **{f"moveaxis.{k}": Operator(alias=f"movedim.{k}") for k in ("intlist", "int")},
}


# -- channels and pixels --------------------------------------------------------------------------
def _pixel_shuffle_axes(eq: Equations) -> list[Dims]:
    """x[-3] = Prod(c, r, r)."""
    x = eq.arg("self")
    r = eq.integer("upscale_factor", 1)
    channel = eq.new(fixed_size(x[-3]) // (r * r))
    eq.unify(x[-3], product((channel, Fixed(r * r))))
    return [[*x[:-3], channel, *(product((d, Fixed(r))) for d in x[-2:])]]


def _pixel_unshuffle_axes(eq: Equations) -> list[Dims]:
    """y[-3] = Prod(c, r, r)."""
    x = eq.arg("self")
    r = eq.integer("downscale_factor", 1)
    pixels = [eq.new(fixed_size(d) // r) for d in x[-2:]]
    for layout, pixel in zip(x[-2:], pixels, strict=True):
        eq.unify(layout, product((pixel, Fixed(r))))
    return [[*x[:-3], product((x[-3], Fixed(r * r))), *pixels]]


def _channel_shuffle_axes(eq: Equations) -> list[Dims]:
    """Turn Prod(groups, c) into Prod(c, groups)."""
    x = eq.arg("self")
    groups = eq.integer("groups", 1)
    inside = eq.new(fixed_size(x[1]) // groups)
    eq.unify(x[1], product((Fixed(groups), inside)))
    return [[x[0], product((inside, Fixed(groups))), *x[2:]]]


# -- positions repeated ---------------------------------------------------------------------------
def _expand_axes(eq: Equations) -> list[Dims]:
    """Stretch dimensions of size 1."""
    x, shape = eq.arg("self"), eq.node.shape
    x = [Fixed(1)] * (len(shape) - len(x)) + x
    out = [d if d.size == size else eq.new(size) for d, size in zip(x, shape, strict=True)]
    # Copies are not zero where the new axis is masked.
    eq.taint([new for new, old in zip(out, x, strict=True) if new is not old])
    eq.states("size", tuple(out))
    return [out]


def _expand_spelling(call: Spelling) -> Call:
    """Write an operator as an expansion to the result's shape."""
    return "aten.expand", {"self": call.args["self"], "size": call.shapes[0]}


def _repeat_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a repetition: a repeated axis becomes the product of count and axis.

    Copies of a single position form a new axis, as in an expansion.
    """
    x = eq.arg("self")
    value = eq.node.arg("repeats")
    repeats = [n for n in (value if isinstance(value, tuple) else (value,)) if n is not None]
    x = [Fixed(1)] * (len(repeats) - len(x)) + x
    out: Dims = []
    counts: list[Layout] = []
    for layout, count in zip(x, repeats, strict=True):
        assert isinstance(count, int | Polynomial)
        copies = eq.new(count) if layout.size == 1 else Fixed(count)
        eq.taint([copies])
        counts.append(copies)
        out.append(product((copies, layout)))
    eq.states("repeats", tuple(counts))
    return [out]


def _tile_spelling(call: Spelling) -> Call:
    """Write `tile` as a repetition that lists every dimension."""
    dims = call.args["dims"]
    if not isinstance(dims, tuple):
        return call.op, call.args
    ones = (1,) * (len(call.sizes["self"]) - len(dims))
    return "aten.repeat", {"self": call.args["self"], "repeats": ones + dims}


def _interleave_axes(eq: Equations) -> list[Dims]:
    """Relate the axes if each position is repeated in place: the product of axis and count."""
    x = eq.arg("self")
    count = eq.node.arg("repeats")
    if not isinstance(count, int) or eq.node.arg("dim") is None:
        return eq.opaque()
    dim = eq.dim("dim", len(x))
    out = list(x)
    # Whole examples, such as masks, may be repeated for an axis of heads.
    copies = eq.new(count) if isinstance(x[dim], Fixed) else Fixed(count)
    eq.taint([copies])
    eq.states("repeats", copies)
    out[dim] = product((x[dim], copies))
    if isinstance(eq.node.arg("output_size"), int):
        eq.states("output_size", out[dim])
    return [out]


_CHANNELS_AND_COPIES = {
    "pixel_shuffle": Operator(
        _pixel_shuffle_axes,
        zeros.first,
        growth=MOVES,
        layer=same_options(nn.PixelShuffle),
        backward=NOTHING,
    ),
    "pixel_unshuffle": Operator(
        _pixel_unshuffle_axes,
        zeros.first,
        growth=MOVES,
        layer=same_options(nn.PixelUnshuffle),
        backward=NOTHING,
    ),
    "channel_shuffle native_channel_shuffle": Operator(
        _channel_shuffle_axes,
        zeros.first,
        layer=same_options(nn.ChannelShuffle),
        backward=NOTHING,
    ),
    "expand": Operator(
        _expand_axes,
        zeros.first,
        pointwise=True,
        growth=ALIGNED,
        spelling=_expand_spelling,
        unchanged=True,
        backward=NOTHING,
    ),
    "expand_as": Operator(spelling=_expand_spelling),
    "broadcast_to": Operator(alias="expand"),
    "repeat": Operator(_repeat_axes, zeros.first, growth=ALIGNED, backward=NOTHING),
    "tile": Operator(spelling=_tile_spelling),
    # Copies of a position are adjacent, so positions of the result are not the operand's.
    "repeat_interleave": Operator(_interleave_axes, zeros.first, growth=COPIES, backward=NOTHING),
}


# -- complex numbers as pairs ---------------------------------------------------------------------
def _complex_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a conversion between complex numbers and pairs in a last dimension."""
    x = eq.arg("self")
    if len(eq.node.shape) > len(x):
        return [[*x, Fixed(2)]]
    eq.pin(x[-1:], "holds real and imaginary parts")
    return [x[:-1]]


def _component_write(index: int) -> Callable[[ViewWrite], Call]:
    """Write into the real (0) or imaginary (1) parts of complex numbers, stored as pairs."""
    return lambda write: write.scattered("aten.select_scatter", dim=len(write.shape), index=index)


_COMPLEX = {
    "view_as_complex": Operator(
        _complex_axes,
        zeros.first,
        overwritten=_inverse_write("aten.view_as_real"),
        contiguous=("self",),
        backward=PASSES,
    ),
    "view_as_real": Operator(
        _complex_axes,
        zeros.first,
        overwritten=_inverse_write("aten.view_as_complex"),
        backward=PASSES,
    ),
    "real": replace(CURVE, overwritten=_component_write(0), backward=NOTHING),
    "imag": replace(CURVE, overwritten=_component_write(1), backward=NOTHING),
    "_conj _neg_view": replace(CURVE, overwritten=_inverse_write(), backward=PASSES),
    "conj resolve_conj resolve_neg": CURVE,
}


# -- concatenation --------------------------------------------------------------------------------
def _cat_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a concatenation: the concatenated dimension is a sum of parts."""
    operands = eq.layouts()
    operands = [o for o in operands if not (len(o) == 1 and o[0].size == 0)]
    return [_joined(eq, operands, eq.dim("dim", len(operands[0])))]


def _joined(eq: Equations, operands: Sequence[Dims], dim: int) -> Dims:
    out: Dims = []
    for d, parts in enumerate(zip(*operands, strict=True)):
        if d != dim:
            for part in parts[1:]:
                eq.unify(parts[0], part)
            out.append(eq.resolve(parts[0]))
        else:
            out.append(concatenation(parts))
    return out


def _cat_type(args: Args) -> TensorType:
    """Return the type of a concatenation, whose shapes agree except in one dimension."""
    tensors, dim = real(*listed(args, "tensors")), number(args, "dim", 0, int)
    rank = len(tensors[0].shape)
    certain(rank >= 2, -rank <= dim < rank, *(len(t.shape) == rank for t in tensors))
    dim %= rank
    certain(len({t.shape[:dim] + t.shape[dim + 1 :] for t in tensors}) == 1)
    sizes = [t.shape[dim] for t in tensors if type(t.shape[dim]) is int]
    certain(len(sizes) == len(tensors))
    shape, dtype = tensors[0].shape, tensors[0].dtype
    return TensorType((*shape[:dim], sum(sizes), *shape[dim + 1 :]), dtype)


def _stacked_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of ``hstack`` and similar: add dimensions to operands and concatenate."""
    unit = Fixed(1)
    operands = [o or [unit] for o in eq.layouts()]
    match eq.node.op:
        case "aten.hstack":
            return [_joined(eq, operands, 1 if len(operands[0]) > 1 else 0)]
        case "aten.column_stack":
            return [_joined(eq, [o if len(o) > 1 else [*o, unit] for o in operands], 1)]
    operands = [o if len(o) > 1 else [unit, *o] for o in operands]
    if eq.node.op == "aten.vstack":
        return [_joined(eq, operands, 0)]
    return [_joined(eq, [o if len(o) > 2 else [*o, unit] for o in operands], 2)]


def _grid_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a mesh grid: each vector is repeated along all other dimensions."""
    dims = [(vector or [Fixed(1)])[0] for vector in eq.layouts()]
    if eq.node.arg("indexing") == "xy":
        dims[:2] = dims[1::-1]
    eq.taint(dims)
    return [dims for _ in eq.node.types]


def _block_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a block-diagonal matrix: rows and columns are concatenated."""
    blocks = [[Fixed(1)] * (2 - len(block)) + block for block in eq.layouts()]
    return [[concatenation(dims) for dims in zip(*blocks, strict=True)]]


def _pairs_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a Cartesian product of vectors: one row per combination."""
    vectors = eq.layouts()
    rows = product(d for vector in vectors for d in vector)
    eq.taint([rows])
    return [[rows, *([Fixed(len(vectors))] if len(vectors) > 1 else [])]]


def _stack_axes(eq: Equations) -> list[Dims]:
    """Unify the operands; the result has a new dimension with one position for each operand."""
    operands = eq.layouts()
    for other in operands[1:]:
        eq.agree(operands[0], other)
    out = [eq.resolve(d) for d in operands[0]]
    out.insert(eq.dim("dim", len(out) + 1), Fixed(len(operands)))
    return [out]


# -- split ----------------------------------------------------------------------------------------
def _split_axes(eq: Equations) -> list[Dims]:
    """Divide a dimension into parts; a cut of the axis recomputes the sizes of the parts."""
    x, dim = eq.along()
    parts = eq.cut_all(x[dim], [t.shape[dim] for t in eq.node.types])
    if parts is None:
        eq.pin([x[dim]], "split across its factors", PROJECT)
        parts = [Fixed(t.shape[dim]) for t in eq.node.types]
    eq.states("split_sizes", tuple(parts))
    return [[*x[:dim], part, *x[dim + 1 :]] for part in parts]


def _split_spelling(default: int = 0) -> Callable[[Spelling], Call]:
    """Return a rule that writes an operator as a split into parts of given sizes.

    Args:
        default: Dimension to split if the operator does not have an argument for it. A vector is
            always split along dimension 0.
    """

    def spelling(call: Spelling) -> Call:
        dim = call.args.get("dim", default if len(call.shapes[0]) > 1 else 0)
        assert isinstance(dim, int)
        cuts = tuple(s[dim] for s in call.shapes)
        args = {"self": call.args["self"], "split_sizes": cuts, "dim": dim}
        return "aten.split_with_sizes", args

    return spelling


def _split_write(write: ViewWrite) -> Call | None:
    """Write into one part of a split, if all sizes are numbers."""
    sizes = write.args["split_sizes"]
    cuts = tuple(s for s in sizes if isinstance(s, int)) if isinstance(sizes, tuple) else ()
    if not cuts or cuts != sizes:
        return None
    start, end = (sum(cuts[:part]) for part in (write.index, write.index + 1))
    dim = write.args.get("dim", 0)
    return write.scattered("aten.slice_scatter", dim=dim, start=start, end=end)


_divided = Operator(spelling=_split_spelling())

_JOINED_AND_SPLIT = {
    "cat": Operator(
        _cat_axes, zeros.every, growth=ALIGNED, type=_cat_type, family="join", backward=PASSES
    ),
    "concat concatenate": Operator(alias="cat"),
    # Its new dimension shifts the operands' dimensions before it.
    "stack": Operator(_stack_axes, zeros.every, growth=COPIES, family="join", backward=PASSES),
    "hstack vstack dstack column_stack": Operator(_stacked_axes, zeros.every, backward=PASSES),
    "row_stack": Operator(alias="vstack"),
    "block_diag": Operator(_block_axes, zeros.every),
    "meshgrid": Operator(_grid_axes),
    "cartesian_prod": Operator(_pairs_axes),
    "split_with_sizes": Operator(
        _split_axes, zeros.first, growth=MOVES, overwritten=_split_write, backward=NOTHING
    ),
    "chunk unsafe_chunk split unsafe_split": _divided,
    "unsafe_split_with_sizes tensor_split": _divided,
    "hsplit": Operator(spelling=_split_spelling(1)),
    "vsplit": Operator(spelling=_split_spelling(0)),
    "dsplit": Operator(spelling=_split_spelling(2)),
}


# -- padding --------------------------------------------------------------------------------------
def _pad_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of padding: a dimension becomes a sum with the padding before and after."""
    x = eq.arg("self")
    value = eq.node.arg("pad")
    listed = value if isinstance(value, tuple) else ()
    amounts = [n for n in listed if isinstance(n, int | Polynomial)]
    if eq.node.arg("mode", "constant") != "constant":  # padding consists of copies of positions
        padded = x[len(x) - len(amounts) // 2 :]
        eq.pin(padded, "padded with its own positions", PROJECT)
        return [[*x[: len(x) - len(padded)], *eq.fixed(eq.node.shape[-len(padded) :])]]
    out = list(x)
    sizes: list[Layout | Size] = []
    pairs = zip(amounts[::2], amounts[1::2], strict=True)
    # Amounts come in pairs, starting from the last dimension.
    for dim, (before, after) in zip(range(len(x) - 1, -1, -1), pairs, strict=False):
        layout = x[dim]
        if before == after == 0:
            sizes += [0, 0]
        elif isinstance(layout, Fixed) or not all(
            isinstance(n, int) and n >= 0 for n in (before, after)
        ):
            eq.pin([layout], "cropped", PROJECT)
            out[dim] = Fixed(eq.node.shape[dim])
            sizes += [before, after]
        else:
            left, right = (eq.new(n) if n else Fixed(0) for n in (before, after))
            out[dim] = concatenation((left, layout, right))
            sizes += [left, right]
            if eq.node.arg("value") not in (None, 0):
                eq.taint([left, right])
    eq.states("pad", tuple(sizes))
    return [out]


def _pads_nothing(args: Mapping[str, Value]) -> bool:
    """Return whether all amounts are zero."""
    amounts = args.get("pad")
    return isinstance(amounts, tuple) and all(a == 0 for a in amounts)


def _pad_backward(node: Node) -> Backward:
    """Save the input if the padding mirrors it or repeats its border."""
    return INPUT if node.arg("mode") in ("reflect", "replicate") else NOTHING


_PADDED = {
    "pad constant_pad_nd": Operator(
        _pad_axes,
        zeros.first,  # the rule taints padding that is not zero
        growth=replace(ALIGNED, picks=False),
        unchanged=_pads_nothing,
        backward=_pad_backward,
    ),
}

ROWS = rows(_VIEWS, _ORDERS, _CHANNELS_AND_COPIES, _COMPLEX, _JOINED_AND_SPLIT, _PADDED)
