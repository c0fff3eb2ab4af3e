"""Sensitivity: the loss of the network with one cut, measured."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from torch import nn

import archgraph as ag
from archgraph.errors import DataError, RewriteError
from archgraph.states.importance import Importance
from tests.nets import image, networks

DATA = [(image(6), torch.arange(6) % 5), (-image(6), (torch.arange(6) + 1) % 5)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def loss_of(graph, state) -> float:
    net = ag.build(graph, state).eval()
    with torch.no_grad():
        return math.fsum(float(nn.functional.cross_entropy(net(x), y)) for x, y in DATA) / 2


@settings(max_examples=4)
@given(networks(3))
def test_a_loss_is_that_of_the_network_with_one_cut(net):
    graph, state = ag.trace(net.eval(), image())
    scores = ag.importance(graph, state)
    measured = ag.sensitivity(graph, state, DATA, shares=(0.5, 0.25), running="stored")
    base = loss_of(graph, state)
    assert measured.positions == scores.positions
    for name, losses in measured.losses.items():
        for size, loss in losses.items():
            cut = ag.take(graph, sizes={name: size}, importance=scores)
            assert loss == pytest.approx(loss_of(cut.graph, cut.transfer.pull(state)) - base)
    for name, loss in measured.blocks.items():
        left = ag.skip(graph, name)
        assert loss == pytest.approx(loss_of(left.graph, left.transfer.pull(state)) - base)
    assert [*measured.blocks] == [b.name for b in ag.structure(graph).blocks if b.removable]


def test_what_a_network_does_not_use_costs_nothing():
    """Neither do the positions that are zero, nor a block that passes its input on."""
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 2))
    graph, state = ag.trace(net, torch.zeros(1, 3))
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        state[name][:3] = 0
    for name in ("2.weight", "3.weight"):
        state[name][:, :3] = 0
    data = [(torch.randn(8, 3), torch.arange(8) % 2)]
    measured = ag.sensitivity(graph, state, data)
    assert measured.losses == {n: {3: pytest.approx(0, abs=1e-7)} for n in ("0.out", "2.out")}
    assert measured.lost("0.out", 3) < 1e-6
    # Of the first three positions nothing is left.
    first = Importance({n: [1.0] * 6 for n in ("0.out", "2.out")})
    assert ag.sensitivity(graph, state, data, scores=first).losses["0.out"][3] != 0


def test_layers_with_running_statistics_use_those_of_the_batch():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(4 * 16, 5))
    graph, state = ag.trace(net, image())
    state["1.running_var"] += 100.0
    trained = ag.build(graph, state).train()
    with torch.no_grad():
        cut = ag.take(graph, sizes={"0.out": 2}, importance=ag.importance(graph, state))
        small = ag.build(cut.graph, cut.transfer.pull(state)).train()
        expected = [
            nn.functional.cross_entropy(small(x), y) - nn.functional.cross_entropy(trained(x), y)
            for x, y in DATA
        ]
    measured = ag.sensitivity(graph, state, DATA)
    assert measured.losses["0.out"][2] == pytest.approx(float(sum(expected) / 2), abs=1e-6)
    stored = ag.sensitivity(graph, state, DATA, running="stored")
    assert stored.losses["0.out"][2] != pytest.approx(measured.losses["0.out"][2])


def test_what_cannot_be_measured_says_why():
    graph, state = ag.trace(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.zeros(1, 3))
    with pytest.raises(DataError, match="sensitivity needs batches"):
        ag.sensitivity(graph, state, [])
    batch = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(RewriteError, match=r"share out of range; found 1; expected .* \(0, 1\)"):
        ag.sensitivity(graph, state, [batch], shares=(0.5, 1))
    with pytest.raises(RewriteError, match="expected batch or stored"):
        ag.sensitivity(graph, state, [batch], running="no")  # type: ignore[arg-type]
