"""One order for two networks: the function stays, hidden orders are found."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import archgraph as ag
from tests.nets import FOREIGN, captured, with_parts
from tests.zoo.handmade import HANDMADE

State = dict[str, torch.Tensor]


def without_symmetry(graph: ag.ArchGraph, seed: int) -> State:
    """A state whose entries are all different, variances positive."""
    draw = torch.Generator().manual_seed(seed)
    state = dict(ag.initial_state(graph, seed))
    for name, value in state.items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=draw, dtype=torch.float64)
            buffer = graph.param[name].role == "buffer"
            noise = noise.abs() + 0.5 if buffer else value.double() + noise * 0.3
            state[name] = noise.to(value.dtype)
    return state


def noisy(state: State, share: float) -> State:
    """The state with noise of a share of each tensor's deviation."""
    draw = torch.Generator().manual_seed(2)

    def one(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or value.numel() < 2:
            return value
        step = torch.randn(value.shape, generator=draw, dtype=torch.float64)
        return (value.double() + share * value.double().std() * step).to(value.dtype)

    return {name: one(value) for name, value in state.items()}


def hidden_orders(graph: ag.ArchGraph, state: State) -> dict[str, np.ndarray[Any, Any]]:
    """A random order of every axis that can be matched."""
    draw = np.random.default_rng(1)
    known = ag.match(graph, state, state).positions
    return {name: draw.permutation(len(known[name])) for name in sorted(known)}


def check(graph: ag.ArchGraph, *args: Any, **kwargs: Any) -> None:
    """Hide an order, keep the function, find the order; with noise, too."""
    state = without_symmetry(graph, 0)
    orders = hidden_orders(graph, state)
    other = ag.take(graph, positions=orders, allow_nothing=True).transfer.pull(state)
    if args or kwargs:
        nets = (ag.build(graph, s).double().eval() for s in (state, other))
        wide = pytree.tree_map_only(
            torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, (args, kwargs)
        )
        with torch.no_grad():
            x, y = (pytree.tree_leaves(net(*wide[0], **wide[1])) for net in nets)
        for a, b in zip(x, y, strict=True):
            if isinstance(a, torch.Tensor) and a.is_floating_point():
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10 * float(a.abs().max() + 1))
    result = ag.match(graph, state, other)
    for name, order in orders.items():
        assert result.positions[name].tolist() == order.tolist(), name
        assert result.moved[name] == int((order != np.arange(len(order))).sum())
    back = result.order.pull(other)
    assert all(torch.equal(back[name], value) for name, value in state.items())
    there = result.transfer.pull(state)
    assert all(torch.equal(there[name], value) for name, value in other.items())
    assert result.after == pytest.approx(1.0, abs=1e-12) or not orders
    again = ag.match(graph, state, noisy(dict(other), 0.3)).positions
    assert all(again[name].tolist() == order.tolist() for name, order in orders.items())


@pytest.mark.parametrize(
    "name",
    ["bert", *(pytest.param(n, marks=pytest.mark.full) for n in ("mobilenet_v2", "resnet18"))],
)
def test_hidden_orders_of_foreign_models_are_found_and_keep_the_function(name):
    foreign = FOREIGN[name]()
    graph = captured(foreign.model, *foreign.args, **foreign.kwargs).graph
    check(graph, *foreign.args, **foreign.kwargs)


# ------------------------------------------------------------------------------- what it is


@functools.cache
def perceptron(width: int) -> Any:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))
    return captured(layers, torch.zeros(1, 5))


def test_a_network_matches_itself_as_it_is():
    graph, state = perceptron(6)
    result = ag.match(graph, state, state)
    assert result.order == result.transfer == ag.Transfer.identity(graph)
    assert result.before == result.after == pytest.approx(1)
    assert not any(result.moved.values())


