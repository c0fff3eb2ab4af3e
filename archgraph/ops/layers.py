"""Layers: the ``torch.nn`` module that computes an operator, with its constructor's arguments.

A rule takes a graph and a node and gives a :class:`TorchLayer`, or None where no layer of
``torch.nn`` computes exactly this call. It speaks of arguments only; whether the leaves are the
layer's own, and whether the module's path has no other work, is for the room that builds modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

from archgraph.graph.ir import ArchGraph, Leaf, Mode, Node, Ref, Size, Value, in_mode
from archgraph.ops.costs import type_of
from archgraph.ops.schema import schema


@dataclass(frozen=True)
class TorchLayer:
    """A layer of ``torch.nn`` and how it is called.

    Attributes:
        kind: The module's class.
        options: Arguments of its constructor.
        leaves: The argument of the operator that is each of its parameters and buffers, by the
            layer's own name; those that the call lacks are None.
        inputs: What it is called with.
        counter: The buffer for the number of batches in training, if it has one.
        counts: Whether a call in training adds one to it.
        flag: What says that it trains; a layer follows its own mode. None: the same in both.
    """

    kind: type[nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    leaves: Mapping[str, Value] = field(default_factory=dict)
    inputs: tuple[Value, ...] = field(default=(), compare=False)
    counter: str = ""
    counts: bool = False
    flag: Value = field(default=None, compare=False)

    def made(self) -> nn.Module:
        """The module; its tensors are on the meta device."""
        weighted = {"device": "meta"} if self.leaves else {}
        return self.kind(**self.options, **weighted)


LayerRule: TypeAlias = Callable[[ArchGraph, Node], TorchLayer | None]


def _shape(graph: ArchGraph, value: Value) -> tuple[Size, ...]:
    """The shape of an operand, which may be another one in each mode; nothing without a type."""
    type_ = type_of(graph, in_mode(value, True))
    return type_.shape if type_ is not None else ()


def _leaf_shape(graph: ArchGraph, value: Value) -> tuple[int, ...]:
    """The shape of a leaf; nothing if the value is computed."""
    return graph.param[value.name].shape if isinstance(value, Leaf) else ()


def _each(value: Value, rank: int, default: int) -> Value:
    """An argument that is one number for all dimensions, or one for each."""
    numbers = (default,) if value is None or value == () else value
    numbers = numbers if isinstance(numbers, tuple) else (numbers,)
    return numbers * rank if len(numbers) == 1 else numbers


# -- layers with weights --------------------------------------------------------------------------


def linear(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.Linear``."""
    weight, bias = node.arg("weight"), node.arg("bias")
    shape = _leaf_shape(graph, weight)
    if len(shape) != 2:
        return None
    options = {"in_features": shape[1], "out_features": shape[0], "bias": bias is not None}
    return TorchLayer(nn.Linear, options, {"weight": weight, "bias": bias}, (node.arg("input"),))


