"""HeteroFL's scaler leaves the last layers alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.rewrites import scaler
from tests.nets import captured
from tests.structures import graph_of


@pytest.mark.parametrize(("end", "scaled"), [((nn.ReLU(),), 1), ((nn.AdaptiveAvgPool2d(1),), 2)])
def test_the_last_layer_is_the_one_behind_which_all_is_pointwise(end, scaled):
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1), *end)
    rewritten = ag.add_scaler(graph_of(net, torch.zeros(2, 3, 4, 4)), 0.5, verify=True)
    assert sum(n.op == "aten.mul.Tensor" for n in rewritten.graph.nodes) == scaled


def test_it_divides_in_evaluation_where_that_is_asked_for():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    graph, state = captured(net, torch.zeros(2, 3))
    x = torch.randn(5, 3)
    always = ag.build(ag.add_scaler(graph, 0.5, always=True).graph, state)
    expected = net[2](2 * net[0](x).relu())
    for mode in (True, False):
        torch.testing.assert_close(always.train(mode)(x), expected)


@pytest.mark.parametrize("verify", [True, False])
def test_the_law_runs_where_it_is_asked_for(monkeypatch, verify):
    ran = []
    monkeypatch.setattr(scaler, "same_function", lambda *graphs: ran.append(graphs))
    ag.add_scaler(
        graph_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.zeros(2, 3)),
        0.5,
        verify=verify,
    )
    assert len(ran) == verify
