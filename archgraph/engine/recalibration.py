"""Running statistics for models that carry none.

A model whose normalisation is static gets cumulative ones from one pass over training data before
it is tested (Diao, Ding, Tarokh: *HeteroFL*, ICLR 2021, §3.3).
"""

from __future__ import annotations

import math

import torch

from archgraph.data import Split
from archgraph.engine.experiment import Experiment
from archgraph.federation import Evaluated, Model, State, module_of, seeded
from archgraph.graph.ir import ArchGraph, per_graph
from archgraph.graph.passes import specialise
from archgraph.ops.schema import op_schema
from archgraph.ops.table import row, statistics


def recalibrated(
    graph: ArchGraph,
    state: State,
    data: Split,
    *,
    batch: int = 500,
    examples: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> State:
    """Recompute the running statistics of a state: their mean over one pass of the data.

    Everything runs as in evaluation (no dropout, no training-only scaling), except that layers with
    running statistics use those of the batch. Batches are of equal size, up to one example, and
    drawn in a random order, so that sorted data does no harm.

    Args:
        graph: The architecture.
        state: Its state.
        data: Training data.
        batch: Examples at a time, at most.
        examples: Use at most so many, drawn at random. Default: all.
        seed: Of the order.
        device: Where to compute.

    Returns:
        A state with the same entries; the given one if the graph has no running statistics.
    """
    probe, buffers = _measuring(graph)
    # No pass over the data for a model without such layers.
    if not buffers:
        return state
    order = torch.randperm(len(data), generator=seeded(seed, "statistics"))[:examples]
    module = module_of(Model(probe, {k: state[k] for k in probe.state_names}), device).eval()
    live = dict(module.named_buffers())
    # In double: a mean over thousands of batches.
    sums = {name: torch.zeros_like(live[name], dtype=torch.float64) for name in buffers}
    # Pieces of equal size: a mean over batches would give a small last one too much weight.
    pieces = order.tensor_split(max(math.ceil(len(order) / batch), 1))
    with torch.no_grad():
        for piece in pieces:
            inputs, _ = data.examples(piece)
            module(*(x.to(device) for x in inputs))
            for name, total in sums.items():
                total += live[name]
    means = {
        name: (total / len(pieces)).to(state[name].dtype).cpu() for name, total in sums.items()
    }
    return {name: means.get(name, tensor) for name, tensor in state.items()}


def as_tested(setup: Experiment, model: Evaluated, state: State) -> State:
    """Weights of a model of a run, with the statistics that it is tested with.

    Args:
        setup: The run's experiment.
        model: What is tested.
        state: Its weights, or a client's version of them.
    """
    if model.statistics == "stored":
        return state
    return recalibrated(
        model.graph,
        state,
        setup.training,
        batch=setup.evaluate.batch,
        examples=setup.evaluate.statistics,
        seed=setup.world.seed,
        device=setup.world.device,
    )


@per_graph
def _measuring(graph: ArchGraph) -> tuple[ArchGraph, tuple[str, ...]]:
    """Return a graph in eval mode whose running statistics become each batch's; and their names."""
    running = statistics(graph)
    nodes, measured = [], []
    for node in graph.nodes:
        flag = row(node.op).training_flag
        names = [name for name in node.leaves() if name in running]
        if flag is not None and names and "momentum" in op_schema(node.op).by_name:
            # Momentum 1 replaces the old statistics by those of the batch.
            node = node.with_args(**{flag: True, "momentum": 1.0})
            measured += names
        nodes.append(node)
    probe = specialise(graph.replace(nodes=tuple(nodes)), training=False)
    return probe, tuple(dict.fromkeys(measured))
