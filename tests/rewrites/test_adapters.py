"""Adapters on the branches of residual blocks."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from tests import structures as nets
from tests.rewrites.networks import traced


def test_adapters_start_at_zero():
    graph, state = traced(nets.Net(nets.Basic, (2, 2), (8, 12)), torch.randn(2, 3, 8, 8))
    adapted = ag.add_adapters(graph, 3, verify=True)
    pulled = adapted.transfer.pull(state)
    assert pulled["stage1.0.adapter.down.weight"].shape == (3, 8, 1, 1)
    assert pulled["stage1.0.adapter.down.weight"].abs().max() > 0
    assert not pulled["stage1.0.adapter.up.weight"].any()
    with pytest.raises(ag.RewriteError, match="adapter size out of range"):
        ag.add_adapters(graph, 0)
