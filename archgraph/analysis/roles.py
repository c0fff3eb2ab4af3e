"""Find parts of a graph by their role: weights of layers, the head, features, exits, label rows."""

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
    """Return a dict from each layer to the parameters by which it multiplies its input.

    A layer may use a parameter directly, or a transposed or split parameter. Biases, parameters of
    norms, position tables, class tokens, and parameters with fewer than two dimensions are not
    included. Operators without such parameters are not in the dict.
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
    """Return the last operator that multiplies by a weight, and the operator of its input.

    For a classifier, these are its last layer and the features of the last hidden layer. Returns
    None if no operator multiplies a result by a weight.

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
    """Find the results that do not depend on any input of the graph.

    Returns:
        Dict whose keys are the names of the operators with these results. Each value is the set of
        all parameters, buffers and constants from which the result is computed.
    """
    fixed: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        if node.op != "input" and all(used in fixed for used in node.uses()):
            fixed[node.name] = frozenset(node.leaves()).union(*(fixed[u] for u in node.uses()))
    return fixed


@takes_graph
@per_graph
def layer_weights(graph: ArchGraph) -> frozenset[str]:
    """Return the names of the weights with which layers multiply their inputs.

    Parameters of norms and parameters with fewer than two dimensions are not included.

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
    """Return the names of the parameters that are not trained (``requires_grad=False``).

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
    """Return the graph with an additional output: the features of the last hidden layer.

    The new output is the tuple ``(outputs, features)``. ``features`` is the input of the last layer
    with weights (:func:`head`). If the graph has no layer with weights, the tuple is
    ``(outputs,)``.

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
    """Return the names of a network's early exits and its main output, the shallowest first.

    The more operators an exit depends on, the deeper it is. Among equally deep exits, ``main`` is
    last. If the outputs have no names, the tuple is empty.

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
    """Return the names of the parameters of classifiers and embeddings with one row per label.

    A row is a slice along the first dimension, which has size ``classes``. The first dimension must
    also be a dimension of an output of the model, as in a classifier, or an operator must select
    rows by integers, as in an embedding.

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
    """Return the layouts of all dimensions of the results of some operators."""
    return {d for name in names for result in solved.value[name] for d in result}


def _addressed(graph: ArchGraph, leaf: str, rows: Layout) -> bool:
    """Return whether an operator indexes the rows of a parameter with integers."""
    for user in graph.leaf_users[leaf]:
        operands = [*graph.node[user].uses()]
        # If rows are indexed, neither the result nor the indices have the dimension of the rows.
        integers = any(graph.node[o].dtype.startswith("int") for o in operands)
        if integers and rows not in _dims(axes(graph), [user, *operands]):
            return True
    return False
