"""ONNX operators that rearrange elements: reshape, slice, concatenate, index."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.known import symbolic
from archgraph.onnx.operators.row import (
    Attributes,
    Known,
    OnnxRow,
    OnnxTable,
    axes_of,
    integers,
    slices_of,
)


def _reshape(at: Attributes, x: Tensor, shape: Known | None = None) -> Tensor:
    sizes = integers(shape) if shape is not None else list(at.need("shape"))
    if not at.get("allowzero", 0):  # 0 stands for the size of the input
        sizes = [x.shape[i] if isinstance(s, int) and s == 0 else s for i, s in enumerate(sizes)]
    is_open = isinstance(x.shape[0], torch.SymInt)
    if is_open and all(isinstance(s, int) and s > 0 for s in sizes):
        sizes[0] = -1  # a file for a batch size of 1 contains this number
    return x.reshape(sizes)


def _flatten(at: Attributes, x: Tensor) -> Tensor:
    axis = at.get("axis", 1)
    axis = axis if axis == x.dim() else axis % max(x.dim(), 1)
    if axis == 1:  # usually, one operator without computed sizes
        return x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(at: Attributes, x: Tensor, axes: Known | None = None) -> Tensor:
    over = axes_of(at, axes)
    if over is None:
        over = [i for i, size in enumerate(x.shape) if isinstance(size, int) and size == 1]
    for axis in over:  # PyTorch would silently keep axes of other sizes
        if not isinstance(x.shape[axis], int) or x.shape[axis] != 1:
            size = x.shape[axis] if isinstance(x.shape[axis], int) else "the batch"
            raise SpecError("removes an axis that is not of size 1", found=f"axis {axis}: {size}")
    return x.squeeze(over) if over else x


def _unsqueeze(at: Attributes, x: Tensor, axes: Known | None = None) -> Tensor:
    new = axes_of(at, axes) or []
    # Axes are those of the result, so insert them in ascending order.
    for axis in sorted(a % (x.dim() + len(new)) for a in new):
        x = x.unsqueeze(axis)
    return x


def _slice(at: Attributes, x: Tensor, *inputs: Known | None) -> Tensor:
    for axis, part in slices_of(at, *inputs):
        if part.step > 0:
            x = torch.ops.aten.slice.Tensor(x, axis % x.dim(), part.start, part.stop, part.step)
        else:  # PyTorch does not support negative steps
            positions = torch.arange(*part.indices(int(x.shape[axis])))
            x = x.index_select(axis % x.dim(), positions)
    return x


def _split(at: Attributes, x: Tensor, sizes: Known | None = None) -> tuple[Tensor, ...]:
    axis = at.get("axis", 0)
    if parts := integers(sizes) or at.get("split"):
        return tuple(x.split([*parts], axis))
    return tuple(x.split(-(-x.shape[axis] // at.get("num_outputs", at.outputs)), axis))


def _from_start(index: Tensor, size: int) -> Tensor:
    """Convert indices to non-negative int64, as PyTorch requires."""
    return torch.where(index < 0, index + size, index).long()


def _gather(at: Attributes, x: Tensor, index: Tensor | Known) -> Tensor:
    axis = at.get("axis", 0) % x.dim()
    if not isinstance(index, Tensor):  # a known index, for example of a row
        if index.ndim == 0:
            return x.select(axis, integers(index)[0])
        index = torch.tensor(index.astype(np.int64))
    if axis == 0 and x.dim() == 2 and x.is_floating_point() and isinstance(x, torch.nn.Parameter):
        return F.embedding(index.long(), x)  # a table of weights, whose width is an axis
    return x[(slice(None),) * axis + (_from_start(index, x.shape[axis]),)]


def _gather_elements(at: Attributes, x: Tensor, index: Tensor) -> Tensor:
    axis = at.get("axis", 0)
    return x.gather(axis, _from_start(index, x.shape[axis]))


def _gather_nd(at: Attributes, x: Tensor, index: Tensor) -> Tensor:
    rank = index.dim() - 1
    lead = [
        torch.arange(x.shape[i]).reshape([-1 if i == j else 1 for j in range(rank)])
        for i in range(at.get("batch_dims", 0))
    ]
    return x[(*lead, *(part.long() for part in index.unbind(-1)))]


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(at: Attributes, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis, how = at.get("axis", 0), at.get("reduction", "none")
    index = _from_start(index, x.shape[axis])
    if how == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCE[how])


def _scatter_nd(at: Attributes, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    how = at.get("reduction", "none")
    positions = tuple(part.long() for part in index.unbind(-1))
    if how not in ("none", "add"):
        raise SpecError("has an unsupported option", found=f"reduction={how!r}")
    return torch.index_put(x, positions, updates, accumulate=how == "add")


def _expand(at: Attributes, x: Tensor, shape: Known) -> Tensor:
    sizes = integers(shape)
    rank = max(len(sizes), x.dim())
    before = [1] * (rank - x.dim()) + list(x.shape)
    after = [1] * (rank - len(sizes)) + sizes
    # ONNX broadcasts in both directions: where the shape has 1, x keeps its size.
    return x.expand(
        [b if isinstance(a, int) and a == 1 else a for b, a in zip(before, after, strict=True)]
    )


_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _pad(
    at: Attributes, x: Tensor, pads: Known | None = None, value: Known | None = None,
    axes: Known | None = None,
) -> Tensor:  # fmt: skip
    amounts = integers(pads) or list(at.get("pads") or at.get("paddings") or ())
    along = [a % x.dim() for a in integers(axes)] or list(range(x.dim()))
    half = len(amounts) // 2
    before, after = [0] * x.dim(), [0] * x.dim()
    for axis, a, b in zip(along, amounts[:half], amounts[half:], strict=True):
        before[axis], after[axis] = a, b
    mode = at.get("mode", "constant")
    # PyTorch counts axes from the last one.
    pairs = [n for axis in reversed(range(x.dim())) for n in (before[axis], after[axis])]
    if mode == "constant":
        return F.pad(x, pairs, value=value.item() if value is not None else at.get("value", 0.0))
    while pairs and pairs[-2:] == [0, 0]:
        pairs = pairs[:-2]
    # The other modes of PyTorch require exactly batch and channels before the padded axes.
    lead = x.dim() - len(pairs) // 2
    flat = x.reshape(1, -1, *x.shape[lead:]) if lead != 2 else x
    return F.pad(flat, pairs, _PAD_MODES[mode]).reshape(
        *x.shape[:lead], *(x.shape[i] + before[i] + after[i] for i in range(lead, x.dim()))
    )


def _trilu(at: Attributes, x: Tensor, k: Known | None = None) -> Tensor:
    offset = integers(k)[0] if k is not None else 0
    return torch.triu(x, offset) if at.get("upper", 1) else torch.tril(x, offset)


def _filled(at: Attributes, shape: Known) -> Tensor:
    value = at.get("value")
    fill = torch.zeros(1) if value is None else torch.from_numpy(np.asarray(value))
    return torch.full(integers(shape), fill.item(), dtype=fill.dtype)


def _range(at: Attributes, start: Known, limit: Known, delta: Known) -> Tensor:
    dtype = torch.from_numpy(np.ravel(start)).dtype if start.dtype.kind == "f" else torch.int64
    ends = start.item(), limit.item(), delta.item()
    if dtype.is_floating_point and not (symbolic(limit) and all(e == int(e) for e in ends[::2])):
        return torch.arange(*ends, dtype=dtype)
    first, last, step = (integers(value)[0] for value in (start, limit, delta))
    if step == 1:  # omit the step: PyTorch would divide by it and fix an open size
        return (torch.arange(last - first) + first).to(dtype)
    return torch.arange(first, last, step, dtype=dtype)


def _one_hot(at: Attributes, index: Tensor, depth: Known, values: Tensor) -> Tensor:
    n = integers(depth)[0]
    index = _from_start(index.long(), n)  # out of range: no element is hot
    hot = (index.unsqueeze(-1) == torch.arange(n)).movedim(-1, at.get("axis", -1))
    return torch.where(hot, values[1], values[0])


def _shape(at: Attributes, x: Tensor) -> Known:
    return np.array(list(x.shape)[at.get("start", 0) : at.get("end")], dtype=object)


def _top_k(at: Attributes, x: Tensor, k: Known | None = None) -> tuple[Tensor, Tensor]:
    count = integers(k)[0] if k is not None else at.need("k")
    axis = at.get("axis", -1)
    # Of equal values, take the first; torch.topk does not guarantee this.
    values, positions = x.sort(dim=axis, descending=bool(at.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, count), positions.narrow(axis, 0, count)


SHAPES: OnnxTable = {
    "Reshape": OnnxRow(_reshape, known=(1,)),
    "Flatten": OnnxRow(_flatten),
    "Transpose": OnnxRow(lambda at, x: x.permute(at.get("perm") or [*reversed(range(x.dim()))])),
    "Squeeze": OnnxRow(_squeeze, known=(1,)),
    "Unsqueeze": OnnxRow(_unsqueeze, known=(1,)),
    "Slice": OnnxRow(_slice, known=(1, 2, 3, 4)),
    "Split": OnnxRow(_split, known=(1,)),
    "Gather": OnnxRow(_gather, numbers=True),
    "GatherElements": OnnxRow(_gather_elements),
    "GatherND": OnnxRow(_gather_nd),
    "ScatterElements": OnnxRow(_scatter_elements),
    "Scatter": OnnxRow(_scatter_elements),
    "ScatterND": OnnxRow(_scatter_nd),
    "Expand": OnnxRow(_expand, known=(1,)),
    "Pad": OnnxRow(_pad, known=(1, 2, 3)),
    "Concat": OnnxRow(lambda at, *inputs: torch.cat(inputs, at.get("axis", 1))),
    "Tile": OnnxRow(lambda at, x, repeats: x.repeat(integers(repeats)), known=(1,), since=6),
    "Trilu": OnnxRow(_trilu, known=(1,)),
    "ConstantOfShape": OnnxRow(_filled, known=(0,)),
    "Range": OnnxRow(_range, known=(0, 1, 2)),
    "OneHot": OnnxRow(_one_hot, known=(1,)),
    "Shape": OnnxRow(_shape),
    "Size": OnnxRow(lambda at, x: np.array(x.numel(), dtype=object)),
    "TopK": OnnxRow(_top_k, known=(1,)),
}
