"""Roles of parts of a graph: weights, the head, features, label rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from archgraph.analysis.axes import Axes, axes
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Record, Ref, per_graph, refs, walk
from archgraph.graph.passes import reachable, specialise
from archgraph.layout.layouts import AxisRef, Layout
from archgraph.ops.table import row


@per_graph
def weight_operands(graph: ArchGraph) -> Mapping[str, frozenset[str]]:
    """Return the parameters (two or more dimensions) that each weighted operator multiplies with.

    An operator uses them directly or through operators on parameters alone (a transposed or split
    weight). Biases, norm parameters, position tables and class tokens do not count. Operators
    without such parameters are omitted.
    """
    alone = fixed(graph)
    result = {}
    for node in graph.nodes:
        facts = row(node.op)
        if facts.weighted or facts.macs is not None:
            used: set[str] = set()
            for argument in facts.init:
                for value in walk(node.arg(argument)):
                    if isinstance(value, Leaf):
                        used.add(value.name)
                    elif isinstance(value, Ref):
                        used |= alone.get(value.name, frozenset())
            params = [graph.param[name] for name in used]
            names = {p.name for p in params if p.role == "parameter" and len(p.shape) > 1}
            if names:
                result[node.name] = frozenset(names)
    return result


@per_graph
def head(graph: ArchGraph) -> tuple[str, str] | None:
    """Return the last operator that multiplies by a weight, and the result that it multiplies.

    For a classifier: its last layer and the features of the last hidden layer. None if no operator
    multiplies a result with a weight.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.LogSoftmax(1))
        >>> graph = trace(net, zeros(1, 3)).graph
        >>> last, features = head(graph)
        >>> graph.node[last].op, graph.node[features].op
        ('aten.linear', 'aten.relu')
    """
    alone = fixed(graph)
    for name in reversed([*weight_operands(graph)]):  # in topological order
        applied = [used for used in graph.node[name].uses() if used not in alone]
        if applied:
            return name, applied[0]
    return None


@per_graph
def fixed(graph: ArchGraph) -> Mapping[str, frozenset[str]]:
    """Return a dict from each result that does not depend on inputs to the leaves that it uses."""
    fixed: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        if node.op != "input" and all(used in fixed for used in node.uses()):
            fixed[node.name] = frozenset(node.leaves()).union(*(fixed[u] for u in node.uses()))
    return fixed


@takes_graph
@per_graph
def layer_weights(graph: ArchGraph) -> frozenset[str]:
    """Return the parameters with two or more dimensions that a weighted operator multiplies with.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        >>> sorted(layer_weights(trace(net, zeros(1, 3)).graph))
        ['0.weight', '2.weight']
    """
    return frozenset().union(*weight_operands(graph).values())


@takes_graph
@per_graph
def frozen(graph: ArchGraph) -> frozenset[str]:
    """Return the parameters that are not trained, so that their state entries never change.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Linear(3, 2)
        >>> _ = net.weight.requires_grad_(False)
        >>> sorted(frozen(trace(net, zeros(1, 3)).graph))
        ['weight']
    """
    return frozenset(p.name for p in graph.params if p.role == "parameter" and not p.trainable)


@takes_graph
@per_graph
def with_features(graph: ArchGraph) -> ArchGraph:
    """Return a graph with two outputs: the original ones, and the last hidden layer's features.

    Features are the result that :func:`head` is applied to; without a head, the output tuple
    contains only the original outputs.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.module.build import build
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> traced = trace(net, zeros(1, 3))
        >>> outputs, features = build(with_features(traced.graph), traced.state)(zeros(5, 3))
        >>> outputs.shape, features.shape
        (torch.Size([5, 2]), torch.Size([5, 4]))
    """
    last = head(graph)
    return graph.replace(outputs=(graph.outputs, *((Ref(last[1]),) if last else ())))


@takes_graph
@per_graph
def exits(graph: ArchGraph) -> tuple[str, ...]:
    """Return the names of a network's exits, from the shallowest to the deepest.

    An exit is deeper if more operators lead to it; among equally deep exits, the main one is last.
    Empty if the outputs have no names.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> from archgraph.rewrites.exits import add_exits
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 6), nn.Linear(6, 2))
        >>> exits(add_exits(trace(net, zeros(1, 3)).graph, {"2": 2, "0": 2}).graph)
        ('0', '2', 'main')
    """
    evaluated = specialise(graph, training=False)
    if not isinstance(evaluated.outputs, Record):
        return ()
    depth = {
        name: len(reachable(refs(value), lambda node: evaluated.node[node].uses()))
        for name, value in evaluated.outputs.fields
    }
    return tuple(sorted(depth, key=lambda name: (depth[name], name == "main")))


@takes_graph
def label_rows(graph: ArchGraph, classes: int) -> tuple[str, ...]:
    """Return the leaves with one row per label: the classifier's, and token embeddings.

    A leaf counts if its first dimension is the class axis of an output, or if integer inputs of an
    operator index its rows and it has as many rows as there are classes.

    Args:
        graph: The architecture.
        classes: Number of labels.

    Example:
        >>> from torch import nn, zeros
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.LogSoftmax(1))
        >>> label_rows(trace(net, zeros(1, 3)).graph, 2)
        ('2.weight', '2.bias')
    """
    solved = axes(graph)
    outputs = [i.name for i in walk(graph.outputs) if isinstance(i, Ref)]
    labels = {d for d in _dims(solved, outputs) if isinstance(d, AxisRef) and d.size == classes}

    return tuple(
        p.name
        for p in graph.params
        if p.role == "parameter" and p.shape[:1] == (classes,)
        for rows in solved.of(p.name)[:1]
        if rows in labels or _addressed(graph, p.name, rows)
    )


def _dims(solved: Axes, names: Iterable[str]) -> set[Layout]:
    """Return the layouts of all dimensions of some operators' results."""
    return {d for name in names for result in solved.value[name] for d in result}


def _addressed(graph: ArchGraph, leaf: str, rows: Layout) -> bool:
    """Return whether integers index the rows of a leaf."""
    for user in graph.leaf_users[leaf]:
        operands = [*graph.node[user].uses()]
        # Indexing consumes the rows: neither the result nor the indices have them.
        integers = any(graph.node[o].dtype.startswith("int") for o in operands)
        if integers and rows not in _dims(axes(graph), [user, *operands]):
            return True
    return False
