"""Reconciling: in each mode the joined capture is the capture of that mode."""

from __future__ import annotations

import dataclasses

import pytest

from archgraph.capture.reconcile import reconcile, same_inputs
from archgraph.capture.spell import OneMode
from archgraph.errors import TraceError
from archgraph.graph.ir import (
    BATCH,
    Constant,
    Leaf,
    Mode,
    Node,
    Param,
    Ref,
    TensorType,
    in_mode,
)

T = TensorType((BATCH, 3), "float32")
INPUT = Node("x", "input", (), T)


def mode(*nodes, outputs=None, updates=None):
    last = Ref(nodes[-1].name) if nodes else Ref("x")
    return OneMode((("x", Ref("x")),), (INPUT, *nodes), outputs or last, updates or {}, {})


def call(name, op, **args):
    return Node(name, op, tuple(args.items()), T)


def relu(name, source):
    return call(name, "aten.relu", self=Ref(source))


def ops(found, training):
    """Operators that reach the outputs in one mode, from the last to the first."""
    nodes = {n.name: n for n in found.nodes}
    pending, seen = [in_mode(found.outputs, training)], []
    while pending:
        value = pending.pop()
        if isinstance(value, Ref):
            node = nodes[value.name]
            seen.append(node.op)
            pending += [in_mode(v, training) for _, v in node.args]
    return seen


def test_operators_of_one_mode_run_in_that_mode():
    plain = mode(relu("a", "x"))
    noisy = mode(call("n", "aten.rand_like", self=Ref("x")), relu("a", "n"))
    noisy = dataclasses.replace(noisy, notes=("forward draws",))
    found = reconcile(plain, noisy)
    assert ops(found, False) == ["aten.relu", "input"]
    assert ops(found, True) == ["aten.relu", "aten.rand_like", "input"]
    assert found.notes == ("forward draws", "only in training: rand_like")


def test_a_batch_that_only_training_fixes_says_why():
    fixed = Node("x", "input", (), TensorType((2, 3), "float32"))
    trained = dataclasses.replace(mode(), nodes=(fixed,), fixed="the batch is two", notes=("x",))
    with pytest.raises(TraceError, match=r"^in training the batch is two$"):
        same_inputs(mode(), trained)
    with pytest.raises(TraceError, match=r"^in training %x: float32\[batch, 3\]"):
        same_inputs(trained, mode())


def test_constants_of_training_have_names_of_their_own():
    def with_constant(data):
        value = Constant("uint8", (1,), data)
        param = Param("constant_0", TensorType((1,), "uint8"), "constant", False, (), value)
        add = call("a", "aten.add.Tensor", self=Ref("x"), other=Leaf("constant_0"))
        return dataclasses.replace(mode(add), constants={value: param})

    found = reconcile(with_constant(b"0"), with_constant(b"1"))
    assert [p.name for p in found.constants.values()] == ["constant_0", "constant_0_train"]
    assert found.nodes[-1].arg("other") == Mode(Leaf("constant_0_train"), Leaf("constant_0"))
