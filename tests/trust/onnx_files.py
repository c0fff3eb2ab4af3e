"""ONNX files with a fault, as ``archgraph show FILE`` reads them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

import archgraph as ag
from archgraph.onnx.operators import ROWS
from tests.language.fuzzing import MUTATIONS, Stage

NUMBERS = (0, -1, 1, 2, 3, 7, 2**20, 2**30, 2**40, 2**62, -(2**62))
WEIGHTS = {
    "w": (4, 3, 3, 3),
    "b": (4,),
    "s": (4,),
    "m": (4,),
    "c": (4,),
    "v": (4,),
    "f": (4, 5),
    "gain": (5,),
    "shift": (5,),
}


@functools.cache
def valid_file() -> bytes:
    """A convolution, norms (one is spelt out), shape arithmetic, a product, a sequence.

    It is read once.
    """
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(rng.random(shape, np.float32), name)
        for name, shape in WEIGHTS.items()
    ]
    stored += [
        numpy_helper.from_array(np.array(v), n)
        for n, v in {
            "to": [0, -1],
            "size": [1, 5],
            "split": [2, 3],
            "first": 0,
            "second": -1,
            "two": np.float32(2),
            "eps": np.float32(1e-5),
        }.items()
    ]
    node = helper.make_node
    fill = helper.make_tensor("fill", 1, [1], [0.5])
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("BatchNormalization", ["a", *"smcv"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("GlobalAveragePool", ["e"], ["g"]),
        node("Reshape", ["g", "to"], ["i"]),
        node("Gemm", ["i", "f"], ["j"]),
        node("ConstantOfShape", ["size"], ["k"], value=fill),
        node("Add", ["j", "k"], ["l"]),
        node("ReduceMean", ["l"], ["mean"], axes=[-1]),
        node("Sub", ["l", "mean"], ["o"]),
        node("Pow", ["o", "two"], ["p"]),
        node("ReduceMean", ["p"], ["q"], axes=[-1]),
        node("Add", ["q", "eps"], ["r"]),
        node("Sqrt", ["r"], ["root"]),
        node("Div", ["o", "root"], ["t"]),
        node("Mul", ["t", "gain"], ["u"]),
        node("Add", ["u", "shift"], ["normal"]),
        node("SplitToSequence", ["normal", "split"], ["parts"], axis=1),
        node("SequenceAt", ["parts", "first"], ["h"]),
        node("SequenceAt", ["parts", "second"], ["z"]),
        node("Concat", ["z", "h"], ["whole"], axis=1),
        node("Softmax", ["whole"], ["y"], axis=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, ["n", 3, 6, 6])], [value("y", 1, ["n", 5])], stored
    )
    opsets = [helper.make_opsetid("", 17)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    with TemporaryDirectory() as folder:
        _read(Path(folder) / "net.onnx", data)
    return data


def use_onnx(rng: random.Random, place: Path, stage: Stage) -> None:
    """Read a mutated file."""
    place.mkdir()
    data = valid_file()
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice([*[_edited] * 50, *MUTATIONS["bytes"]])(rng, data)
    stage("read")
    _read(place / "net.onnx", data)


def _read(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    ag.load(path)


def _edited(rng: random.Random, data: bytes) -> bytes:
    """One field changed, if it is still an ONNX file with nodes."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        rng.choice(EDITS)(rng, model.graph)
    except (DecodeError, IndexError, ValueError, TypeError):
        return data
    return model.SerializeToString()


def _names(graph: Any) -> list[str]:
    made = [name for node in graph.node for name in node.output]
    return [t.name for t in graph.initializer] + made + ["x", "", "missing"]


def _kind(rng: random.Random, graph: Any) -> None:
    rng.choice(graph.node).op_type = rng.choice([*ROWS])


def _other_input(rng: random.Random, graph: Any) -> None:
    node = rng.choice(graph.node)
    node.input[rng.randrange(len(node.input))] = rng.choice(_names(graph))


def _more_inputs(rng: random.Random, graph: Any) -> None:
    rng.choice(graph.node).input.append(rng.choice(_names(graph)))


def _fewer_inputs(rng: random.Random, graph: Any) -> None:
    rng.choice(graph.node).input.pop()


def _attribute(rng: random.Random, graph: Any) -> None:
    item = rng.choice([a for node in graph.node for a in node.attribute])
    if item.ints:
        item.ints[rng.randrange(len(item.ints))] = rng.choice(NUMBERS)
    elif item.type == item.INT:
        item.i = rng.choice(NUMBERS)
    else:
        item.name = rng.choice(["axis", "perm", "to", "group", "axes", "value"])


def _sizes(rng: random.Random, graph: Any) -> None:
    tensor = rng.choice(graph.initializer)
    tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)


def _whole_numbers(rng: random.Random, graph: Any) -> None:
    tensor = rng.choice([t for t in graph.initializer if t.data_type == onnx.TensorProto.INT64])
    numbers = np.array([rng.choice(NUMBERS) for _ in range(rng.choice((1, 2, 3)))])
    tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


def _type(rng: random.Random, graph: Any) -> None:
    rng.choice(graph.initializer).data_type = rng.randrange(25)


def _input_size(rng: random.Random, graph: Any) -> None:
    rng.choice(graph.input[0].type.tensor_type.shape.dim).dim_value = rng.choice(NUMBERS)


def _elsewhere(rng: random.Random, graph: Any) -> None:
    tensor = rng.choice(graph.initializer)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key = "location"
    entry.value = rng.choice(["../net.onnx", "/etc/hostname", "net.onnx", ".", "\0", "missing"])


EDITS: tuple[Callable[[random.Random, Any], None], ...] = (
    _kind, _other_input, _more_inputs, _fewer_inputs, _attribute, _sizes, _whole_numbers, _type,
    _input_size, _elsewhere,
)  # fmt: skip
