"""Pooling, interpolation, sampling and patches of images. Dimensions of pixels are never cut."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, TensorType, Value
from archgraph.graph.polynomial import Polynomial, divide
from archgraph.layout.layouts import Fixed, product
from archgraph.ops import zeros
from archgraph.ops.backward import INPUT, NOTHING, Backward, as_large_as_result, saves
from archgraph.ops.equations import PROJECT, Dims, Equations
from archgraph.ops.layers import LayerRule, TorchLayer, arguments_of, one_for_all, same_options
from archgraph.ops.operator import Growth, Operator, rows
from archgraph.ops.types import (
    Args,
    Scalar,
    certain,
    ints,
    number,
    plain_value,
    positive,
    real,
    slid,
)

# -- pooling --------------------------------------------------------------------------------------


def _pooling_axes(eq: Equations) -> list[Dims]:
    """Pass the leading dimensions; pin the dimensions of the windows."""
    x = eq.of(eq.node.args[0][1])
    lead = len(x) - _pooled(eq)
    eq.pin(x[lead:], "pooled over")
    if eq.has("random_samples"):  # [examples, channels, pixels' dimensions]
        *counts, where = eq.arg("random_samples")
        eq.agree(x[:lead], counts[2 - lead :])
        eq.pin([where], "pooled over")
    return [[*x[:lead], *eq.fixed(t.shape[lead:])] for t in eq.node.types]


def _pooled(eq: Equations) -> int:
    """Return the number of pooled dimensions, from the name; the batch may be missing."""
    _, rank, _ = re.split(r"([123])d", eq.node.op)
    return int(rank)


def _window_type(args: Args) -> TensorType:
    """[n, c, h, w]: windows slide over the last two dimensions."""
    (x,) = real(args.get("self"))
    certain(len(x.shape) == 4, 0 not in x.shape)
    certain(plain_value(args.get("divisor_override", Scalar(type(None), None))) is None)
    _, *sizes = positive(x.shape[1:])
    kernel = ints(args, "kernel_size", 2, 0)
    # An empty list of strides means windows that do not overlap.
    strides = kernel if not args.get("stride") else ints(args, "stride", 2, 0)
    padding, dilation = ints(args, "padding", 2, 0), ints(args, "dilation", 2, 1)
    certain(*(2 * p <= k for p, k in zip(padding, kernel, strict=True)))
    ceil = number(args, "ceil_mode", False, bool)
    spatial = slid(sizes, kernel, strides, padding, dilation, ceil)
    return TensorType((*x.shape[:2], *spatial), x.dtype)


def _adaptive_type(args: Args) -> TensorType:
    """[n, c, h, w] to a given size."""
    (x,) = real(args.get("self"))
    size = ints(args, "output_size", 2, -1)
    certain(len(x.shape) == 4, min(size) >= 1, len(args) == 2)
    positive(x.shape[1:])
    return TensorType((*x.shape[:2], *size), x.dtype)


def _adaptive_backward(node: Node) -> Backward:
    """Save the input; a window over all of it is a mean, which saves nothing."""
    return NOTHING if set(_listed(node.arg("output_size"))) == {1} else INPUT


def _listed(value: Value) -> tuple[Value, ...]:
    return value if isinstance(value, tuple) else (value,)


# The mean and the maximum of a window of zeros are zero.
_pool = Operator(_pooling_axes, zeros.first)

_POOLS = {
    f"{kind}_pool{rank}d": replace(
        _pool,
        growth=Growth(picks=kind == "max"),
        # Closed forms pay off for the most common networks, those on images.
        type=rule if rank == 2 else None,
        layer=same_options(getattr(nn, f"{name}Pool{rank}d")),
        family="pooling",
        backward=backward,
    )
    for rank in (1, 2, 3)
    for kind, name, rule, backward in (
        # For each maximum, its position is saved, too.
        ("max", "Max", _window_type, saves("self", extra=as_large_as_result(1, "int64"))),
        ("avg", "Avg", _window_type, INPUT),
        ("adaptive_avg", "AdaptiveAvg", _adaptive_type, _adaptive_backward),
    )
}


# -- interpolation --------------------------------------------------------------------------------
def _upsampling_layer(mode: str) -> LayerRule:
    """Return the rule of ``nn.Upsample``, to a size or by a factor."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        options: dict[str, Value] = {"mode": mode}
        size, factor = node.arg("output_size"), node.arg("scale_factors")
        if (size is None) == (factor is None) or node.arg("input") is None:
            return None
        options |= {"size": size} if factor is None else {"scale_factor": one_for_all(factor)}
        options |= arguments_of(node, "align_corners")
        return TorchLayer(nn.Upsample, options, inputs=(node.arg("input"),))

    return rule


