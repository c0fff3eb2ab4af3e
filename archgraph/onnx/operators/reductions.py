"""Rows of operators that reduce or normalise along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable, axes_of


def _reduce(function: Callable[[torch.Tensor, list[int], bool], Any]) -> OnnxRow:
    def compute(at: Attributes, x: torch.Tensor, axes: Any = None) -> Any:
        found = axes_of(at, axes)
        if not found:
            if at.get("noop_with_empty_axes", 0):
                return x
            found = list(range(x.dim()))
        return function(x, found, bool(at.get("keepdims", 1))).to(x.dtype)

    return OnnxRow(compute, known=(1,))


def _extreme(function: Callable[..., torch.Tensor], sign: int) -> Callable[..., torch.Tensor]:
    """Extend a maximum (or minimum, by ``sign``) to no numbers: the type's lowest (highest) one."""

    def compute(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
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


def _prod(x: torch.Tensor, axes: list[int], keep: bool) -> torch.Tensor:
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = x.prod(axis, keep)
    return x


def _arg(function: Callable[..., torch.Tensor]) -> OnnxRow:
    def compute(at: Attributes, x: torch.Tensor) -> torch.Tensor:
        axis, keep = at.get("axis", 0), bool(at.get("keepdims", 1))
        if not at.get("select_last_index", 0):
            return function(x, axis, keep)
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keep)

    return OnnxRow(compute)


def _softmax(function: Callable[..., torch.Tensor]) -> OnnxRow:
    def compute(at: Attributes, x: torch.Tensor) -> torch.Tensor:
        axis = at.get("axis", -1 if at.opset > 12 else 1)
        if at.opset > 12 or axis % x.dim() == x.dim() - 1:
            return function(x, axis)
        return function(x.flatten(axis), -1).reshape(x.shape)

    return OnnxRow(compute)


def _cumulative(function: Callable[..., torch.Tensor], start: int) -> OnnxRow:
    def compute(at: Attributes, x: torch.Tensor, axis: Any) -> torch.Tensor:
        along = int(np.ravel(axis)[0])
        y = x.flip(along) if at.get("reverse", 0) else x
        total = function(y, along).to(x.dtype)
        if at.get("exclusive", 0):  # shifted by one
            first = torch.full_like(total.narrow(along, 0, 1), start)
            total = torch.cat([first, total.narrow(along, 0, x.shape[along] - 1)], along)
        return total.flip(along) if at.get("reverse", 0) else total

    return OnnxRow(compute, known=(1,))


def _hard(x: torch.Tensor, axis: int) -> torch.Tensor:
    places = torch.arange(x.shape[axis]).reshape([-1] + [1] * (x.dim() - 1 - axis % x.dim()))
    return (places == x.argmax(axis, keepdim=True)).to(x.dtype)


def _real(x: torch.Tensor) -> torch.Tensor:
    """Numbers in single precision, or double where they are."""
    return x if x.dtype == torch.float64 else x.float()


def _lp(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, at.get("p", 2), at.get("axis", -1), eps=1e-12)


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
    "Hardmax": _softmax(_hard),
    "CumSum": _cumulative(torch.cumsum, 0),
    "CumProd": _cumulative(torch.cumprod, 1),
    "LpNormalization": OnnxRow(_lp),
}
