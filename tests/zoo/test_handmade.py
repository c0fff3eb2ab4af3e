"""Hand-made hard cases: each is traced once, and all laws hold of its graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

import archgraph as ag
from archgraph.analysis.side_branches import side_branches
from archgraph.hypernet import entries, local
from archgraph.layout.layouts import AxisRef, leaves
from archgraph.ops.infer import infer
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.laws import (
    in_float64,
    mask_equals_take,
    outputs,
    random_inputs,
    random_state,
    relative_difference,
)
from tests.examples import at_most
from tests.laws import test_cost_laws, test_memory_laws
from tests.laws.test_share_laws import check_share
from tests.nets import Foreign, captured
from tests.relate import test_match
from tests.rewrites import test_lora
from tests.zoo.handmade import EXPECTED, HANDMADE

pytestmark = [
    # PyTorch has no fast path for what the case is about.
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


def _tensors(values):
    return [t for t in pytree.tree_leaves(values) if isinstance(t, torch.Tensor)]


def _loss(values):
    return sum(t.float().square().mean() for t in _tensors(values) if t.is_floating_point())


def _tolerance(tensor):
    return 1e-5 if tensor.dtype in (torch.float32, torch.float64) else 1e-2


def _has_modes(model: nn.Module) -> bool:
    """Whether training changes what the model computes; half of a capture's time is for that."""
    return any(
        isinstance(module, _NormBase) or "training" in type(module).forward.__code__.co_names
        for module in model.modules()
    )


@dataclass(frozen=True)
class _Traced:
    """A model of the collection, and what tracing it gave."""

    name: str
    foreign: Foreign
    graph: ag.ArchGraph
    state: dict[str, torch.Tensor]


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", HANDMADE)
def test_handmade_model(name: str, tmp_path: Path) -> None:
    foreign = HANDMADE[name]()
    graph, state = captured(
        foreign.model, *foreign.args, train=_has_modes(foreign.model), **foreign.kwargs
    )
    assert not any("could not be captured" in note for note in graph.notes), graph.notes
    model = _Traced(name, foreign, graph, state)
    for training in (False, True):
        check_values(model, training)
    check_text(model, tmp_path / "net.yaml")
    check_half_trains(model)
    check_mask_equals_take(model)
    check_dropped_positions_mattered(model)
    check_free_axes(model)
    check_budget(model)
    check_costs_of_submodels(model)
    check_saved_memory(model)
    check_folded_adapters(model)
    check_hidden_orders(model)
    check_generated_weights(model)


def check_values(traced: _Traced, training: bool) -> None:
    """The built module is the original: outputs, gradients, buffers."""
    foreign, graph, state = traced.foreign, traced.graph, traced.state
    original = HANDMADE[traced.name]().model.train(training)
    built = ag.build(graph, state).train(training)
    assert set(built.state_dict()) == set(original.state_dict())
    found: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for model, values in ((built, found), (original, expected)):
        torch.manual_seed(1)  # the same draws for dropout and noise
        values += _tensors(model(*foreign.args, **foreign.kwargs))
        _loss(values).backward()
    assert len(found) == len(expected)
    for tensor, other in zip(found, expected, strict=True):
        tolerance = _tolerance(other)
        torch.testing.assert_close(tensor, other, rtol=tolerance, atol=tolerance)
    gradients = {n: p.grad for n, p in built.named_parameters()}
    for name, parameter in original.named_parameters():
        a, b = gradients[name], parameter.grad
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            scale = float(b.abs().max()) or 1.0
            torch.testing.assert_close(a / scale, b / scale, rtol=0, atol=_tolerance(b))
    after = built.state_dict()
    for name, tensor in original.state_dict().items():  # buffers moved alike
        torch.testing.assert_close(after[name], tensor, rtol=1e-5, atol=1e-5)


def check_text(traced: _Traced, file: Path) -> None:
    """YAML keeps everything."""
    assert infer(traced.graph) == traced.graph
    ag.save(traced.graph, file)
    assert ag.load(file) == traced.graph


