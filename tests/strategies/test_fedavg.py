"""FedAvg in closed form."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from archgraph.strategies.fedavg import FedAvg


def test_the_mean_is_weighted_by_examples(tiny):
    world = tiny.uniform(2, examples=[30, 10])
    after, _ = tiny.one_round(
        FedAvg(), world, lambda t: {k: v * 0 + t.client for k, v in tiny.state.items()}
    )
    assert all(torch.equal(v, torch.full_like(v, 0.25)) for v in after.values())


def test_the_mean_can_be_uniform(tiny):
    world = tiny.uniform(2, examples=[30, 10])
    after, _ = tiny.one_round(
        FedAvg(weights="uniform"),
        world,
        lambda t: {k: v * 0 + t.client for k, v in tiny.state.items()},
    )
    assert all(torch.equal(v, torch.full_like(v, 0.5)) for v in after.values())


def test_counters_combine_by_maximum(lab):
    def update(task):
        return {
            k: torch.full_like(v, 3 + task.client) if not v.is_floating_point() else v
            for k, v in task.state.items()
        }

    after, _ = lab.one_round(FedAvg(), lab.uniform(3), update)
    counters = [v for v in after.values() if not v.is_floating_point()]
    assert counters and all(int(v) == 5 for v in counters)


def test_a_second_architecture_is_refused(lab):
    tiers = {"half": ag.take(lab.graph, 0.5), "full": ag.Rewritten.identity(lab.graph)}
    world = lab.make_world(lab.graph, lab.state, tiers, ["full", "half"])
    with pytest.raises(ag.RunError, match=r"client 1 \(half\): FedAvg averages one architecture"):
        FedAvg().init(world)
