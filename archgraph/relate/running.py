"""Running statistics of a network, measured anew on some data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.graph.passes import specialise
from archgraph.module.calls import called
from archgraph.ops.schema import op_schema
from archgraph.ops.table import row, statistics
from archgraph.states import State


@per_graph
def measuring(graph: ArchGraph) -> tuple[ArchGraph, tuple[str, ...]]:
    """Return a graph in eval mode whose running statistics become each batch's; and their names."""
    running = statistics(graph)
    nodes, names = [], []
    for node in graph.nodes:
        flag = row(node.op).training_flag
        leaves = [name for name in node.leaves() if name in running]
        if flag is not None and leaves and "momentum" in op_schema(node.op).by_name:
            # Momentum 1 replaces the old statistics by those of the batch.
            node = node.with_args(**{flag: True, "momentum": 1.0})
            names += leaves
        nodes.append(node)
    probe = specialise(graph.replace(nodes=tuple(nodes)), training=False)
    return probe, tuple(dict.fromkeys(names))


def measured(
    net: nn.Module, buffers: Sequence[str], batches: Iterable[Any], state: State
) -> dict[str, Tensor]:
    """Return running statistics: the mean over batches of those of each.

    Args:
        net: The module of the graph of :func:`measuring`.
        buffers: Their names.
        batches: Inputs.
        state: Says of which types they are.
    """
    live = dict(net.named_buffers())
    # In double: a mean over thousands of batches.
    sums = {name: torch.zeros_like(live[name], dtype=torch.float64) for name in buffers}
    count = 0
    with torch.no_grad():
        for inputs in batches:
            called(net, inputs)
            count += 1
            for name, total in sums.items():
                total += live[name]
    return {name: (total / count).to(state[name].dtype).cpu() for name, total in sums.items()}
