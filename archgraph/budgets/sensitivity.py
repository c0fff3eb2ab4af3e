"""Sensitivity: the loss that each cut costs alone, measured on a few batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn

from archgraph.analysis.axes import axes
from archgraph.analysis.structure import structure
from archgraph.budgets.importance import LossFunction, importance
from archgraph.errors import DataError, RewriteError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph
from archgraph.graph.passes import specialise
from archgraph.module.build import build
from archgraph.module.calls import BatchPair, called
from archgraph.ops.table import row, statistics
from archgraph.rewrites.skip import skip
from archgraph.rewrites.take import take
from archgraph.states import State
from archgraph.states.importance import Importance

CutStatistics: TypeAlias = Literal["batch", "stored"]


@takes_graph
def sensitivity(
    graph: ArchGraph,
    state: State,
    data: Iterable[BatchPair],
    loss: LossFunction = nn.functional.cross_entropy,
    *,
    shares: Sequence[float] = (0.5,),
    scores: Importance | None = None,
    running: CutStatistics = "batch",
) -> Importance:
    """Measure what each cut costs alone: of one axis to a share, and each block left out.

    That is one pass over the batches per axis and share, and per block. A network in which all else
    is as trained says more about a cut than weights do (Puzzle, Bercovich et al. 2024, scores
    blocks in this way).

    Args:
        graph: The architecture.
        state: Its weights.
        data: Batches, as in :func:`importance`; a few hundred examples that were not trained on.
        loss: Maps outputs and targets to a number.
        shares: Shares that each axis is cut to, rounded up.
        scores: Which positions stay, the best. Default: by weights.
        running: ``batch``: layers with running statistics use those of each batch, since a cut
            changes what they were taken of. ``stored``: they use those of the state.

    Returns:
        The scores, with ``losses`` by axis and size and, as ``blocks``, the loss without each. They
        are differences from the loss of the uncut network and may be negative. A cut that cannot
        be made alone is left out.

    Raises:
        DataError: If there are no batches.
        RewriteError: For a share out of (0, 1), or unknown statistics.
        GraphError: If the state does not fit the graph.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> graph, state = trace(net, torch.zeros(1, 3))
        >>> state["2.weight"][:, 2:] = 0.0  # the last two units are not read
        >>> state["0.weight"][2:] = state["0.bias"][2:] = 0.0
        >>> batch = torch.randn(5, 3), torch.zeros(5, dtype=torch.int64)
        >>> sensitivity(graph, state, [batch]).losses
        {'0.out': {2: 0.0}}
    """
    batches = tuple(data)
    if not batches:
        raise DataError("sensitivity needs batches", hint="pass pairs of inputs and targets")
    if outside := [share for share in shares if not 0 < share < 1]:
        raise RewriteError("share out of range", found=outside[0], expected="a number in (0, 1)")
    if running not in get_args(CutStatistics):
        expected = " or ".join(get_args(CutStatistics))
        raise RewriteError("unknown running statistics", found=running, expected=expected)
    scores = importance(graph, state) if scores is None else scores

    @torch.no_grad()
    def cost(network: ArchGraph, weights: State) -> float:
        probe = specialise(_by_batch(network) if running == "batch" else network, training=False)
        net = build(probe, {name: weights[name] for name in probe.state_names}).eval()
        return math.fsum(float(loss(called(net, x), y)) for x, y in batches) / len(batches)

    base = cost(graph, state)
    losses: dict[str, dict[int, float]] = {}
    for axis in axes(graph).free:
        # 0.07 × 100 is 7.000000000000001: rounding up must not make that 8.
        sizes = {max(math.ceil(round(share * axis.size, 9)), 1) for share in shares}
        for size in sorted(sizes - {axis.size}, reverse=True):
            try:
                cut = take(graph, positions={axis: scores.best(axis, size)})
            except RewriteError:  # sizes that have to agree with another axis'
                continue
            losses.setdefault(axis.name, {})[size] = (
                cost(cut.graph, cut.transfer.pull(state)) - base
            )
    blocks = {}
    for block in structure(graph).blocks:
        if block.removable:
            left = skip(graph, [block.name])
            blocks[block.name] = cost(left.graph, left.transfer.pull(state)) - base
    return dataclasses.replace(scores, blocks=blocks, losses=losses)


def _by_batch(graph: ArchGraph) -> ArchGraph:
    """Let layers with running statistics use those of the batch, also in evaluation."""
    running = set(statistics(graph))
    nodes = []
    for node in graph.nodes:
        flag = row(node.op).training_flag
        if flag is not None and running.intersection(node.leaves()):
            node = node.with_args(**{flag: True})
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes))
