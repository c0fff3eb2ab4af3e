"""Laws of capture, building and width on random networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archgraph as ag
from archgraph.analysis.positions import positions, size_after
from archgraph.layout.layouts import AxisRef, leaves
from archgraph.ops.constants import constant_tensor
from archgraph.ops.infer import infer
from archgraph.rewrites import laws
from archgraph.rewrites.cut import cut_axes
from archgraph.rewrites.laws import mask_equals_take
from tests.examples import at_most
from tests.nets import captured, image, networks, with_parts


@given(networks(), st.booleans())
@at_most(3)
def test_build_inverts_trace(net, training):
    graph, state = captured(net, image())
    built = ag.build(graph, state)
    x = image(3)
    net.train(training)
    built.train(training)
    torch.manual_seed(0)
    expected = net(x)
    torch.manual_seed(0)
    found = built(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    found.square().sum().backward()
    expected.square().sum().backward()
    gradients = {n: p.grad for n, p in built.named_parameters()}
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=0)
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(built.state_dict()[name], tensor, rtol=0, atol=0)
    assert captured(built, image()).graph == graph
    assert infer(graph) == graph
    assert ag.parse(str(graph)) == graph


@given(networks(), st.integers(0, 2**32 - 1))
@at_most(5)
def test_mask_equals_take(net, seed):
    graph = captured(net, image(), train=False).graph
    rng = np.random.default_rng(seed)
    kept = {
        a.name: np.sort(rng.permutation(a.size)[: rng.integers(1, a.size + 1)])
        for a in ag.axes(graph).free
        if not a.spans
    }
    small = cut_axes(graph, kept)
    ag.check(small.graph)
    assert infer(small.graph) == small.graph
    # float64 round-off of a few layers of a hundred terms each
    assert mask_equals_take(graph, small, kept, tolerance=1e-10, seed=seed % 1000) <= 1e-10


@given(networks(), st.integers(0, 2**32 - 1))
@at_most(4)
def test_each_axis_alone(net, seed):
    graph = captured(net, image(), train=False).graph
    rng = np.random.default_rng(seed)
    for axis in ag.axes(graph).free:
        index = np.sort(rng.permutation(axis.size)[: max(axis.size // 2, 1)])
        small = cut_axes(graph, {axis.name: index})
        ref = AxisRef(axis.name, axis.size)
        changed = {p.name for p in graph.params if small.graph.param[p.name].shape != p.shape}
        assert changed == {
            p.name
            for p in graph.params
            if any(leaf == ref for layout in ag.axes(graph).of(p.name) for leaf in leaves(layout))
        }
        if not axis.spans:
            mask_equals_take(graph, small, {axis.name: index}, tolerance=1e-10)


@given(networks())
@at_most(3)
def test_taking_everything_is_the_identity(net):
    graph, state = captured(net, image(), train=False)
    whole = ag.take(graph, 1.0)
    assert whole.graph == graph
    assert whole.transfer == ag.Transfer.identity(graph)
    pulled = whole.transfer.pull(state)
    assert all(torch.equal(pulled[k], v) for k, v in state.items())


@given(networks(), st.floats(0.2, 0.9), st.floats(0.2, 0.9))
@at_most(4)
def test_prefixes_compose(net, first, second):
    graph, state = captured(net, image(), train=False)
    once = ag.take(graph, first, allow_nothing=True)  # 0.9 of four channels are four
    both = once >> (lambda g: ag.take(g, second, allow_nothing=True))
    again = ag.take(once.graph, second, allow_nothing=True)
    assert both.graph == again.graph
    direct, stepwise = both.transfer.pull(state), again.transfer.pull(once.transfer.pull(state))
    assert all(torch.equal(direct[k], stepwise[k]) for k in direct)


@given(networks())
@at_most(3)
def test_scaler_changes_training_only(net):
    graph, state = captured(net, image())
    scaled = ag.add_scaler(graph, 0.5, verify=True)
    assert len(scaled.graph.nodes) > len(graph.nodes)
    a, b = ag.build(graph, state).eval(), ag.build(scaled.graph, state).eval()
    torch.testing.assert_close(a(image()), b(image()), rtol=0, atol=0)
    assert ag.state_of(b).keys() == ag.state_of(a).keys()


@given(networks())
@at_most(4)
def test_alignment_of_a_cut_is_its_transfer(net):
    graph, state = captured(net, image(), train=False)
    small = ag.take(graph, 0.5)
    try:
        aligned = ag.align(small.graph, graph).transfer
    except ag.RewriteError as error:  # a product of two axes cut to a size that tells nothing
        assert "several cuts" in str(error)
        return
    pulled, expected = aligned.pull(state), small.transfer.pull(state)
    assert all(torch.equal(pulled[k], v) for k, v in expected.items())


def test_positions_and_sizes_agree():
    graph = captured(torch.nn.Linear(6, 4), torch.zeros(1, 6)).graph
    for param in graph.params:
        for layout, size in zip(ag.axes(graph).of(param.name), param.shape, strict=True):
            assert size_after(layout, {}) == size
            assert positions(layout, {}).tolist() == list(range(size))


@with_parts(lambda: {"a": nn.Linear(3, 4), "b": nn.Linear(4, 2)})
def Scaled(self, x):
    """A constant along a free axis."""
    return self.b(self.a(x) * torch.linspace(1.0, 4.0, 4))


def test_constants_are_masked_like_weights():
    graph = laws.in_float64(captured(Scaled(), torch.zeros(2, 3), train=False).graph)
    (axis,) = ag.axes(graph).free
    masked, state = laws.masked(graph, laws.random_state(graph), {axis.name: np.array([0, 2])})
    (constant,) = [p.value for p in masked.params if p.role == "constant"]
    assert constant is not None
    assert (constant_tensor(constant) > 0.5).tolist() == [True, False, True, False]
    assert (state["a.bias"] > 0.5).tolist() == [True, False, True, False]


def test_arguments_that_are_not_tensors_stay_as_they_are():
    graph = captured(nn.Linear(3, 2), torch.zeros(2, 3)).graph
    fixed = graph.replace(inputs=(*graph.inputs, ("scale", 2.0), ("flags", (True, None))))
    made = laws.random_inputs(fixed)
    assert made["input"].shape == (2, 3)
    assert (made["scale"], made["flags"]) == (2.0, (True, None))


def test_random_weights_keep_the_size_of_what_they_multiply():
    graph = captured(nn.Linear(600, 50), torch.zeros(2, 600), train=False).graph
    assert laws.random_state(graph)["weight"].std().item() == pytest.approx(
        (1.5 / 600) ** 0.5, 0.05
    )
