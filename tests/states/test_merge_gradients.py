"""Updates that still carry gradients are numbers to a merger, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from tests.nets import captured


@pytest.mark.parametrize("scales", [None, {"0.weight": 0.5}])
def test_parameters_are_merged_without_their_history(scales):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    graph, state = captured(net, torch.zeros(1, 3))
    merger = ag.Merger(graph, state)
    merger.add(ag.Transfer.identity(graph), dict(net.named_parameters()), 2.0, scales=scales)
    merged, _ = merger.result()
    assert not any(value.requires_grad for value in merged.values())
    factor = 1.0 if scales is None else 0.5
    torch.testing.assert_close(merged["0.weight"], state["0.weight"] * factor)
