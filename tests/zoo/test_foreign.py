"""Models that nobody prepared: the built module is the original, and every cut of it works."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import archgraph as ag
from archgraph.analysis.axes import axes
from archgraph.build import infer, state_of
from archgraph.rewrite.laws import mask_equals_take
from archgraph.rewrite.width import cut
from archgraph.text import parse
from tests.nets import FOREIGN, Foreign

pytestmark = pytest.mark.slow


def _tensors(outputs):
    values = outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs
    return [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]


def _dropout_off(foreign: Foreign) -> None:
    for module in foreign.model.modules():
        for name in ("p", "dropout", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


@pytest.fixture(scope="module", params=list(FOREIGN))
def traced(request):
    foreign = FOREIGN[request.param]()
    _dropout_off(foreign)
    graph, state = ag.trace(foreign.model, *foreign.args, **foreign.kwargs)
    return foreign, graph, state


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_the_built_module_is_the_original(traced, training):
    foreign, graph, state = traced
    original, built = foreign.model, ag.build(graph, state)
    assert list(built.state_dict()) == list(original.state_dict())
    built.load_state_dict(original.state_dict(), strict=True)
    original.train(training)
    built.train(training)
    expected = _tensors(original(*foreign.args, **foreign.kwargs))
    found = _tensors(built(*foreign.args, **foreign.kwargs))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    original.zero_grad()
    sum(t.square().mean() for t in expected).backward()
    sum(t.square().mean() for t in found).backward()
    gradients = dict(built.named_parameters())
    assert any(p.grad is not None for p in original.parameters())
    for name, parameter in original.named_parameters():
        other = gradients[name].grad
        assert (parameter.grad is None) == (other is None), name
        if parameter.grad is not None:
            assert other is not None
            scale = float(parameter.grad.abs().max()) or 1.0
            torch.testing.assert_close(other / scale, parameter.grad / scale, rtol=0, atol=1e-6)
    for name, tensor in original.state_dict().items():  # batch statistics moved alike
        torch.testing.assert_close(built.state_dict()[name], tensor, rtol=1e-6, atol=1e-6)
    original.load_state_dict(ag.build(graph, state).state_dict())


def test_tracing_the_built_module_gives_the_graph_back(traced):
    foreign, graph, state = traced
    assert ag.trace(ag.build(graph, state), *foreign.args, **foreign.kwargs).graph == graph
    assert infer(graph) == graph
    assert parse(str(graph)) == graph


def test_yaml_keeps_everything(traced, tmp_path):
    _, graph, _ = traced
    ag.save(graph, tmp_path / "net.yaml")
    assert ag.load(tmp_path / "net.yaml") == graph


def test_half_of_every_axis_trains_a_step(traced):
    foreign, graph, state = traced
    small = ag.take(graph, 0.5)
    ag.check(small.graph)
    assert infer(small.graph) == small.graph
    net = ag.build(small.graph, small.transfer.pull(state)).train()
    optimiser = torch.optim.SGD(net.parameters(), 1e-4)
    loss = sum(t.square().mean() for t in _tensors(net(*foreign.args, **foreign.kwargs)))
    loss.backward()
    reached = {n for n, p in ag.build(graph, state).named_parameters()}
    missing = [n for n, p in net.named_parameters() if p.grad is None and n in reached]
    used = {leaf for node in small.graph.nodes for leaf in node.leaves()}
    assert not set(missing) & used, "a used parameter got no gradient"
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
    optimiser.step()
    assert all(t.isfinite().all() for t in state_of(net).values() if t.is_floating_point())
    whole, half = ag.cost(graph).parameters, ag.cost(small.graph).parameters
    assert half == sum(p.numel() for p in net.parameters()) < 0.5 * whole


def test_mask_equals_take_on_random_positions_of_all_axes(traced):
    _, graph, _ = traced
    rng = np.random.default_rng(7)
    kept = {
        axis.name: np.sort(rng.permutation(axis.size)[: math.ceil(axis.size / 2)])
        for axis in axes(graph).free
        if not axis.spans
    }
    assert kept
    assert mask_equals_take(graph, cut(graph, kept), kept, tolerance=1e-10) <= 1e-10


def test_every_pinned_axis_has_a_reason(traced):
    _, graph, _ = traced
    solved = axes(graph)
    assert all(a.reason for a in solved.pinned)
    free = {a.name for a in solved.free}
    covered = 0
    for param in graph.params:
        if param.role == "parameter":
            names = {name for layout in solved.of(param.name) for name in _names(layout)}
            covered += math.prod(param.shape) if names & free else 0
    assert covered >= 0.95 * ag.cost(graph).parameters


def _names(layout):
    from archgraph.layout import AxisRef, leaves

    return [leaf.name for leaf in leaves(layout) if isinstance(leaf, AxisRef)]
