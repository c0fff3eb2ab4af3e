"""Repair: after it, layers give what those of the averaged networks gave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import archgraph as ag
from archgraph.errors import DataError
from archgraph.graph.ir import Ref

IMAGES = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 10), nn.ReLU(), nn.Linear(10, 3),
    )  # fmt: skip


def averaged(graph: ag.ArchGraph, seeds: tuple[int, ...]) -> tuple[list[Any], dict[str, Any]]:
    ends = [ag.initial_state(graph, seed) for seed in seeds]
    return ends, {k: torch.stack([end[k] for end in ends]).mean(0) for k in ends[0]}


def moments(graph: ag.ArchGraph, state: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    probe = graph.replace(outputs=(Ref(name),))
    with torch.no_grad():
        (value,) = ag.build(probe, state).eval()(IMAGES)
    rows = value.double().movedim(1, 0).flatten(1)
    return rows.mean(1), rows.std(1, correction=0)


def test_every_layer_has_the_mean_statistics_of_the_ends():
    graph = ag.trace(net(), IMAGES[:2]).graph
    ends, mean = averaged(graph, (0, 1, 2))
    after = ag.repair(graph, mean, [(IMAGES[:32], None), (IMAGES[32:], None)], ends=ends)
    layers = [n.name for n in graph.nodes if len([*n.leaves()]) == 2]
    assert len(layers) == 4
    for name in layers:
        goals = [moments(graph, end, name) for end in ends]
        before, now = moments(graph, mean, name), moments(graph, after, name)
        for which in (0, 1):
            goal = torch.stack([g[which] for g in goals]).mean(0)
            torch.testing.assert_close(now[which], goal, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(before[1], goal, rtol=1e-2)  # deviations shrink


def test_a_network_alone_is_whole():
    graph = ag.trace(net(), IMAGES[:2]).graph
    (end,), _ = averaged(graph, (0,))
    after = ag.repair(graph, end, [(IMAGES, None)], ends=[end])
    for name, value in end.items():
        torch.testing.assert_close(after[name], value, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_those_of_the_data():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    graph, state = ag.trace(model, IMAGES[:2])
    after = ag.repair(graph, state, [(IMAGES, None)])
    with torch.no_grad():
        value = nn.functional.conv2d(IMAGES, state["0.weight"])
    torch.testing.assert_close(after["1.running_mean"], value.mean((0, 2, 3)))
    torch.testing.assert_close(after["1.running_var"], value.var((0, 2, 3)))
    assert torch.equal(after["0.weight"], state["0.weight"])


def test_it_needs_data():
    graph, state = ag.trace(net(), IMAGES[:2])
    with pytest.raises(DataError, match="repair needs batches"):
        ag.repair(graph, state, [])
