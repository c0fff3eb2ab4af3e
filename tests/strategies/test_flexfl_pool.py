"""FlexFL's pool: widths by zeros, a merge and a step of self-distillation worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import archgraph as ag
from archgraph.federation import LocalOptions, TaskLoss, Train
from archgraph.strategies.flexfl_pool import (
    FlexFLPool,
    SelfDistillation,
    own_parameters,
    rates,
    widths,
)

CLASSES = 5
# All rates are 1.
EVEN = {"*": 0.0}


@pytest.fixture(scope="module")
def deep(lab):
    """Two hidden layers: 64 · 4 + 4, 4 · 8 + 8, 8 · 5 + 5 parameters, 345 in all."""
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )
    graph, state = ag.trace(net, torch.zeros(2, 1, 8, 8))
    tiers = {"half": ag.take(graph, 0.5), "full": ag.Rewritten.identity(graph)}
    return lambda *clients, **more: lab.make_world(graph, state, tiers, clients, **more)


def test_the_rate_of_an_axis_falls_with_its_zeros_and_its_layers_parameters():
    """Three convolutions with a norm: their own 36 + 4 + 8, 288 + 8 and 432 + 6 parameters."""
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 100),  # reads the last channels: its 700 parameters are not theirs
    )
    graph = ag.trace(net, torch.zeros(2, 1, 8, 8)).graph
    layers = {"0.out": 48, "3.out": 296, "5.out": 438}
    assert {name: own_parameters(graph, name) for name in layers} == layers
    apoz = {"0.out": 0.25, "3.out": 0.5, "5.out": 0.75}
    expected = {n: 1 - apoz[n] * math.log(layers[n]) / math.log(438) for n in layers}
    assert rates(graph, apoz) == pytest.approx(expected, rel=1e-12)


def test_widths_are_the_largest_multiple_of_the_rates_that_fits(deep):
    graph = deep("full").graph
    rate = {"1.out": 0.5, "3.out": 1.0}
    assert widths(graph, rate, 345) == {"1.out": 4, "3.out": 8}
    # Two of four units and up to eight: 130 + 3 · 8 + 45; one position more is too much.
    assert widths(graph, rate, 199) == {"1.out": 2, "3.out": 8}
    assert widths(graph, rate, 198) == {"1.out": 2, "3.out": 7}


def test_apoz_is_given_by_pattern_and_the_last_one_decides(deep):
    world = deep("half", "full")
    sizes = FlexFLPool(apoz={"*": 0.9, "1": 0.0}).init(world).values["sizes"]
    assert sizes["full"] == {"1.out": 4, "3.out": 8}
    most = ag.cost(world.tier("half").graph).parameters
    assert sizes["half"] == widths(
        world.graph, rates(world.graph, {"1.out": 0, "3.out": 0.9}), most
    )


def test_without_the_share_of_zeros_of_an_axis_it_is_refused(deep):
    wrong = {"1.out": 0.5, "3.out": math.nan}, {"1.out": 1.5, "3.out": 0.5}
    for apoz, missing in (
        ({}, "1.out, 3.out"),
        ({"1.out": 0.5}, "3.out"),
        (wrong[0], "3.out"),
        (wrong[1], "1.out"),
    ):
        message = f"flexfl_pool.apoz: .* fraction of zeros .*no fraction from 0 to 1 for {missing};"
        with pytest.raises(ag.RunError, match=message):
            FlexFLPool(apoz=apoz).init(deep("half", "full"))


def test_a_merge_by_hand(deep, lab):
    world = deep("half", "full", examples=[30, 10])
    after, tasks = lab.one_round(
        FlexFLPool(apoz={"1.out": 0.0, "3.out": 0.5}),
        world,
        lambda task: {k: torch.full_like(v, float(task.client)) for k, v in task.state.items()},
    )
    units = tasks[0].state["3.bias"].numel()
    assert after["3.bias"].tolist() == [0.25] * units + [1.0] * (8 - units)
    assert 0 < units < 8


@pytest.mark.parametrize("mask", [True, False])
def test_a_step_of_self_distillation_by_hand(deep, lab, mask):
    world = deep("half", "full")
    strategy = FlexFLPool(apoz=EVEN, distil=2.0, temperature=4.0, mask_absent=mask)
    state = strategy.init(world)
    narrow, task = (strategy.send(world, state, client, 1) for client in (0, 1))
    assert narrow.program == Train(TaskLoss(mask_absent=mask))
    assert isinstance(task.program, SelfDistillation)
    data = lab.toy(0, 10)
    local = LocalOptions(batch=10, lr=0.5)
    outcome = task.program(lab.work_of(task, data, local))

    net = ag.build(task.graph, task.state)
    outputs = net(data.inputs)
    small = ag.build(narrow.graph, narrow.state)(data.inputs).detach()
    log_p, log_q = ((y / 4.0).log_softmax(-1) for y in (outputs, small))
    divergence = (log_q.exp() * (log_q - log_p)).sum() / (10 * CLASSES)
    (functional.cross_entropy(outputs, data.targets) + 2.0 * 16.0 * divergence).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        expected = parameter.detach() - 0.5 * parameter.grad
        torch.testing.assert_close(outcome.state[name], expected, rtol=1e-5, atol=1e-6)
    executed = sum(ag.cost(graph).macs for graph in (task.graph, narrow.graph))
    assert outcome.metrics["macs"] == 10 * executed


def test_several_smaller_submodels_share_the_weight_of_the_distillation(deep, lab):
    """Two equal teachers teach what one does."""
    world = deep("half", "full")
    strategy = FlexFLPool(apoz=EVEN)
    task = strategy.send(world, strategy.init(world), 1, 1)
    assert isinstance(task.program, SelfDistillation)
    twice = lab.replace(task.program, smaller=task.program.smaller * 2)
    local = LocalOptions(batch=10, lr=0.5)
    one, two = (
        program(lab.work_of(task, lab.toy(0, 10), local)).state for program in (task.program, twice)
    )
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-6)


def test_without_distillation_every_client_trains_alike(deep):
    world, strategy = deep("half", "full"), FlexFLPool(apoz=EVEN, distil=0.0)
    state = strategy.init(world)
    assert strategy.send(world, state, 1, 1).program == Train(TaskLoss())


def test_a_tier_smaller_than_any_submodel_is_refused(deep, lab):
    world = deep("half")
    tier = lab.replace(world.tiers[0], graph=ag.trace(nn.Linear(2, 2), torch.zeros(1, 2)).graph)
    with pytest.raises(ag.RunError, match=r"tier half: smaller than every submodel; .* at least"):
        FlexFLPool(apoz=EVEN).init(lab.replace(world, tiers=(tier,)))
