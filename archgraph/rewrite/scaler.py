"""HeteroFL's scaler: in training, divide what a weighted layer gives by the client's width rate."""

from __future__ import annotations

from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Mode, Node, Ref, Value, replace
from archgraph.graph.passes import renumber
from archgraph.ops.table import row
from archgraph.rewrite.laws import same_function
from archgraph.states import Rewritten, Transfer


@takes_graph
def add_scaler(graph: ArchGraph, rate: float, *, verify: bool = False) -> Rewritten:
    """Multiply the result of every convolution and linear layer by 1/rate while training.

    Evaluation is unchanged. The last weighted layers, whose results reach an output through
    pointwise operators only, are not scaled (HeteroFL scales hidden layers).

    Args:
        graph: The client's architecture.
        rate: Its width rate in (0, 1]; 1 changes nothing.
        verify: Check that evaluation is unchanged (two forwards in float64).

    Raises:
        RewriteError: If the rate is outside (0, 1].

    Example:
        >>> import torch
        >>> from archgraph.capture.trace import trace
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> print(add_scaler(trace(net, torch.zeros(1, 3)).graph, 0.5).graph.nodes[2])
        %mul: float32[batch, 4] = aten.mul.Tensor(self=%linear, other=train(2.0, 1.0)) @ 0

    Source: Diao et al., HeteroFL, ICLR 2021, §3 (scaler module).
    """
    if not 0 < rate <= 1:
        raise RewriteError("rate of the scaler", found=rate, expected="a number in (0, 1]")
    if rate == 1:
        return Rewritten.identity(graph)
    last = _last_weighted(graph)
    factor = Mode(1.0 / rate, 1.0)
    renamed: dict[str, str] = {}
    node_names = set(graph.node)
    nodes: list[Node] = []

    def follow(value: Value) -> Value:
        return Ref(renamed.get(value.name, value.name)) if isinstance(value, Ref) else value

    for node in graph.nodes:
        args = tuple((k, replace(v, follow)) for k, v in node.args)
        node = Node(node.name, node.op, args, node.type, node.scope, node.source)
        nodes.append(node)
        scaled = row(node.op).macs is not None and row(node.op).weighted
        if scaled and node.name not in last and not isinstance(node.type, tuple):
            name = f"{node.name}_scaled"
            while name in node_names:
                name += "_"
            nodes.append(
                Node(
                    name,
                    "aten.mul.Tensor",
                    (("self", Ref(node.name)), ("other", factor)),
                    node.type,
                    node.scope,
                    node.source,
                )
            )
            renamed[node.name] = name
    new = renumber(
        graph.replace(
            nodes=tuple(nodes),
            outputs=replace(graph.outputs, follow),
            updates=tuple((k, replace(v, follow)) for k, v in graph.updates),
        )
    )
    rewritten = Rewritten(new, Transfer.identity(graph))
    if verify:
        same_function(graph, rewritten)
    return rewritten


def _last_weighted(graph: ArchGraph) -> set[str]:
    """Weighted operators whose result reaches an output through pointwise operators alone."""
    weighted: set[str] = set()
    pending = list(graph.output_refs())
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = graph.node[name]
        if row(node.op).weighted:
            weighted.add(name)
        elif row(node.op).pointwise:
            pending.extend(node.uses())
    return weighted
