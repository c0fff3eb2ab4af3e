"""The ``torch.nn`` module that computes an operator, with its constructor's arguments.

A rule takes a graph and a node and returns a :class:`TorchLayer`, or None if no layer of
``torch.nn`` computes exactly this call. It only looks at arguments. The room that builds modules
checks whether the leaves belong to the layer and whether its path contains other operators.
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
        leaves: For each of the layer's parameters and buffers, by the layer's own name, the
            operator's argument that it holds; None if the call lacks it.
        inputs: Arguments of the call.
        counter: Name of the buffer that counts training batches; empty if there is none.
        counts: Whether a call in training increments the counter.
        flag: Argument that selects training; the layer follows its own mode. None if the layer
            computes the same in both modes.
    """

    kind: type[nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    leaves: Mapping[str, Value] = field(default_factory=dict)
    inputs: tuple[Value, ...] = field(default=(), compare=False)
    counter: str = ""
    counts: bool = False
    flag: Value = field(default=None, compare=False)

    def module(self) -> nn.Module:
        """Create the module, with its tensors on the meta device."""
        # Layers without weights do not take a device.
        weighted = {"device": "meta"} if self.leaves else {}
        return self.kind(**self.options, **weighted)


LayerRule: TypeAlias = Callable[[ArchGraph, Node], TorchLayer | None]


def arguments_of(node: Node, *names: str) -> dict[str, Any]:
    """Return the given arguments that a node has, that is, those that differ from their defaults.

    Layers have the same defaults as their operators, so the other arguments need not be passed.
    """
    return {k: v for k, v in node.args if k in names}


def weight_and_bias(node: Node) -> dict[str, Value]:
    """Return the weight and bias arguments of an operator, if its schema has them."""
    return {
        name: node.arg(name) for name in ("weight", "bias") if name in op_schema(node.op).by_name
    }


def one_for_all(value: Value) -> Value:
    """Return one number if all dimensions have the same, as in common usage."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


# -- layers with weights --------------------------------------------------------------------------
def weighted(kind: type[nn.Module], sizes: Sequence[str], *inputs: str) -> LayerRule:
    """Return the rule of a layer with a weight, and with a bias if the operator has one.

    Args:
        kind: The module's class.
        sizes: Arguments of its constructor for the sizes of the weight, in order.
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
    """Return the rule of a layer with one input whose options have the operator's names."""
    names = frozenset(inspect.signature(kind).parameters)

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        (_, value), *others = node.args  # the input is the first argument
        options = {k: one_for_all(v) for k, v in others}
        return TorchLayer(kind, options, inputs=(value,)) if options.keys() <= names else None

    return rule
