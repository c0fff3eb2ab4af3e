"""Reconciling: in each mode the joined capture is the capture of that mode."""

from __future__ import annotations

import dataclasses

import pytest

from archgraph.capture.reconcile import live_flags, reconcile, same_inputs
from archgraph.capture.spell import OneMode
from archgraph.errors import TraceError
from archgraph.graph.ir import (
    BATCH,
    TRAINING,
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


def dropout(train):
    return call("drop", "aten.dropout", input=Ref("x"), p=0.5, train=train)


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


def test_equal_captures_join_to_themselves():
    one = mode(relu("a", "x"), relu("b", "a"))
    found = reconcile(one, one)
    assert not found.notes
    assert [n.op for n in found.nodes] == ["input", "aten.relu", "aten.relu"]
    assert not any(isinstance(v, Mode) for n in found.nodes for _, v in n.args)


def test_arguments_that_differ_follow_the_mode():
    found = reconcile(mode(dropout(False)), mode(dropout(True)))
    assert found.nodes[-1].arg("train") == TRAINING


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


def test_results_and_updates_follow_the_mode():
    trained = mode(relu("a", "x"), outputs=(Ref("a"), Ref("x")), updates={"row": Ref("a")})
    found = reconcile(mode(relu("a", "x")), trained)
    assert isinstance(found.outputs, Mode) and isinstance(found.outputs.train, tuple)
    assert in_mode(found.updates["row"], False) is None
    assert isinstance(in_mode(found.updates["row"], True), Ref)


def test_flags_of_an_eval_capture_come_alive_and_counters_count():
    norm = call(
        "n", "aten.batch_norm", input=Ref("x"), weight=None, bias=None,
        running_mean=Leaf("norm.mean"), running_var=Leaf("norm.var"),
        training=False, momentum=0.1, eps=1e-5, cudnn_enabled=True,
    )  # fmt: skip
    counter = Param("norm.count", TensorType((), "int64"), "buffer", False)
    found = live_flags(mode(norm), [counter])
    assert found.nodes[-1].arg("training") == TRAINING
    assert found.nodes[-2].op == "aten.add.Tensor"
    assert found.updates == {"norm.count": Mode(Ref("n~count"), None)}


def test_constants_of_training_have_names_of_their_own():
    def with_constant(data):
        value = Constant("uint8", (1,), data)
        param = Param("constant_0", TensorType((1,), "uint8"), "constant", False, (), value)
        add = call("a", "aten.add.Tensor", self=Ref("x"), other=Leaf("constant_0"))
        return dataclasses.replace(mode(add), constants={value: param})

    found = reconcile(with_constant(b"0"), with_constant(b"1"))
    assert [p.name for p in found.constants.values()] == ["constant_0", "constant_0_train"]
    assert found.nodes[-1].arg("other") == Mode(Leaf("constant_0_train"), Leaf("constant_0"))
