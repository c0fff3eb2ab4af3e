"""Norms, activations and attention that a file spells out become one operator, or stay so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import archgraph as ag
from tests.onnx.files import assert_like_onnxruntime, onnx

SHAPES = {
    "before": (6, 8), "after": (8, 3), "w": (8,), "b": (8,), "column": (5, 1), "mask": (5, 5),
    "qw": (8, 8), "kw": (8, 8), "vw": (8, 8), "cw": (8, 3, 1, 1), "gw": (8, 1, 1), "gb": (8, 1, 1),
    "dw": (2, 8, 1, 1), "one_row": (1, 8),
}  # fmt: skip
CONSTANTS = {
    "one": 1.0, "two": 2.0, "three": 3.0, "six": 6.0, "half": 0.5, "nearly": 0.51, "root": 2**0.5,
    "eps": 1e-5, "cubic": 0.044715, "slope": (2 / np.pi) ** 0.5, "scale": [0.7],
    "ones": [1.0] * 4, "others": [1.0, 1.0, 1.0, 1.1], "zeros": [0.0] * 4, "none": 0.0,
    "parts": [0, 4, -1], "heads": [0, 5, 2, 4], "whole": [0, 5, 8], "third": [3], "fourth": [4],
    "places": [3, 1, 1, 1, 1],
}  # fmt: skip

CENTRED = "m = ReduceMean<axes = [{axis}]>(h) d = Sub(h, m) p = Pow(d, two)"
LAYER = CENTRED + " v = ReduceMean<axes = [{axis}]>(p) "
ROOT = "e = Add(v, eps) s = Sqrt(e) "
NORM = LAYER.format(axis=-1) + ROOT + "t = Div(d, s)"
MEAN = "p = Mul(h, h) v = ReduceMean<axes = [-1]>(p) "
ERF = "a = Div(h, root) r = Erf(a) g = Add(r, one) "
HEADS = (
    "q1 = MatMul(h, qw) q2 = Reshape(q1, heads) q3 = Transpose<perm = [0, 2, 1, 3]>(q2) "
    "k1 = MatMul(h, kw) k2 = Reshape(k1, heads) k3 = Transpose<perm = [0, 2, 3, 1]>(k2) "
    "v1 = MatMul(h, vw) v2 = Reshape(v1, heads) v3 = Transpose<perm = [0, 2, 1, 3]>(v2) "
)
JOIN = " o2 = Transpose<perm = [0, 2, 1, 3]>(o1) z = Reshape(o2, whole)"
SOFTMAX = " a1 = Softmax<axis = {axis}>(s1) o1 = MatMul(a1, v3)" + JOIN
GROUPS = (
    "r1 = Reshape(h, parts) r2 = InstanceNormalization({ones}, zeros) s = Shape(h) "
    "r3 = Reshape(r2, s) r4 = Mul(r3, gw) r5 = Add(r4, gb) z = Reshape(r5, s)"
)

SPELT = {
    "linear layer": (
        "linear",
        "l1 = Transpose<perm = [1, 0]>(qw) l2 = MatMul(h, l1) z = Add(b, l2)",
    ),
    "layer norm": ("layer_norm", NORM + " z1 = Mul(t, w) z = Add(b, z1)"),
    "layer norm, plain": (
        "layer_norm",
        LAYER.format(axis=-1).replace("Pow(d, two)", "Mul(d, d)") + ROOT
        + "i = Reciprocal(s) z = Mul(i, d)",
    ),
    "weights along another axis": ("layer_norm", NORM + " z = Mul(t, column)"),
    "rms norm": ("rms_norm", MEAN + ROOT + "i = Div(one, s) t = Mul(h, i) z = Mul(w, t)"),
    "gelu": ("gelu", ERF + "f = Mul(h, g) z = Mul(f, half)"),
    "gelu by tanh": (
        "gelu",
        "c1 = Pow(h, three) c2 = Mul(cubic, c1) c3 = Add(h, c2) c4 = Mul(c3, slope) "
        "c5 = Tanh(c4) c6 = Add(c5, one) c7 = Mul(half, h) z = Mul(c7, c6)",
    ),
    "silu": ("silu", "g = Sigmoid(h) z = Mul(g, h)"),
    "hard swish": (
        "hardswish",
        "a = Add(h, three) c = Clip(a, none, six) m = Mul(h, c) z = Div(m, six)",
    ),
    "attention": (
        "scaled_dot_product_attention",
        HEADS + "s0 = MatMul(q3, k3) s1 = Div(s0, two)" + SOFTMAX.format(axis=-1),
    ),
    "attention as PyTorch writes it": (
        "scaled_dot_product_attention",
        HEADS + "x1 = Mul(q3, scale) x2 = Mul(k3, scale) s0 = MatMul(x1, x2) s1 = Add(s0, mask)"
        + SOFTMAX.format(axis=3),
    ),
    "attention as PyTorch writes it unoptimised": (
        "scaled_dot_product_attention",
        HEADS + "f = CastLike(half, q3) f1 = Sqrt(f) f2 = Sqrt(f) x1 = Mul(q3, f1) "
        "x2 = Mul(k3, f2) s0 = MatMul(x1, x2) s1 = Add(s0, mask)"
        + SOFTMAX.format(axis=-1).replace("MatMul(a1", "MatMul(a3")
        .replace("o1", "a2 = IsNaN(a1) a3 = Where(a2, none, a1) o1", 1),
    ),
    "attention with a scale of a shape": (
        "scaled_dot_product_attention",
        HEADS + "d1 = Shape(q2) d2 = Slice(d1, third, fourth) d3 = Cast<to = 1>(d2) d = Sqrt(d3) "
        "s0 = MatMul(q3, k3) s1 = Div(s0, d)" + SOFTMAX.format(axis=-1),
    ),
    "group norm": ("group_norm", GROUPS.format(ones="r1, ones")),
}  # fmt: skip

# Near to a spelling, and not it.
OTHERWISE = {
    "other axis": ("layer_norm", LAYER.format(axis=1) + ROOT + "t = Div(d, s) z = Mul(t, w)"),
    "eps behind the root": (
        "layer_norm",
        LAYER.format(axis=-1) + "s = Sqrt(v) e = Add(s, eps) z = Div(d, e)",
    ),
    "inner value read elsewhere": ("layer_norm", NORM + " z = Add(t, d)"),
    "other half": ("gelu", ERF + "f = Mul(h, g) z = Mul(f, nearly)"),
    "gate of another value": ("silu", "a = Mul(h, two) g = Sigmoid(a) z = Mul(g, h)"),
    "softmax over another axis": (
        "scaled_dot_product_attention",
        HEADS + "s1 = MatMul(q3, k3)" + SOFTMAX.format(axis=2),
    ),
    "a scale for each position": (  # as many numbers as scores: the sizes 4, 5, 5, 5, 5
        "scaled_dot_product_attention",
        HEADS + "d1 = Shape(q2) d2 = Gather(d1, places) d3 = Cast<to = 1>(d2) "
        "s0 = MatMul(q3, k3) s1 = Div(s0, d3)" + SOFTMAX.format(axis=-1),
    ),
    "groups with weights": ("group_norm", GROUPS.format(ones="r1, others")),
}


def written(nodes: str, folder: Path) -> Path:
    """A file in which two layers stand around nodes that make ``z`` of ``h``."""
    image = "gw" in nodes
    first, last = (
        ("Conv(x, cw)", "Conv(z, dw)") if image else ("MatMul(x, before)", "MatMul(z, after)")
    )
    given, made = ("n, 3, 4, 4", "n, c, r, s") if image else ("n, 5, 6", "n, r, s")
    text = f"g (float[{given}] x) => (float[{made}] y) {{ h = {first} {nodes} y = {last} }}"
    graph = onnx.parser.parse_graph(text)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}
    arrays |= {
        name: np.array(v, np.int64 if isinstance(v, list) and isinstance(v[0], int) else np.float32)
        for name, v in CONSTANTS.items()
    }
    read = {name for node in graph.node for name in node.input}
    graph.initializer.extend(
        onnx.numpy_helper.from_array(a, name) for name, a in arrays.items() if name in read
    )
    path = folder / "x.onnx"
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def loaded(path: Path) -> tuple[ag.ArchGraph, dict[str, torch.Tensor]]:
    """The graph of a file, which computes what onnxruntime makes of it."""
    graph, state = ag.load(path)
    for batch in (1, 3):
        assert_like_onnxruntime(path, torch.randn(batch, *graph.nodes[0].type.shape[1:]))
    return graph, state


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SPELT)
def test_a_spelling_is_one_operator_with_free_axes(name: str, tmp_path: Path):
    kind, nodes = SPELT[name]
    graph, state = loaded(written(nodes, tmp_path))
    assert [n.op for n in graph.nodes].count(f"aten.{kind}") == 1
    assert not {*state} & {*CONSTANTS}  # no constant is a weight
    small = ag.take(graph, 0.5, verify=True)
    assert ag.cost(small.graph).parameters < 0.6 * ag.cost(graph).parameters


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_only_looks_like_it_stays(name: str, tmp_path: Path):
    kind, nodes = OTHERWISE[name]
    graph, _ = loaded(written(nodes, tmp_path))
    assert f"aten.{kind}" not in [n.op for n in graph.nodes]


def test_a_bias_wider_than_its_layer_is_added_apart(tmp_path: Path):
    nodes = "l1 = Transpose<perm = [1, 0]>(one_row) l2 = MatMul(h, l1) z = Add(b, l2)"
    graph, _ = loaded(written(nodes, tmp_path))
    linear = next(node for node in graph.nodes if node.op == "aten.linear")
    assert linear.arg("bias") is None
