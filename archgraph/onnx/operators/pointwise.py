"""Rows of operators that work position by position."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable, plain
from archgraph.onnx.tensors import DTYPES
from archgraph.ops.schema import torch_dtype

_BINARY: dict[str, Callable[..., Any]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Less": torch.lt,
    "LessOrEqual": torch.le, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Pow": torch.pow,
}  # fmt: skip
_PLAIN: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "And": torch.logical_and,
    "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan, "Atanh": torch.atanh,
    "BitwiseAnd": torch.bitwise_and, "BitwiseNot": torch.bitwise_not, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh,
    "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": F.hardswish,
    "Identity": lambda x: x, "IsNaN": torch.isnan, "Log": torch.log, "Mish": F.mish,
    "Neg": torch.neg, "Not": torch.logical_not, "Or": torch.logical_or,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round,
    "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh,
    "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan,
    "Tanh": torch.tanh, "Xor": torch.logical_xor,
}  # fmt: skip


def _prelu(at: Attributes, x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    if slope.numel() == 1:
        return F.prelu(x, slope.reshape(1))
    own = [1] * (x.dim() - slope.dim()) + list(slope.shape)
    channels = at.opset < 7 or slope.numel() == own[1]
    if x.dim() > 1 and channels and slope.numel() == x.shape[1]:
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, slope * x, x)


def _numeric(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of two operands, of which PyTorch takes only the second as a number."""

    def compute(at: Attributes, a: Any, b: Any) -> Any:
        if not isinstance(a, torch.Tensor):
            a = torch.tensor(a, dtype=b.dtype) if isinstance(b, torch.Tensor) else torch.tensor(a)
        return function(a, b)

    return compute


def _div(a: Any, b: Any) -> Any:
    if not a.is_floating_point():
        return torch.div(a, b, rounding_mode="trunc")
    return torch.div(a, b)


def _mod(at: Attributes, a: Any, b: Any) -> Any:
    return torch.fmod(a, b) if at.get("fmod", 0) else torch.remainder(a, b)


def _power(at: Attributes, a: Any, b: Any) -> torch.Tensor:
    """Compute a power, which has the type of its base even if that is a number."""
    if not isinstance(a, torch.Tensor):
        alike = isinstance(a, float) == b.is_floating_point()
        a = torch.tensor(a, dtype=b.dtype if alike else None)
    return torch.pow(a, b).to(a.dtype)


def _many(function: Callable[..., Any]) -> OnnxRow:
    return OnnxRow(lambda at, *inputs: functools.reduce(function, inputs))


def _mean(at: Attributes, *inputs: torch.Tensor) -> torch.Tensor:
    return functools.reduce(torch.add, inputs) / len(inputs)


def _clip(at: Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    low = at.get("min") if low is None else low.item()
    high = at.get("max") if high is None else high.item()
    if low is None and high is None:
        return x
    if low == 0 and high is None and x.is_floating_point():
        return torch.relu(x)
    if low is not None and high is not None:
        low = min(low, high)
    return torch.clamp(x, low, high)


def _cast(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    dtype = DTYPES.get(at.need("to"))
    if dtype is None:
        raise SpecError("casts to a type that PyTorch lacks", found=at.need("to"))
    return x.to(torch_dtype(dtype))


def _bit_cast(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    dtype = torch_dtype(DTYPES[at.need("to")])
    if dtype.itemsize != x.dtype.itemsize:
        raise SpecError("reads numbers as others of another size", found=str(dtype))
    return x.view(dtype)


def _gelu(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate=at.get("approximate", "none"))


def _swish(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    alpha = at.get("alpha", 1.0)
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(x * alpha)


def _hard_sigmoid(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    alpha, beta = at.get("alpha", 0.2), at.get("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-4) and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * alpha + beta, 0, 1)


def _is_inf(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    positive, negative = at.get("detect_positive", 1), at.get("detect_negative", 1)
    if positive and negative:
        return torch.isinf(x)
    return (
        x == (math.inf if positive else -math.inf)
        if positive or negative
        else x != x.abs().add(1) * 0 + x
    )


def _selu(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    return at.get("gamma", 1.0507010) * F.elu(x, at.get("alpha", 1.6732632))


def _shrink(at: Attributes, x: torch.Tensor) -> torch.Tensor:
    bias, lambd = at.get("bias", 0.0), at.get("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero)).to(x.dtype)


def _shift(at: Attributes, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x << y if at.need("direction") == "LEFT" else x >> y


def _dropout(at: Attributes, x: Any, ratio: Any = None, training: Any = None) -> Any:
    rate = float(ratio.item()) if ratio is not None else at.get("ratio", 0.5)
    if training is not None and bool(np.ravel(training)[0]) and rate:
        raise SpecError("drops out in evaluation")
    result = F.dropout(x, rate, at.training)
    return (result, torch.ones_like(x, dtype=torch.bool)) if at.outputs > 1 else result


POINTWISE: OnnxTable = {
    **{name: plain(function) for name, function in _PLAIN.items()},
    **{name: OnnxRow(_numeric(function), numbers=True) for name, function in _BINARY.items()},
    "Div": OnnxRow(_numeric(_div), numbers=True),
    "Pow": OnnxRow(_power, numbers=True),
    "Mod": OnnxRow(_mod),
    "Max": _many(torch.maximum),
    "Min": _many(torch.minimum),
    "Sum": _many(torch.add),
    "Mean": OnnxRow(_mean),
    "Where": plain(torch.where),
    "Clip": OnnxRow(_clip, known=(1, 2)),
    "Cast": OnnxRow(_cast),
    "CastLike": plain(lambda x, like: x.to(like.dtype), types=(1,)),
    "PRelu": OnnxRow(_prelu),
    "BitCast": OnnxRow(_bit_cast),
    "BitShift": OnnxRow(_shift),
    "Celu": OnnxRow(lambda at, x: F.celu(x, at.get("alpha", 1.0))),
    "Elu": OnnxRow(lambda at, x: F.elu(x, at.get("alpha", 1.0))),
    "Gelu": OnnxRow(_gelu),
    "HardSigmoid": OnnxRow(_hard_sigmoid),
    "IsInf": OnnxRow(_is_inf),
    "LeakyRelu": OnnxRow(lambda at, x: F.leaky_relu(x, at.get("alpha", 0.01))),
    "Selu": OnnxRow(_selu),
    "Shrink": OnnxRow(_shrink),
    "Swish": OnnxRow(_swish),
    "SwiGLU": OnnxRow(lambda at, a, b: a * torch.sigmoid(a * at.get("alpha", 1.0)) * b),
    "ThresholdedRelu": OnnxRow(lambda at, x: F.threshold(x, at.get("alpha", 1.0), 0.0)),
    "Dropout": OnnxRow(_dropout, known=(1, 2)),
}
