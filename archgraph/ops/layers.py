"""Find the ``torch.nn`` module that computes an operator, and the arguments of its constructor.

A rule takes a graph and a node and returns a :class:`TorchLayer`, or None if no layer of
``torch.nn`` computes exactly this call. The rule checks only the arguments of the operator. The
package that builds modules checks that the parameters belong to the layer, and that the module's
path does not contain other operators.
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
    """A layer of ``torch.nn`` that computes an operator, and the arguments of its call.

    Attributes:
        kind: The module's class.
        options: Arguments of its constructor.
        leaves: Dict from each parameter and buffer of the layer to the argument of the operator
            that has its value; None if the call does not have this argument.
        inputs: Arguments of the operator with which the layer is called.
        counter: Name of the buffer that counts training batches; empty if there is none.
        counts: Whether a call in training increments the counter.
        flag: Value of the argument that selects training mode in the operator. None if the layer
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
        """Create the module with its tensors on the meta device."""
        # Layers without weights do not take a device.
        weighted = {"device": "meta"} if self.leaves else {}
        return self.kind(**self.options, **weighted)


LayerRule: TypeAlias = Callable[[ArchGraph, Node], TorchLayer | None]


def arguments_of(node: Node, *names: str) -> dict[str, Any]:
    """Return a dict from names to those arguments of a node that differ from their defaults.

    Layers have the same defaults as their operators, so the other arguments need not be passed.
    """
    return {k: v for k, v in node.args if k in names}


def weight_and_bias(node: Node) -> dict[str, Value]:
    """Return the weight and bias arguments of an operator, if its schema has them."""
    return {
        name: node.arg(name) for name in ("weight", "bias") if name in op_schema(node.op).by_name
    }


def one_for_all(value: Value) -> Value:
    """Return a single number if a list has the same number for all dimensions."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


# -- layers with weights --------------------------------------------------------------------------
def weighted(kind: type[nn.Module], sizes: Sequence[str], *inputs: str) -> LayerRule:
    """Return the rule of a layer with a weight, and with a bias if the operator has one.

    Args:
        kind: The module's class.
        sizes: Arguments of the constructor for the sizes of the weight, in order.
        *inputs: Arguments of the operator with which the layer is called.
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
    """Return the rule of a layer with one input.

    The options of the layer have the same names as the arguments of the operator.
    """
    names = frozenset(inspect.signature(kind).parameters)

    def rule(graph: ArchGraph, node: Node) -> TorchLayer | None:
        (_, value), *others = node.args  # the input is the first argument
        options = {k: one_for_all(v) for k, v in others}
        return TorchLayer(kind, options, inputs=(value,)) if options.keys() <= names else None

    return rule
