"""Adapters: small branches of two layers beside a layer.

A *low-rank* branch has the input of the layer that it stands beside (LoRA), a *bottleneck* its
result. Both are known by their form, whoever wrote them: PEFT's are found in a traced model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from archgraph.graph.ir import ArchGraph, Leaf, Node, Ref, Value, per_graph
from archgraph.ops.table import row


@dataclass(frozen=True, slots=True)
class SideBranch:
    """Two layers, one after the other, whose result is added to that of an operator.

    Attributes:
        total: The sum.
        base: The operator beside which they stand.
        nodes: What is only theirs, in topological order.
        down: Weight of the first layer.
        rank_dim: Its dimension that counts what the first layer gives.
        up: Weight of the second layer.
        scale: What their result is multiplied by.
        low_rank: Whether nothing stands between them, and they have the base's input.
    """

    total: str
    base: str
    nodes: tuple[str, ...]
    down: str
    rank_dim: int
    up: str
    scale: float
    low_rank: bool


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
    pairs = ((n, n.arg("self"), n.arg("other")) for n in graph.nodes if row(n.op).merges)
    tried = (
        _branch(graph, node, base, branch)
        for node, left, right in pairs
        for base, branch in ((left, right), (right, left))
        if isinstance(base, Ref) and isinstance(branch, Ref)
    )
    by_total: dict[str, SideBranch] = {}
    for branch in tried:
        if branch is not None:
            by_total.setdefault(branch.total, branch)
    return tuple(by_total.values())


def _branch(graph: ArchGraph, total: Node, base: Ref, branch: Ref) -> SideBranch | None:
    """Return the adapter whose result a sum adds to a base, if it is one.

    1. Go back from the branch: products with numbers, a linear map, pointwise operators, a linear
       map, again pointwise ones (a dropout), each used once.
    2. From the base's own input: a low-rank branch, if nothing stands between the maps.
    3. From the base's result: a bottleneck, if the sum is in turn one branch of a sum. A block of a
       residual perceptron has the same form, but its result is the stream.
    """
    layer, outputs = graph.node[base.name], graph.output_refs()
    fact = row(layer.op).linear_map
    before = layer.arg(fact.input) if fact else None
    alpha = total.arg("alpha", 1)
    if base.name in outputs or total.types != layer.types or not isinstance(alpha, (int, float)):
        return None
    scale = alpha if total.arg("other") == branch else 1
    nodes, maps, between = list[Node](), list[Node](), False
    source: Value = branch
    while source not in (base, before):  # 1
        if not isinstance(source, Ref):
            return None
        node = graph.node[source.name]
        operands, factor = [v for _, v in node.args if isinstance(v, Ref)], node.arg("other")
        if len(operands) != 1 or len(graph.users[node.name]) != 1 or node.name in outputs:
            return None
        if row(node.op).linear_map is not None:
            maps.append(node)
        elif not maps and isinstance(factor, (int, float)) and row(node.op).growth.scales == "one":
            scale *= factor
        elif maps and row(node.op).pointwise and not any(node.leaves()):
            between |= len(maps) == 1
        else:
            return None
        nodes.append(node)
        source = operands[0]
    if len(maps) != 2:
        return None
    up, down = ((n.arg(f.weight), n.arg(f.bias)) for n in maps if (f := row(n.op).linear_map))
    if not isinstance(up[0], Leaf) or not isinstance(down[0], Leaf):
        return None
    names = tuple(n.name for n in reversed(nodes))
    users = set(graph.users[base.name])
    low_rank = source == before and not between and up[1] is down[1] is None  # 2
    bottleneck = source == base and layer.op != "input" and _is_operand(graph, total)  # 3
    if users != ({total.name} if low_rank else {total.name, names[0]}):
        return None
    if not low_rank and not bottleneck:
        return None
    first = row(maps[1].op).linear_map
    dim = 1 if first is not None and first.transposed else 0
    return SideBranch(
        total.name, base.name, names, down[0].name, dim, up[0].name, float(scale), low_rank
    )


def _is_operand(graph: ArchGraph, total: Node) -> bool:
    """Return whether a sum's result goes into another sum, through pointwise operators alone."""
    users = graph.users[total.name]
    while len(users) == 1:
        user = graph.node[users[0]]
        if row(user.op).merges:
            return True
        if not row(user.op).pointwise:
            return False
        users = graph.users[user.name]
    return False


def without(
    graph: ArchGraph, branches: Iterable[SideBranch]
) -> tuple[ArchGraph, dict[str, list[str]]]:
    """Return a graph without some adapters, and by sum the operators that are gone.

    Each sum is the operator beside which its branch stands, so that it keeps its name.
    """
    gone: dict[str, list[str]] = {}
    nodes = dict(graph.node)
    for branch in branches:
        nodes[branch.total] = dataclasses.replace(nodes.pop(branch.base), name=branch.total)
        inner = gone.pop(branch.base, [])  # an adapter of a layer that has another one
        gone[branch.total] = [*inner, branch.base, *branch.nodes]
        for name in branch.nodes:
            del nodes[name]
    return (graph.replace(nodes=tuple(nodes.values())) if gone else graph), gone
