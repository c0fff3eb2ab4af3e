"""Folding: what is left depends on an input or a leaf, and computes the same."""

from __future__ import annotations

import pytest
import torch

from archgraph.capture.fold import fold_constants
from tests.capture.tapes import X, calls, inlined, run


def table(net, x):
    return x @ (torch.arange(9.0).view(3, 3) * 2).t()


def written_through_a_view(net, x):
    mask = torch.zeros(3, 3)
    mask[1:, :2] = 5.0
    return x @ mask


def changed_between_uses(net, x):
    steps = torch.ones(3)
    y = x * steps
    steps.mul_(2)
    return y + steps


def a_random_draw_stays(net, x):
    return x * torch.bernoulli(torch.full((3,), 0.5))


def like_an_input(net, x):
    return x + torch.ones_like(x[0])


BODIES = [
    table, written_through_a_view, changed_between_uses, a_random_draw_stays,
    like_an_input,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_a_folded_tape_computes_the_same(body):
    tape, net = inlined(body)
    torch.manual_seed(0)
    (found,) = run(fold_constants(tape, ()), net, X)
    torch.manual_seed(0)
    assert torch.equal(found, net(X))


def test_a_table_is_one_constant():
    tape, _ = inlined(table)
    tape = fold_constants(tape, ())
    assert calls(tape) == ["aten.matmul.default"]
    assert [p.name for p in tape.constants.values()] == ["constant_0"]


def test_no_constant_is_called_like_a_leaf():
    tape, _ = inlined(table)
    tape = fold_constants(tape, {"constant_0", "constant_1"})
    assert [p.name for p in tape.constants.values()] == ["constant_2"]


def test_equal_constants_are_one_leaf():
    tape, _ = inlined(lambda net, x: x * torch.ones(3) + torch.ones(3))
    assert len({p.name for p in fold_constants(tape, ()).constants.values()}) == 1
