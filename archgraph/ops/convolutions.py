"""Convolutions and transposed convolutions, of which only the channels can be cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, TensorType, Value
from archgraph.layout.layouts import Fixed, product
from archgraph.ops.backward import saves
from archgraph.ops.equations import Dims, Dirt, Equations
from archgraph.ops.layers import TorchLayer, weight_and_bias
from archgraph.ops.operands import Amount, Counted, leaf_shape, numel
from archgraph.ops.operator import Growth, LinearMap, Operator
from archgraph.ops.schema import op_schema
from archgraph.ops.starts import Identity
from archgraph.ops.types import Args, certain, ints, number, optional, positive, real, slid
from archgraph.ops.weighted import FAN_IN, OUT, OUT_IN, contract_weight, masked_outputs


def _each(value: Value, rank: int, default: int) -> tuple[Any, ...]:
    """Return a number for each dimension; the argument may be one number for all dimensions."""
    numbers = (default,) if value is None or value == () else value
    numbers = numbers if isinstance(numbers, tuple) else (numbers,)
    return numbers * rank if len(numbers) == 1 else numbers


# -- convolution ----------------------------------------------------------------------------------
def _convolution_axes(eq: Equations) -> list[Dims]:
    """x[1] = Prod(groups, w[1]); w[0] = Prod(groups, o); y[1] = w[0]."""
    x, w = eq.arg("input"), eq.arg("weight")
    channel = len(x) - len(w) + 1
    if eq.value("groups", 1) == 1:
        eq.unify(x[channel], w[1])
    else:
        group, _ = eq.grouped(w[0], eq.value("groups"), "groups")
        eq.unify(x[channel], product((group, w[1])))
    eq.pin(w[2:], "kernel size")
    contract_weight(eq, w[1], 1, channel)
    eq.vectors(w[0], "bias")
    spatial: Dims = []
    strides = _each(eq.value("stride"), len(w) - 2, 1)
    paddings = _each(eq.value("padding"), len(w) - 2, 0)
    for index, (pixels, kernel) in enumerate(zip(x[channel + 1 :], w[2:], strict=True)):
        stride, padding = strides[index], paddings[index]
        if kernel.size == 1 == stride and padding in (0, "valid"):  # acts on single positions
            spatial.append(pixels)
        else:
            eq.pin([pixels], "convolved over")
            spatial.append(Fixed(eq.node.shape[channel + 1 + index]))
    return [[*x[:channel], w[0], *spatial]]


def _convolution_zero(eq: Equations, results: list[Dims]) -> list[Dirt]:
    """Return where a convolution may be nonzero: not in masked channels, whose kernels are zero.

    Channels come before the dimensions of the kernel.
    """
    (dims,) = results
    return masked_outputs(eq, dims, len(dims) - len(eq.arg("weight")) + 1)


def _convolution_macs(of: Counted) -> Amount:
    """Count the MACs of a convolution: one kernel per position of the result."""
    return numel(of.result) * numel(of.arg("weight")[1:])


def _convolution_type(args: Args) -> TensorType:
    """[n, in, …] and [out, in / groups, …] give [n, out, …]."""
    x, w = real(args.get("input"), args.get("weight"))
    rank = len(x.shape) - 2
    certain(len(x.shape) == len(w.shape), rank >= 1)
    groups = number(args, "groups", 1, int)
    (inside, *sizes), (out, each, *kernel) = positive(x.shape[1:]), positive(w.shape)
    # Sizes below divide by the number of groups, so check this first.
    certain(groups >= 1)
    certain(inside == each * groups, out % groups == 0)
    optional(args, ("bias",), (out,), x.dtype)
    options = (("stride", 1), ("padding", 0), ("dilation", 1))
    stride, padding, dilation = (ints(args, name, rank, one) for name, one in options)
    spatial = slid(sizes, kernel, stride, padding, dilation)
    return TensorType((x.shape[0], out, *spatial), x.dtype)


def _convolution_identity(graph: ArchGraph, node: Node) -> Identity:
    """Return weights that make a convolution the identity: a kernel with ones at its centre."""
    shape = leaf_shape(graph, node.arg("weight"))
    if not shape:
        return "its kernel is not a parameter"
    out, inside, *kernel = shape
    groups = node.arg("groups", 1)
    stride = _each(node.arg("stride"), len(kernel), 1)
    dilation = _each(node.arg("dilation"), len(kernel), 1)
    padding = node.arg("padding", 0)
    centred = tuple(d * (k // 2) for d, k in zip(dilation, kernel, strict=True))
    if not isinstance(groups, int) or out != inside * groups:
        return f"has {out} output channels for {inside} input channels"
    if any(s != 1 for s in stride):
        return "has a stride"
    if any(k % 2 == 0 for k in kernel):
        return "has an even kernel"
    if padding != "same" and _each(padding, len(kernel), 0) != centred:
        return "is not padded to its input's size"
    return {"weight": ("dirac", {"groups": groups}), "bias": ("zeros", {})}


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _convolution_layer(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.Conv1d`` to ``3d`` or ``nn.ConvTranspose1d`` to ``3d``, by the kernel's rank."""
    leaves, image = weight_and_bias(node), node.arg("input")
    first, second, *kernel = leaf_shape(graph, leaves["weight"]) or (0, 0)
    rank, groups = len(kernel), node.arg("groups", 1)
    arguments = op_schema(node.op).by_name
    padding = node.arg("padding", arguments["padding"].default)
    if not 1 <= rank <= 3 or not isinstance(groups, int):
        return None
    transposed = "output_padding" in arguments
    channels = (first, second * groups) if transposed else (second * groups, first)
    options: dict[str, Any] = dict(zip(("in_channels", "out_channels"), channels, strict=True))
    options |= {"kernel_size": tuple(kernel), "groups": groups, "bias": leaves["bias"] is not None}
    options["padding"] = padding if isinstance(padding, str) else _each(padding, rank, 0)
    numbers = {"stride": 1, "dilation": 1} | ({"output_padding": 0} if transposed else {})
    options |= {name: _each(node.arg(name), rank, one) for name, one in numbers.items()}
    kind = (_TRANSPOSED if transposed else _CONVOLUTIONS)[rank - 1]
    return TorchLayer(kind, options, leaves, (image,))


