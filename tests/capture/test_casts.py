"""Casts: a tape with its casts written out computes without autocast what it computed under it."""

from __future__ import annotations

import pytest
import torch

from archgraph.capture.casts import spell_casts
from archgraph.capture.fold import fold_constants
from archgraph.capture.tape import REGION, Region
from archgraph.errors import TraceError
from tests.capture.tapes import X, calls, inlined, run

TO = "aten.to.dtype"


def region(body, **options):
    def forward(net, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, **options):
            return body(net, x)

    return forward


def product(net, x):
    return x @ net.weight


def twice(net, x):
    return (x @ net.weight) @ net.weight


def with_results(tape, dtype):
    """The tape as a device captures it that makes a sum compute in another dtype by itself."""
    (total,) = [n for n in tape.graph.nodes if "sum" in str(n.target)]
    total.meta["val"] = total.meta["val"].to(dtype)
    return tape


def test_what_computes_in_float_by_itself_is_given_casts():
    def total(net, x):
        return (x @ net.weight).sum(-1)

    tape, net = inlined(region(total))
    assert (
        calls(spell_casts(fold_constants(tape, ()))).count(TO) == 2
    )  # those of the product; sums stay as they are
    tape, net = inlined(region(total))
    tape = spell_casts(fold_constants(with_results(tape, torch.float32), ()))
    assert calls(tape).count(TO) == 3
    for node in tape.graph.nodes:
        node.meta[REGION] = Region()
    (found,) = run(tape, net, X)
    product = X.bfloat16() @ net.weight.bfloat16()
    assert torch.equal(found, product.float().sum(-1))


def test_what_casts_of_arguments_cannot_express_is_refused():
    tape, _ = inlined(region(lambda net, x: (x @ net.weight).sum(-1)))
    with pytest.raises(TraceError, match="a graph cannot express the effect of autocast on"):
        spell_casts(fold_constants(with_results(tape, torch.float64), ()))


def test_a_parameter_is_cast_once_and_an_activation_each_time():
    tape, _ = inlined(region(twice))
    assert (
        calls(spell_casts(fold_constants(tape, ()))).count(TO) == 2
    )  # x, weight; the product is one already