_MODES = {"nearest": "123", "linear": "1", "bilinear": "2", "bicubic": "2", "trilinear": "3"}

_UPSAMPLINGS = {
    f"upsample_{mode}{rank}d": replace(_pool, layer=_upsampling_layer(mode), backward=NOTHING)
    for mode, ranks in _MODES.items()
    for rank in ranks
}


# -- unpooling, sampling --------------------------------------------------------------------------
def _unpooling_axes(eq: Equations) -> list[Dims]:
    """Unify the leading dimensions: values return to the positions from which they were pooled."""
    x, where = eq.arg("self"), eq.arg("indices")
    trailing = _pooled(eq)
    eq.agree(x[:-trailing], where[:-trailing])
    eq.pin([*x[-trailing:], *where[-trailing:]], "pooled over")
    return [[*x[:-trailing], *eq.fixed(eq.node.shape[-trailing:])]]


def _sampled_axes(eq: Equations) -> list[Dims]:
    """Pass the channels, unify the batches, and pin pixels and coordinates."""
    x, grid = eq.arg("input"), eq.arg("grid")
    eq.agree(x[:1], grid[:1])
    eq.pin([*x[2:], *grid[1:]], "sampled at coordinates")
    return [[*x[:2], *eq.fixed(eq.node.shape[2:])]]


def _affine_grid_axes(eq: Equations) -> list[Dims]:
    """Pass the number of matrices, one for each grid, which ``size`` [n, c, …] contains."""
    theta, size = eq.arg("theta"), eq.node.arg("size")
    assert isinstance(size, tuple)
    eq.pin(theta[1:], "a matrix maps coordinates")
    eq.states("size", (theta[0], *(n for n in size[1:] if isinstance(n, int | Polynomial))))
    return [[theta[0], *eq.fixed(eq.node.shape[1:])]]


# -- windows as positions -------------------------------------------------------------------------
def _windows_axes(eq: Equations) -> list[Dims]:
    """Pin a dimension that windows slide over."""
    x = eq.arg("self")
    dim = eq.dim("dimension", len(x))
    eq.pin([x[dim]], "cut into windows", PROJECT)
    return [[*x[:dim], Fixed(eq.node.shape[dim]), *x[dim + 1 :], Fixed(eq.node.shape[-1])]]


def _patches_axes(eq: Equations) -> list[Dims]:
    """im2col: y[-2] = Prod(c, kernel)."""
    x = eq.arg("self")
    kernel = math.prod(eq.ints("kernel_size"))
    eq.pin(x[-2:], "cut into windows")
    return [[*x[:-3], product((x[-3], Fixed(kernel))), Fixed(eq.node.shape[-1])]]


def _from_patches_axes(eq: Equations) -> list[Dims]:
    """col2im: x[-2] = Prod(c, kernel)."""
    x = eq.arg("self")
    eq.pin(x[-1:], "assembled from windows")
    channel = eq.new(eq.node.shape[-3])
    kernel = divide(x[-2].size, channel.size)
    assert kernel is not None
    eq.unify(x[-2], product((channel, Fixed(kernel))))
    return [[*x[:-2], eq.resolve(channel), *eq.fixed(eq.node.shape[-2:])]]


_with_indices = replace(_pool, family="pooling", backward=saves("self", results=(1,)))

_OTHERS = {
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices": _with_indices,
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d": _with_indices,
    "reflection_pad1d reflection_pad2d reflection_pad3d": replace(_pool, backward=INPUT),
    "replication_pad1d replication_pad2d replication_pad3d": replace(_pool, backward=INPUT),
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa": replace(_pool, backward=NOTHING),
    "max_unpool2d max_unpool3d": Operator(
        _unpooling_axes, zeros.first, family="pooling", backward=saves("indices")
    ),
    "fractional_max_pool2d fractional_max_pool3d": replace(_pool, family="pooling"),
    "grid_sampler grid_sampler_2d grid_sampler_3d": Operator(
        _sampled_axes, zeros.first, backward=saves("input", "grid")
    ),
    "affine_grid_generator": Operator(_affine_grid_axes),
    "unfold": Operator(_windows_axes, zeros.first, backward=NOTHING),
    "im2col": Operator(_patches_axes, zeros.first, backward=NOTHING),
    "col2im": Operator(_from_patches_axes, zeros.first, backward=NOTHING),
}

ROWS = rows(_POOLS, _UPSAMPLINGS, _OTHERS)
