"""Inlining: a flat tape computes what the module computes, and its calls know their switches."""

from __future__ import annotations

import torch

from archgraph.errors import TraceError
from tests.capture.tapes import X, inlined, run


def test_a_condition_on_a_size_is_refused():
    def body(net, x):
        return torch.cond(x.shape[1] > 2, lambda x: x @ net.weight, lambda x: -x, (x,))

    try:
        tape, net = inlined(body)
    except TraceError as error:
        assert "torch.cond on a size" in str(error)
    else:  # decided while the capture ran
        assert torch.equal(run(tape, net, X)[0], net(X))