def bilinear(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.Bilinear``."""
    weight, bias = node.arg("weight"), node.arg("bias")
    shape = _leaf_shape(graph, weight)
    if len(shape) != 3:
        return None
    names = ("out_features", "in1_features", "in2_features")
    options = dict(zip(names, shape, strict=True)) | {"bias": bias is not None}
    inputs = (node.arg("input1"), node.arg("input2"))
    return TorchLayer(nn.Bilinear, options, {"weight": weight, "bias": bias}, inputs)


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def convolution(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``, by the rank of the kernel."""
    return _convolution(graph, node, transposed=False)


def transposed_convolution(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.ConvTranspose1d`` to ``nn.ConvTranspose3d``, by the rank of the kernel."""
    return _convolution(graph, node, transposed=True)


def _convolution(graph: ArchGraph, node: Node, *, transposed: bool) -> TorchLayer | None:
    weight, bias, given = node.arg("weight"), node.arg("bias"), node.arg("input")
    first, second, *kernel = _leaf_shape(graph, weight) or (0, 0)
    rank, groups = len(kernel), node.arg("groups", 1)
    padding = node.arg("padding", schema(node.op).by_name["padding"].default)
    if not 1 <= rank <= 3 or not isinstance(groups, int):
        return None
    if len(_shape(graph, given)) != rank + 2:  # without a batch: other checks
        return None
    ways = (first, second * groups) if transposed else (second * groups, first)
    options: dict[str, Any] = dict(zip(("in_channels", "out_channels"), ways, strict=True))
    options |= {
        "kernel_size": tuple(kernel),
        "stride": _each(node.arg("stride"), rank, 1),
        "padding": padding if isinstance(padding, str) else _each(padding, rank, 0),
        "dilation": _each(node.arg("dilation"), rank, 1),
        "groups": groups,
        "bias": bias is not None,
    }
    if transposed:
        options["output_padding"] = _each(node.arg("output_padding"), rank, 0)
    kind = (_TRANSPOSED if transposed else _CONVOLUTIONS)[rank - 1]
    return TorchLayer(kind, options, {"weight": weight, "bias": bias}, (given,))


def embedding(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.Embedding``."""
    weight = node.arg("weight")
    shape, padding = _leaf_shape(graph, weight), node.arg("padding_idx", -1)
    if len(shape) != 2 or not isinstance(padding, int):
        return None
    options: dict[str, Any] = {"num_embeddings": shape[0], "embedding_dim": shape[1]}
    options |= {
        "padding_idx": None if padding < 0 else padding,
        "scale_grad_by_freq": node.arg("scale_grad_by_freq", False),
        "sparse": node.arg("sparse", False),
    }
    return TorchLayer(nn.Embedding, options, {"weight": weight}, (node.arg("indices"),))


def prelu(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.PReLU``."""
    weight = node.arg("weight")
    shape = _leaf_shape(graph, weight)
    if len(shape) != 1:
        return None
    return TorchLayer(
        nn.PReLU, {"num_parameters": shape[0]}, {"weight": weight}, (node.arg("self"),)
    )


_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE_NORMS = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}


def batch_norm(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.BatchNorm1d`` to ``nn.BatchNorm3d``, by the rank of the input."""
    return _statistics(graph, node, _BATCH_NORMS, "training", counts=True)


def instance_norm(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.InstanceNorm1d`` to ``nn.InstanceNorm3d``, by the rank of the input."""
    return _statistics(graph, node, _INSTANCE_NORMS, "use_input_stats", counts=False)


def _statistics(
    graph: ArchGraph, node: Node, kinds: Mapping[int, type[nn.Module]], flag: str, *, counts: bool
) -> TorchLayer | None:
    """A norm that may keep running statistics, which are used in evaluation alone."""
    names = ("weight", "bias", "running_mean", "running_var")
    leaves: dict[str, Value] = {name: node.arg(name) for name in names}
    affine, tracks = leaves["weight"] is not None, leaves["running_mean"] is not None
    shape = _shape(graph, node.arg("input"))
    kind = kinds.get(len(shape))
    alike = affine == (leaves["bias"] is not None) and tracks == (leaves["running_var"] is not None)
    if kind is None or not alike or not (tracks or node.arg(flag) is True):
        return None
    options: dict[str, Any] = {"num_features": shape[1]}
    options |= {k: node.arg(k) for k in ("eps", "momentum")}
    options |= {"affine": affine, "track_running_stats": tracks}
    inputs = (node.arg("input"),)
    if not tracks:
        return TorchLayer(kind, options, leaves, inputs)
    return TorchLayer(kind, options, leaves, inputs, "num_batches_tracked", counts, node.arg(flag))


def layer_norm(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.LayerNorm``."""
    options: dict[str, Any] = {"eps": node.arg("eps", 1e-5)}
    weight, bias = node.arg("weight"), node.arg("bias")
    if weight is None and bias is not None:
        return None
    if weight is not None:
        options["bias"] = bias is not None
    return _normalised(nn.LayerNorm, node, options, {"weight": weight, "bias": bias})


def rms_norm(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.RMSNorm``."""
    return _normalised(nn.RMSNorm, node, {"eps": node.arg("eps")}, {"weight": node.arg("weight")})


def _normalised(
    kind: type[nn.Module], node: Node, options: Mapping[str, Any], leaves: Mapping[str, Value]
) -> TorchLayer:
    shape = {"normalized_shape": node.arg("normalized_shape")}
    affine = {"elementwise_affine": leaves["weight"] is not None}
    return TorchLayer(kind, {**shape, **options, **affine}, leaves, (node.arg("input"),))


def group_norm(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.GroupNorm``."""
    weight, bias = node.arg("weight"), node.arg("bias")
    shape = _shape(graph, node.arg("input"))
    if len(shape) < 2 or (weight is None) != (bias is None):
        return None
    options: dict[str, Any] = {"num_groups": node.arg("num_groups"), "num_channels": shape[1]}
    options |= {"eps": node.arg("eps", 1e-5), "affine": weight is not None}
    return TorchLayer(nn.GroupNorm, options, {"weight": weight, "bias": bias}, (node.arg("input"),))


_CELL = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}


def cell(kind: type[nn.Module], gates: int, **more: Any) -> LayerRule:
    """A cell of ``torch.nn`` that takes one step."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        leaves = {name: node.arg(argument) for name, argument in _CELL.items()}
        shape = _leaf_shape(graph, leaves["weight_ih"])
        if len(shape) != 2:
            return None
        options = {"input_size": shape[1], "hidden_size": shape[0] // gates} | more
        options["bias"] = leaves["bias_ih"] is not None
        return TorchLayer(kind, options, leaves, (node.arg("input"), node.arg("hx")))

    return rule


# -- layers without weights -----------------------------------------------------------------------


def plain(kind: type[nn.Module], **names: tuple[str, Value]) -> LayerRule:
    """A layer of one input, whose options are arguments of the operator.

    Args:
        kind: The module's class.
        **names: Argument of the operator and its default, by the constructor's argument.
    """

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        options = {own: node.arg(name, default) for own, (name, default) in names.items()}
        extra = {k for k, _ in node.args} - {name for name, _ in names.values()}
        inputs = [node.arg(k) for k in ("self", "input") if k in extra]
        known = len(extra) == len(inputs) == 1 and isinstance(inputs[0], Ref | Mode)
        return TorchLayer(kind, options, inputs=tuple(inputs)) if known else None

    return rule


def hardtanh(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.ReLU6``, which is spelt as a clamp, or ``nn.Hardtanh``."""
    low, high = node.arg("min_val", -1.0), node.arg("max_val", 1.0)
    if (low, high) == (0, 6):
        return TorchLayer(nn.ReLU6, inputs=(node.arg("self"),))
    return TorchLayer(nn.Hardtanh, {"min_val": low, "max_val": high}, inputs=(node.arg("self"),))


_FEATURES = {3: nn.Dropout1d, 4: nn.Dropout2d, 5: nn.Dropout3d}


def dropout(kind: type[nn.Module] | None) -> LayerRule:
    """A dropout that follows the mode; without a class, by the rank of its input."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        given = node.arg("input")
        own = kind or _FEATURES.get(len(_shape(graph, given)))
        if own is None:
            return None
        return TorchLayer(own, {"p": node.arg("p")}, inputs=(given,), flag=node.arg("train"))

    return rule


def pooling(kind: type[nn.Module]) -> LayerRule:
    """A pooling over windows, whose stride is its kernel by default."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        options = {k: _one(v) for k, v in node.args if k != "self"}
        options["stride"] = options.get("stride") or options["kernel_size"]
        return TorchLayer(kind, options, inputs=(node.arg("self"),))

    return rule


def adaptive(kind: type[nn.Module]) -> LayerRule:
    """A pooling to a size."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        return TorchLayer(
            kind, {"output_size": _one(node.arg("output_size"))}, inputs=(node.arg("self"),)
        )

    return rule


def _one(value: Value) -> Value:
    """One number where all dimensions have the same, as people write it."""
    same = isinstance(value, tuple) and len(set(value)) == 1
    return value[0] if same and isinstance(value, tuple) else value


def upsampling(mode: str) -> LayerRule:
    """``nn.Upsample`` to a size or by a factor."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        options: dict[str, Any] = {"mode": mode}
        size, factor = node.arg("output_size"), node.arg("scale_factors")
        if (size is None) == (factor is None) or node.arg("input") is None:
            return None
        options |= {"size": size} if factor is None else {"scale_factor": _one(factor)}
        if node.arg("align_corners") is not None:
            options["align_corners"] = node.arg("align_corners")
        return TorchLayer(nn.Upsample, options, inputs=(node.arg("input"),))

    return rule


def reshape(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """``nn.Flatten`` where some dimensions become one, ``nn.Unflatten`` where one becomes some."""
    before, after = _shape(graph, node.arg("self")), node.shape
    joins = len(before) > len(after)
    longer, shorter = (before, after) if joins else (after, before)
    count = len(longer) - len(shorter) + 1
    for start in range(1, len(shorter)):  # from the second dimension: the batch is the first
        middle = longer[start : start + count]
        if any(not isinstance(s, int) for s in middle):
            continue
        whole = math.prod(s for s in middle if isinstance(s, int))
        if (*longer[:start], whole, *longer[start + count :]) == shorter and count > 1:
            last = start + count == len(longer)
            if joins:
                options = {"start_dim": start, "end_dim": -1 if last else start + count - 1}
                return TorchLayer(nn.Flatten, options, inputs=(node.arg("self"),))
            return TorchLayer(
                nn.Unflatten, {"dim": start, "unflattened_size": middle}, inputs=(node.arg("self"),)
            )
    return None