_convolution = Operator(
    _convolution_axes,
    _convolution_zero,
    _convolution_macs,
    FAN_IN,
    sides=OUT_IN,
    weighted=True,
    growth=Growth(affine=OUT, identity=_convolution_identity),
    type=_convolution_type,
    layer=_convolution_layer,
    backward=saves("input", "weight"),  # also if the weight is frozen
)


# -- transposed convolution: the input's channels are the weight's first dimension ---------------
def _transposed_axes(eq: Equations) -> list[Dims]:
    """x[1] = w[0] = Prod(groups, i); y[1] = Prod(groups, w[1])."""
    x, w = eq.arg("input"), eq.arg("weight")
    channel = len(x) - len(w) + 1
    eq.unify(x[channel], w[0])
    inside, out = w[0], w[1]
    if eq.value("groups", 1) != 1:
        group, inside = eq.grouped(w[0], eq.value("groups"), "groups")
        out = product((group, w[1]))
    eq.pin(w[2:], "kernel size")
    contract_weight(eq, inside, 0, channel)
    eq.vectors(out, "bias")
    eq.pin(x[channel + 1 :], "convolved over")
    return [[*x[:channel], out, *eq.fixed(eq.node.shape[channel + 1 :])]]


def _transposed_macs(of: Counted) -> Amount:
    """Count the MACs of a transposed convolution: one kernel per position of the input."""
    return numel(of.arg("input")) * numel(of.arg("weight")[1:])


_transposed = replace(
    _convolution,
    rule=_transposed_axes,
    macs=_transposed_macs,
    sides={**OUT_IN, "weight": ("in", "out", "kernel", "kernel", "kernel")},
    # No identity: it is used where images grow, but a repeated block must keep their size.
    growth=Growth(affine={"weight": 1, "bias": 0}),
    type=None,
)


# -- either kind, selected by a flag ---------------------------------------------------------------
def _any_axes(eq: Equations) -> list[Dims]:
    """Relate the axes of a convolution with a flag for whether it is transposed."""
    return (_transposed_axes if eq.value("transposed") is True else _convolution_axes)(eq)


def _any_macs(of: Counted) -> Amount:
    """Count the MACs of a convolution with a flag for whether it is transposed."""
    return (_transposed_macs if of.node.arg("transposed") is True else _convolution_macs)(of)


ROWS = {
    "conv1d conv2d conv3d": replace(
        _convolution, linear_map=LinearMap(steps=("stride", "padding", "dilation"))
    ),
    "conv_transpose1d conv_transpose2d conv_transpose3d": _transposed,
    "convolution": replace(_convolution, rule=_any_axes, macs=_any_macs, type=None, layer=None),
}
