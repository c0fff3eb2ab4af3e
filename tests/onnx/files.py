"""Small files of other programs, and whether their graphs compute what onnxruntime does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archgraph as ag
from archgraph.rewrites.laws import outputs, relative_difference

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")

from archgraph.onnx.session import open_session, run_session  # noqa: E402 - after the packages

__all__ = ["FLOAT", "INT", "onnx", "onnxruntime", "open_session", "run_session"]

FLOAT, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def node(kind: str, given: str | Sequence[str], made: str | Sequence[str], **options: Any) -> Any:
    """A node; names of one letter may be written as one text."""
    results = [made] if isinstance(made, str) else [*made]
    return onnx.helper.make_node(kind, [*given], results, **options)


def written(
    path: Path,
    nodes: Sequence[Any],
    shape: Sequence[Any] | Mapping[str, Sequence[Any]] = ("n", 3, 4, 4),
    constants: Mapping[str, Any] | None = None,
    *,
    kinds: tuple[int, int] = (FLOAT, FLOAT),
    opset: int = 18,
    rank: int | None = None,
) -> Path:
    """A file of one input, ``x``, or several, and one result, ``y``, of as many axes."""
    shapes = shape if isinstance(shape, Mapping) else {"x": shape}
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [value(name, kinds[0], size) for name, size in shapes.items()],
        [value("y", kinds[1], [""] * (rank or len(next(iter(shapes.values())))))],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    opsets = [onnx.helper.make_opsetid(name, n) for name, n in {"": opset, "mine": 1}.items()]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def assert_like_onnxruntime(path: Path, *inputs: torch.Tensor) -> ag.ArchGraph:
    """The graph of a file computes what onnxruntime makes of it, in the same type."""
    graph, state = ag.load(path)
    names = [n.name for n in graph.nodes if n.op == "input"]
    found = outputs(ag.build(graph, state).eval(), dict(zip(names, inputs, strict=True)))
    expected = run_session(open_session(path), [*inputs])
    assert [(v.dtype, v.shape) for v in found] == [(v.dtype, v.shape) for v in expected]
    assert relative_difference(found, expected) < 1e-5
    return graph
