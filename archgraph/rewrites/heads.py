"""Attach heads (classifiers) to an intermediate result of a network."""

from __future__ import annotations

from archgraph.analysis.structure import structure
from archgraph.errors import RewriteError
from archgraph.graph.argument import GraphLike, graph_of
from archgraph.graph.ir import ArchGraph, Leaf, Node, Param, Ref, TensorType, Value, refs, replace
from archgraph.rewrites.insert import channels, fresh
from archgraph.rewrites.splice import Renaming


def with_head(
    headed: ArchGraph, graph: ArchGraph, head: GraphLike | int, stem: str, where: str
) -> tuple[ArchGraph, Value]:
    """Attach a head after a section or block; return the graph and the head's output.

    Args:
        headed: The graph with the heads attached so far.
        graph: The graph without heads.
        head: An architecture, or a number of classes.
        stem: Prefix of the names of the head's parameters and buffers.
        where: The section or block after which the head is attached.

    Raises:
        GraphError: If the head is neither an architecture nor a number, or if the block does not
            exist.
        RewriteError: If the head's input does not match the block's result.
    """
    end = graph.node[structure(graph).end(where)]
    if not isinstance(head, int):
        return _attached(headed, graph_of(head), end, stem, where)
    if isinstance(head, bool) or head < 1:
        expected = "an architecture, or a number of classes from 1"
        raise RewriteError("not a head", where=where, found=head, expected=expected)
    return _classified(headed, head, end, stem, channels(graph, end, stem))


def _classified(
    graph: ArchGraph, classes: int, end: Node, stem: str, channel: tuple[int, int]
) -> tuple[ArchGraph, Value]:
    """Attach a mean over all dimensions but batch and channels, then a linear layer."""
    shape, dtype, names = end.shape, end.dtype, set(graph.node)
    at, wide = channel
    nodes: list[Node] = []
    features = Ref(end.name)
    others = tuple(i for i in range(1, len(shape)) if i != at)  # 0 is the batch
    if others:
        mean = (("self", features), ("dim", others))
        pooled = TensorType((shape[0], wide), dtype)
        nodes.append(Node(fresh(names, "mean"), "aten.mean.dim", mean, pooled, stem))
        features = Ref(nodes[-1].name)
    weight = Param(f"{stem}.weight", TensorType((classes, wide), dtype))
    bias = Param(f"{stem}.bias", TensorType((classes,), dtype))
    linear = (("input", features), ("weight", Leaf(weight.name)), ("bias", Leaf(bias.name)))
    result = TensorType((shape[0], classes), dtype)
    nodes.append(Node(fresh(names, "linear"), "aten.linear", linear, result, stem))
    new = graph.replace(nodes=(*graph.nodes, *nodes), params=(*graph.params, weight, bias))
    return new, Ref(nodes[-1].name)


def _attached(
    graph: ArchGraph, head: ArchGraph, end: Node, stem: str, where: str
) -> tuple[ArchGraph, Value]:
    """Attach an architecture's operators and leaves after an operator."""
    entries = [n for n in head.nodes if n.op == "input"]
    if len(entries) != 1 or len(refs(head.outputs)) != 1 or entries[0].type != end.type:
        problem = "the head's input does not match the section's output"
        types = ", ".join(str(n.type) for n in entries) or "no input"
        raise RewriteError(problem, where=where, found=types, expected=end.type)
    inner, in_use = [n for n in head.nodes if n.op != "input"], set(graph.node)
    names = {entries[0].name: end.name} | {n.name: fresh(in_use, n.name) for n in inner}
    leaves = {p.name: f"{stem}.{p.name}" for p in head.params}
    renaming = Renaming(leaves, lambda node: f"{stem}.{node.scope}".rstrip("."))
    nodes, params, updates = renaming.copy(head, inner, head.updates, names)
    new = graph.replace(
        nodes=(*graph.nodes, *nodes),
        params=(*graph.params, *params),
        updates=(*graph.updates, *updates),
    )
    return new, replace(head.outputs, renaming.change(names))
