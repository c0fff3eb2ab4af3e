"""Find adapters: small branches of two layers parallel to, or after, a layer.

A low-rank adapter (LoRA) takes the input of its base layer. A bottleneck adapter takes the result
of its base layer. Both are recognised by their operators, so adapters that PEFT added are found in
a traced model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Value, per_graph
from archgraph.ops.table import row

V = TypeVar("V", bound=Value)


@dataclass(frozen=True, slots=True)
class SideBranch:
    """An adapter: two consecutive layers whose result is added to the result of a base operator.

    Attributes:
        total: The operator that adds the two results.
        base: The operator to whose result the adapter's result is added.
        layer: The adapted layer: ``base``, or the layer before it if ``base`` is a reshape.
        nodes: Operators of the adapter, without ``total``, in topological order.
        down: Weight of the first layer.
        rank_dim: Dimension of ``down`` whose size is the rank.
        up: Weight of the second layer.
        scale: Factor by which the adapter's result is multiplied.
        low_rank: True for a low-rank adapter, whose layers take the base layer's input and have no
            operator between them.
        weight: Weight of the base layer, into which a low-rank adapter can be merged. Empty if this
            weight is computed, or if an operator other than dropout precedes the adapter's layers.
        transposed: Whether ``weight`` has the shape [in, out].
    """

    total: str
    base: str
    layer: str
    nodes: tuple[str, ...]
    down: str
    rank_dim: int
    up: str
    scale: float
    low_rank: bool
    weight: str = ""
    transposed: bool = False


@per_graph
def side_branches(graph: ArchGraph) -> tuple[SideBranch, ...]:
    """Return the adapters of a graph, in topological order.

    Args:
        graph: Any graph.

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.rewrites.lora import add_lora
        >>> graph = trace(torch.nn.Linear(3, 4), torch.zeros(1, 3)).graph
        >>> [(b.down, b.up, b.scale) for b in side_branches(add_lora(graph, 2, alpha=4).graph)]
        [('lora.down.weight', 'lora.up.weight', 2.0)]
    """
    sums = ((n, n.arg("self"), n.arg("other")) for n in graph.nodes if row(n.op).merges)
    branches = (
        _branch(graph, node, a, b) or _branch(graph, node, b, a)
        for node, a, b in sums
        if isinstance(a, Ref) and isinstance(b, Ref)
    )
    return tuple(branch for branch in branches if branch is not None)


def low_rank_branches(graph: ArchGraph) -> list[SideBranch]:
    """Return the low-rank adapters of a graph, in topological order."""
    return [branch for branch in side_branches(graph) if branch.low_rank]


class _Layer(NamedTuple):
    """A linear layer: its input, and its weight and bias, which are empty if they are computed."""

    input: Value = None
    weight: str = ""
    bias: Value = None
    transposed: bool = False

    @classmethod
    def of(cls, node: Node) -> _Layer:
        """Return an operator as a linear layer; all fields are empty for other operators."""
        fact = row(node.op).linear_map
        if fact is None:
            return cls()
        weight = node.arg(fact.weight)
        if not isinstance(weight, Leaf):
            return cls(node.arg(fact.input))
        return cls(node.arg(fact.input), weight.name, node.arg(fact.bias), fact.transposed)


def _branch(graph: ArchGraph, total: Node, base: Ref, branch: Ref) -> SideBranch | None:
    """Return the adapter whose result the operator ``total`` adds to a base; None if there is none.

    1. The base may be a reshape of the result of a linear layer whose input is flattened (GPT-2).
    2. Go back from the branch, through operators with one operand and one use, to the base's result
       or input.
    3. These operators must be two linear layers, products with numbers, and elementwise operators.
    4. If the branch starts at the base's input and no operator is between the layers, it is a
       low-rank adapter.
    5. If the branch starts at the base's result, and the sum is in turn added to another value, it
       is a bottleneck adapter. Without this condition, blocks of residual MLPs would be adapters.
    """
    node, factor = graph.node[base.name], _factor(total, branch)
    if base.name in graph.output_refs() or total.types != node.types:
        return None
    rows = _reshaped(graph, base)  # 1
    beside = _Layer.of(graph.node[rows.name])
    inputs = beside.input, _reshaped(graph, beside.input)
    nodes, source = _way_back(graph, branch, (base, *inputs))  # 2
    layers = _two_layers(nodes)  # 3
    if layers is None or factor is None:
        return None
    down, up, factors, plain, alone = layers
    names = tuple(n.name for n in reversed(nodes))
    low_rank = plain and source in inputs  # 4
    bottleneck = source == base and node.op != "input" and _is_operand(graph, total)  # 5
    readers = {total.name} if low_rank else {total.name, names[0]}
    if not (low_rank or bottleneck) or readers != {
        *graph.users[base.name],
        *graph.users[rows.name],
    } - {base.name}:
        return None
    changed = beside if low_rank and alone else _Layer()
    scale = math.prod(factors, start=factor)
    return SideBranch(
        total.name, base.name, rows.name, names, down.weight, int(down.transposed), up.weight,
        float(scale), low_rank, changed.weight, changed.transposed,
    )  # fmt: skip


def _reshaped(graph: ArchGraph, value: V) -> V | Ref:
    """Return the operand of a reshape that keeps the last dimension; otherwise ``value``."""
    node = graph.node[value.name] if isinstance(value, Ref) else None
    source = node.arg("self") if node and node.op == "aten.reshape" else None
    if node and isinstance(source, Ref) and graph.node[source.name].shape[-1:] == node.shape[-1:]:
        return source
    return value


def _factor(total: Node, branch: Ref) -> float | None:
    """Return the factor of a branch in an addition; None if it is unknown or scales the base."""
    alpha = total.arg("alpha", 1)
    if isinstance(alpha, (int, float)) and (alpha == 1 or total.arg("other") == branch):
        return alpha
    return None


def _way_back(graph: ArchGraph, end: Ref, starts: Collection[Value]) -> tuple[list[Node], Ref]:
    """Return the operators from a result back to one of ``starts``, and this start.

    The list is empty if the path forks.
    """
    nodes, outputs = list[Node](), graph.output_refs()
    while end not in starts:
        node = graph.node[end.name]
        operands = [v for _, v in node.args if isinstance(v, Ref)]
        if len(operands) != 1 or len(graph.users[node.name]) != 1 or node.name in outputs:
            return [], end
        nodes.append(node)
        end = operands[0]
    return nodes, end


def _two_layers(nodes: Sequence[Node]) -> tuple[_Layer, _Layer, Sequence[float], bool, bool] | None:
    """Read a chain of operators, the last one first, as the two layers of an adapter.

    In this order, the chain must have: products with numbers, a linear layer, elementwise
    operators, a linear layer, and elementwise operators (a dropout).

    Returns:
        The first layer; the second layer; the numbers; whether the layers have no biases and no
        operator between them; whether only dropouts precede them. None if the chain has other
        operators.
    """
    maps = [i for i, node in enumerate(nodes) if _Layer.of(node).weight]
    if len(maps) != 2:
        return None
    scaled = [n.arg("other") for n in nodes[: maps[0]] if row(n.op).growth.scales == "one"]
    factors = [v for v in scaled if isinstance(v, (int, float))]
    others = [*nodes[maps[0] + 1 : maps[1]], *nodes[maps[1] + 1 :]]
    up, down = (_Layer.of(nodes[i]) for i in maps)
    pointwise = all(row(n.op).pointwise and not any(n.leaves()) for n in others)
    if len(factors) != maps[0] or not pointwise:
        return None
    alone = all(row(n.op).rates for n in nodes[maps[1] + 1 :])
    return down, up, factors, maps[1] == maps[0] + 1 and up.bias is down.bias is None, alone


def _is_operand(graph: ArchGraph, total: Node) -> bool:
    """Return whether the result of an addition is added to another value.

    Elementwise operators may be between the two additions.
    """
    users = graph.users[total.name]
    while len(users) == 1:
        user = graph.node[users[0]]
        if row(user.op).merges:
            return True
        if not row(user.op).pointwise:
            return False
        users = graph.users[user.name]
    return False


def product_of(branch: SideBranch, up: Tensor, down: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the change ``up @ down`` of a weight with the given shape, before the scale.

    Args:
        branch: The low-rank branch of the weight.
        up: Second weight, [out, rank, 1…], with any number of dimensions.
        down: First weight, [rank, in, kernel…].
        shape: Shape of the weight.
    """
    product = torch.tensordot(up.flatten(1), down, dims=([1], [branch.rank_dim]))
    return (product.movedim(0, -1) if branch.transposed else product).reshape(tuple(shape))


def without(
    graph: ArchGraph, branches: Iterable[SideBranch]
) -> tuple[ArchGraph, dict[str, list[str]]]:
    """Return a graph without some adapters, and a dict from each ``total`` to removed operators.

    The base operator gets the place and the name of ``total``.
    """
    gone: dict[str, list[str]] = {}
    nodes = dict(graph.node)
    for branch in branches:
        nodes[branch.total] = dataclasses.replace(nodes.pop(branch.base), name=branch.total)
        inner = gone.pop(branch.base, [])  # an adapter of a layer that has another adapter
        gone[branch.total] = [*inner, branch.base, *branch.nodes]
        for name in branch.nodes:
            del nodes[name]
    return (graph.replace(nodes=tuple(nodes.values())) if gone else graph), gone
