"""FedRolex: windows that roll, and a merge worked out by hand."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.federation import Outcome, TaskLoss, Train, configure
from archgraph.strategies.fedrolex import FedRolex, window


@pytest.fixture(scope="module")
def tiers(lab):
    return {"full": ag.Rewritten.identity(lab.graph), "half": ag.take(lab.graph, 0.5)}


def one_more(task):
    return {k: v + 1 if v.is_floating_point() else v for k, v in task.state.items()}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_it_rolls_over_all_positions(lab, tiers, direction):
    """In round t the window begins at t - 1; after as many rounds as positions all were trained."""
    world = lab.make_world(lab.graph, lab.state, {"half": tiers["half"]}, ["half"])
    strategy = FedRolex(direction=direction)
    state = strategy.init(world)
    sign = 1 if direction == "forward" else -1
    name, size = "layer2.0.conv1.weight", 12
    for round in range(1, size + 1):
        old = state.group("global")
        task = strategy.send(world, state, 0, round)
        start = sign * (round - 1)
        rows = sorted((start + i) % size for i in range(size // 2))
        inputs = sorted((start + i) % 8 for i in range(4))
        assert torch.equal(task.state[name], old[name][rows][:, inputs])
        result = task.result(Outcome(one_more(task)), 1)
        state = strategy.receive(world, state, iter([result]), round)
        changed = state.group("global")[name] - old[name]
        assert changed.abs().sum((1, 2, 3)).nonzero().flatten().tolist() == rows
    assert not (state.group("global")["fc.weight"] == lab.state["fc.weight"]).any()


def test_the_published_code_divides_by_the_width_rate_in_training(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["half", "full"])
    plain, code = (
        cast(FedRolex, configure("fedrolex", {"preset": name}))
        for name in ("paper", "official_code")
    )
    assert (plain.scaler, code.scaler) == (False, True)
    narrow = ag.take(lab.graph, 0.5).graph
    for strategy, graph in ((plain, narrow), (code, ag.add_scaler(narrow, 0.5).graph)):
        tasks = [strategy.send(world, strategy.init(world), client, 1) for client in (0, 1)]
        assert [task.graph for task in tasks] == [graph, lab.graph]
    with pytest.raises(ag.RunError, match="running statistics of scaled activations"):
        configure("fedrolex", {"preset": "official_code", "norm": "averaged"}).init(world)


def test_a_merge_by_hand(lab):
    """Four units, two clients with two of them, one with all: round 4 begins at the last unit."""
    net = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2))
    graph, state = ag.trace(net, torch.zeros(2, 1))
    narrow = window(graph, ag.take(graph, 0.5).transfer, 3)
    tiers = {"half": ag.take(graph, 0.5), "full": ag.Rewritten.identity(graph)}
    world = lab.make_world(graph, state, tiers, ["half", "half", "full"], examples=[90, 5, 5])
    after, tasks = lab.one_round(
        FedRolex(),
        world,
        lambda task: {k: torch.full_like(v, float(task.client)) for k, v in task.state.items()},
        round=4,
    )
    assert torch.equal(tasks[0].state["0.bias"], state["0.bias"][[0, 3]])
    assert narrow.graph == tasks[0].graph
    # Units 3 and 0 of clients 0 and 1 with 0 and 1, of client 2 everything with 2; uniform weights.
    assert after["0.bias"].tolist() == [1.0, 2.0, 2.0, 1.0]
    assert after["2.weight"].tolist() == [[1.0, 2.0, 2.0, 1.0]] * 2
    assert after["2.bias"].tolist() == [1.0, 1.0]


def test_what_no_window_covers_keeps_its_bits(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["half", "half"])
    after, _ = lab.one_round(FedRolex(), world, one_more, round=2)
    name = "layer1.1.conv2.weight"
    outside = [0, 5, 6, 7]
    assert torch.equal(after[name][outside], lab.state[name][outside])
    statistics = [k for k in lab.state if "running" in k]
    assert statistics and all(torch.equal(after[k], lab.state[k]) for k in statistics)


@pytest.mark.parametrize("step", [1, 3])
def test_shortcuts_stay_aligned_where_windows_overlap(lab, tiers, step):
    """Defect of the published code: with an overlap the operands of a sum had other channels."""
    world = lab.make_world(lab.graph, lab.state, tiers, ["half"])
    strategy = FedRolex(step=step)
    task = strategy.send(world, strategy.init(world), 0, 4)
    assert task.transfer is not None
    positions = {
        name: (entry.dims[0].positions.tolist(), lab.graph.param[name].shape[0])
        for name, entry in task.transfer.entries.items()
        if entry.dims and entry.dims[0] is not None
    }
    assert len(positions) > 20
    for where, size in positions.values():
        assert where == sorted((3 * step + i) % size for i in range(size // 2))


def test_each_tier_is_tested_at_the_window_of_the_round(lab, tiers):
    world = lab.make_world(lab.graph, lab.state, tiers, ["half", "full"])
    strategy = FedRolex()
    state = strategy.begin(world, strategy.init(world), 3, [0])
    models = {model.name: model for model in strategy.evaluated(world, state)}
    assert set(models) == {"global", "full", "half"}
    assert torch.equal(models["half"].state["fc.weight"], lab.state["fc.weight"][:, 2:8])
    assert models["half"].statistics == "recompute"


def test_the_programs_of_both_presets(lab):
    world = lab.uniform(1)
    for preset, mask in (("paper", False), ("official_code", True)):
        strategy = FedRolex(**FedRolex.presets[preset])
        task = strategy.send(world, strategy.init(world), 0, 1)
        assert task.program == Train(TaskLoss(mask_absent=mask))
