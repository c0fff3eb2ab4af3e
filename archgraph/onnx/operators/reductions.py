"""Rows of operators that reduce or normalise along axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, axes_of, integers

# Of a tensor, axes, and whether the axes stay, with size 1.
Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(function: Reduction) -> OnnxRow:
    def compute(at: Attributes, x: Tensor, axes: Known | None = None) -> Tensor:
        over = axes_of(at, axes)
        if not over and at.get("noop_with_empty_axes", 0):
            return x
        over = over or list(range(x.dim()))
        # PyTorch sums whole numbers in 64 bits, ONNX in their own type.
        return function(x, over, bool(at.get("keepdims", 1))).to(x.dtype)

    return OnnxRow(compute, known=(1,))


def _extreme(function: Reduction, sign: int) -> Reduction:
    """Extend a maximum (or minimum, by ``sign``) to no numbers: the type's lowest (highest) one."""

    def compute(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if not any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
            return function(x, axes, keep)
        if x.dtype == torch.bool:
            last: float = sign < 0
        elif x.is_floating_point():
            last = -sign * math.inf
        else:
            last = torch.iinfo(x.dtype).min if sign > 0 else torch.iinfo(x.dtype).max
        return torch.full_like(x.sum(axes, keep), last)

    return compute


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    # PyTorch's prod takes one axis; from behind, so that the others keep their numbers.
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = x.prod(axis, keep)
    return x


def _arg(function: Callable[..., Tensor]) -> OnnxRow:
    def compute(at: Attributes, x: Tensor) -> Tensor:
        axis, keep = at.get("axis", 0), bool(at.get("keepdims", 1))
        if not at.get("select_last_index", 0):
            return function(x, axis, keep)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keep)

    return OnnxRow(compute)


def _softmax(function: Callable[[Tensor, int], Tensor]) -> OnnxRow:
    def compute(at: Attributes, x: Tensor) -> Tensor:
        axis = at.get("axis", -1 if at.opset > 12 else 1)
        if at.opset > 12 or axis % x.dim() == x.dim() - 1:
            return function(x, axis)
        # Before opset 13 the axis is where x is flattened to a matrix, over whose rows it runs.
        return function(x.flatten(axis), -1).reshape(x.shape)

    return OnnxRow(compute)


def _cumulative(function: Callable[[Tensor, int], Tensor], start: int) -> OnnxRow:
    def compute(at: Attributes, x: Tensor, axis: Known) -> Tensor:
        along = integers(axis)[0]
        y = x.flip(along) if at.get("reverse", 0) else x
        total = function(y, along).to(x.dtype)
        if at.get("exclusive", 0):  # shifted by one
            first = torch.full_like(total.narrow(along, 0, 1), start)
            total = torch.cat([first, total.narrow(along, 0, x.shape[along] - 1)], along)
        return total.flip(along) if at.get("reverse", 0) else total

    return OnnxRow(compute, known=(1,))


def _real(x: Tensor) -> Tensor:
    """Convert to single precision what is not in double: whole numbers have no root."""
    return x if x.dtype == torch.float64 else x.float()


REDUCTIONS: OnnxTable = {
    "ReduceSum": _reduce(torch.sum),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMax": _reduce(_extreme(torch.amax, 1)),
    "ReduceMin": _reduce(_extreme(torch.amin, -1)),
    "ReduceProd": _reduce(_prod),
    "ReduceL1": _reduce(lambda x, a, k: x.abs().sum(a, k)),
    "ReduceL2": _reduce(lambda x, a, k: _real(x).square().sum(a, k).sqrt()),
    "ReduceSumSquare": _reduce(lambda x, a, k: x.square().sum(a, k)),
    "ReduceLogSum": _reduce(lambda x, a, k: x.sum(a, k).log()),
    "ReduceLogSumExp": _reduce(lambda x, a, k: torch.logsumexp(_real(x), a, k)),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "Softmax": _softmax(F.softmax),
    "LogSoftmax": _softmax(F.log_softmax),
    "CumSum": _cumulative(torch.cumsum, 0),
    "CumProd": _cumulative(torch.cumprod, 1),
}
