"""Step sizes on the branches of residual blocks."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from tests import structures as nets
from tests.rewrites.networks import traced, traced_mlp
from tests.structures import graph_of


def test_step_sizes_start_where_they_are_told_and_learn():
    graph, state = traced(nets.Net(nets.Basic, (2, 2), (8, 12)), torch.randn(2, 3, 8, 8))
    stepped = ag.add_step_sizes(graph, "stage1.*", initial={"stage1.1": 2.0})
    pulled = stepped.transfer.pull(state)
    starts = {k: float(v) for k, v in pulled.items() if k.endswith("step_size")}
    assert starts == {"stage1.0.step_size": 1.0, "stage1.1.step_size": 2.0}
    net = ag.build(stepped.graph, pulled)
    net(torch.randn(2, 3, 8, 8)).square().sum().backward()
    learned = {n: p.grad for n, p in net.named_parameters() if n.endswith("step_size")}
    assert all(g is not None and g.abs() > 0 for g in learned.values())
    fixed = ag.add_step_sizes(graph, learnable=False).graph
    assert not any(p.trainable for p in fixed.params if p.name.endswith("step_size"))
    with pytest.raises(ag.RewriteError, match="already has its step size"):
        ag.add_step_sizes(stepped.graph, "stage1.1")
    with pytest.raises(ag.RewriteError, match=r"stem: not a residual block"):
        ag.add_step_sizes(graph, "stem")


def test_a_transformer_layer_has_two_step_sizes():
    graph = graph_of(nets.Encoder(2))
    names = [p.name for p in ag.add_step_sizes(graph, verify=True).graph.params if not p.shape]
    assert names == [f"layers.{i}.step_size_{j}" for i in range(2) for j in (1, 2)]


@pytest.mark.parametrize("start", [float("nan"), float("inf"), "a", None])
def test_step_sizes_are_finite_numbers(start):
    graph = nets.net_graph(nets.Basic, (2, 2), (8, 12))
    with pytest.raises(ag.RewriteError, match="step size"):
        ag.add_step_sizes(graph, initial=start)


@pytest.mark.parametrize(
    ("rewrite", "what"),
    [(ag.add_step_sizes, "step size"), (lambda g, **k: ag.add_adapters(g, 2, **k), "adapter")],
)
def test_a_model_without_residual_blocks_is_refused_unless_nothing_is_meant(rewrite, what):
    graph = traced_mlp().graph
    with pytest.raises(
        ag.RewriteError, match=f"changes nothing: no branch gets its {what}; found no"
    ):
        rewrite(graph)
    assert rewrite(graph, allow_nothing=True, verify=True).graph == graph
