"""List the layers of a graph: operators with their parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Value, per_graph, replace, show


@dataclass(frozen=True, slots=True)
class Layer:
    """An operator with weights.

    Attributes:
        node: Name of the operator. Parameters and buffers that no operator uses form a layer with
            an empty name.
        kind: Description without names: the operator, its arguments, and the roles and types of its
            parameters and buffers. A parameter that an earlier layer also uses (tied weights)
            appears as a number: its index in the order of first use.
        entries: Names of the parameters and buffers that no earlier layer uses, in argument order.
    """

    node: str
    kind: str
    entries: tuple[str, ...]


@takes_graph
@per_graph
def layers(graph: ArchGraph) -> tuple[Layer, ...]:
    """Return the layers in topological order.

    Every parameter and buffer belongs to exactly one layer, the first layer that uses it.

    Args:
        graph: The architecture.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
        >>> for layer in layers(trace(net, zeros(1, 3)).graph):
        ...     print(layer.entries)
        ('0.weight', '0.bias')
        ('2.weight',)
    """
    number: dict[str, int] = {}
    listed = []
    for node in graph.nodes:
        known = len(number)  # a leaf with a lower number is tied to an earlier layer
        fresh = [leaf for leaf in dict.fromkeys(node.leaves()) if leaf not in number]
        number.update(zip(fresh, range(known, known + len(fresh)), strict=True))
        entries = tuple(name for name in fresh if graph.param[name].role != "constant")
        if entries:
            listed.append(Layer(node.name, _kind(graph, node, number, known), entries))
    rest = tuple(name for name in graph.state_names if name not in number)
    if rest:
        kinds = ", ".join(_leaf(graph, name) for name in rest)
        listed.append(Layer("", f"unused({kinds})", rest))
    return tuple(listed)


def _kind(graph: ArchGraph, node: Node, number: Mapping[str, int], known: int) -> str:
    def anonymous(value: Value) -> Value:
        if isinstance(value, Ref):
            return Ref("")
        if isinstance(value, Leaf):
            index = number[value.name]
            return Ref(str(index) if index < known else _leaf(graph, value.name))
        return value

    args = ", ".join(f"{name}={show(replace(value, anonymous))}" for name, value in node.args)
    return f"{node.op}({args})"


def _leaf(graph: ArchGraph, name: str) -> str:
    param = graph.param[name]
    return f"{param.role} {param.type}"