def check_half_trains(traced: _Traced) -> None:
    """Half of every width, one factor of every product, trains a step."""
    foreign, graph, state = traced.foreign, traced.graph, traced.state
    small = ag.take(graph, 0.5, allow_nothing=True)
    check_share(graph, small, 0.5, {axis.name for axis in ag.axes(graph).independent()})
    ag.check(small.graph)
    assert infer(small.graph) == small.graph
    whole = ag.build(graph, state).train()
    net = ag.build(small.graph, small.transfer.pull(state)).train()
    wide = _tensors(whole(*foreign.args, **foreign.kwargs))
    narrow = _tensors(net(*foreign.args, **foreign.kwargs))
    assert [t.shape for t in narrow] == [t.shape for t in wide]
    _loss(wide).backward()
    optimiser = torch.optim.SGD(net.parameters(), 1e-4)
    _loss(narrow).backward()
    for (name, a), (_, b) in zip(net.named_parameters(), whole.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        assert a.grad is None or a.grad.isfinite().all(), name
    optimiser.step()
    assert all(p.isfinite().all() for p in net.parameters())


def _some(axis, rng):
    return np.sort(rng.permutation(axis.size)[: math.ceil(axis.size / 2)])


def check_mask_equals_take(traced: _Traced) -> None:
    """A random half of all axes together, and of each alone."""
    graph = traced.graph
    rng = np.random.default_rng(7)
    free = ag.axes(graph).free
    together = {a.name: _some(a, rng) for a in free if not a.spans}
    small = cut_axes(graph, together)
    mask_equals_take(graph, small, together, tolerance=1e-9)
    for axis in free:
        kept = {axis.name: _some(axis, rng)}
        alone = cut_axes(graph, kept)
        assert infer(alone.graph) == alone.graph, axis.name
        mask_equals_take(graph, alone, kept, tolerance=1e-9)  # spanned: that it runs


def check_dropped_positions_mattered(traced: _Traced) -> None:
    """The law would hold by accident if the output did not depend on what is cut."""
    graph = traced.graph
    kept = {
        a.name: np.arange(2 if a.role == "cell" else 1)  # more units than a projection has outputs
        for a in ag.axes(graph).free
        if not a.spans
    }
    if kept:
        small = cut_axes(graph, kept)
        state, inputs = random_state(in_float64(graph)), random_inputs(in_float64(graph))
        wide = outputs(ag.build(in_float64(graph), state).eval(), inputs)
        pulled = small.transfer.pull(state)
        narrow = outputs(ag.build(in_float64(small.graph), pulled).eval(), inputs)
        assert relative_difference(narrow, wide) > 1e-6


def _share(graph: ag.ArchGraph) -> float:
    """Share of the parameters' elements with a free axis."""
    solved = ag.axes(graph)
    free = {a.name for a in solved.free}
    total = covered = 0
    for param in graph.params:
        if param.role == "parameter":
            names = {
                leaf.name
                for layout in solved.of(param.name)
                for leaf in leaves(layout)
                if isinstance(leaf, AxisRef)
            }
            total += math.prod(param.shape)
            covered += math.prod(param.shape) if names & free else 0
    return covered / total


def check_free_axes(traced: _Traced) -> None:
    """What a person would cut is free."""
    graph, expected = traced.graph, EXPECTED[traced.name]
    solved = ag.axes(graph)
    assert all(a.reason for a in solved.pinned)
    assert expected.because or (expected.share >= 0.9 and not expected.spanned)
    # By name: each factor of a product, too.
    small = ag.take(graph, {a.name: 0.5 for a in solved.free}, allow_nothing=True).graph
    reasons = {a.name: a.reason for a in solved.pinned}
    for param, sizes in expected.half.items():
        found, whole = small.param[param].shape, graph.param[param].shape
        fits = [
            size == most if most == all_ else size <= most
            for size, most, all_ in zip(found, sizes, whole, strict=False)
        ]
        assert all(fits), f"{param} is cut to {found}, expected {sizes}; pinned: {reasons}"
    assert _share(graph) >= expected.share
    spanned = [a for a in solved.free if a.spans]
    assert len(spanned) <= expected.spanned, spanned


def check_budget(traced: _Traced) -> None:
    """A submodel for a budget exists, and obeys the laws."""
    if ag.axes(traced.graph).free:
        small = ag.fit(traced.graph, parameters=0.6, verify=True).graph
        assert ag.cost(small).parameters <= 0.6 * ag.cost(traced.graph).parameters


def check_costs_of_submodels(traced: _Traced) -> None:
    """Costs and memory of submodels are known without making them."""

    @given(st.data())
    @at_most(2)
    def law(data: st.DataObject) -> None:
        test_cost_laws.agree(traced.graph, ag.cost(traced.graph).polynomial, data)
        test_memory_laws.agree(traced.graph, data)

    law()


def check_saved_memory(traced: _Traced) -> None:
    """Autograd saves as many bytes as the cost says."""
    foreign = traced.foreign
    tensors = not foreign.kwargs and all(isinstance(arg, torch.Tensor) for arg in foreign.args)
    if tensors and traced.name not in test_memory_laws.APPROXIMATE:
        saved = test_memory_laws.saved_by_torch(ag.build(traced.graph), *foreign.args)
        assert saved == ag.cost(traced.graph).training(2).saved


def _double(tree: Any) -> Any:
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, tree
    )


def _answer(graph: ag.ArchGraph, state: Any, foreign: Foreign) -> list[torch.Tensor]:
    """Results in evaluation of a graph in double precision."""
    torch.manual_seed(0)
    with torch.no_grad():
        net = ag.build(graph, state).eval()
        return _tensors(net(*_double(foreign.args), **_double(foreign.kwargs)))


def check_folded_adapters(traced: _Traced) -> None:
    """Weights with their adapters folded in compute what both do."""
    graph, foreign = in_float64(traced.graph), traced.foreign
    adapted = ag.add_lora(graph, 2, alpha=3, allow_nothing=True)
    tuned = test_lora.randomised(adapted, _double(traced.state))
    folded = ag.fold(adapted.graph, tuned)
    assert len(folded.graph.params) == len(graph.params)
    assert not [b for b in side_branches(folded.graph) if b.low_rank]
    results = _answer(folded.graph, folded.state, foreign), _answer(adapted.graph, tuned, foreign)
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9, equal_nan=True)


def check_hidden_orders(traced: _Traced) -> None:
    """Another order of hidden units is the same network, and is found."""
    test_match.check(traced.graph)
    graph = in_float64(traced.graph)
    state = test_match.without_symmetry(graph, 0)
    orders = test_match.hidden_orders(graph, state)
    other = ag.take(graph, positions=orders, allow_nothing=True)
    assert other.graph == graph
    moved = _answer(graph, other.transfer.pull(state), traced.foreign)
    for a, b in zip(moved, _answer(graph, state, traced.foreign), strict=True):
        largest = float(b.abs().max()) if b.is_floating_point() and b.numel() else 0.0
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * largest)


def check_generated_weights(traced: _Traced) -> None:
    """A hypernetwork generates what is trained and used; all else stays local."""
    graph = traced.graph
    names = [entry.name for entry in entries(graph)]
    assert sorted([*names, *local(graph)]) == sorted(graph.state_names)
    trained = (p.name for p in graph.params if p.role == "parameter" and p.trainable)
    assert {*names} == {name for name in trained if graph.leaf_users[name]}
