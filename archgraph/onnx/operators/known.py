"""Operators on what is known while a file is read: sizes, axes and constants, with NumPy.

Sizes of a batch are symbols, so arrays of sizes hold Python objects; every function here is plain
arithmetic and indexing on them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from archgraph.errors import SpecError
from archgraph.limits import LIMITS
from archgraph.onnx.operators.row import Attributes, Known, axes_of, whole

Folding: TypeAlias = Callable[..., Known]


def _div(a: Known, b: Known) -> Known:
    if a.dtype.kind not in "iuO":
        return np.divide(a, b)
    if symbolic(a) or symbolic(b):  # sizes of a batch, which are above 0
        return np.floor_divide(a, b)
    whole_part = np.floor_divide(a, b)  # ONNX drops what is behind the point
    return whole_part + ((whole_part < 0) & (whole_part * b != a))


def _cast(at: Attributes, x: Known) -> Known:
    import onnx

    if x.dtype == object and at.need("to") in (6, 7):
        return x
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(at.need("to")))


def _numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of a name; it lacks bfloat16."""
    import onnx

    kinds = onnx.TensorProto
    return (
        onnx.helper.tensor_dtype_to_np_dtype(kinds.BFLOAT16)
        if name == "bfloat16"
        else np.dtype(name)
    )


def _cast_like(at: Attributes, x: Known, like: Known | torch.Tensor) -> Known:
    if isinstance(like, torch.Tensor):
        return x.astype(_numpy_dtype(str(like.dtype).removeprefix("torch.")))
    return x if like.dtype == object else x.astype(like.dtype)


def _slice(at: Attributes, x: Known, *rest: Known) -> Known:
    starts, ends, axes, steps = (*rest, None, None, None, None)[:4]
    first = whole(starts) if starts is not None else list(at.need("starts"))
    last = whole(ends) if ends is not None else list(at.need("ends"))
    where = axes_of(at, axes)
    index = [slice(None)] * x.ndim
    for i, (a, b) in enumerate(zip(first, last, strict=True)):
        index[where[i] if where else i] = slice(a, b, (whole(steps) or [1] * len(first))[i])
    return x[tuple(index)]


def _squeeze(at: Attributes, x: Known, axes: Known | None = None) -> Known:
    found = axes_of(at, axes)
    return np.squeeze(x, None if found is None else tuple(found))


