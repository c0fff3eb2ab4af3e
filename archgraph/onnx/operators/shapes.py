"""Rows of operators that move positions: reshapes, slices, joins, indexing."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable, axes_of, whole
from archgraph.onnx.tensors import DTYPES
from archgraph.ops.schema import torch_dtype


def _reshape(at: Attributes, x: torch.Tensor, shape: Any = None) -> torch.Tensor:
    sizes = whole(shape) if shape is not None else list(at.need("shape"))
    if not at.get("allowzero", 0):
        sizes = [x.shape[i] if isinstance(s, int) and s == 0 else s for i, s in enumerate(sizes)]
    if isinstance(x.shape[0], torch.SymInt) and all(isinstance(s, int) and s > 0 for s in sizes):
        sizes[0] = -1  # a file for a batch of one writes it out
    return x.reshape(sizes)


def _flatten(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    axis = at.get("axis", 1) % max(x.dim(), 1) if at.get("axis", 1) != x.dim() else x.dim()
    if axis == 1:
        return x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1)
    front, back = 1, 1
    for size in x.shape[:axis]:
        front = front * size
    for size in x.shape[axis:]:
        back = back * size
    return x.reshape(front, back)


def _transpose(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    return x.permute(at.get("perm") or list(reversed(range(x.dim()))))


def _squeeze(at: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    found = axes_of(at, axes)
    if found is None:
        found = [i for i, size in enumerate(x.shape) if isinstance(size, int) and size == 1]
    for axis in found:  # of which PyTorch leaves what is larger
        if not isinstance(x.shape[axis], int) or x.shape[axis] != 1:
            size = x.shape[axis] if isinstance(x.shape[axis], int) else "the batch"
            raise SpecError("removes an axis that is not of size 1", found=f"axis {axis}: {size}")
    return x.squeeze(found) if found else x


def _unsqueeze(at: Attributes, x: torch.Tensor, axes: Any = None) -> torch.Tensor:
    found = axes_of(at, axes) or []
    rank = x.dim() + len(found)
    for axis in sorted(a % rank for a in found):
        x = x.unsqueeze(axis)
    return x


def _slice(
    at: Attributes, x: torch.Tensor, starts: Any = None, ends: Any = None, axes: Any = None,
    steps: Any = None,
) -> torch.Tensor:  # fmt: skip
    first = whole(starts) if starts is not None else list(at.need("starts"))
    last = whole(ends) if ends is not None else list(at.need("ends"))
    where = axes_of(at, axes)
    where = where if where is not None else list(range(len(first)))
    step = whole(steps) or [1] * len(first)
    for begin, end, axis, by in zip(first, last, where, step, strict=True):
        if by > 0:
            x = torch.ops.aten.slice.Tensor(x, axis % x.dim(), begin, end, by)
        else:
            picked = torch.arange(*slice(begin, end, by).indices(int(x.shape[axis])))
            x = x.index_select(axis % x.dim(), picked)
    return x


def _split(at: Attributes, x: torch.Tensor, sizes: Any = None) -> Any:
    axis = at.get("axis", 0)
    given = whole(sizes) or at.get("split")
    if given:
        return tuple(x.split([*given], axis))
    part = -(-x.shape[axis] // at.get("num_outputs", at.outputs))
    return tuple(x.split(part, axis))


def _gather(at: Attributes, x: torch.Tensor, index: Any) -> torch.Tensor:
    axis = at.get("axis", 0) % x.dim()
    if not isinstance(index, torch.Tensor):  # known: a row, a column
        if index.ndim == 0:
            return x.select(axis, whole(index)[0])
        index = torch.tensor(index.astype(np.int64))
    if axis == 0 and x.dim() == 2 and x.is_floating_point() and isinstance(x, torch.nn.Parameter):
        return F.embedding(index.long(), x)
    index = torch.where(index < 0, index + x.shape[axis], index).long()
    return x[(slice(None),) * axis + (index,)]


def _gather_elements(at: Attributes, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    axis = at.get("axis", 0)
    return x.gather(axis, torch.where(index < 0, index + x.shape[axis], index).long())


def _gather_nd(at: Attributes, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    batch = at.get("batch_dims", 0)
    lead = [
        torch.arange(x.shape[i]).reshape([-1 if i == j else 1 for j in range(index.dim() - 1)])
        for i in range(batch)
    ]
    return x[(*lead, *(part.long() for part in index.unbind(-1)))]


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(at: Attributes, x: Any, index: Any, updates: Any) -> torch.Tensor:
    axis, how = at.get("axis", 0), at.get("reduction", "none")
    index = torch.where(index < 0, index + x.shape[axis], index).long()
    if how == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCE[how])


def _scatter_nd(at: Attributes, x: Any, index: Any, updates: Any) -> torch.Tensor:
    how = at.get("reduction", "none")
    where = tuple(part.long() for part in index.unbind(-1))
    if how in ("none", "add"):
        return torch.index_put(x, where, updates, accumulate=how == "add")
    rows, depth = torch.zeros_like(where[0]), index.shape[-1]
    for part, size in zip(where, x.shape, strict=False):
        rows = rows * size + torch.where(part < 0, part + size, part)
    flat = x.flatten(0, depth - 1).flatten(1) if x.dim() > depth else x.reshape(-1, 1)
    values = updates.reshape(-1, flat.shape[1])
    rows = rows.reshape(-1, 1).expand(*values.shape)
    return flat.scatter_reduce(0, rows, values, _REDUCE[how]).reshape(x.shape)


def _expand(at: Attributes, x: torch.Tensor, shape: Any) -> torch.Tensor:
    sizes = whole(shape)
    rank = max(len(sizes), x.dim())
    own = [1] * (rank - x.dim()) + list(x.shape)
    sizes = [1] * (rank - len(sizes)) + sizes
    return x.expand(
        [o if isinstance(s, int) and s == 1 else s for o, s in zip(own, sizes, strict=True)]
    )


def _pad(
    at: Attributes, x: torch.Tensor, pads: Any = None, value: Any = None, axes: Any = None
) -> Any:
    given = whole(pads) or list(at.get("pads") or at.get("paddings") or ())
    where = [a % x.dim() for a in whole(axes)] or list(range(x.dim()))
    half = len(given) // 2
    before, after = [0] * x.dim(), [0] * x.dim()
    for axis, a, b in zip(where, given[:half], given[half:], strict=True):
        before[axis], after[axis] = a, b
    mode = at.get("mode", "constant")
    fill = value.item() if value is not None else at.get("value", 0.0)
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    amounts = [n for axis in reversed(range(x.dim())) for n in (before[axis], after[axis])]
    if mode == "constant":
        return F.pad(x, amounts, value=fill)
    while amounts and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    sides = len(amounts) // 2
    lead = x.dim() - sides
    flat = x.reshape(1, -1, *x.shape[lead:]) if lead != 2 else x
    return F.pad(flat, amounts, modes[mode]).reshape(
        *x.shape[:lead], *(x.shape[i] + before[i] + after[i] for i in range(lead, x.dim()))
    )


def _centred(at: Attributes, x: torch.Tensor, shape: Any) -> torch.Tensor:
    """Crop and pad on both sides, the odd position behind."""
    axes = at.get("axes") or range(x.dim())
    for axis, size in zip([a % x.dim() for a in axes], whole(shape), strict=True):
        extra = size - x.shape[axis]
        if extra > 0:
            amounts = [0, 0] * (x.dim() - 1 - axis) + [extra // 2, extra - extra // 2]
            x = F.pad(x, amounts)
        elif extra < 0:
            x = x.narrow(axis, -extra // 2, size)
    return x


def _window(*share: float) -> OnnxRow:
    """Return the row of a window that is a sum of cosines with these coefficients."""

    def compute(at: Attributes, size: Any) -> torch.Tensor:
        n = whole(size)[0]
        step = 2 * math.pi / (n if at.get("periodic", 1) else n - 1)
        places = torch.arange(n, dtype=torch.float64) * step
        terms = [(-1) ** i * a * torch.cos(i * places) for i, a in enumerate(share)]
        total = functools.reduce(torch.add, terms)
        return total.to(torch_dtype(DTYPES[at.get("output_datatype", 1)]))

    return OnnxRow(compute, known=(0,))


def _concat(at: Attributes, *inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat(inputs, at.get("axis", 1))


def _tile(at: Attributes, x: torch.Tensor, repeats: Any) -> torch.Tensor:
    return x.repeat(whole(repeats))


def _trilu(at: Attributes, x: torch.Tensor, k: Any = None) -> torch.Tensor:
    offset = whole(k)[0] if k is not None else 0
    return torch.triu(x, offset) if at.get("upper", 1) else torch.tril(x, offset)


def _filled(at: Attributes, shape: Any) -> torch.Tensor:
    value = at.get("value")
    fill = torch.zeros(1) if value is None else torch.from_numpy(np.asarray(value))
    return torch.full(whole(shape), fill.item(), dtype=fill.dtype)


def _range(at: Attributes, start: Any, limit: Any, delta: Any) -> torch.Tensor:
    if start.dtype.kind == "f":
        return torch.arange(
            start.item(), limit.item(), delta.item(), dtype=torch.from_numpy(np.ravel(start)).dtype
        )
    first, last, step = whole(start) + whole(limit) + whole(delta)
    return torch.arange(first, last, step)


def _one_hot(at: Attributes, index: torch.Tensor, depth: Any, values: torch.Tensor) -> torch.Tensor:
    n = whole(depth)[0]
    axis = at.get("axis", -1)
    index = index.long()
    index = torch.where(index < 0, index + n, index)  # beyond it there is no hot position
    hot = (index.unsqueeze(-1) == torch.arange(n)).movedim(-1, axis)
    return torch.where(hot, values[1], values[0])


def _eye(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    kind = at.get("dtype")
    k = at.get("k", 0)
    rows, columns = x.shape
    eye = torch.arange(columns) == torch.arange(rows).unsqueeze(1) + k
    return eye.to(torch_dtype(DTYPES[kind]) if kind else x.dtype)


def _shape(at: Attributes, x: torch.Tensor) -> Any:
    sizes = list(x.shape)[at.get("start", 0) : at.get("end")]
    return np.array(sizes, dtype=object)


def _top_k(at: Attributes, x: torch.Tensor, k: Any = None) -> Any:
    count = whole(k)[0] if k is not None else at.need("k")
    axis = at.get("axis", -1)
    # Of equal values the first counts; what topk of PyTorch takes is not said.
    values, places = x.sort(dim=axis, descending=bool(at.get("largest", 1)), stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


SHAPES: OnnxTable = {
    "Reshape": OnnxRow(_reshape, known=(1,)),
    "Flatten": OnnxRow(_flatten),
    "Transpose": OnnxRow(_transpose),
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
    "CenterCropPad": OnnxRow(_centred, known=(1,)),
    "HannWindow": _window(0.5, 0.5),
    "HammingWindow": _window(25 / 46, 21 / 46),
    "BlackmanWindow": _window(0.42, 0.5, 0.08),
    "Concat": OnnxRow(_concat),
    "Tile": OnnxRow(_tile, known=(1,), since=6),
    "Trilu": OnnxRow(_trilu, known=(1,)),
    "ConstantOfShape": OnnxRow(_filled, known=(0,)),
    "Range": OnnxRow(_range, known=(0, 1, 2)),
    "OneHot": OnnxRow(_one_hot, known=(1,)),
    "EyeLike": OnnxRow(_eye),
    "Shape": OnnxRow(_shape),
    "Size": OnnxRow(lambda at, x: np.array(x.numel(), dtype=object)),
    "TopK": OnnxRow(_top_k, known=(1,)),
}
