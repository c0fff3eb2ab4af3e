"""Operators that PyTorch's exporter translates wrongly, and what takes its place: a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Functions by operator, as ``torch.onnx.export`` takes them.

    onnxscript 0.7 gives a three-dimensional convolution without a bias one of two dimensions
    (microsoft/onnxscript issue 2931).
    """
    from onnxscript import opset18 as op

    def conv3d(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Any:
        strides, pads, dilations = ([*v] * (3 // len(v)) for v in (stride, padding, dilation))
        tensors = (x, weight) if bias is None else (x, weight, bias)
        sizes = {"strides": strides, "pads": pads * 2, "dilations": dilations}
        return op.Conv(*tensors, group=groups, **sizes)

    return {torch.ops.aten.conv3d.default: conv3d}
