"""ONNX operators with weights (convolutions, products, norms), and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from archgraph.errors import SpecError
from archgraph.onnx.operators.row import Attributes, OnnxRow, OnnxTable

# From the number of spatial axes to the function of PyTorch.
_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_MEAN: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _window(at: Attributes, x: Tensor, kernel: list[int]) -> tuple[list[int], ...]:
    """Return strides, dilations, and the padding on both sides, for each spatial axis."""
    n = len(kernel)
    strides = list(at.get("strides") or [1] * n)
    dilations = list(at.get("dilations") or [1] * n)
    pads = list(at.get("pads") or [0] * 2 * n)
    auto = at.get("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = [0] * 2 * n
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-int(size) // s) - 1) * s + (k - 1) * d + 1 - int(size), 0)
            for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
        ]
        less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = less + more if auto == "SAME_UPPER" else more + less
    return strides, dilations, pads[:n], pads[n:]


def _padded(x: Tensor, before: list[int], after: list[int], value: float) -> Tensor:
    # PyTorch counts axes from the last one.
    return F.pad(
        x, [n for pair in reversed([*zip(before, after, strict=True)]) for n in pair], value=value
    )


def _conv(at: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    strides, dilations, before, after = _window(at, x, list(weight.shape[2:]))
    if before != after:  # PyTorch pads both sides equally
        x, before = _padded(x, before, after, 0.0), [0] * len(before)
    return _CONV[len(strides)](x, weight, bias, strides, before, dilations, at.get("group", 1))


def _transposed(at: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    at.refuse("output_shape", None)
    at.refuse("auto_pad", "NOTSET")
    kernel = list(weight.shape[2:])
    strides, dilations, before, after = _window(at, x, kernel)
    extra = list(at.get("output_padding") or [0] * len(kernel))
    # PyTorch crops both sides equally: crop by the smaller padding here, by the rest below.
    both = [*map(min, before, after)]
    y = _TRANSPOSED[len(strides)](
        x, weight, bias, strides, both, extra, at.get("group", 1), dilations
    )
    for axis, (front, back, cut) in enumerate(zip(before, after, both, strict=True), 2):
        if front != back:
            y = y.narrow(axis, front - cut, y.shape[axis] - front - back + 2 * cut)
    return y


def _max_pool(at: Attributes, x: Tensor) -> Tensor:
    if at.outputs > 1:
        raise SpecError("returns indices of maxima, which ONNX counts in another way")
    kernel = list(at.need("kernel_shape"))
    strides, dilations, before, after = _window(at, x, kernel)
    ends: list[int] = []  # end of the input on axes that are padded here
    # PyTorch pads both sides equally, and by at most half a window.
    if before != after or any(b > k // 2 for b, k in zip(before, kernel, strict=True)):
        lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        ends = [int(size) + b for size, b in zip(x.shape[2:], before, strict=True)]
        x, before = _padded(x, before, after, lowest), [0] * len(before)
    y = _MAX[len(kernel)](x, kernel, strides, before, dilations, bool(at.get("ceil_mode", 0)))
    for axis, (end, stride) in enumerate(zip(ends, strides, strict=False), 2):
        if (int(y.shape[axis]) - 1) * stride >= end:  # the last window is inside the padding
            y = y.narrow(axis, 0, int(y.shape[axis]) - 1)
    return y


def _mean_pool(at: Attributes, x: Tensor) -> Tensor:
    kernel = list(at.need("kernel_shape"))
    strides, dilations, before, after = _window(at, x, kernel)
    ceil, count = bool(at.get("ceil_mode", 0)), bool(at.get("count_include_pad", 0))
    small = all(b <= k // 2 for b, k in zip(before, kernel, strict=True))
    if before == after and small and all(d == 1 for d in dilations):
        return _MEAN[len(kernel)](x, kernel, strides, before, ceil, count)
    if ceil:
        raise SpecError("averages with unequal padding or dilation, and rounds the size up")
    total = _window_sum(_padded(x, before, after, 0.0), kernel, strides, dilations)
    if count:
        return total / math.prod(kernel)
    # Windows that extend into the padding have a smaller divisor.
    return total / _window_sum(
        _padded(torch.ones_like(x), before, after, 0.0), kernel, strides, dilations
    )


def _window_sum(x: Tensor, kernel: list[int], strides: list[int], dilations: list[int]) -> Tensor:
    """Sum each channel over windows, with a convolution of ones that has channels as examples."""
    ones = torch.ones(1, 1, *kernel, dtype=x.dtype)
    sums = _CONV[len(kernel)](x.flatten(0, 1).unsqueeze(1), ones, None, strides, 0, dilations)
    return sums.reshape(x.shape[0], x.shape[1], *sums.shape[2:])


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _gemm(at: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = at.get("alpha", 1.0), at.get("beta", 1.0)
    a = a.t() if at.get("transA", 0) else a
    if alpha == 1 and beta == 1 and at.get("transB", 0) and (c is None or c.dim() == 1):
        return F.linear(a, b, c)  # rewrites support this form
    product = a @ (b.t() if at.get("transB", 0) else b)
    product = product * alpha if alpha != 1 else product
    return product if c is None else product + (c * beta if beta != 1 else c)


def _batch_norm(
    at: Attributes, x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    at.refuse("training_mode", 0)
    at.refuse("spatial", 1)
    if at.opset < 7 and not at.get("is_test", 0):
        raise SpecError("is in training mode (is_test=0)")
    momentum = round(1 - at.get("momentum", 0.9), 6)  # ONNX weights the old value
    return F.batch_norm(x, mean, var, w, b, at.training, momentum, at.get("epsilon", 1e-5))


def _instance_norm(at: Attributes, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(x, None, None, w, b, True, 0.1, at.get("epsilon", 1e-5))


def _group_norm(at: Attributes, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    groups = at.need("num_groups")
    if w.shape[0] != x.shape[1]:  # in opset 18, one number per group
        w, b = (v.repeat_interleave(x.shape[1] // groups) for v in (w, b))
    return F.group_norm(x, groups, w, b, at.get("epsilon", 1e-5))


def _layer_norm(
    at: Attributes, x: Tensor, w: Tensor | None = None, b: Tensor | None = None
) -> object:
    axis = at.get("axis", -1) % x.dim()
    shape = list(x.shape[axis:])
    w, b = (v.expand(shape) if v is not None and list(v.shape) != shape else v for v in (w, b))
    y = F.layer_norm(x, shape, w, b, at.get("epsilon", 1e-5))
    if at.outputs == 1:
        return y
    over = list(range(axis, x.dim()))
    variance = x.var(over, correction=0, keepdim=True)
    return y, x.mean(over, keepdim=True), torch.rsqrt(variance + at.get("epsilon", 1e-5))


def _rms_norm(at: Attributes, x: Tensor, w: Tensor | None = None) -> Tensor:
    shape = list(x.shape[at.get("axis", -1) :])
    if w is not None and list(w.shape) != shape:
        w = w.expand(shape)
    return F.rms_norm(x, shape, w, at.get("epsilon", 1e-5))


def _lrn(at: Attributes, x: Tensor) -> Tensor:
    size = at.need("size")
    if size % 2 == 0:
        raise SpecError("normalises over an even number of channels", found=size)
    return F.local_response_norm(
        x, size, at.get("alpha", 1e-4), at.get("beta", 0.75), at.get("bias", 1.0)
    )


LAYERS: OnnxTable = {
    "Conv": OnnxRow(_conv, zeros=(2,)),
    "ConvTranspose": OnnxRow(_transposed, zeros=(2,)),
    "MaxPool": OnnxRow(_max_pool),
    "AveragePool": OnnxRow(_mean_pool),
    "GlobalAveragePool": OnnxRow(lambda at, x: x.mean(_spatial(x), keepdim=True)),
    "GlobalMaxPool": OnnxRow(lambda at, x: x.amax(_spatial(x), keepdim=True)),
    "Gemm": OnnxRow(_gemm, zeros=(2,)),
    "MatMul": OnnxRow(lambda at, a, b: a @ b),
    "BatchNormalization": OnnxRow(_batch_norm, buffers=(3, 4), since=6),
    "InstanceNormalization": OnnxRow(_instance_norm),
    "GroupNormalization": OnnxRow(_group_norm),
    "LayerNormalization": OnnxRow(_layer_norm),
    "RMSNormalization": OnnxRow(_rms_norm),
    "LRN": OnnxRow(_lrn),
    "Einsum": OnnxRow(lambda at, *inputs: torch.einsum(at.need("equation"), *inputs)),
}
