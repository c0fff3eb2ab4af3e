"""Narrowing as FedADP prints it."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from tests.rewrites.networks import traced_mlp


def test_narrow_as_printed():
    graph, state = traced_mlp(5)
    small = ag.narrow(graph, sizes={"0.out": 3})
    found = small.transfer.pull(state)
    torch.testing.assert_close(found["0.weight"], state["0.weight"][:3], rtol=0, atol=0)
    # FedADP, Algorithm 3: each kept column gets a third of the sum of the two that go
    expected = state["2.weight"][:, :3] + state["2.weight"][:, 3:].sum(1, keepdim=True) / 3
    torch.testing.assert_close(found["2.weight"], expected, rtol=1e-6, atol=1e-7)
    with pytest.raises(ag.RewriteError, match="size out of range"):
        ag.narrow(graph, sizes={"0.out": 6})
    with pytest.raises(ag.RewriteError, match="unknown mode; found papr; expected paper, net2net"):
        ag.narrow(graph, sizes={"0.out": 3}, mode="papr")  # type: ignore[arg-type]  # wrong on purpose
