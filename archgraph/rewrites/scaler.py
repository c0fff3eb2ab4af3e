"""Add HeteroFL's scaler: in training, divide layers' results by the client's width rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from archgraph.errors import RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Mode, Node, Ref
from archgraph.graph.passes import reachable, renaming, renumber
from archgraph.ops.table import row
from archgraph.rewrites.insert import fresh
from archgraph.rewrites.laws import same_function
from archgraph.states import Rewritten, Transfer


@takes_graph
def add_scaler(
    graph: ArchGraph, rate: float, *, always: bool = False, verify: bool = False
) -> Rewritten:
    """Multiply the results of hidden convolutions and linear layers by 1/rate in training.

    Evaluation is unchanged. As in HeteroFL, output layers are not scaled. An output layer is a
    layer whose result reaches an output through elementwise operators only.

    Args:
        graph: The client's architecture.
        rate: Width of the client's model divided by the width of the global model, in (0, 1]. If
            the rate is 1, the architecture is unchanged.
        always: If True, multiply in evaluation as well, as ScaleFL's code does. This changes the
            function.
        verify: Check that evaluation is unchanged (three forward passes in float64).

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
        raise RewriteError("scaler rate out of range", found=rate, expected="a number in (0, 1]")
    if rate == 1:
        return Rewritten.identity(graph)
    last = _last_weighted(graph)
    names = set(graph.node)
    scaled = {
        n.name: fresh(names, f"{n.name}_scaled")
        for n in graph.nodes
        if row(n.op).macs is not None and row(n.op).weighted and n.name not in last
        if not isinstance(n.type, tuple)  # a recurrent layer: several results, including a state
    }

    new, nodes = graph.mapped(renaming(scaled)), list[Node]()
    for node in new.nodes:
        nodes.append(node)
        if node.name in scaled:
            args = (
                ("self", Ref(node.name)),
                ("other", 1.0 / rate if always else Mode(1.0 / rate, 1.0)),
            )
            copy = dataclasses.replace(
                node, name=scaled[node.name], op="aten.mul.Tensor", args=args
            )
            nodes.append(copy)
    rewritten = Rewritten(renumber(new.replace(nodes=tuple(nodes))), Transfer.identity(graph))
    if verify:
        same_function(graph, rewritten)
    return rewritten


def _last_weighted(graph: ArchGraph) -> set[str]:
    """Return layers with weights that only elementwise operators follow before an output."""

    def before(name: str) -> Iterable[str]:
        facts = row(graph.node[name].op)
        return graph.node[name].uses() if facts.pointwise and not facts.weighted else ()

    ends = reachable(graph.output_refs(), before)
    return {name for name in ends if row(graph.node[name].op).weighted}
