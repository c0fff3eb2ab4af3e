"""FedAvg in closed form."""

from __future__ import annotations

import torch

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