def _filled(at: Attributes, shape: Known) -> Known:
    value = at.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.ravel(value)
    return np.full(_bounded(whole(shape), LIMITS.folded_bytes // fill.itemsize), fill[0])


def _bounded(shape: Sequence[Any], most: int = LIMITS.folded_elements) -> list[Any]:
    """Sizes of a constant, unless it has too many elements."""
    sizes = [*shape]
    elements = math.prod(int(size) for size in sizes)
    if min(sizes, default=0) < 0 or elements > most:
        raise SpecError("is too large", found=sizes, expected=f"at most {most:,} elements")
    return sizes


def _elementwise(function: Callable[..., Known]) -> Folding:
    """Wrap a function of arrays that are broadcast to one shape."""

    def compute(at: Attributes, *given: Known) -> Known:
        _bounded(np.broadcast_shapes(*(np.shape(x) for x in given)))
        with np.errstate(all="ignore"):
            return _short(np.asarray(function(*map(_stored, given))))

    return compute


def _short(value: Known) -> Known:
    """Refuse a long expression of the size of a batch; return any other value as it is."""
    if value.dtype == object:
        for item in value.ravel():
            if isinstance(item, torch.SymInt) and item.node.expr.count_ops() > LIMITS.batch_steps:
                raise SpecError("computes too much from the size of the batch")
    return value


def _stored(value: Known) -> Known:
    """Sizes as whole numbers of 64 bits, which overflow as the file's do; those of a batch stay."""
    return value.astype(np.int64) if value.dtype == object and not symbolic(value) else value


def _gather(at: Attributes, x: Known, indices: Known) -> Known:
    axis = at.get("axis", 0)
    _bounded([*np.delete(np.array(x.shape), axis), *indices.shape])
    return np.asarray(np.take(x, indices.astype(np.int64), axis))


def _concat(at: Attributes, *given: Known) -> Known:
    _bounded([sum(x.size for x in given)])
    return np.concatenate(given, at.get("axis", 0))


def _range(at: Attributes, first: Known, last: Known, step: Known) -> Known:
    if not step.item():
        raise SpecError("counts in steps of 0")
    _bounded([max(int((last.item() - first.item()) / step.item()), 0)])
    return np.arange(first.item(), last.item(), step.item()).astype(first.dtype)


def _expand(at: Attributes, x: Known, shape: Known) -> Known:
    sizes = np.broadcast_shapes(x.shape, tuple(whole(shape)))
    _bounded(sizes)
    return np.broadcast_to(x, sizes)


def _reduce(function: Callable[..., Known]) -> Folding:
    def compute(at: Attributes, x: Known, axes: Known | None = None) -> Known:
        found = axes_of(at, axes)
        if not found and at.get("noop_with_empty_axes", 0):
            return x
        over = tuple(found) if found else None
        return np.asarray(function(x, axis=over, keepdims=bool(at.get("keepdims", 1))))

    return compute


_MOD, _FMOD = _elementwise(np.mod), _elementwise(np.fmod)

FOLDS: dict[str, Folding] = {
    "Add": _elementwise(operator.add),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Div": _elementwise(_div),
    "Neg": lambda at, x: -x,
    "Mod": lambda at, a, b: (_FMOD if at.get("fmod", 0) else _MOD)(at, a, b),
    "Reciprocal": lambda at, x: np.reciprocal(x),
    "Sqrt": lambda at, x: np.sqrt(x),
    "Pow": _elementwise(np.power),
    "Floor": lambda at, x: np.floor(x),
    "Ceil": lambda at, x: np.ceil(x),
    "Max": _elementwise(lambda *x: functools.reduce(np.maximum, x)),
    "Min": _elementwise(lambda *x: functools.reduce(np.minimum, x)),
    "Equal": _elementwise(lambda a, b: np.asarray(np.equal(a, b), dtype=bool)),
    "Where": _elementwise(np.where),
    "Identity": lambda at, x: x,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Abs": lambda at, x: abs(x),
    "Not": lambda at, x: np.logical_not(x),
    "And": _elementwise(np.logical_and),
    "Or": _elementwise(np.logical_or),
    "Less": _elementwise(lambda a, b: np.asarray(a < b, dtype=bool)),
    "Greater": _elementwise(lambda a, b: np.asarray(a > b, dtype=bool)),
    "Size": lambda at, x: np.array(x.size, dtype=object),
    "Concat": _concat,
    "Gather": _gather,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": lambda at, x, axes=None: np.expand_dims(x, tuple(axes_of(at, axes) or ())),
    "Reshape": lambda at, x, shape: np.reshape(x, whole(shape)),
    "Shape": lambda at, x: np.array(x.shape[at.get("start", 0) : at.get("end")], dtype=object),
    "Transpose": lambda at, x: np.transpose(x, at.get("perm")),
    "ConstantOfShape": _filled,
    "Range": _range,
    "Expand": _expand,
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "ReduceMax": _reduce(np.max),
}


def symbolic(value: Any) -> bool:
    """Return whether a known value holds the size of a batch."""
    return isinstance(value, np.ndarray) and any(
        isinstance(item, torch.SymInt) for item in value.ravel() if value.dtype == object
    )


def tensor_of(value: Known) -> torch.Tensor:
    """Convert a known value to a tensor; a size of a batch in it stays symbolic."""
    if symbolic(value):
        items = [torch.scalar_tensor(item, dtype=torch.int64) for item in value.ravel()]
        return torch.stack(items).reshape(value.shape)
    if value.dtype == object:
        value = value.astype(np.int64)
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(value).view(np.int16)).view(torch.bfloat16)
    # What NumPy repeats without storing it (a stride of 0) is stored first.
    return torch.from_numpy(value if value.flags.writeable else np.array(value))
