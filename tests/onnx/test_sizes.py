"""Sizes that a file of another program states wrongly, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import archgraph as ag
from archgraph.errors import SpecError

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def recurrent(path: Path, batch: int, **other: tuple[int, ...]) -> Path:
    """An LSTM of two inputs and three cells, with a state; tensors of other shapes by name."""
    shapes = {"w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24), "h": (1, batch, 3)} | other
    tensors = [
        onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)
        for name, shape in shapes.items()
    ]
    node = onnx.helper.make_node("LSTM", ["x", "w", "r", "b", "", "h", "h"], ["y"], hidden_size=3)
    real = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info("x", real, [4, batch, 2])],
        [onnx.helper.make_tensor_value_info("y", real, [4, 1, batch, 3])], tensors,
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("name", ["w", "r", "b", "h"])
def test_recurrent_layers_do_not_read_beyond_their_tensors(name: str, tmp_path: Path):
    wrong = {"w": (1, 12, 1), "r": (1, 8, 3), "b": (1, 20), "h": (1, 1, 3)}
    with pytest.raises(SpecError, match=r"LSTM.*has other sizes"):
        ag.load(recurrent(tmp_path / "l.onnx", 2, **{name: wrong[name]}))
    assert len(ag.load(recurrent(tmp_path / "l.onnx", 2)).graph.nodes) > 1


def test_a_negative_size_is_a_free_one(tmp_path: Path):
    real = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g",
        [onnx.helper.make_tensor_value_info("x", real, [-1, 3])],
        [onnx.helper.make_tensor_value_info("y", real, [-1, 3])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    (tmp_path / "n.onnx").write_bytes(model.SerializeToString())
    assert str(ag.load(tmp_path / "n.onnx").graph.node["x"].type) == "float32[batch, 3]"
