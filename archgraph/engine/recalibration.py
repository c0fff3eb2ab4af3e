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
from archgraph.graph.ir import ArchGraph
from archgraph.relate.repair import measured, measuring
from archgraph.states.copies import to_device


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
    probe, buffers = measuring(graph)
    # No pass over the data for a model without such layers.
    if not buffers:
        return state
    order = torch.randperm(len(data), generator=seeded(seed, "statistics"))[:examples]
    module = module_of(Model(probe, {k: state[k] for k in probe.state_names}), device).eval()
    # Pieces of equal size: a mean over batches would give a small last one too much weight.
    pieces = order.tensor_split(max(math.ceil(len(order) / batch), 1))
    batches = ([to_device(x, device) for x in data.examples(piece)[0]] for piece in pieces)
    return {**state, **measured(module, buffers, batches, state)}


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
