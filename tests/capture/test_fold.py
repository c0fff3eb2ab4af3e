"""Folding: what is left depends on an input or a leaf, and computes the same."""

from __future__ import annotations

import pytest
import torch

from archgraph.capture.fold import fold_constants
from archgraph.capture.tape import FOLDED
from archgraph.errors import TraceError
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


@pytest.mark.parametrize("body", BODIES)
def test_a_call_that_is_left_depends_on_an_input_a_leaf_or_a_draw(body):
    tape, _ = inlined(body)
    tape = fold_constants(tape, ())
    live = {*tape.inputs, *tape.leaves}
    for node in tape.graph.nodes:
        if node.op != "call_function" or FOLDED in node.meta or node.meta.get("val") is None:
            continue
        tags = getattr(node.target, "tags", ())
        random = torch.Tag.nondeterministic_seeded in tags
        assert random or live & set(node.all_input_nodes), node
        live.add(node)


def test_a_random_draw_is_made_anew_each_time():
    tape, _ = inlined(a_random_draw_stays)
    assert "aten.bernoulli.default" in calls(fold_constants(tape, ()))


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


def test_a_tensor_outside_the_state_that_forward_changes_is_an_error_and_left_alone():
    def body(net, x):
        net.scratch.add_(1)
        return x + net.scratch

    tape, net = inlined(body)
    (note,) = fold_constants(tape, ()).notes
    assert isinstance(note, TraceError) and note.where == "scratch"
    assert "forward changes a tensor in place that is not part of the state" in str(note)
    assert not net.scratch.any()
