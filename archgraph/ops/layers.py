"""Layers: the ``torch.nn`` module that computes an operator, with its constructor's arguments.

A rule takes a graph and a node and gives a :class:`TorchLayer`, or None where no layer of
``torch.nn`` computes exactly this call. It speaks of arguments only; whether the leaves are the
layer's own, and whether the module's path has no other work, is for the room that builds modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

from archgraph.graph.ir import ArchGraph, Node, Value
from archgraph.ops.operands import leaf_shape
from archgraph.ops.schema import op_schema


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


def arguments_of(node: Node, *names: str) -> dict[str, Any]:
    """Return those of some arguments that differ from their defaults.

    Layers have the defaults of their operators, so that the others need not be passed.
    """
    return {k: v for k, v in node.args if k in names}


def weight_and_bias(node: Node) -> dict[str, Value]:
    """Return the arguments of an operator that are a weight and a bias, if it has them."""
    return {
        name: node.arg(name) for name in ("weight", "bias") if name in op_schema(node.op).by_name
    }


def one_for_all(value: Value) -> Value:
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
        leaves = weight_and_bias(node)
        shape = leaf_shape(graph, leaves["weight"])
        if len(shape) != len(sizes):
            return None
        options: dict[str, Any] = dict(zip(sizes, shape, strict=True))
        if "bias" in leaves:
            options["bias"] = leaves["bias"] is not None
        return TorchLayer(kind, options, leaves, tuple(map(node.arg, inputs)))

    return rule


# -- layers without weights -----------------------------------------------------------------------
def same_options(kind: type[nn.Module]) -> LayerRule:
    """Return the rule of a layer of one input, whose options are the operator's by name."""
    names = frozenset(inspect.signature(kind).parameters)

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        (_, value), *others = node.args  # an operator has its input first
        options = {k: one_for_all(v) for k, v in others}
        return TorchLayer(kind, options, inputs=(value,)) if options.keys() <= names else None

    return rule
