"""ONNX operators that reduce or normalise along axes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, axes_of, integers

# Arguments: a tensor, axes, and whether to keep the axes with size 1.
Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduce(function: Reduction) -> OnnxRow:
    def compute(at: Attributes, x: Tensor, axes: Known | None = None) -> Tensor:
        over = axes_of(at, axes)
        if not over and at.get("noop_with_empty_axes", 0):
            return x
        over = over or list(range(x.dim()))
        # PyTorch sums integers in 64 bits, ONNX in the dtype of the input.
        return function(x, over, bool(at.get("keepdims", 1))).to(x.dtype)

    return OnnxRow(compute, known=(1,))


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    # torch.prod takes one axis. Start with the last one, so that the others keep their numbers.
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = x.prod(axis, keep)
    return x


def _arg(function: Callable[..., Tensor]) -> OnnxRow:
    def compute(at: Attributes, x: Tensor) -> Tensor:
        at.refuse("select_last_index", 0)
        return function(x, at.get("axis", 0), bool(at.get("keepdims", 1)))

    return OnnxRow(compute)


def _softmax(function: Callable[[Tensor, int], Tensor]) -> OnnxRow:
    def compute(at: Attributes, x: Tensor) -> Tensor:
        axis = at.get("axis", -1 if at.opset > 12 else 1)
        if at.opset > 12 or axis % x.dim() == x.dim() - 1:
            return function(x, axis)
        # Before opset 13, x is flattened to a matrix at the axis, and softmax runs over its rows.
        return function(x.flatten(axis), -1).reshape(x.shape)

    return OnnxRow(compute)


def _cumulative(function: Callable[[Tensor, int], Tensor]) -> OnnxRow:
    def compute(at: Attributes, x: Tensor, axis: Known) -> Tensor:
        at.refuse("reverse", 0)
        at.refuse("exclusive", 0)
        return function(x, integers(axis)[0]).to(x.dtype)

    return OnnxRow(compute, known=(1,))


def _real(x: Tensor) -> Tensor:
    """Convert to float32, except for float64."""
    return x if x.dtype == torch.float64 else x.float()


REDUCTIONS: OnnxTable = {
    "ReduceSum": _reduce(torch.sum),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMin": _reduce(torch.amin),
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
    "CumSum": _cumulative(torch.cumsum),
    "CumProd": _cumulative(torch.cumprod),
}
