"""ONNX operators in NumPy, for values that are known when a file is read (sizes, constants).

The batch size is a symbol. Arrays with batch sizes therefore contain Python objects, on which these
functions only use arithmetic and indexing.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import SpecError
from archgraph.limits import LIMITS
from archgraph.onnx.operators.row import Attributes, Known, axes_of, integers, slices_of

Folding: TypeAlias = Callable[..., Known]


def _div(a: Known, b: Known) -> Known:
    if a.dtype.kind not in "iuO":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if symbolic(a) or symbolic(b):  # batch sizes, which are positive
        return quotient
    # ONNX rounds quotients towards zero, NumPy rounds them down.
    return quotient + ((quotient < 0) & (quotient * b != a))


def _cast(at: Attributes, x: Known) -> Known:
    import onnx

    # Sizes are already integers. Converting a symbol would fix the batch size.
    if x.dtype == object and at.need("to") in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        return x
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(at.need("to")))


def _cast_like(at: Attributes, x: Known, like: Known | Tensor) -> Known:
    if not isinstance(like, Tensor):
        return x if like.dtype == object else x.astype(like.dtype)
    if like.dtype != torch.bfloat16:
        return x.astype(str(like.dtype).removeprefix("torch."))
    import onnx  # NumPy does not have bfloat16; the package onnx provides it

    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))


def _slice(at: Attributes, x: Known, *inputs: Known | None) -> Known:
    index = [slice(None)] * x.ndim
    for axis, part in slices_of(at, *inputs):
        index[axis] = part
    return x[tuple(index)]


def _squeeze(at: Attributes, x: Known, axes: Known | None = None) -> Known:
    over = axes_of(at, axes)
    return np.squeeze(x, None if over is None else tuple(over))


def _filled(at: Attributes, shape: Known) -> Known:
    value = at.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.ravel(value)
    # Limit the bytes; the limit is above the largest weight of VGG.
    return np.full(_bounded(integers(shape), LIMITS.folded_bytes // fill.itemsize), fill[0])


def _bounded(shape: Sequence[int], most: int = LIMITS.folded_elements) -> list[int]:
    """Return the sizes of a constant; raise an error if it has too many elements."""
    sizes = [*shape]
    if min(sizes, default=0) < 0 or math.prod(int(size) for size in sizes) > most:
        raise SpecError("is too large", found=sizes, expected=f"at most {most:,} elements")
    return sizes


def _elementwise(function: Callable[..., Known]) -> Folding:
    """Wrap an elementwise function of arrays, with broadcasting."""

    def compute(at: Attributes, *arrays: Known) -> Known:
        _bounded(np.broadcast_shapes(*(np.shape(x) for x in arrays)))
        with np.errstate(all="ignore"):  # overflows and divisions by 0 have the same result in ONNX
            return _short(np.asarray(function(*map(_as_int64, arrays))))

    return compute


def _short(value: Known) -> Known:
    """Return a value unchanged; raise an error for a long expression of the batch size."""
    if value.dtype == object:
        for item in value.ravel():
            if isinstance(item, torch.SymInt) and item.node.expr.count_ops() > LIMITS.batch_steps:
                raise SpecError("computes an expression of the batch size that is too long")
    return value


def _as_int64(value: Known) -> Known:
    """Convert sizes to int64, which overflow as in ONNX; keep symbols."""
    return value.astype(np.int64) if value.dtype == object and not symbolic(value) else value


def _gather(at: Attributes, x: Known, indices: Known) -> Known:
    axis = at.get("axis", 0)
    _bounded([*np.delete(np.array(x.shape), axis), *indices.shape])
    return np.asarray(np.take(x, indices.astype(np.int64), axis))


def _concat(at: Attributes, *arrays: Known) -> Known:
    _bounded([sum(x.size for x in arrays)])
    return np.concatenate(arrays, at.get("axis", 0))


def _range(at: Attributes, first: Known, last: Known, step: Known) -> Known:
    if not step.item():
        raise SpecError("has a step of 0")
    _bounded([max(int((last.item() - first.item()) / step.item()), 0)])
    return np.arange(first.item(), last.item(), step.item()).astype(first.dtype)


def _expand(at: Attributes, x: Known, shape: Known) -> Known:
    return np.broadcast_to(x, _bounded(np.broadcast_shapes(x.shape, tuple(integers(shape)))))


def _reduce(function: Callable[..., Known]) -> Folding:
    def compute(at: Attributes, x: Known, axes: Known | None = None) -> Known:
        over = axes_of(at, axes)
        if not over and at.get("noop_with_empty_axes", 0):
            return x
        return np.asarray(
            function(x, axis=tuple(over) if over else None, keepdims=bool(at.get("keepdims", 1)))
        )

    return compute


_MOD, _FMOD = _elementwise(np.mod), _elementwise(np.fmod)

_ELEMENTWISE: dict[str, Callable[..., Known]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _div, "Neg": operator.neg,
    "Abs": operator.abs, "Reciprocal": np.reciprocal, "Sqrt": np.sqrt, "Pow": np.power,
    "Floor": np.floor, "Ceil": np.ceil, "Max": lambda *x: functools.reduce(np.maximum, x),
    "Min": lambda *x: functools.reduce(np.minimum, x), "Equal": np.equal, "Less": np.less,
    "Greater": np.greater, "Where": np.where, "Not": np.logical_not, "And": np.logical_and,
    "Or": np.logical_or,
}  # fmt: skip
FOLDS: dict[str, Folding] = {
    **{kind: _elementwise(function) for kind, function in _ELEMENTWISE.items()},
    "Mod": lambda at, a, b: (_FMOD if at.get("fmod", 0) else _MOD)(at, a, b),
    "Identity": lambda at, x: x,
    "Cast": _cast,
    "CastLike": _cast_like,
    # Sizes are Python objects, since each may be the symbol of the batch size.
    "Size": lambda at, x: np.array(x.size, dtype=object),
    "Shape": lambda at, x: np.array(x.shape[at.get("start", 0) : at.get("end")], dtype=object),
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": lambda at, x, axes=None: np.expand_dims(x, tuple(axes_of(at, axes) or ())),
    "Reshape": lambda at, x, shape: np.reshape(x, integers(shape)),
    "Transpose": lambda at, x: np.transpose(x, at.get("perm")),
    "ConstantOfShape": _filled,
    "Range": _range,
    "Expand": _expand,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
}


# Which inputs determine the size of the result of an operator.
SIZED_BY = {"Slice": (1, None), "ConstantOfShape": (0, 1), "Range": (0, None), "Expand": (1, 2)}


def symbolic(value: object) -> bool:
    """Return whether a value contains a symbol for a dynamic size."""
    return isinstance(value, np.ndarray) and any(
        isinstance(item, torch.SymInt) for item in value.ravel() if value.dtype == object
    )


def known_tensor(value: Known) -> Tensor:
    """Return a tensor with the values of an array, whose elements may be ``torch.SymInt``."""
    if symbolic(value):
        return torch.stack(
            [torch.scalar_tensor(item, dtype=torch.int64) for item in value.ravel()]
        ).reshape(value.shape)
    if value.dtype == object:
        value = value.astype(np.int64)
    if value.dtype.name == "bfloat16":  # PyTorch cannot convert this type from NumPy
        return torch.from_numpy(np.array(value).view(np.int16)).view(torch.bfloat16)
    # Copy arrays that repeat values with a stride of 0.
    return torch.from_numpy(value if value.flags.writeable else np.array(value))
