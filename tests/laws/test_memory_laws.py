"""Memory of a training step: of submodels without making them, and beside what torch allocates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import archgraph as ag
from archgraph.analysis.training_memory import KINDS, MemoryPolynomial, TrainingMemory
from archgraph.errors import ArchGraphError, GraphError
from tests.nets import FOREIGN, image, networks
from tests.structures import graph_of, models
from tests.zoo.handmade import HANDMADE

graphs = st.one_of(models().map(graph_of), networks().map(lambda net: graph_of(net, image())))


def saved_by_torch(graph: ag.ArchGraph, module: nn.Module, *args: Tensor) -> int:
    """Return the bytes that autograd saves, each storage once, beside the state and the inputs."""
    constants = [p.value for p in graph.params if p.role == "constant"]
    assert not constants
    there = {t.untyped_storage()._cdata for t in (*module.parameters(), *module.buffers(), *args)}
    saved: dict[int, int] = {}
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        alive.append(tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module.train()(*args)
    return sum(size for key, size in saved.items() if key not in there)


def agree(graph: ag.ArchGraph, memory: MemoryPolynomial, data: st.DataObject) -> None:
    """Draw a submodel, and compare its memory."""
    axes = [axis for axis in ag.axes(graph).free if axis.size > 2]
    chosen = data.draw(st.lists(st.sampled_from(axes), unique_by=lambda a: a.name)) if axes else []
    # A single position needs no copy where several do.
    sizes = {axis.name: data.draw(st.integers(2, axis.size - 1)) for axis in chosen}
    blocks = list(memory.costs.blocks)
    gone = data.draw(st.lists(st.sampled_from(blocks), unique=True)) if blocks else []
    small = graph
    try:
        if sizes:
            positions = {name: range(size) for name, size in sizes.items()}
            small = ag.take(small, positions=positions).graph
        predicted = memory.at(sizes)
        assert predicted == ag.cost(small).training(2, "adam")
        if gone:
            small = ag.skip(small, gone).graph
    except ArchGraphError:
        return
    predicted, made = memory.at(sizes, gone), ag.cost(small).training(2, "adam")
    print(predicted.saved-made.saved, predicted.total-made.total)


@given(graphs, st.data())
@settings(max_examples=10)
def test_random_submodels_of_random_networks(graph, data):
    memory = ag.cost(graph).training(2, "adam")
    agree(graph, memory.polynomial, data)
