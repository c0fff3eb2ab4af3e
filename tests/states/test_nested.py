"""Parts of parts, and pulling with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.layout.layouts import AxisRef
from tests.nets import captured


def first_axis(graph):
    axis = ag.axes(graph).of("0.weight")[0]
    assert isinstance(axis, AxisRef)
    return axis.name


@pytest.fixture(scope="module")
def graph():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    return captured(net, torch.zeros(1, 3)).graph


def test_the_larger_part_and_what_is_nested_in_it_compose_to_the_smaller(graph):
    axis = first_axis(graph)
    large = ag.take(graph, positions={axis: [1, 3, 4, 6, 7]}).transfer
    small = ag.take(graph, positions={axis: [7, 3]}).transfer
    inside = ag.nested(large, small)
    assert large >> inside == small
    taken = inside.entries["0.bias"].dims[0]
    assert taken is not None and taken.positions.tolist() == [4, 1]
    assert ag.nested(large, large) == ag.Transfer.identity(large.target)


def test_what_is_not_nested_is_refused(graph):
    axis = first_axis(graph)
    parts = [ag.take(graph, positions={axis: p}).transfer for p in ([0, 1, 2], [2, 3])]
    with pytest.raises(ag.RewriteError, match=r"0.weight: has positions that the larger"):
        ag.nested(*parts)
    exits = ag.add_exits(graph, {"0": 2}).transfer
    with pytest.raises(ag.RewriteError, match=r"exits.* is not a selection from one entry"):
        ag.nested(ag.Transfer.identity(graph), exits)
    with pytest.raises(ag.RewriteError, match=r"0.weight: has positions"):
        ag.nested(parts[0], ag.Transfer.identity(graph))


def test_gradients_flow_where_they_are_asked_for(graph):
    """Through slices and through an index."""
    axis = first_axis(graph)
    state = {k: v.requires_grad_() for k, v in ag.initial_state(graph).items()}
    for positions in ([0, 1, 2], [6, 0, 3]):
        part = ag.take(graph, positions={axis: positions}).transfer
        assert not any(v.requires_grad for v in part.pull(state).values())
        pulled = part.pull(state, copy=False, gradients=True)
        (gradient,) = torch.autograd.grad(pulled["0.bias"].sum(), state["0.bias"])
        assert gradient.nonzero().flatten().tolist() == sorted(positions)
