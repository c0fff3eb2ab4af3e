"""Memory of a training step: of submodels without making them, and beside what torch allocates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import archgraph as ag
from archgraph.analysis.training_memory import KINDS, MemoryPolynomial
from archgraph.graph.polynomial import Polynomial
from benchmarks.bench_memory import rows
from tests.examples import at_most
from tests.nets import captured, image, networks
from tests.structures import graph_of, models
from tests.zoo.handmade import HANDMADE

graphs = st.one_of(models().map(graph_of), networks().map(lambda net: graph_of(net, image())))
# Operators whose kernels save other amounts than the table says: complex numbers, padding, bags,
# attention of unequal widths, operands of sums that are copied or not, weights under a norm.
APPROXIMATE = set(
    """attention_by_einsum attention_latent bilinear einsum_weight embedding_bag
    experts_with_soft_gate fourier_mixing group_and_instance_norm gru_classifier lstm_projected
    lstm_tagger spatial_transformer spectral_norm speech_features weight_norm weight_norm_by_hook
    weights_with_head_axis""".split()
)


def saved_by_torch(module: nn.Module, *args: Tensor) -> int:
    """Return the bytes that autograd saves, each storage once, beside the state and the inputs."""
    state = (*module.parameters(), *module.buffers(), *args)
    there = {t.untyped_storage()._cdata for t in state}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module.train()(*args)
    return sum(storage.nbytes() for key, storage in saved.items() if key not in there)


def bound(memory: MemoryPolynomial, sizes: dict[str, int], gone: list[str]) -> int:
    """Return the largest of the bounds at sizes, without blocks."""
    costs = memory.costs
    absent = {name for block in gone for name in costs.blocks[block]}
    return max(
        sum((part.polynomial for part in parts if part.there(gone)), Polynomial({}))
        .without(absent)
        .value({**costs.axes, **sizes})
        for parts in memory.bounds(4)
    )


def agree(graph: ag.ArchGraph, data: st.DataObject) -> None:
    """Draw a submodel, and compare its memory."""
    memory = ag.cost(graph).training(2, "adam").polynomial
    # One position needs no copy where several do.
    axes = [axis for axis in ag.axes(graph).free if axis.size > 2]
    chosen = data.draw(st.lists(st.sampled_from(axes), unique_by=lambda a: a.name)) if axes else []
    sizes = {axis.name: data.draw(st.integers(2, axis.size - 1)) for axis in chosen}
    blocks = list(memory.costs.blocks)
    gone = data.draw(st.lists(st.sampled_from(blocks), unique=True)) if blocks else []
    positions = {name: range(size) for name, size in sizes.items()}
    try:
        small = ag.take(graph, positions=positions).graph if sizes else graph
    except ag.ArchGraphError:
        return
    assert memory.at(sizes) == ag.cost(small).training(2, "adam")
    assert memory.at(sizes).total <= bound(memory, sizes, [])
    try:
        small = ag.skip(small, gone).graph if gone else small
    except ag.ArchGraphError:
        return
    predicted, made = memory.at(sizes, gone), ag.cost(small).training(2, "adam")
    # What a block leaves behind may be counted for longer than it is there, never for less.
    for kind in KINDS:
        assert getattr(predicted, kind) >= getattr(made, kind), kind
    assert made.total <= predicted.total <= bound(memory, sizes, gone)


@given(graphs, st.data())
@at_most(4)
def test_random_submodels_of_random_networks(graph, data):
    agree(graph, data)


@given(networks())
@at_most(4)
def test_random_networks_save_what_torch_saves(net):
    graph = graph_of(net, image())
    saved = saved_by_torch(ag.build(graph), torch.rand(2, 3, 6, 6))
    assert saved == ag.cost(graph).training(2).saved


def test_a_network_by_hand():
    """[16, 3] → 8 → relu → 2: the relu saves its result, which the second layer reads."""
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    memory = ag.cost(captured(net, torch.rand(1, 3)).graph).training(16, "momentum")
    assert (memory.weights, memory.optimizer, memory.gradients) == (200, 200, 200)
    assert (memory.inputs, memory.saved) == (192, 512)
    # Gradients of the relu's result and of its input, and of the second layer's weights.
    assert memory.moment == "backward of %relu"
    assert memory.total == 200 + 200 + 192 + 512 + 2 * 512 + 72
    assert memory.polynomial.at({"0.out": 4}).saved == 256


def test_frozen_layers_have_no_gradients():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    memory = ag.cost(captured(net, torch.rand(1, 3)).graph).training(16, "adam")
    assert memory.gradients == 72 and memory.optimizer == 2 * 72 + 2 * 4
    assert memory.saved == 512  # what the second layer reads, for its weight's gradient


def test_what_does_not_exist():
    costs = ag.cost(captured(nn.Linear(3, 2), torch.rand(1, 3)).graph)
    with pytest.raises(ag.GraphError, match=r"unknown optimiser; found adamm; expected .*adamw"):
        costs.training(4, "adamm")
    with pytest.raises(ag.GraphError, match="stores tensors that do not have the parameter's size"):
        costs.training(4, torch.optim.Adafactor)
    with pytest.raises(ag.GraphError, match="cannot step from gradients alone"):
        costs.training(4, "lbfgs")
    with pytest.raises(ag.GraphError, match="at least one example"):
        costs.training(0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["CNN", "ResNet-18", "MobileNetV2", "ConvNeXt-T", "ViT", "LSTM"])
def test_a_step_allocates_what_the_cost_says(name):
    for label, optimizer, allocated, stated in rows([name]):
        assert stated == pytest.approx(allocated, rel=0.1), (label, optimizer)


@pytest.mark.parametrize("name", ["multi_query", "rotary_halves", "multihead_separate"])
def test_copies_for_products_of_matrices_and_views_count_as_torch_makes_them(name):
    made = HANDMADE[name]()
    graph = captured(made.model, *made.args).graph
    assert saved_by_torch(ag.build(graph), *made.args) == ag.cost(graph).training(2).saved


def test_a_block_that_is_left_out_leaves_what_it_read():
    made = HANDMADE["mlp_mixer"]()
    graph = captured(made.model, *made.args).graph
    memory, blocks = ag.cost(graph).training(2, "adam").polynomial, ["channel", "spatial"]
    small = ag.cost(ag.skip(graph, blocks).graph).training(2, "adam")
    assert memory.at(skipped=blocks) == small