def test_similarity_by_axis_and_equality_of_bits():
    layers = nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)
    graph = captured(nn.Sequential(*layers), torch.zeros(1, 3)).graph
    state = without_symmetry(graph, 0)
    other = ag.take(graph, positions={"0.out": [1, 2, 3, 0]}).transfer.pull(state)
    found = ag.match(graph, state, other)
    assert found.equal and found.by_axis["0.out"][1] == pytest.approx(1)
    # Of the weights with an axis: closed form of the last one, which only two tensors have.
    names = "2.weight", "2.bias", "4.weight"
    flat = [torch.cat([s[k].flatten() for k in names]).double() for s in (state, other)]
    cosine = float(flat[0] @ flat[1] / (flat[0].norm() * flat[1].norm()))
    assert found.by_axis["2.out"] == pytest.approx((cosine, 1))
    other = {**other, "4.bias": other["4.bias"] + 1}  # no axis, but another network
    assert not ag.match(graph, state, other).equal
    part = ag.take(graph, positions={"0.out": [3, 1]}).transfer.pull(state)
    narrow = ag.match(graph, state, part, other=ag.take(graph, sizes={"0.out": 2}).graph)
    assert narrow.equal and narrow.positions["0.out"].tolist() == [3, 1]


def test_a_narrower_network_is_found_within_a_wider_one():
    graph, state = perceptron(6)
    small = ag.take(graph, positions={"0.out": [4, 1, 3]})
    part = small.transfer.pull(state)
    result = ag.match(graph, state, part, other=small.graph)
    assert result.positions["0.out"].tolist() == [4, 1, 3]
    assert result.transfer == small.transfer
    ordered = result.order.pull(part)
    assert torch.equal(ordered["0.weight"], state["0.weight"][[1, 3, 4]])


def test_a_merger_brings_the_second_into_the_order_of_the_first():
    graph, state = perceptron(6)
    other = ag.take(graph, positions={"0.out": [5, 0, 1, 2, 4, 3]}).transfer.pull(state)
    merger = ag.Merger(graph, state)
    merger.add(ag.Transfer.identity(graph), state)
    merger.add(ag.match(graph, state, other).transfer, other)
    merged, _ = merger.result()
    for name, value in state.items():
        torch.testing.assert_close(merged[name], value, rtol=1e-6, atol=1e-7)


def test_an_axis_with_an_order_of_its_own_is_held():
    @with_parts(
        lambda: {
            "a": nn.Linear(4, 6),
            "b": nn.Linear(6, 2),
            "angles": nn.Buffer(torch.arange(6.0), persistent=False),
        }
    )
    def Turned(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x) * self.angles)

    graph, state = captured(Turned(), torch.zeros(1, 4))
    assert "a.out" in {axis.name for axis in ag.axes(graph).free}
    assert ag.match(graph, state, state).positions == {}


def test_a_table_of_positions_in_a_buffer_holds_its_axes():
    made = HANDMADE["positions_learned_and_fixed"]()
    graph = captured(made.model, *made.args, **made.kwargs).graph
    assert graph.param["wave"].role == "buffer" and graph.param["wave"].value is not None
    held = {
        axis.name for axis in ag.axes(graph).free if axis.name in str(ag.axes(graph).leaf["wave"])
    }
    assert held
    state = without_symmetry(graph, 0)
    assert held.isdisjoint(ag.match(graph, state, state).positions)


def test_other_forms_are_refused():
    graph, state = perceptron(6)
    wide, weights = perceptron(8)
    with pytest.raises(ag.RewriteError, match=r"^0\.out: the second network is wider; found 8"):
        ag.match(graph, state, weights, other=wide)
    deep, more = captured(
        nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3), nn.Linear(3, 3)),
        torch.zeros(1, 5),
    )
    with pytest.raises(
        ag.RewriteError, match=r"^3\.weight: the first network has no such parameter"
    ):
        ag.match(graph, state, more, other=deep)
    classes, last = captured(
        nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4)), torch.zeros(1, 5)
    )
    with pytest.raises(ag.RewriteError, match=r"^2\.weight: the two networks have different forms"):
        ag.match(graph, state, last, other=classes)


def test_states_are_checked():
    graph, state = perceptron(6)
    with pytest.raises(ag.RejectedUpdate, match=r"0\.bias"):
        ag.match(graph, state, {k: v for k, v in state.items() if k != "0.bias"})
    with pytest.raises(ag.RejectedUpdate, match=r"0\.weight"):
        ag.match(graph, perceptron(8).state, state)
