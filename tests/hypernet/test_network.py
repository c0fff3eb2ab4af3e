"""The whole hypernetwork: what it sets, what moves it, and that it learns."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import archgraph as ag
import archgraph.hypernet
from archgraph.hypernet import GraphHypernetwork, entries, follow_gradients
from tests.hypernet.test_graphs import of_everything
from tests.nets import captured

SMALL = {"width": 16, "hidden": 32, "tile": 8}


@pytest.fixture(scope="module")
def clients():
    """Three clients of three architectures that share operators."""
    graphs = [
        of_everything(),
        captured(nn.Sequential(nn.Linear(20, 30), nn.ReLU()), torch.zeros(2, 20)).graph,
        captured(nn.Sequential(nn.Conv1d(3, 7, 5), nn.BatchNorm1d(7)), torch.zeros(2, 3, 9)).graph,
    ]
    states = [ag.initial_state(g, seed) for seed, g in enumerate(graphs)]
    return graphs, states


@pytest.fixture(params=["tiled", "low_rank"])
def network(request, clients):
    return GraphHypernetwork.for_graphs(clients[0], decoders=request.param, descriptor=4, **SMALL)


A = torch.tensor([[1.0, 0, 0, 0], [0, 0.5, 0.5, 0], [0.1, 0.2, 0.3, 0.4]])


def test_generates_every_tensor_that_does_not_stay(network, clients):
    graphs, states = clients
    made = network.generate(graphs, states, A)
    for graph, state, new in zip(graphs, states, made, strict=True):
        assert sorted([*new, *network.unset(graph)]) == sorted(graph.state_names)
        assert all(new[k].shape == state[k].shape and new[k].dtype == state[k].dtype for k in new)
        assert all(v.isfinite().all() for v in new.values())
        module = ag.build(graph, {**state, **{k: v.detach() for k, v in new.items()}})
        assert module is not None


def test_every_weight_of_the_hypernetwork_has_a_part_in_it(network, clients):
    graphs, states = clients
    made = network.generate(graphs, states, A)
    sum(v.square().sum() for new in made for v in new.values()).backward()
    kinds = len(network.vocabulary.operators)
    for name, p in network.named_parameters():
        assert p.grad is not None and p.grad.any(), name
    assert not network.word.weight.grad[kinds:].any()  # words of operators that occur in no graph


def test_clients_in_another_order_get_the_same_weights(network, clients):
    graphs, states = clients
    first = network.generate(graphs, states, A)
    order = [2, 0, 1]
    second = network.generate([graphs[i] for i in order], [states[i] for i in order], A[order])
    for i, new in zip(order, second, strict=True):
        for name, value in new.items():
            torch.testing.assert_close(value, first[i][name], rtol=1e-5, atol=1e-6)


def test_weights_depend_on_descriptor_and_current_weights(network, clients):
    graphs, states = clients
    first = network.generate(graphs, states, A)
    described = network.generate(graphs, states, A.flip(0))
    moved = [{k: v + 1 if v.is_floating_point() else v for k, v in s.items()} for s in states]
    known = network.generate(graphs, moved, A)
    for a, b, c in zip(first[:1], described[:1], known[:1], strict=True):
        for name in a:
            assert not torch.equal(a[name], b[name]), name
            assert not torch.equal(a[name], c[name]), name


def test_generating_twice_gives_the_same_bits_and_seeds_differ(clients):
    graphs, states = clients
    before = torch.get_rng_state()
    nets = [GraphHypernetwork.for_graphs(graphs, seed=s, **SMALL) for s in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    a, b, c = (net.generate(graphs, states)[1]["0.weight"] for net in nets)
    assert torch.equal(a, b) and torch.equal(a, nets[0].generate(graphs, states)[1]["0.weight"])
    assert not torch.equal(a, c)


def test_pull_back_is_the_gradient_of_half_the_squared_distance(network, clients):
    graphs, states = clients
    trained = [{k: v + 0.1 if v.is_floating_point() else v for k, v in s.items()} for s in states]
    weights = [1.0, 0.25, 3.0]
    loss = sum(
        w / 2 * (new[k] - theta[k]).square().sum()
        for w, new, theta in zip(weights, network.generate(graphs, states, A), trained, strict=True)
        for k in new
    )
    expected = torch.autograd.grad(loss, list(network.parameters()))
    found = network.pull_back(graphs, states, trained, A, weights)
    assert found == pytest.approx(loss.item(), rel=1e-5)
    for p, gradient in zip(network.parameters(), expected, strict=True):
        size = float(gradient.norm())
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-5 * max(size, 1))


def test_pull_back_of_clients_without_parameters_is_nothing(network, clients):
    graph, _ = captured(nn.ReLU(), torch.zeros(1, 2))
    assert network.generate([graph], [{}], A[:1]) == [{}]
    assert network.pull_back([graph], [{}], [{}], A[:1]) == 0
    assert all(p.grad is None for p in network.parameters())


def test_a_tensor_that_no_decoder_sets_is_named(network, clients):
    graph, state = captured(nn.Conv2d(1, 1, 1), torch.zeros(1, 1, 2, 2))
    for call in (
        lambda: network.unset(graph),
        lambda: network.generate([graph], [state], A[:1]),
        lambda: network.pull_back([graph], [state], [state], A[:1]),
    ):
        with pytest.raises(
            ag.GraphError, match=r"tensor without a decoder; found conv2d\.weight:4;.*for_graphs"
        ):
            call()


def test_what_does_not_fit_is_refused_before_anything_moves(network, clients):
    graphs, states = clients
    less = [*states[:2], {k: v for k, v in states[2].items() if k != "0.bias"}]
    with pytest.raises(ag.GraphError, match=r"0\.bias: state does not fit; found nothing"):
        network.generate(graphs, less, A)
    other = [*states[:2], {**states[2], "0.bias": torch.zeros(3)}]
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with pytest.raises(ag.GraphError, match=r"0\.bias: .*found \(3,\); expected \(7,\)"):
        network.pull_back(graphs, states, other, A)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    with pytest.raises(ag.GraphError, match=r"descriptors do not fit; found \(3, 0\)"):
        network.generate(graphs, states)
    for pair in ((graphs, states[:1]), (graphs[0], states[0])):
        with pytest.raises(ag.GraphError, match="a list of graphs and a list with a state for"):
            network.generate(*pair, A)


def test_without_pytorch_geometric_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(ag.GraphError, match=r"needs the package torch_geometric.*\[hypernet\]"):
        archgraph.hypernet.__getattr__("GraphHypernetwork")  # as on its first use


def test_an_update_moves_no_further_than_its_bound(network, clients):
    graphs, states = clients
    optimiser = torch.optim.SGD(network.parameters(), lr=1.0)
    before = [p.detach().clone() for p in network.parameters()]
    network.pull_back(graphs, states, states, A)
    follow_gradients(network, optimiser, clip=1e-2)
    moved = [p - q for p, q in zip(network.parameters(), before, strict=True)]
    length = torch.linalg.vector_norm(torch.cat([m.flatten() for m in moved]))
    assert length.item() == pytest.approx(1e-2, rel=1e-2)


def test_hypernetwork_of_a_resnet18_is_small():
    graph = ag.load("specs/models/recipfl_resnet18.yaml")
    for kind, bound in (("tiled", 15e6), ("low_rank", 5e6)):
        network = GraphHypernetwork.for_graphs([graph], decoders=kind)
        assert sum(p.numel() for p in network.parameters()) <= bound
        assert sum(torch.Size(e.shape).numel() for e in entries(graph)) > 11e6


def lenet_round(graph, network, state, images, labels):
    """Generated LeNet: its loss, its weights, and what ten steps of SGD make of them."""
    with torch.no_grad():
        given = network.generate([graph], [state])[0]
    module = ag.build(graph, given)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        loss = nn.functional.cross_entropy(module(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses[0], {k: v.clone() for k, v in ag.state_of(module).items()}


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ten_updates_lower_the_loss_and_the_flipped_sign_raises_it(sign):
    graph = ag.load("specs/models/lenet5.yaml")
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 10
    images = torch.randn(10, 1, 28, 28, generator=draw)[labels]
    images = images + 0.3 * torch.randn(60, 1, 28, 28, generator=draw)
    network = GraphHypernetwork.for_graphs([graph])
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    state = ag.initial_state(graph, 0)
    losses = []
    for _ in range(11):
        loss, trained = lenet_round(graph, network, state, images, labels)
        losses.append(loss)
        optimiser.zero_grad()
        network.pull_back([graph], [state], [trained], weights=[sign])
        follow_gradients(network, optimiser)
    assert losses[-1] < 0.8 * losses[0] if sign > 0 else losses[-1] > 1.2 * losses[0]
