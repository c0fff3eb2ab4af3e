"""Repair: statistics of what layers compute, after weights were averaged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archgraph.analysis.axes import axes
from archgraph.errors import DataError
from archgraph.graph.argument import takes_graph
from archgraph.graph.ir import ArchGraph, Leaf, Ref, per_graph
from archgraph.graph.passes import specialise
from archgraph.module.build import build
from archgraph.module.calls import BatchPair, called
from archgraph.ops.schema import op_schema
from archgraph.ops.table import row, statistics
from archgraph.states import State

_LEAST = 1e-12  # a deviation that is not divided by


@takes_graph
def repair(
    graph: ArchGraph, state: State, data: Iterable[BatchPair], *, ends: Sequence[State] = ()
) -> dict[str, Tensor]:
    """Correct a mean of networks, whose layers give smaller deviations than those of each network.

    1. Of each layer with weights, from the first to the last, mean and deviation of every position
       on the data become the means of those of the networks that were averaged (Jordan et al.,
       *REPAIR*, ICLR 2023, §4): its weights are scaled and its bias is moved. A layer without bias
       is scaled alone.
    2. Running statistics are measured anew: the mean over batches of those of each batch.

    Args:
        graph: The architecture.
        state: The mean of networks in one order; see :func:`archgraph.match`.
        data: Batches of inputs and targets; the latter are not read.
        ends: The networks that were averaged, in that order. Default: step 2 alone.

    Raises:
        DataError: If there are no batches.

    Example:
        >>> from archgraph.capture.trace import trace
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        >>> graph, state = trace(net, torch.randn(2, 3))
        >>> images = torch.randn(100, 3) + 5
        >>> after = repair(graph, state, [(images, None)])
        >>> torch.allclose(
        ...     after["1.running_mean"],
        ...     nn.functional.linear(images, state["0.weight"], state["0.bias"]).mean(0),
        ...     atol=1e-5,
        ... )
        True
    """
    batches = [inputs for inputs, _ in data]
    if not batches:
        raise DataError("repair needs batches", hint="pass pairs of inputs and targets")
    probe, buffers = measuring(graph)
    state = dict(state)
    layers = _layers(graph) if ends else ()
    goals = [_moments(probe, end, layers, batches) for end in ends]
    for number, layer in enumerate(layers):  # 1
        ((mean, deviation),) = _moments(probe, state, [layer], batches)
        to_mean = torch.stack([goal[number][0] for goal in goals]).mean(0)
        to_deviation = torch.stack([goal[number][1] for goal in goals]).mean(0)
        scale = to_deviation / deviation.clamp_min(_LEAST)
        weight = state[layer.weight]
        shape = [1] * weight.dim()
        shape[layer.dim] = -1
        state[layer.weight] = (weight.double() * scale.view(shape)).to(weight.dtype)
        if layer.bias is not None:
            bias = state[layer.bias]
            moved = (bias.double() - mean) * scale + to_mean
            state[layer.bias] = moved.to(bias.dtype)
    if buffers:  # 2
        net = build(probe, {name: state[name] for name in probe.state_names}).eval()
        state.update(measured(net, buffers, batches, state))
    return state


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


@dataclass(frozen=True)
class _Layer:
    """An operator whose result is linear in a weight and a bias, position by position.

    Attributes:
        node: Its name.
        weight: Name of the weight.
        dim: The weight's dimension of the result's positions.
        result: The result's dimension of them.
        bias: Name of the bias; None without one.
    """

    node: str
    weight: str
    dim: int
    result: int
    bias: str | None


@per_graph
def _layers(graph: ArchGraph) -> tuple[_Layer, ...]:
    """Return the layers whose weights are used once, in topological order."""
    solved, layers = axes(graph), dict[str, _Layer]()
    for contraction in solved.contractions:
        result = solved.value[contraction.node][0]
        for operand, dim in contraction.operands:
            if not isinstance(operand, Leaf) or len(graph.leaf_users[operand.name]) != 1:
                continue
            free = [
                (d, layout)
                for d, layout in enumerate(solved.leaf[operand.name])
                if d != dim and layout in result
            ]
            if len(free) != 1 or contraction.node in layers:
                continue
            (d, layout) = free[0]
            others = [n for n in graph.node[contraction.node].leaves() if n != operand.name]
            bias = next((n for n in others if solved.leaf[n] == (layout,)), None)
            layers[contraction.node] = _Layer(
                contraction.node, operand.name, d, result.index(layout), bias
            )
    return tuple(layers[node.name] for node in graph.nodes if node.name in layers)


def _moments(
    probe: ArchGraph, state: State, layers: Sequence[_Layer], batches: Sequence[Any]
) -> list[tuple[Tensor, Tensor]]:
    """Return mean and deviation of each position of the results of layers, over all batches."""
    watched = dataclasses.replace(probe, outputs=tuple(Ref(layer.node) for layer in layers))
    net = build(watched, {name: state[name] for name in probe.state_names}).eval()
    totals: list[Any] = [(0, 0.0, 0.0)] * len(layers)
    with torch.no_grad():
        for inputs in batches:
            for number, (layer, value) in enumerate(zip(layers, called(net, inputs), strict=True)):
                rows = value.double().movedim(layer.result, 0).flatten(1)
                count, total, squares = totals[number]
                totals[number] = (
                    count + rows.shape[1],
                    total + rows.sum(1),
                    squares + rows.square().sum(1),
                )
    return [
        (total / count, (squares / count - (total / count).square()).clamp_min(0).sqrt())
        for count, total, squares in totals
    ]
