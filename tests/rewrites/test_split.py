"""Parts of an architecture, and what puts them together again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from tests import structures as nets
from tests.nets import captured, with_parts
from tests.rewrites.networks import mlp, traced


@pytest.mark.parametrize("parts", ["graph", "rewritten", "module", "modules"])
def test_only_architectures_are_chained(parts):
    net = mlp()
    graph = traced(net, torch.zeros(1, 3)).graph
    given = {"graph": graph, "rewritten": ag.take(graph, 0.5), "module": net, "modules": [net]}
    with pytest.raises(ag.ArchGraphError, match=r"cannot chain|trace it first"):
        ag.chain(given[parts])


def test_split_says_what_is_wrong():
    graph = nets.net_graph(nets.Basic, (2, 2), (8, 12))
    with pytest.raises(ag.GraphError, match=r"no such section or block; found 'stage9'"):
        ag.split(graph, after="stage9")
    with pytest.raises(ag.RewriteError, match="cut leaves a part empty"):
        ag.split(graph, before="stem")
    with pytest.raises(
        ag.RewriteError, match="the inputs of a part do not match the outputs of the part before it"
    ):
        ag.chain([p.graph for p in reversed(ag.split(graph, after="stage1").parts)])


def test_extractor_and_classifier_carry_their_own_leaves():
    graph = nets.net_graph(nets.Basic, (2, 2), (8, 12))
    parts = ag.split(graph, after="stage1", before="head")
    names = [set(p.graph.state_names) for p in parts]
    assert set.union(*names) == set(graph.state_names)
    assert sum(map(len, names)) == len(graph.state_names)
    assert parts[0].graph.inputs == graph.inputs


@with_parts(
    lambda: {
        "a": nn.Linear(6, 8),
        "b": nn.Linear(4, 4),
        "c": nn.Linear(8, 2),
    }
)
def Folded(self, x):
    return self.c(self.b(self.a(x).view(-1, 4)).relu().view(x.shape[0], -1))


def test_a_cut_where_the_batch_is_folded_is_refused():
    graph = captured(Folded(), torch.randn(3, 6), train=False).graph
    with pytest.raises(
        ag.RewriteError, match="the cut crosses values whose first axis is not the batch"
    ):
        ag.split(graph, after="a")


def test_parts_keep_the_order_of_inputs_and_those_that_nothing_uses():
    @with_parts(lambda: {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    def Late(self, late, unused, early):
        return self.b(self.a(early).relu()) + late

    graph = traced(Late(), torch.zeros(2, 4), torch.zeros(2, 3), torch.zeros(2, 4)).graph
    parts = ag.split(graph, after="a")
    assert [k for k, _ in parts[0].graph.inputs] == ["early"]
    assert ag.chain(parts) == graph


@with_parts(
    lambda: {
        "scale": nn.Parameter(torch.ones(6)),
        "spare": nn.Parameter(torch.ones(3)),
    }
)
def Spare(self, x):
    """A layer with a parameter that forward does not use."""
    return (x * self.scale).relu()


def test_what_nothing_uses_goes_with_its_module():
    net = nn.Sequential(nn.Linear(3, 6), Spare(), nn.Linear(6, 2))
    graph = traced(net, torch.zeros(2, 3)).graph
    names = [p.graph.state_names for p in ag.split(graph, before="2").parts]
    assert {"1.scale", "1.spare"} <= set(names[0])
