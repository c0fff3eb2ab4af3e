"""Running statistics for models that are trained without them.

With ``norm: static``, the running statistics of a model are computed in one pass over training data
before each test (Diao, Ding, Tarokh: *HeteroFL*, ICLR 2021, §3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from archgraph.data import Split
from archgraph.engine.experiment import Experiment
from archgraph.errors import RunError
from archgraph.federation import Evaluated, Model, State, module_of, seeded
from archgraph.graph.ir import ArchGraph, Ref, per_graph
from archgraph.graph.passes import specialise
from archgraph.module.calls import called
from archgraph.ops.operands import sizes_of
from archgraph.ops.schema import op_schema
from archgraph.ops.table import row, statistics
from archgraph.states.copies import to_device

# Maximum number of examples in a batch. It is not an option, since test metrics depend on it.
PIECE = 256


def recalibrated(
    graph: ArchGraph,
    state: State,
    data: Split,
    *,
    batch: int = PIECE,
    examples: int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> State:
    """Return the state with new running statistics, computed in one epoch over the data.

    The new running statistics are means over batches. The model runs in evaluation mode (without
    dropout and HeteroFL's scaler), but layers with running statistics normalise with the statistics
    of each batch. Examples are drawn in random order, since the data may be sorted. The sizes of
    the batches differ by at most one.

    Args:
        graph: The architecture.
        state: Its weights and buffers.
        data: Training data.
        batch: Maximum size of a batch.
        examples: Maximum number of examples, drawn at random. Default: all.
        seed: Seed of the random order of the examples.
        device: Device to compute on.

    Returns:
        A state in which only the running statistics differ from ``state``. If the graph has no
        running statistics, ``state`` itself.
    """
    probe, buffers = _measuring(graph)
    # Models without such layers need no pass over the data.
    if not buffers:
        return state
    order = torch.randperm(len(data), generator=seeded(seed, "statistics"))[:examples]
    module = module_of(Model(probe, {k: state[k] for k in probe.state_names}), device).eval()
    # Batches of equal size: a mean over batches would give a small last batch too much weight.
    pieces = order.tensor_split(max(math.ceil(len(order) / batch), 1))
    batches = ([to_device(x, device) for x in data.examples(piece)[0]] for piece in pieces)
    return {**state, **_measured(module, buffers, batches, state)}


def check_enough_examples(graph: ArchGraph, examples: int) -> None:
    """Check that there are enough examples to recompute running statistics.

    Args:
        graph: The architecture.
        examples: Number of training examples for the statistics.

    Raises:
        RunError: If a layer would get a single value per channel, so that its variance is
            undefined.
    """
    _, buffers = _measuring(graph)
    for node in graph.nodes if examples == 1 else ():
        measures = [name for name in node.leaves() if name in buffers]
        if measures and math.prod(sizes_of(graph, Ref(node.name))) == math.prod(
            graph.param[measures[0]].shape
        ):
            raise RunError(
                "a layer has one value per channel and example, so the variance is undefined",
                where="evaluate.statistics",
                found=f"1 example, for {measures[0].rpartition('.')[0] or node.name}",
                expected="2 examples or more",
                hint="remove `statistics`, or choose another norm, e.g. norm: averaged",
            )


def as_tested(setup: Experiment, model: Evaluated, state: State) -> State:
    """Return the weights of a run's model, with the running statistics that its test uses.

    Args:
        setup: The run's experiment.
        model: The model.
        state: The weights of the model, or of a client's version of it.
    """
    if model.statistics == "stored":
        return state
    return recalibrated(
        model.graph,
        state,
        setup.training,
        examples=setup.evaluate.statistics,
        seed=setup.world.seed,
        device=setup.world.device,
    )


@per_graph
def _measuring(graph: ArchGraph) -> tuple[ArchGraph, tuple[str, ...]]:
    """Return a graph whose running statistics become those of each batch, and their names."""
    running = statistics(graph)
    nodes, names = [], []
    for node in graph.nodes:
        flag = row(node.op).training_flag
        leaves = [name for name in node.leaves() if name in running]
        if flag is not None and leaves and "momentum" in op_schema(node.op).by_name:
            # With momentum 1, the statistics of the batch replace the old statistics.
            node = node.with_args(**{flag: True, "momentum": 1.0})
            names += leaves
        nodes.append(node)
    probe = specialise(graph.replace(nodes=tuple(nodes)), training=False)
    return probe, tuple(dict.fromkeys(names))


def _measured(
    net: nn.Module, buffers: Sequence[str], batches: Iterable[Sequence[Tensor]], state: State
) -> dict[str, Tensor]:
    """Return the means over batches of each batch's statistics.

    Args:
        net: The module built from the graph of :func:`_measuring`.
        buffers: Names of the running statistics.
        batches: Inputs of the module, one tuple per batch.
        state: A state with the dtypes of the statistics.
    """
    live = dict(net.named_buffers())
    # In double precision, for a mean over thousands of batches.
    sums = {name: torch.zeros_like(live[name], dtype=torch.float64) for name in buffers}
    count = 0
    with torch.no_grad():
        for inputs in batches:
            called(net, inputs)
            count += 1
            for name, total in sums.items():
                total += live[name]
    return {name: (total / count).to(state[name].dtype).cpu() for name, total in sums.items()}
