"""Heads: what answers behind a value of a network."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import (
    ArchGraph,
    Leaf,
    Node,
    Param,
    Ref,
    TensorType,
    Value,
    replace,
    walk,
)
from archgraph.rewrite.insert import channels, fresh


@dataclass(frozen=True, slots=True)
class Head:
    """What a head adds to a graph.

    Attributes:
        nodes: Operators, in order.
        params: Leaves.
        updates: Buffers that it assigns, with their values.
        result: What it answers.
    """

    nodes: tuple[Node, ...]
    params: tuple[Param, ...]
    updates: tuple[tuple[str, Value], ...]
    result: Value


def head_behind(
    graph: ArchGraph, end: Node, head: GraphLike | int, stem: str, where: str, node_names: set[str]
) -> Head:
    """A head behind an operator.

    Args:
        graph: The architecture.
        end: The operator.
        head: An architecture with one input and one output, or a number of classes for a mean over
            positions and a linear layer.
        stem: What the names of its leaves begin with.
        where: Section or block that ends with the operator, for messages.
        node_names: Names of nodes; those of the head join them.

    Raises:
        GraphError: For what is neither an architecture nor a number.
        RewriteError: For a head that does not take what the operator makes.
    """
    if not isinstance(head, int):
        return _attached(graph_of(head), end, stem, where, node_names)
    if type(head) is not int or head < 1:
        raise RewriteError(
            "not a head",
            where=where,
            found=head,
            expected="an architecture, or a number of classes from 1",
        )
    return _classifier(graph, end, stem, head, node_names)


def _classifier(graph: ArchGraph, end: Node, stem: str, classes: int, node_names: set[str]) -> Head:
    """A mean over all positions, then a linear layer."""
    shape, dtype = end.shape, end.dtype
    channel, wide = channels(graph, end, stem)
    nodes: list[Node] = []
    features = Ref(end.name)
    others = tuple(i for i in range(1, len(shape)) if i != channel)
    if others:
        mean = (("self", features), ("dim", others))
        pooled = TensorType((shape[0], wide), dtype)
        nodes.append(Node(fresh(node_names, "mean"), "aten.mean.dim", mean, pooled, stem))
        features = Ref(nodes[-1].name)
    weight = Param(f"{stem}.weight", TensorType((classes, wide), dtype))
    bias = Param(f"{stem}.bias", TensorType((classes,), dtype))
    linear = (("input", features), ("weight", Leaf(weight.name)), ("bias", Leaf(bias.name)))
    result = TensorType((shape[0], classes), dtype)
    nodes.append(Node(fresh(node_names, "linear"), "aten.linear", linear, result, stem))
    return Head(tuple(nodes), (weight, bias), (), Ref(nodes[-1].name))


def _attached(head: ArchGraph, end: Node, stem: str, where: str, node_names: set[str]) -> Head:
    """An architecture's operators and leaves behind an operator."""
    entries = [n for n in head.nodes if n.op == "input"]
    results = [i for i in walk(head.outputs) if isinstance(i, Ref)]
    if len(entries) != 1 or len(results) != 1 or entries[0].type != end.type:
        raise RewriteError(
            "head does not take what the section makes",
            where=where,
            found=", ".join(str(n.type) for n in entries) or "no input",
            expected=str(end.type),
        )
    rename = {entries[0].name: end.name}

    def change(value: Value) -> Value:
        match value:
            case Ref(old):
                return Ref(rename[old])
            case Leaf(old):
                return Leaf(f"{stem}.{old}")
            case _:
                return value

    nodes = []
    for node in head.nodes:
        if node.op == "input":
            continue
        rename[node.name] = fresh(node_names, node.name)
        args = tuple((k, replace(v, change)) for k, v in node.args)
        scope = f"{stem}.{node.scope}" if node.scope else stem
        name = rename[node.name]
        nodes.append(dataclasses.replace(node, name=name, args=args, scope=scope))
    params = (dataclasses.replace(p, name=f"{stem}.{p.name}", aliases=()) for p in head.params)
    updates = ((f"{stem}.{k}", replace(v, change)) for k, v in head.updates)
    return Head(tuple(nodes), tuple(params), tuple(updates), replace(head.outputs, change))
