"""Elementwise ONNX operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, Known, OnnxRow, OnnxTable, bare
from archgraph.onnx.tensors import dtype_of

Number: TypeAlias = "Tensor | int | float | bool"

_BINARY: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Less": torch.lt,
    "LessOrEqual": torch.le, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
}  # fmt: skip
_SAME_NAME = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor IsNaN Log Neg
Reciprocal Relu Round Sigmoid Sign Sin Sinh Sqrt Tan Tanh"""
_BARE: dict[str, Callable[..., Tensor]] = {
    **{kind: getattr(torch, kind.lower()) for kind in _SAME_NAME.split()},
    **{kind: getattr(F, kind.lower()) for kind in ("HardSwish", "Mish", "Softplus", "Softsign")},
    **{kind: getattr(torch, f"logical_{kind.lower()}") for kind in ("And", "Not", "Or", "Xor")},
    **{
        f"Bitwise{kind}": getattr(torch, f"bitwise_{kind.lower()}")
        for kind in ("And", "Not", "Or", "Xor")
    },
    "Identity": lambda x: x,
}


def _prelu(at: Attributes, x: Tensor, slope: Tensor) -> Tensor:
    if slope.numel() == 1:
        return F.prelu(x, slope.reshape(1))
    aligned = [1] * (x.dim() - slope.dim()) + list(slope.shape)
    # In opset 6, there is a slope for each channel; in later opsets, slopes are broadcast.
    channels = at.opset < 7 or slope.numel() == aligned[1]
    if x.dim() > 1 and channels and slope.numel() == x.shape[1]:
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)


def _numeric(function: Callable[[Tensor, Number], Tensor]) -> OnnxRow:
    """Return the row of a function whose first operand must be a tensor in PyTorch."""

    def compute(at: Attributes, a: Number, b: Number) -> Tensor:
        if not isinstance(a, Tensor):
            a = torch.tensor(a, dtype=b.dtype if isinstance(b, Tensor) else None)
        return function(a, b)

    return OnnxRow(compute, numbers=True)


def _div(a: Tensor, b: Number) -> Tensor:
    # Quotients of integers are integers, rounded towards 0.
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _mod(at: Attributes, a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, b) if at.get("fmod", 0) else torch.remainder(a, b)


def _power(at: Attributes, a: Number, b: Tensor) -> Tensor:
    """Compute a power; the result has the dtype of the base."""
    if not isinstance(a, Tensor):
        alike = isinstance(a, float) == b.is_floating_point()
        a = torch.tensor(a, dtype=b.dtype if alike else None)
    return torch.pow(a, b).to(a.dtype)


def _many(function: Callable[[Tensor, Tensor], Tensor]) -> OnnxRow:
    return OnnxRow(lambda at, *inputs: functools.reduce(function, inputs))


def _mean(at: Attributes, *inputs: Tensor) -> Tensor:
    return functools.reduce(torch.add, inputs) / len(inputs)


def _clip(at: Attributes, x: Tensor, low: Known | None = None, high: Known | None = None) -> Tensor:
    # In opset 6, the bounds are attributes.
    least = at.get("min") if low is None else low.item()
    most = at.get("max") if high is None else high.item()
    if least is None and most is None:
        return x
    if least == 0 and most is None and x.is_floating_point():
        return torch.relu(x)  # rewrites support this form
    if least is not None and most is not None:
        least = min(least, most)  # if the lower bound is above the upper one, the upper one is used
    return torch.clamp(x, least, most)


def _swish(at: Attributes, x: Tensor) -> Tensor:
    alpha = at.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(x * alpha)


def _hard_sigmoid(at: Attributes, x: Tensor) -> Tensor:
    alpha, beta = at.get("alpha", 0.2), at.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-4) and beta == 0.5:  # the file has few digits
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0, 1)


def _is_inf(at: Attributes, x: Tensor) -> Tensor:
    signs = [s for s in (1, -1) if at.get("detect_positive" if s > 0 else "detect_negative", 1)]
    if len(signs) == 2:
        return torch.isinf(x)
    return x == signs[0] * math.inf if signs else torch.zeros_like(x, dtype=torch.bool)


def _selu(at: Attributes, x: Tensor) -> Tensor:
    return at.get("gamma", 1.0507010) * F.elu(x, at.get("alpha", 1.6732632))


def _dropout(
    at: Attributes, x: Tensor, ratio: Known | None = None, training: Known | None = None
) -> object:
    rate = at.get("ratio", 0.5) if ratio is None else float(ratio.item())
    if training is not None and training.item() and rate:
        raise SpecError("drops out in evaluation")
    y = F.dropout(x, rate, at.training)
    return (y, torch.ones_like(x, dtype=torch.bool)) if at.outputs > 1 else y


POINTWISE: OnnxTable = {
    **{name: bare(function) for name, function in _BARE.items()},
    **{name: _numeric(function) for name, function in _BINARY.items()},
    "Div": _numeric(_div),
    "Pow": OnnxRow(_power, numbers=True),
    "Mod": OnnxRow(_mod),
    "Max": _many(torch.maximum),
    "Min": _many(torch.minimum),
    "Sum": _many(torch.add),
    "Mean": OnnxRow(_mean),
    "Where": bare(torch.where),
    "Clip": OnnxRow(_clip, known=(1, 2)),
    "Cast": OnnxRow(lambda at, x: x.to(dtype_of(at.need("to")))),
    "CastLike": bare(lambda x, like: x.to(like.dtype), types=(1,)),
    "PRelu": OnnxRow(_prelu),
    "Celu": OnnxRow(lambda at, x: F.celu(x, at.get("alpha", 1.0))),
    "Elu": OnnxRow(lambda at, x: F.elu(x, at.get("alpha", 1.0))),
    "Gelu": OnnxRow(lambda at, x: F.gelu(x, approximate=at.get("approximate", "none"))),
    "HardSigmoid": OnnxRow(_hard_sigmoid),
    "IsInf": OnnxRow(_is_inf),
    "LeakyRelu": OnnxRow(lambda at, x: F.leaky_relu(x, at.get("alpha", 0.01))),
    "Selu": OnnxRow(_selu),
    "Swish": OnnxRow(_swish),
    "SwiGLU": OnnxRow(lambda at, a, b: a * torch.sigmoid(a * at.get("alpha", 1.0)) * b),
    "ThresholdedRelu": OnnxRow(lambda at, x: F.threshold(x, at.get("alpha", 1.0), 0.0)),
    "Dropout": OnnxRow(_dropout, known=(1, 2)),
}
