"""What take says of a choice that is none."""

from __future__ import annotations

import pytest
import torch

import archgraph as ag
from tests.rewrites.networks import traced, traced_mlp


@pytest.mark.parametrize(
    "spec", [True, "0.out", None, {"0.out": [True, False]}, {"0.out": [0.5]}, {"0.out": "x"}]
)
def test_nonsense_to_take_is_one_message(spec):
    with pytest.raises(ag.RewriteError, match=r"found|no axes are chosen"):
        ag.take(traced_mlp().graph, spec)


@pytest.mark.parametrize(
    ("rewrite", "share"),
    [(ag.take, 0.5), (ag.narrow, 0.5), (ag.widen, 2)],
    ids=["take", "narrow", "widen"],
)
def test_a_share_of_what_is_pinned_says_why_unless_nothing_is_meant(rewrite, share):
    graph = traced(torch.nn.Sequential(torch.nn.Linear(3, 3)), torch.ones(1, 3)).graph
    with pytest.raises(ag.RewriteError) as caught:
        rewrite(graph, share)
    assert str(caught.value).startswith(
        f"changes nothing: every axis keeps its size; found {share}, and pinned: "
        "0.out (dimension 1 of the model's output), 0.in ("
    )
    assert "allow_nothing=True" in str(caught.value)
    assert rewrite(graph, share, allow_nothing=True).graph == graph
    assert rewrite(graph, 1).graph == graph  # whole is what was asked for


def test_reasons_of_a_share_that_changes_nothing_are_bounded():
    layers = [torch.nn.Linear(4, 4) for _ in range(9)]
    graph = traced(torch.nn.Sequential(*layers), torch.ones(1, 4)).graph
    with pytest.raises(
        ag.RewriteError, match=r"0\.9, and rounded to the present size: 0\.out \(4\), .*"
    ):
        ag.take(graph, 0.9)
    with pytest.raises(ag.RewriteError, match=r"2\.out \(4\) and 5 more; `explain`"):
        ag.take(graph, 0.9)
    with pytest.raises(ag.RewriteError, match="changes nothing"):
        ag.take(graph, {"0.out": 1, "1.out": 0.9})  # one of them was to change
    assert ag.take(graph, {"0.out": 0.9, "1.out": 0.5}).graph.param["1.weight"].shape == (2, 4)


def test_a_share_beside_an_order_changes_something():
    """No size changes, and the positions do."""
    graph = traced_mlp().graph
    axis, *_ = ag.axes(graph).free
    order = list(reversed(range(axis.size)))
    found = ag.take(graph, {axis.name: 0.999}, positions={axis.name: order})
    assert found.transfer != ag.Rewritten.identity(graph).transfer
