"""Each law of a graph, broken once."""

from __future__ import annotations

import dataclasses

import pytest

from archgraph.errors import GraphError
from archgraph.graph.ir import BATCH, ArchGraph, Leaf, Mode, Node, Param, Ref, TensorType
from archgraph.ops.check import check

T = TensorType((BATCH, 3), "float32")
W = Param("w", TensorType((3, 3), "float32"))
X = Node("x", "input", (), T)
Y = Node("y", "aten.linear", (("input", Ref("x")), ("weight", Leaf("w"))), T)
GRAPH = ArchGraph((("x", Ref("x")),), (W,), (X, Y), Ref("y"))


def test_a_sound_graph_passes():
    check(GRAPH)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"params": (W, W)}, "w: two tensors with the same name"),
        ({"params": (dataclasses.replace(W, aliases=("w",)),)}, "same name"),
        ({"params": ()}, "%y: uses a tensor that does not exist; found w"),
        ({"params": (Param("w", TensorType((3, -1), "float32")),)}, "invalid size"),
        ({"params": (Param("w", TensorType((2**21, 2**21), "float32")),)}, "tensor too large"),
        (
            {"params": (Param("w", TensorType((1,) * 33, "float32")),)},
            "w: too many dimensions; found 33; expected at most 32",
        ),
        ({"params": (W, Param("c", T, "constant"))}, "c: tensor with an invalid size"),
        (
            {"params": (W, Param("c", TensorType((1,), "float32"), "constant"))},
            "c: constant without a value",
        ),
        ({"nodes": (Y, X)}, "no earlier operator computes; found %x"),
        ({"nodes": (X, X, Y)}, "%x: two operators with the same name"),
        ({"nodes": (X, dataclasses.replace(Y, op="aten.nothing"))}, "unknown operator"),
        ({"nodes": (X, dataclasses.replace(Y, op="os.system"))}, "unknown operator"),
        ({"nodes": (X, dataclasses.replace(Y, op="aten.relu_"))}, "unknown operator"),
        ({"nodes": (X, dataclasses.replace(Y, op="aten.from_file"))}, "unknown operator"),
        ({"nodes": (X, dataclasses.replace(Y, args=Y.args[:1]))}, "needs argument 'weight'"),
        (
            {"nodes": (X, dataclasses.replace(Y, args=(*Y.args, ("wieght", 1))))},
            "has no argument 'wieght'",
        ),
        ({"nodes": (X, dataclasses.replace(Y, args=Y.args[::-1]))}, "not in canonical form"),
        (
            {"nodes": (X, dataclasses.replace(Y, args=(*Y.args, ("bias", None))))},
            "not in canonical form",
        ),
        ({"nodes": (X, dataclasses.replace(Y, args=(*Y.args, Y.args[0])))}, "given twice"),
        ({"inputs": ()}, "forward's arguments and the input operators differ"),
        ({"outputs": Ref("z")}, "outputs: uses a result"),
        ({"outputs": 3}, "the graph returns no tensor"),
        (
            {"updates": (("w", Mode(Ref("y"), None)),)},
            "w: update of something that is not a buffer",
        ),
    ],
)
def test_a_broken_law_is_named(changes, message):
    with pytest.raises(GraphError) as caught:
        check(GRAPH.replace(**changes))
    assert message in str(caught.value)
