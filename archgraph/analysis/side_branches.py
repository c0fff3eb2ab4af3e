"""Adapters: small branches of two layers parallel to, or after, a layer.

A *low-rank* branch (LoRA) takes the input of its base layer, a *bottleneck* takes the base's
result. Both are recognised by their form, whichever library added them; for example, PEFT adapters
are found in a traced model.
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
    """Two consecutive layers whose result is added to that of a base operator.

    Attributes:
        total: The sum.
        base: The operator to whose result the branch is added.
        layer: The operator with the weight: the base, or the one whose rows the base reshapes.
        nodes: Operators that belong to the branch alone, in topological order.
        down: Weight of the first layer.
        rank_dim: Dimension of ``down`` that counts the first layer's outputs; 1 for an embedding.
        up: Weight of the second layer.
        scale: Factor by which their result is multiplied.
        low_rank: Whether the layers take the base's input and nothing is between them.
        weight: The base's weight, which a low-rank branch changes by the product of its layers.
            Empty if that weight is computed, or if anything but a dropout precedes the layers.
        transposed: Whether that weight is [in, out].
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
    """Return the adapters of a graph, in topological order of their sums.

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
    """Return the low-rank adapters of a graph, in topological order of their sums."""
    return [branch for branch in side_branches(graph) if branch.low_rank]


class _Layer(NamedTuple):
    """A linear map: its input, and its weight and bias; empty if they are computed."""

    input: Value = None
    weight: str = ""
    bias: Value = None
    transposed: bool = False

    @classmethod
    def of(cls, node: Node) -> _Layer:
        """Return an operator as a linear map; all fields are empty for any other operator."""
        fact = row(node.op).linear_map
        if fact is None:
            return cls()
        weight = node.arg(fact.weight)
        if not isinstance(weight, Leaf):
            return cls(node.arg(fact.input))
        return cls(node.arg(fact.input), weight.name, node.arg(fact.bias), fact.transposed)


def _branch(graph: ArchGraph, total: Node, base: Ref, branch: Ref) -> SideBranch | None:
    """Return the adapter whose result a sum adds to a base, if there is one.

    1. The base may reshape the rows of a linear map whose input is flattened (GPT-2).
    2. Go back from the branch, through operators with one operand and one use, to the base's result
       or its input.
    3. These operators are two linear maps, products with numbers, and pointwise operators.
    4. From the base's own input: a low-rank branch, if nothing is between the maps.
    5. From the base's result: a bottleneck, if the sum is in turn one operand of a sum. A block of
       a residual perceptron has the same form, but its result is the stream.
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
    """Return the operand of a reshape that keeps the last dimension; otherwise the value itself."""
    node = graph.node[value.name] if isinstance(value, Ref) else None
    source = node.arg("self") if node and node.op == "aten.reshape" else None
    if node and isinstance(source, Ref) and graph.node[source.name].shape[-1:] == node.shape[-1:]:
        return source
    return value


def _factor(total: Node, branch: Ref) -> float | None:
    """Return a sum's factor for a branch; None if it is not a number, or scales the base."""
    alpha = total.arg("alpha", 1)
    if isinstance(alpha, (int, float)) and (alpha == 1 or total.arg("other") == branch):
        return alpha
    return None


def _way_back(graph: ArchGraph, end: Ref, starts: Collection[Value]) -> tuple[list[Node], Ref]:
    """Return the operators from a result back to one of ``starts``, and that start.

    The last operator comes first. The list is empty if the path forks.
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
    """Read a chain of operators, the last one first, as two layers; None if it is not that.

    In this order: products with numbers, a linear map, pointwise operators, a linear map, and
    pointwise operators (a dropout).

    Returns:
        The first layer; the second layer; the numbers; whether the layers have no biases and
        nothing is between them; whether nothing but dropouts precedes them.
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
    """Return whether another sum uses a sum's result, through pointwise operators alone."""
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
    """Return a graph without some adapters, and the removed operators by sum.

    The base operator takes the place and the name of the sum.
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
