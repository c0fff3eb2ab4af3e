"""Writes: a functional tape computes the same, changes nothing, and says what buffers become."""

from __future__ import annotations

import pytest
import torch

from archgraph.capture.calls import is_operator, writes
from archgraph.capture.fold import fold_constants
from archgraph.capture.writes import functionalised
from archgraph.errors import TraceError
from tests.capture.tapes import X, inlined, run


def whole(net, x):
    y = x @ net.weight
    y.add_(1).relu_()
    return y + y


def through_views(net, x):
    y = x @ net.weight
    y[:, 1:].t()[0].mul_(3)
    y.view(-1)[:2] = 7.0
    return y


def a_view_taken_before(net, x):
    y = x @ net.weight
    first = y[:, 0]
    y.mul_(3)
    return first + y[:, 1]


def one_of_several(net, x):
    a, b = (x * 2).split([1, 2], 1)
    b.sub_(a)
    return a * b.sum(1, keepdim=True)


def shape_in_place(net, x):
    return (x @ net.weight).unsqueeze_(1).add_(1).squeeze_(1)


def a_buffer(net, x):
    net.row.mul_(0.5)
    net.row[1:] = x.mean(0)[1:]
    return x * net.row


def a_constant_overwritten(net, x):
    y = torch.zeros(2, 3)
    row = y[0]
    y[1] = x.mean(0)
    return y + row


@pytest.mark.parametrize(
    "body",
    [
        a_constant_overwritten,
        whole,
        through_views,
        a_view_taken_before,
        one_of_several,
        shape_in_place,
        a_buffer,
    ],
)
def test_a_functional_tape_computes_the_same_and_writes_nothing(body):
    tape, net = inlined(body)
    tape = functionalised(fold_constants(tape, ()), frozenset({"weight"}))
    assert not any(is_operator(n) and writes(n) for n in tape.graph.nodes if n.op != "output")
    before = net.row.clone()
    x = X[:3].clone()  # shapes are written out for any batch size
    results = run(tape, net, x)
    torch.testing.assert_close(results[0], net(x), rtol=0, atol=0)
    assert torch.equal(x, X[:3]) and (body is a_buffer or torch.equal(before, net.row))


def test_what_a_buffer_becomes_is_an_update():
    tape, net = inlined(a_buffer)
    tape = functionalised(fold_constants(tape, ()), frozenset())
    assert list(tape.updates) == ["row"]
    tape.graph.output_node().args = ((tape.updates["row"],),)
    expected = torch.cat([net.row[:1] * 0.5, X.mean(0)[1:]])
    torch.testing.assert_close(run(tape, net, X)[0], expected, rtol=0, atol=0)


def test_a_write_to_a_parameter_is_refused():
    def body(net, x):
        with torch.no_grad():
            net.weight.mul_(2)
        return x @ net.weight

    tape, _ = inlined(body)
    with pytest.raises(TraceError, match="forward writes to the parameter weight"):
        functionalised(fold_constants(tape, ()), frozenset({"weight"}))
