"""Sizes that a file of another program states wrongly, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archgraph as ag
from archgraph.rewrites.laws import outputs
from tests.onnx.files import (
    FLOAT,
    assert_like_onnxruntime,
    node,
    onnx,
    open_session,
    run_session,
    written,
)


def recurrent(path: Path, batch: int, **other: tuple[int, ...]) -> Path:
    """An LSTM of two inputs and three cells, with a state; tensors of other shapes by name."""
    shapes = {"w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24), "h": (1, batch, 3)} | other
    nodes = [node("LSTM", ["x", "w", "r", "b", "", "h", "h"], "y", hidden_size=3)]
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    return written(path, nodes, [4, batch, 2], tensors, rank=4)


@pytest.mark.parametrize("name", ["w", "r", "b", "h"])
def test_recurrent_layers_do_not_read_beyond_their_tensors(name: str, tmp_path: Path):
    wrong = {"w": (1, 12, 1), "r": (1, 8, 3), "b": (1, 20), "h": (1, 1, 3)}
    with pytest.raises(ag.SpecError, match=r"LSTM.*has other sizes"):
        ag.load(recurrent(tmp_path / "l.onnx", 2, **{name: wrong[name]}))
    assert len(ag.load(recurrent(tmp_path / "l.onnx", 2)).graph.nodes) > 1


def test_a_negative_size_is_a_free_one(tmp_path: Path):
    path = written(tmp_path / "n.onnx", [node("Relu", "x", "y")], [-1, 3])
    assert str(ag.load(path).graph.node["x"].type) == "float32[batch, 3]"


def file(path: Path, nodes: list[Any], batch: int | str, opset: int = 17, **given: Any) -> Path:
    """A file whose input and result have four values for each example."""
    return written(path, nodes, [batch, 4], given, opset=opset)


MEAN = [node("ReduceMean", "x", "m", axes=[0]), node("Add", "xm", "y")]
FOLDED = [
    node("Reshape", "xs", "a"),
    node("Softmax", "a", "b", axis=0),
    node("Reshape", "bt", "y"),
]
TURNED = [
    node("Transpose", "x", "a", perm=[1, 0]),
    node("Softmax", "a", "b", axis=1),
    node("Transpose", "b", "y", perm=[1, 0]),
]
BARE = [
    node("Squeeze", "xs", "a"),
    node("Softmax", "a", "b", axis=0),
    node("Unsqueeze", "bs", "y"),
]


@pytest.mark.parametrize(
    ("nodes", "batch", "constants"),
    [
        pytest.param(MEAN, 1, {}, id="mean"),
        pytest.param(FOLDED, 1, {"s": [2, 2], "t": [1, 4]}, id="two of two"),
        pytest.param(FOLDED, 1, {"s": [4], "t": [1, 4]}, id="flat"),
        pytest.param(FOLDED, "n", {"s": [4], "t": [1, 4]}, id="open in name only"),
        pytest.param(TURNED, 1, {}, id="turned"),
    ],
)
def test_files_for_one_size_whose_examples_meet_are_refused(nodes, batch, constants, tmp_path):
    path = file(tmp_path / "m.onnx", nodes, batch, **constants)
    with pytest.raises(ag.SpecError, match=r"m\.onnx: is for a fixed.*depends on other examples"):
        ag.load(path, {"batch": "open"})
    if batch == 1:  # what the file says
        assert_like_onnxruntime(path, torch.randn(1, 4))


ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"bach": "open"}, "no such size.*'bach'.*did you mean 'batch'"),
    "another number": (
        {"batch": 3},
        "batch: has another size in the file; found 3; expected 1.*open",
    ),
    "no size": ({"x_1": "wide"}, r"x_1: is not a size; found 'wide'; expected N ≥ 1, or open"),
}


@pytest.mark.parametrize("name", ASKED)
def test_sizes_that_a_file_does_not_have(name: str, tmp_path: Path):
    sizes, message = ASKED[name]
    with pytest.raises(ag.SpecError, match=message):
        ag.load(file(tmp_path / "m.onnx", TURNED, 1), sizes)


def test_any_dimension_of_a_number_is_opened_on_request(tmp_path: Path):
    graph, state = ag.load(file(tmp_path / "m.onnx", TURNED, 1), {"x_1": "open"})
    assert str(graph.node["x"].type) == "float32[1, x_1]"
    x = torch.randn(1, 7)
    torch.testing.assert_close(ag.build(graph, state)(x), x / x, rtol=0, atol=0)


def test_a_batch_and_another_dimension_are_opened_together(tmp_path: Path):
    nodes = [node("ReduceMean", "x", "m", axes=[1]), node("Reshape", "ms", "y")]
    sizes = {"batch": "open", "x_1": "open"}
    graph, state = ag.load(file(tmp_path / "m.onnx", nodes, 1, s=[1, 1, 1]), sizes)
    assert str(graph.node["x"].type) == "float32[batch, x_1]"
    x = torch.randn(3, 7)
    expected = x.mean(1).view(3, 1, 1)
    torch.testing.assert_close(ag.build(graph, state)(x), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 8])
def test_a_file_for_one_batch_size_is_a_graph_for_it(batch: int, tmp_path: Path):
    nodes = [node("Reshape", "xs", "a"), node("Softmax", "a", "b", axis=2), node("Tanh", "b", "y")]
    path = file(tmp_path / "m.onnx", nodes, batch, s=[batch, 2, 2])
    graph, _ = ag.load(path)
    assert str(graph.node["x"].type) == f"float32[{batch}, 4]"
    assert graph.notes == (f"the batch size is fixed: the file is for {batch}",)


def test_a_batch_that_is_squeezed_stays_one(tmp_path):
    graph, state = ag.load(file(tmp_path / "m.onnx", BARE, 1, s=[0]))
    assert str(graph.node["x"].type) == "float32[1, 4]"
    assert "batch size is fixed" in graph.notes[0]
    with pytest.raises(ag.SpecError, match="Squeeze: removes an axis that is not of size 1"):
        ag.load(tmp_path / "m.onnx", {"batch": "open"})
    x = torch.randn(1, 4)
    torch.testing.assert_close(ag.build(graph, state)(x), x.softmax(1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch", [1, "n"])
def test_files_whose_examples_stay_alone_take_any_batch(batch, tmp_path):
    nodes = [node("Reshape", "xs", "a"), node("Softmax", "a", "b", axis=2), node("Tanh", "b", "y")]
    graph, state = ag.load(file(tmp_path / "m.onnx", nodes, batch, s=[1, 2, 2]), {"batch": "open"})
    x = torch.randn(3, 4)
    expected = x.reshape(3, 2, 2).softmax(2).tanh()
    torch.testing.assert_close(ag.build(graph, state)(x), expected, rtol=0, atol=1e-6)


def test_an_open_file_may_join_its_examples(tmp_path):
    graph, state = ag.load(file(tmp_path / "m.onnx", MEAN, "n"))
    x = torch.randn(3, 4)
    torch.testing.assert_close(ag.build(graph, state)(x), x + x.mean(0), rtol=0, atol=1e-6)


def test_what_nothing_reads_is_not_computed(tmp_path: Path):
    """2²⁶ elements for two examples, of which no result has any."""
    nodes: list[Any] = [
        node("Tile", ["x", "r"], "big"),
        node("Shape", ["big"], "shape"),
        node("MatMul", ["x", "w"], "m"),
        node("Mul", ["m", "m"], "y"),
    ]
    path = file(
        tmp_path / "l.onnx", nodes, "N", 17, r=np.array([1, 2**23]), w=np.eye(4, dtype=np.float32)
    )
    graph = ag.load(path).graph
    assert [n.op for n in graph.nodes] == ["input", "aten.matmul", "aten.mul.Tensor"]


@pytest.mark.parametrize("zero", [False, True], ids=["plain", "zero instead of not a number"])
def test_attention_that_may_look_at_nothing(zero: bool, tmp_path: Path):
    """One head of keys for all: no fused operator, and what the file says where all is masked."""
    mask = np.zeros((4, 4), np.float32)
    mask[1] = -np.inf
    nodes: list[Any] = [
        node("Transpose", ["k"], "t", perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "t"], "s"),
        node("Add", ["s", "mask"], "a"),
        node("Softmax", ["a"], "p", axis=-1),
        node("IsNaN", ["p"], "n"),
        node("Where", ["n", "zero", "p"], "z"),
        node("MatMul", ["z" if zero else "p", "v"], "y"),
    ]
    shapes: dict[str, list[Any]] = {"q": ["N", 2, 4, 8], "k": ["N", 1, 4, 8], "v": ["N", 1, 4, 8]}
    constants = {"mask": mask, "zero": np.array(0, np.float32)}
    path = written(tmp_path / "a.onnx", nodes, shapes, constants, opset=17)
    found, weights = ag.load(path)
    draw = np.random.default_rng(0)
    given = {
        k: torch.tensor(draw.standard_normal([2, *s[1:]]), dtype=torch.float32)
        for k, s in shapes.items()
    }
    (expected,) = run_session(open_session(path), [*given.values()])
    (ours,) = outputs(ag.build(found, weights).eval(), given)
    assert expected.isnan().any() != zero
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_constant_of_many_axes_is_no_number(tmp_path: Path):
    """GELU whose half has three axes makes three of two, as the file says."""
    nodes: list[Any] = [
        node("Div", ["x", "root"], "a"), node("Erf", ["a"], "e"), node("Add", ["e", "one"], "g"),
        node("Mul", ["x", "g"], "m"), node("Mul", ["m", "half"], "y"),
    ]  # fmt: skip
    numbers = {"root": 2**0.5, "one": 1.0, "half": [[[0.5]]]}
    constants = {k: np.array(v, np.float32) for k, v in numbers.items()}
    path = file(tmp_path / "g.onnx", nodes, 2, 17, **constants)
    assert str(ag.load(path).graph.nodes[-1].type) == "float32[1, 2, 4]"
    path = file(
        tmp_path / "g.onnx", nodes, 2, 17, **constants | {"half": np.array([0.5], np.float32)}
    )
    assert "gelu" in [n.op.split(".")[1] for n in ag.load(path).graph.nodes if n.op != "input"]


WIDE = 2**14
TOO_LARGE: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "constants broadcast": (
        [node("Add", ["a", "b"], "big")],
        {"a": np.zeros((WIDE, 1), np.int64), "b": np.zeros((1, WIDE), np.int64)},
        "computes too much from constants.*2,147,483,648 bytes",
    ),
    "constants gathered": (
        [node("Gather", ["a", "b"], "big", axis=1)],
        {"a": np.zeros((WIDE, 1), np.int64), "b": np.zeros(WIDE, np.int64)},
        "computes too much from constants",
    ),
    "what is folded broadcasts": (
        [
            node("ConstantOfShape", ["l"], "r"),
            node("Reshape", ["r", "column"], "a"),
            node("Reshape", ["r", "row"], "b"),
            node("Add", ["a", "b"], "big"),
        ],
        {"l": np.array([WIDE]), "column": np.array([-1, 1]), "row": np.array([1, -1])},
        r"Add: is too large; found \[16384, 16384\]",
    ),
    "much is folded": (
        [node("ConstantOfShape", ["l"], "r0")]
        + [node("Add", [f"r{i}", f"r{i}"], f"r{i + 1}") for i in range(20)]
        + [node("Add", ["r19", "r20"], "big")],
        {"l": np.array([2**23])},
        "computes too much from constants",
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("shown", [False, True], ids=["for its shape", "as a result"])
@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_takes_too_much_memory_is_refused_before_it_does(name: str, shown: bool, tmp_path):
    nodes, constants, message = TOO_LARGE[name]
    shape = [
        node("Shape", ["big"], "shape"),
        node("Gather", ["shape", "last"], "many"),
        node("ReduceMax", ["big"], "most", keepdims=0),
        node("Cast", ["most" if shown else "many"], "real", to=FLOAT),
        node("Mul", ["x", "real"], "y"),
    ]
    path = file(tmp_path / "l.onnx", [*nodes, *shape], "N", 23, last=np.array(-1), **constants)
    resource = pytest.importorskip("resource", reason="measures memory as Unix counts it")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ag.SpecError, match=f"(?s){message}"):
        ag.load(path)
    most = 800 if name == "much is folded" else 400  # MiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < most * 1024


def test_sizes_overflow_as_those_of_the_file_do(tmp_path: Path):
    """Squares of squares of a size: whole numbers without bound would take years."""
    squares: list[Any] = [node("Mul", [f"n{i}", f"n{i}"], f"n{i + 1}") for i in range(60)]
    nodes = [
        node("Shape", ["x"], "shape"),
        node("Gather", ["shape", "last"], "n"),
        node("Add", ["n", "last"], "n0"),
        *squares,
        node("Cast", ["n60"], "real", to=FLOAT),
        node("Mul", ["x", "real"], "y"),
    ]
    path = file(tmp_path / "s.onnx", nodes, "N", last=np.array(1))
    assert_like_onnxruntime(path, torch.randn(3, 4))


@pytest.mark.full
def test_large_weights_are_no_results(tmp_path: Path):
    """More elements than a result may have: of one value, and transposed by the node."""
    nodes = [
        node("ConstantOfShape", ["shape"], "w", value=onnx.helper.make_tensor("v", 1, [1], [0.5])),
        node("Gemm", ["x", "w"], "m", transB=1),
        node("ReduceMax", ["m"], "y", axes=[1]),
    ]
    path = file(tmp_path / "w.onnx", nodes, "N", shape=np.array([2**23 + 1, 4]))
    assert str(ag.load(path).graph.nodes[-1].type) == "float32[batch, 1]"


def sequences(path: Path, kind: str, shape: list[int | str]) -> Path:
    """A file that takes sequences, and computes each of the second dimension alone, or together."""
    nodes = {
        "apart": node("Tanh", "x", "y"),
        "meets": node("Softmax", "x", "y", axis=1),
        "over time": node("Softmax", "x", "y", axis=0),
    }
    return written(path, [nodes[kind]], shape, opset=17)


@pytest.mark.parametrize("kind", ["apart", "over time"])
@pytest.mark.parametrize("name", ["N", "examples"])
def test_a_sequence_that_comes_first_leaves_the_batch_open(kind: str, name: str, tmp_path: Path):
    path = sequences(tmp_path / "s.onnx", kind, [5, name, 3])
    graph, state = ag.load(path)
    assert str(graph.node["x"].type) == "float32[5, batch, 3]"
    said = f"the batch is {name}, the second dimension; the first one is 5 in the file"
    assert graph.notes == (said,)
    x = torch.randn(5, 4, 3)
    expected = x.tanh() if kind == "apart" else x.softmax(0)
    torch.testing.assert_close(ag.build(graph, state)(x), expected, rtol=0, atol=1e-6)
    assert str(ag.load(path, {name: 7}).graph.node["x"].type) == "float32[5, 7, 3]"
    assert ag.load(path, {"batch": 5}).graph.node["x"].shape[0] == 5


def test_a_length_is_not_a_batch_where_its_positions_meet(tmp_path: Path):
    graph, _ = ag.load(sequences(tmp_path / "s.onnx", "meets", [5, "length", 3]))
    assert str(graph.node["x"].type) == "float32[5, length, 3]"
    assert graph.notes == ("the batch size is fixed: the file is for 5",)
    # A batch of one says nothing of which dimension comes first.
    graph, _ = ag.load(sequences(tmp_path / "s.onnx", "apart", [1, "length", 3]))
    assert str(graph.node["x"].type) == "float32[1, length, 3]"
