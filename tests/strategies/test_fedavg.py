"""FedAvg in closed form."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from archgraph.strategies.fedavg import FedAvg


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
