"""AdaptiveFL's pool: its members, who trains which, and a merge worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.strategies.adaptivefl_pool import AdaptiveFLPool, Member, pool


@pytest.fixture(scope="module")
def deep(lab):
    """Two hidden layers of ten units: 162 parameters."""
    net = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))
    graph, state = ag.trace(net, torch.zeros(2, 2))
    tiers = {
        "small": ag.take(graph, sizes={"0.out": 10, "2.out": 4}),
        "large": ag.Rewritten.identity(graph),
    }
    return lambda *clients, **more: lab.make_world(graph, state, tiers, clients, **more)


def test_a_level_has_one_share_behind_each_start(deep):
    world = deep("small")
    # 30 + 11 · 4 + 2 · 5 = 84 parameters behind ten units: 40 % of the second layer.
    small = Member(84, (10, 4))
    narrow = Member(12 + 20 + 10, (4, 4))
    whole = Member(162, (10, 10))
    assert AdaptiveFLPool(starts=(0.5, 0.0)).pool(world) == (narrow, small, whole)
    # Where ten units are too many behind every start, both layers are narrow.
    assert pool(world.graph, (42,), (0.5,)) == (narrow,)


def test_the_share_is_the_largest_percentage_that_fits():
    net = nn.Sequential(nn.Linear(2, 100), nn.Linear(100, 2))
    graph = ag.trace(net, torch.zeros(1, 2)).graph  # 5 n + 2 parameters
    assert [pool(graph, (most,), (0.0,))[0].sizes for most in (252, 251)] == [(50,), (49,)]


def test_no_member_has_more_parameters_than_its_level(lab):
    levels = [ag.cost(ag.take(lab.graph, p).graph).parameters for p in (0.2, 0.35, 0.5, 0.8)]
    members = pool(lab.graph, tuple(levels), (0.5, 0.375, 0.25))
    assert len(members) > len(levels)
    names = [axis.name for axis in ag.axes(lab.graph).free]
    for most in levels:
        assert all(m.parameters <= most for m in pool(lab.graph, (most,), (0.5, 0.375, 0.25)))
    for member in members:
        cut = ag.take(lab.graph, sizes=dict(zip(names, member.sizes, strict=True)))
        assert ag.cost(cut.graph).parameters == member.parameters


def test_a_client_trains_the_largest_part_of_what_is_drawn_that_fits_it(deep):
    world, strategy = deep("small", "large"), AdaptiveFLPool(starts=(0.5, 0.0))
    narrow, small, whole = strategy.pool(world)
    drawn = {c: {strategy.member(world, c, round) for round in range(40)} for c in (0, 1)}
    assert drawn == {0: {narrow, small}, 1: {narrow, small, whole}}
    often = [strategy.member(world, 0, round) for round in range(300)]
    assert 150 < often.count(small) < 250  # drawn itself, or cut from the whole network
    assert [strategy.fitting(world, tier)[-1] for tier in world.tiers] == [small, whole]
    assert strategy.member(world, 0, 5) == strategy.member(world, 0, 5)


def test_a_merge_by_hand(deep, lab):
    strategy = AdaptiveFLPool(starts=(0.5,))
    worlds = (deep("small", "small", "large", examples=[10, 20, 30], seed=s) for s in range(99))
    # The first seed with which the last client draws the whole network.
    world = next(w for w in worlds if strategy.member(w, 2, 1) == strategy.pool(w)[-1])
    after, tasks = lab.one_round(
        strategy,
        world,
        lambda task: {k: torch.full_like(v, float(task.client)) for k, v in task.state.items()},
    )
    assert tasks[0].state["2.weight"].shape == (4, 10) and tasks[2].graph == world.graph
    mean = pytest.approx((0 * 10 + 1 * 20 + 2 * 30) / 60)
    assert after["0.bias"].tolist() == [mean] * 10
    assert after["2.bias"].tolist() == [mean] * 4 + [2.0] * 6


def test_tiers_are_tested_with_the_largest_member_that_fits(deep):
    world, strategy = deep("small", "large"), AdaptiveFLPool()
    models = {m.name: m for m in strategy.evaluated(world, strategy.init(world))}
    assert models["small"].state["2.weight"].shape == (4, 10)
    assert models["large"].state["2.weight"].shape == (10, 10)


def test_what_cannot_be_is_refused(deep, lab):
    with pytest.raises(ag.SpecError, match=r"starts: out of range"):
        AdaptiveFLPool(starts=(1.0,))
    world = deep("small")
    tier = lab.replace(world.tiers[0], graph=ag.trace(nn.Linear(2, 2), torch.zeros(1, 2)).graph)
    tiny = lab.replace(world, tiers=(tier,))
    with pytest.raises(ag.RunError, match=r"small: smaller than every submodel; .* at least 9"):
        AdaptiveFLPool().init(tiny)
