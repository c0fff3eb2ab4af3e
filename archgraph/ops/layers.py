"""Layers: the ``torch.nn`` module that computes an operator, with its constructor's arguments.

A rule takes a graph and a node and gives a :class:`TorchLayer`, or None where no layer of
``torch.nn`` computes exactly this call. It speaks of arguments only; whether the leaves are the
layer's own, and whether the module's path has no other work, is for the room that builds modules.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from torch import nn

from archgraph.graph.ir import ArchGraph, Leaf, Node, Size, Value, in_mode
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

    def module(self) -> nn.Module:
        """Return the module; its tensors are on the meta device."""
        # Layers without weights do not take a device.
        weighted = {"device": "meta"} if self.leaves else {}
        return self.kind(**self.options, **weighted)


LayerRule: TypeAlias = Callable[[ArchGraph, Node], TorchLayer | None]


def _shape(graph: ArchGraph, value: Value) -> tuple[Size, ...]:
    """Return the shape of an operand (in training, if the modes differ); empty without a type."""
    type_ = type_of(graph, in_mode(value, True))
    return type_.shape if type_ is not None else ()


def _leaf_shape(graph: ArchGraph, value: Value) -> tuple[int, ...]:
    """Return the shape of a leaf; empty if the value is computed."""
    return graph.param[value.name].shape if isinstance(value, Leaf) else ()


def _arguments(node: Node, *names: str) -> dict[str, Any]:
    """Return those of some arguments that differ from their defaults.

    Layers have the defaults of their operators, so that the others need not be passed.
    """
    return {k: v for k, v in node.args if k in names}


def _weights(node: Node) -> dict[str, Value]:
    """Return the arguments of an operator that are a weight and a bias, if it has them."""
    return {name: node.arg(name) for name in ("weight", "bias") if name in schema(node.op).by_name}


def _each(value: Value, rank: int, default: int) -> Value:
    """Return one number for each dimension; an argument may have one for all of them."""
    numbers = (default,) if value is None or value == () else value
    numbers = numbers if isinstance(numbers, tuple) else (numbers,)
    return numbers * rank if len(numbers) == 1 else numbers


def _one(value: Value) -> Value:
    """Return one number where all dimensions have the same, as people write it."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


# -- layers with weights --------------------------------------------------------------------------


def weighted(kind: type[nn.Module], sizes: Sequence[str], *inputs: str) -> LayerRule:
    """Return the rule of a layer with a weight, and a bias if the operator has one.

    Args:
        kind: The module's class.
        sizes: Arguments of its constructor: the sizes of the weight, in order.
        *inputs: Arguments of the operator that the layer is called with.
    """

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        leaves = _weights(node)
        shape = _leaf_shape(graph, leaves["weight"])
        if len(shape) != len(sizes):
            return None
        options: dict[str, Any] = dict(zip(sizes, shape, strict=True))
        if "bias" in leaves:
            options["bias"] = leaves["bias"] is not None
        return TorchLayer(kind, options, leaves, tuple(map(node.arg, inputs)))

    return rule


_table = weighted(nn.Embedding, ("num_embeddings", "embedding_dim"), "indices")


