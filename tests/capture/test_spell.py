"""Spelling: one name for one operation, named arguments, nothing that changes nothing."""

from __future__ import annotations

import pytest
import torch

from archgraph.capture.fold import fold_constants
from archgraph.capture.spell import spell
from archgraph.capture.writes import functionalised
from archgraph.graph.ir import BATCH, Leaf, Ref, TensorType
from archgraph.ops.infer import infer_call
from tests.capture.tapes import inlined


def spelt(body):
    tape, _ = inlined(body)
    return spell(functionalised(fold_constants(tape, ()), frozenset({"weight"})))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda net, x: x.view(-1, 3, 1), lambda net, x: x.reshape(x.shape[0], 3, 1)),
        (lambda net, x: x.flatten(0), lambda net, x: x.ravel()),
        (lambda net, x: x.chunk(3, 1)[0], lambda net, x: x.split([1, 1, 1], 1)[0]),
        (lambda net, x: x.add_(1) + 1, lambda net, x: (x + 1) + 1),
        (lambda net, x: x.clone().contiguous().relu(), lambda net, x: x.relu()),
        (lambda net, x: torch.concat([x, x], -1), lambda net, x: torch.cat([x, x], dim=-1)),
    ],
)
def test_what_says_the_same_is_spelt_the_same(one, other):
    a, b = spelt(one).nodes, spelt(other).nodes
    assert [(n.op, [v for _, v in n.args if not isinstance(v, Ref)], n.type) for n in a] == [
        (n.op, [v for _, v in n.args if not isinstance(v, Ref)], n.type) for n in b
    ]


def test_arguments_are_named_and_types_are_those_of_the_operators():
    found = spelt(lambda net, x: torch.addmm(net.row, x, net.weight).split([1, 2], 1)[1])
    types = {n.name: n.type for n in found.nodes}
    leaves = {"weight": TensorType((3, 3), "float32"), "row": TensorType((3,), "float32")}
    assert found.nodes[0].shape == (BATCH, 3)
    assert dict(found.nodes[1].args) == {
        "self": Leaf("row"), "mat1": Ref(found.nodes[0].name), "mat2": Leaf("weight"),
    }  # fmt: skip
    for node in found.nodes[1:]:
        assert infer_call(node, types, leaves) == node.type


def test_what_returns_its_argument_is_left_out():
    found = spelt(lambda net, x: x.contiguous().to(x.dtype).view(x.shape))
    assert [n.op for n in found.nodes] == ["input"]
    assert found.outputs == (Ref(found.nodes[0].name),)
