"""Inlining: a flat tape computes what the module computes, and its calls know their switches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archgraph.capture.calls import fake_tensor, region
from archgraph.errors import TraceError
from tests.capture.tapes import X, inlined, run


def plain(net, x):
    return x @ net.weight + net.row


def ungraded(net, x):
    with torch.no_grad():
        y = x @ net.weight
        with torch.enable_grad():
            z = y @ net.weight
    return y * z


def cast_region(net, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ net.weight
        with torch.autocast("cpu", enabled=False):
            z = x @ net.weight
    return y.float() + z


def either(net, x):
    return torch.cond(x.sum() > 0, lambda x: x @ net.weight, lambda x: -x, (x,))


@pytest.mark.parametrize("body", [plain, ungraded, cast_region, either])
def test_a_flat_tape_computes_what_the_module_computes(body):
    tape, net = inlined(body)
    assert all(n.op != "get_attr" for n in tape.graph.nodes)
    assert not any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in tape.graph.nodes)
    for x in (X, -X, X[:3]):
        (found,) = run(tape, net, x)
        assert torch.equal(found, net(x))


def test_calls_know_the_switches_around_them():
    tape, _ = inlined(ungraded)
    grads = [region(n).grad for n in tape.graph.nodes if "matmul" in str(n.target)]
    assert grads == [False, True]
    tape, _ = inlined(cast_region)
    casts = [region(n).autocast for n in tape.graph.nodes if "matmul" in str(n.target)]
    assert casts == [("cpu", torch.bfloat16), None]


def test_results_of_a_region_without_gradient_are_detached():
    tape, net = inlined(ungraded)
    detached = [n for n in tape.graph.nodes if n.target is torch.ops.aten.detach.default]
    assert detached and all(not region(n).grad for n in detached)
    gradients: list[Any] = []
    for outputs in (run(tape, net, X), [net(X)]):
        net.weight.grad = None
        outputs[0].sum().backward()
        gradients.append(net.weight.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_a_condition_on_a_size_is_refused():
    def body(net, x):
        return torch.cond(x.shape[1] > 2, lambda x: x @ net.weight, lambda x: -x, (x,))

    try:
        tape, net = inlined(body)
    except TraceError as error:
        assert "torch.cond on a size" in str(error)
    else:  # decided while the capture ran
        assert torch.equal(run(tape, net, X)[0], net(X))


def test_sizes_are_kept_symbolic():
    tape, _ = inlined(plain)
    shapes = [t.shape for t in map(fake_tensor, tape.inputs) if t is not None]
    assert [tape.sizes.shape(torch.empty(1), "") for _ in shapes] == [(1,)]
    assert isinstance(shapes[0][0], torch.SymInt)
