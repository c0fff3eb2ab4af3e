"""FIARSE: masks, gradients, means and bytes worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.federation import LocalOptions, Outcome, TaskLoss, Train
from archgraph.record.client import ClientState
from archgraph.record.traffic import back, sent
from archgraph.strategies.fiarse import FIARSE, TrainMasked, important, threshold


@pytest.fixture(scope="module")
def small(lab):
    """Four units, 18 weights of the magnitudes 1 to 18; half of the units are 10 weights."""
    net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2))
    graph, state = ag.trace(net, torch.zeros(2, 1))
    sizes = iter(range(1, 19))
    signs = iter([1, -1] * 9)
    state = {
        k: torch.tensor([next(signs) * next(sizes) for _ in range(v.numel())]).float().view(v.shape)
        for k, v in state.items()
    }
    tiers = {"half": ag.take(graph, 0.5), "full": ag.Rewritten.identity(graph)}
    return lambda *clients: lab.make_world(graph, state, tiers, clients)


def constant(task):
    return {k: torch.full_like(v, float(task.client)) for k, v in task.state.items()}


def test_a_client_is_sent_the_largest_weights_of_the_model_and_bytes_count_positions(small):
    world, strategy = small("half", "full"), FIARSE()
    state = strategy.init(world)
    narrow, full = (strategy.send(world, state, client, 1) for client in (0, 1))
    for name, value in world.state.items():
        assert torch.equal(narrow.state[name], torch.where(value.abs() >= 9, value, 0.0))
        assert torch.equal(full.state[name], value)
    assert narrow.graph == world.graph  # and all of its multiply-accumulates
    # Ten numbers of four bytes with as many for their positions; back without.
    assert sent(narrow, ClientState()) == 80
    assert back(narrow.result(Outcome(narrow.state), 1)) == 40
    assert sent(full, ClientState()) == back(full.result(Outcome(full.state), 1)) == 72
    assert full.program == Train(TaskLoss()) and narrow.program == TrainMasked(TaskLoss())


def test_thresholds_of_single_tensors(small):
    world, strategy = small("half"), FIARSE(by="tensor")
    weights = strategy.send(world, strategy.init(world), 0, 1).state
    # 10/18 of 4, 4, 8 and 2 weights, rounded down.
    assert [int(v.count_nonzero()) for v in weights.values()] == [2, 2, 4, 1]


def test_a_merge_by_hand(small):
    """Two clients have the weights from 9 on, a third one all."""
    world = small("half", "half", "full")
    state = FIARSE().init(world)
    tasks = [FIARSE().send(world, state, client, 1) for client in range(3)]
    results = [task.result(Outcome(constant(task)), 10 + task.client) for task in tasks]
    after = FIARSE().receive(world, state, results, 1).group("global")
    weighed = FIARSE(weights="examples").receive(world, state, results, 1).group("global")
    without = FIARSE().receive(world, state, results[:2], 1).group("global")
    for name, old in world.state.items():
        covered = old.abs() >= 9
        assert torch.equal(after[name], torch.where(covered, 1.0, 2.0))
        mean = (0 * 10 + 1 * 11 + 2 * 12) / 33
        torch.testing.assert_close(weighed[name], torch.where(covered, mean, 2.0))
        assert torch.equal(without[name], torch.where(covered, 0.5, old))


@given(x=st.floats(-4, 4, width=32), limit=st.floats(0, 4, width=32))
def test_the_gradient_at_the_threshold_is_the_published_one(x, limit):
    weight = torch.tensor(x, requires_grad=True)
    value = important(weight, limit)
    value.backward()
    assert weight.grad is not None
    above = abs(x) >= limit
    assert value.item() == (x if above else 0)
    slope = 1 + (2 * limit * abs(x) / (abs(x) + limit) ** 2 if limit * abs(x) > 1e-20 else 0)
    assert math.isclose(weight.grad.item(), slope if above else 0, rel_tol=1e-5, abs_tol=1e-6)


def test_a_weight_at_the_threshold_moves_half_as_much_again_and_those_below_stay(small):
    weight = torch.tensor([9.0, 8.0, -9e6], requires_grad=True)
    important(weight, 9.0).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == pytest.approx([1.5, 0.0, 1.0], abs=1e-5)
    assert threshold([torch.tensor([3.0, -3.0, 1.0])], 0.34) == 3.0


def test_training_leaves_what_is_masked_at_zero(lab):
    tiers = {"half": ag.take(lab.graph, 0.5), "full": ag.Rewritten.identity(lab.graph)}
    world, strategy = lab.make_world(lab.graph, lab.state, tiers, ["half"]), FIARSE()
    task = strategy.send(world, strategy.init(world), 0, 1)
    local = LocalOptions(batch=4, lr=0.05, momentum=0.9, weight_decay=0.01)
    after = task.program(lab.work_of(task, lab.toy(0), local)).state
    assert not any("bn" in name for name in task.indexed)
    assert {"stem.bias", "layer1.0.conv1.weight", "fc.weight"} <= task.indexed
    numbers = 0
    for name in task.indexed:
        mask = task.state[name] != 0
        assert not after[name][~mask].any()
        numbers += int(mask.sum())
    moved = after["layer1.0.conv1.weight"] - task.state["layer1.0.conv1.weight"]
    assert moved.any()
    share = ag.cost(tiers["half"].graph).parameters / ag.cost(lab.graph).parameters
    total = sum(lab.state[name].numel() for name in task.indexed)
    assert numbers == int(share * total)
    rest = sum(v.numel() * v.element_size() for k, v in lab.state.items() if k not in task.indexed)
    assert sent(task, ClientState()) == 8 * numbers + rest
    assert back(task.result(Outcome(after), 1)) == 4 * numbers + rest


def test_structured_the_positions_of_largest_weights_are_a_narrow_network(small):
    world, strategy = small("half", "full"), FIARSE(structured=True)
    state = strategy.init(world)
    narrow, full = (strategy.send(world, state, client, 1) for client in (0, 1))
    # A unit has a weight, a bias and two readers: 1, 5, 9, 13; 2, 6, 10, 14; ...
    assert narrow.state["0.weight"].flatten().tolist() == [3.0, -4.0]
    assert narrow.state["2.weight"].tolist() == [[11.0, -12.0], [15.0, -16.0]]
    assert (sent(narrow, ClientState()), sent(full, ClientState())) == (40, 72)
    results = [task.result(Outcome(constant(task)), 1) for task in (narrow, full)]
    after = strategy.receive(world, state, results, 1).group("global")
    assert after["0.bias"].tolist() == [1.0, 1.0, 0.5, 0.5]
    models = {model.name: model for model in strategy.evaluated(world, state)}
    assert models["half"].state["0.weight"].flatten().tolist() == [3.0, -4.0]


def test_a_tier_is_tested_on_its_part_of_the_weights_after_the_round(small):
    world, strategy = small("full"), FIARSE()
    state = strategy.init(world)
    grown = {k: v.sign() * (19 - v.abs()) for k, v in world.state.items()}
    result = strategy.send(world, state, 0, 1).result(Outcome(grown), 1)
    models = {
        m.name: m for m in strategy.evaluated(world, strategy.receive(world, state, [result], 1))
    }
    assert torch.equal(models["global"].state["0.weight"], grown["0.weight"])
    for name, value in models["half"].state.items():
        assert torch.equal(value, torch.where(grown[name].abs() >= 9, grown[name], 0.0))
