"""Further classifiers on the way to the output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from tests import structures as nets
from tests.nets import captured, with_parts
from tests.rewrites.networks import traced


def test_exits_leave_the_main_output():
    graph, state = traced(nets.Net(nets.Basic, (2, 2), (8, 12)), torch.randn(2, 3, 8, 8))
    head = traced(
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
        torch.randn(2, 8, 8, 8),
    ).graph
    early = ag.add_exits(graph, {"stage1": head, "stage2.0": 7}, verify=True)
    net = ag.build(early.graph, early.transfer.pull(state)).eval()
    x = torch.randn(3, 3, 8, 8)
    found = net(x)
    assert {k: v.shape for k, v in found.items()} == {
        "main": (3, 5), "stage1": (3, 5), "stage2.0": (3, 7)
    }  # fmt: skip
    torch.testing.assert_close(found["main"], ag.build(graph, state).eval()(x), rtol=0, atol=0)
    assert "exits.stage2_0.weight" in early.graph.state_names
    with pytest.raises(
        ag.RewriteError, match="the head's input does not match the section's output"
    ):
        ag.add_exits(graph, {"stage2": head})
    with pytest.raises(ag.ArchGraphError, match="no such section or block"):
        ag.add_exits(graph, {"stage7": 3})


def test_further_exits_join_those_that_are_there():
    graph = nets.net_graph(nets.Basic, (2, 2), (8, 12))
    one = ag.add_exits(graph, {"stage1": 4}).graph
    both = ag.add_exits(one, {"stage2": 4}, verify=True).graph
    assert both.outputs == ag.add_exits(graph, {"stage1": 4, "stage2": 4}).graph.outputs
    with pytest.raises(ag.RewriteError, match="stage1: an exit of this name already exists"):
        ag.add_exits(one, {"stage1": 3})
    for heads in ({"stage1": 3}, {"stage2.0": 2, "stage2_0": 2}, {"stage2": 2.5}, {"stage2": 0}):
        with pytest.raises(ag.ArchGraphError):
            ag.add_exits(one, heads)  # type: ignore[arg-type]  # nonsense on purpose


@with_parts(lambda: {"layers": nn.ModuleList(nn.Linear(6, 6) for _ in range(2))})
def Stream(self, x):
    """Channels that are the input's own: nothing about them can be cut."""
    for layer in self.layers:
        x = x + layer(x).relu()
    return x


@pytest.mark.parametrize("shape", [(2, 6), (2, 5, 6), (2, 4, 5, 6)])
def test_an_exit_needs_channels_not_a_free_axis(shape):
    graph = captured(Stream(), torch.randn(shape), train=False).graph
    early = ag.add_exits(graph, {"layers.0": 4}, verify=True)
    wide = 6 if len(shape) < 4 else 4  # of images, the dimension after the batch
    assert early.graph.param["exits.layers_0.weight"].shape == (4, wide)