def embedding(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.Embedding``."""
    layer, padding = _table(graph, node), node.arg("padding_idx", -1)
    if layer is None or not isinstance(padding, int):
        return None
    options = _arguments(node, "scale_grad_by_freq", "sparse")
    if padding >= 0:  # the operator's -1 is none, the layer's is the last row
        options["padding_idx"] = padding
    return replace(layer, options={**layer.options, **options})


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def convolution(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.Conv1d`` to ``3d`` or ``nn.ConvTranspose1d`` to ``3d``, by the kernel's rank."""
    leaves, image = _weights(node), node.arg("input")
    first, second, *kernel = _leaf_shape(graph, leaves["weight"]) or (0, 0)
    rank, groups = len(kernel), node.arg("groups", 1)
    arguments = schema(node.op).by_name
    padding = node.arg("padding", arguments["padding"].default)
    if not 1 <= rank <= 3 or not isinstance(groups, int):
        return None
    if len(_shape(graph, image)) != rank + 2:  # a layer checks other things without a batch
        return None
    transposed = "output_padding" in arguments
    channels = (first, second * groups) if transposed else (second * groups, first)
    options: dict[str, Any] = dict(zip(("in_channels", "out_channels"), channels, strict=True))
    options |= {
        "kernel_size": tuple(kernel),
        "stride": _each(node.arg("stride"), rank, 1),
        "padding": padding if isinstance(padding, str) else _each(padding, rank, 0),
        "dilation": _each(node.arg("dilation"), rank, 1),
        "groups": groups,
        "bias": leaves["bias"] is not None,
    }
    if transposed:
        options["output_padding"] = _each(node.arg("output_padding"), rank, 0)
    kind = (_TRANSPOSED if transposed else _CONVOLUTIONS)[rank - 1]
    return TorchLayer(kind, options, leaves, (image,))


def statistics(kinds: Mapping[int, type[nn.Module]], flag: str, *, counts: bool) -> LayerRule:
    """Return the rule of a norm that may have running statistics, used in evaluation alone.

    Args:
        kinds: The module's class by the rank of the input.
        flag: Argument of the operator that says that it takes the statistics of its input.
        counts: Whether the layer counts batches.
    """

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        names = ("weight", "bias", "running_mean", "running_var")
        leaves = {name: node.arg(name) for name in names}
        affine, bias, tracks, variance = (leaves[name] is not None for name in names)
        image = node.arg("input")
        shape = _shape(graph, image)
        kind = kinds.get(len(shape))
        if kind is None or affine != bias or tracks != variance:
            return None
        options = {"num_features": shape[1], "affine": affine, "track_running_stats": tracks}
        options |= _arguments(node, "eps", "momentum")
        if tracks:
            counter = "num_batches_tracked"
            return TorchLayer(kind, options, leaves, (image,), counter, counts, node.arg(flag))
        return TorchLayer(kind, options, leaves, (image,)) if node.arg(flag) is True else None

    return rule


def normalised(kind: type[nn.Module]) -> LayerRule:
    """Return the rule of a norm over the last dimensions: ``nn.LayerNorm``, ``nn.RMSNorm``."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        leaves = _weights(node)
        affine, bias = leaves["weight"] is not None, leaves.get("bias") is not None
        if bias and not affine:
            return None
        options = _arguments(node, "normalized_shape", "eps") | {"elementwise_affine": affine}
        if affine and "bias" in leaves:
            options["bias"] = bias
        return TorchLayer(kind, options, leaves, (node.arg("input"),))

    return rule


def group_norm(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.GroupNorm``."""
    leaves, image = _weights(node), node.arg("input")
    shape, affine = _shape(graph, image), leaves["weight"] is not None
    if len(shape) < 2 or affine != (leaves["bias"] is not None):
        return None
    options = {"num_channels": shape[1], "affine": affine}
    options |= _arguments(node, "num_groups", "eps")
    return TorchLayer(nn.GroupNorm, options, leaves, (image,))


_CELL = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}


def cell(kind: type[nn.Module], gates: int, **more: Any) -> LayerRule:
    """Return the rule of a cell that takes one step."""

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


def plain(kind: type[nn.Module]) -> LayerRule:
    """Return the rule of a layer of one input, whose options are the operator's by name."""
    names = frozenset(inspect.signature(kind).parameters)

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        (_, value), *others = node.args  # an operator has its input first
        options = {k: _one(v) for k, v in others}
        return TorchLayer(kind, options, inputs=(value,)) if options.keys() <= names else None

    return rule


_hardtanh = plain(nn.Hardtanh)


def hardtanh(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.ReLU6``, which is spelt as a clamp, or ``nn.Hardtanh``."""
    if (node.arg("min_val"), node.arg("max_val")) == (0, 6):
        return TorchLayer(nn.ReLU6, inputs=(node.arg("self"),))
    return _hardtanh(graph, node)


_FEATURES = {3: nn.Dropout1d, 4: nn.Dropout2d, 5: nn.Dropout3d}


def dropout(kind: type[nn.Module] | None) -> LayerRule:
    """Return the rule of a dropout that follows the mode; without a class, by its input's rank."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        image = node.arg("input")
        layer = kind or _FEATURES.get(len(_shape(graph, image)))
        if layer is None:
            return None
        return TorchLayer(layer, {"p": node.arg("p")}, inputs=(image,), flag=node.arg("train"))

    return rule


def upsampling(mode: str) -> LayerRule:
    """Return the rule of ``nn.Upsample`` to a size or by a factor."""

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        options: dict[str, Any] = {"mode": mode}
        size, factor = node.arg("output_size"), node.arg("scale_factors")
        if (size is None) == (factor is None) or node.arg("input") is None:
            return None
        options |= {"size": size} if factor is None else {"scale_factor": _one(factor)}
        options |= _arguments(node, "align_corners")
        return TorchLayer(nn.Upsample, options, inputs=(node.arg("input"),))

    return rule


def reshape(graph: ArchGraph, node: Node) -> TorchLayer | None:
    """Return ``nn.Flatten`` where dimensions become one, ``nn.Unflatten`` where one is split."""
    before, after = _shape(graph, node.arg("self")), node.shape
    joins = len(before) > len(after)
    longer, shorter = (before, after) if joins else (after, before)
    count = len(longer) - len(shorter) + 1
    if count == 1:
        return None
    for start in range(1, len(shorter)):  # from the second dimension: the batch is the first
        end = start + count
        middle = [size for size in longer[start:end] if isinstance(size, int)]
        joined = (*longer[:start], math.prod(middle), *longer[end:])
        if len(middle) < count or joined != shorter:
            continue
        kind: type[nn.Module] = nn.Flatten if joins else nn.Unflatten
        options: dict[str, Any] = {"dim": start, "unflattened_size": tuple(middle)}
        if joins:
            options = {"start_dim": start, "end_dim": -1 if end == len(longer) else end - 1}
        return TorchLayer(kind, options, inputs=(node.arg("self"),))
    return None
