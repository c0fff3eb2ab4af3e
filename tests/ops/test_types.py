"""Types in closed form are those of PyTorch's meta kernels, which decide all other cases."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archgraph.errors import GraphError
from archgraph.graph.ir import BATCH, Leaf, Ref, TensorType, in_mode
from archgraph.ops.infer import kernel_type, pattern
from archgraph.ops.table import row
from archgraph.ops.types import Uncertain
from tests.nets import captured
from tests.ops.examples import EXAMPLES, Net

sizes = st.sampled_from([1, 2, 3, 4, 6, 8])
dtypes = st.sampled_from(["float32", "float32", "float32", "float16", "int64"])
small = st.integers(0, 3)


def kernel(op, args):
    """The type that the meta kernel gives; None where it refuses."""
    try:
        return kernel_type(op, args)
    except GraphError:
        return None


def form(op, args):
    """The type in closed form; None where it is not certain."""
    rule = row(op).type
    assert rule is not None
    with contextlib.suppress(Uncertain):
        return rule(dict(args))


def agree(op, **arguments):
    """The closed form is silent, or says what the kernel says."""
    args = tuple(
        (k, pattern(v, TYPES) if not isinstance(v, TensorType) else v) for k, v in arguments.items()
    )
    closed = form(op, args)
    assert closed is None or closed == kernel(op, args)
    return closed


TYPES: dict[Ref | Leaf, TensorType] = {}


@pytest.mark.sample(25)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.key}-{e.kind}")
def test_examples(example):
    net = Net(example)
    graph = captured(net, net.input(), train=False).graph
    types = {Ref(n.name): n.type for n in graph.nodes} | {
        Leaf(p.name): p.type for p in graph.params
    }
    for node in graph.nodes:
        if row(node.op).type is not None:
            args = tuple((k, pattern(in_mode(v, False), types)) for k, v in node.args)
            assert form(node.op, args) in (None, kernel(node.op, args))


@st.composite
def tensors(draw, shape=None):
    shape = draw(st.lists(sizes, max_size=4)) if shape is None else shape
    batch = [BATCH] if draw(st.booleans()) else []
    return TensorType((*batch, *shape)[:5], draw(dtypes))


@given(tensors(), tensors(), st.sampled_from([0.5, 2, True]))
def test_elementwise(x, y, number):
    agree("aten.add.Tensor", self=x, other=y)
    agree("aten.mul.Tensor", self=x, other=number)
    agree("aten.sub.Tensor", self=x, other=y, alpha=number)
    agree("aten.relu", self=x)
    agree("aten.sigmoid", self=x)
    agree("aten.pow.Tensor_Scalar", self=x, exponent=number)


@given(st.data())
@settings(max_examples=200)
def test_convolutions_and_windows(data):
    n, c, out, h, w = (data.draw(sizes) for _ in range(5))
    groups = data.draw(st.sampled_from([1, 1, 2]))
    k, s, p, d = (data.draw(small) for _ in range(4))
    x = TensorType((data.draw(st.sampled_from([BATCH, n])), c, h, w), "float32")
    weight = TensorType((out, data.draw(st.sampled_from([c, c // groups])), k, k), "float32")
    bias = data.draw(st.sampled_from([None, TensorType((out,), "float32")]))
    options = {"stride": (s, 1), "padding": (p,), "dilation": (d,)}
    agree("aten.conv2d", input=x, weight=weight, bias=bias, **options, groups=groups)
    for ceil in (True, False):
        agree(
            "aten.max_pool2d",
            self=x,
            kernel_size=(k, 2),
            stride=(s, 2),
            padding=(p,),
            ceil_mode=ceil,
        )
        agree("aten.avg_pool2d", self=x, kernel_size=(k,), padding=(p,), ceil_mode=ceil)
    agree("aten.adaptive_avg_pool2d", self=x, output_size=(k, s))


@given(st.data())
@settings(max_examples=200)
def test_rows_and_columns(data):
    x = data.draw(tensors())
    width = data.draw(sizes)
    last = x.shape[-1] if x.shape and data.draw(st.booleans()) else width
    weight = TensorType((width, last) if isinstance(last, int) else (width, width), x.dtype)
    bias = data.draw(st.sampled_from([None, TensorType((width,), "float32")]))
    agree("aten.linear", input=x, weight=weight, bias=bias)
    agree("aten.matmul", self=x, other=data.draw(tensors()))
    agree("aten.mean.dim", self=x, dim=(data.draw(st.integers(-3, 3)),), keepdim=True)
    agree("aten.cat", tensors=(), dim=0)
    vector = TensorType((width,), data.draw(dtypes))
    for training in (True, False):
        numbers = {"training": training, "momentum": 0.1, "eps": 1e-5}
        given_ = {"weight": vector, "bias": None, "running_mean": vector, "running_var": vector}
        agree("aten.batch_norm", input=x, **given_, **numbers)
        agree("aten.batch_norm", input=x, **dict.fromkeys(given_), **numbers)
    agree("aten.layer_norm", input=x, normalized_shape=(width,), weight=vector)
    agree("aten.embedding", weight=data.draw(tensors()), indices=x)
    agree("aten.dropout", input=x, p=data.draw(st.sampled_from([0.0, 0.5, 1.5])), train=True)


@given(st.data())
@settings(max_examples=200)
def test_attention(data):
    n, h, a, b, d, e = (data.draw(st.sampled_from([2, 2, 3])) for _ in range(6))
    q = TensorType((BATCH, h, a, d), "float32")
    k, v = TensorType((BATCH, n, b, d), "float32"), TensorType((BATCH, n, b, e), "float32")
    mask = data.draw(
        st.sampled_from(
            [
                None,
                *(
                    TensorType(s, t)
                    for s in [(a, b), (n, a), (b,)]
                    for t in ("bool", "float32", "int64")
                ),
            ]
        )
    )
    agree("aten.scaled_dot_product_attention", query=q, key=k, value=v, attn_mask=mask)


def test_common_networks_need_no_kernel():
    assert (
        agree(
            "aten.conv2d",
            input=TensorType((BATCH, 3, 8, 8), "float32"),
            weight=TensorType((4, 3, 3, 3), "float32"),
        )
        is not None
    )


@given(st.data())
@settings(max_examples=60)
def test_recurrent_layers(data):
    """One layer in one direction; a wrong size, count or flag is the kernel's to judge."""
    op, gates = data.draw(st.sampled_from([("lstm", 4), ("gru", 3), ("rnn_tanh", 1)]))
    units, out, inside = (data.draw(st.sampled_from([1, 2, 3])) for _ in range(3))
    out = out if op == "lstm" else units
    biases = data.draw(st.booleans())
    first = data.draw(st.booleans())

    def real(*shape):
        return TensorType(shape, "float32")

    x = real(BATCH, 4, inside) if first else real(4, BATCH, inside)
    h, c = (real(1, BATCH, size) for size in (out, units))
    rows = gates * units
    params = [real(rows, inside), real(rows, out), *[real(rows)] * (2 * biases)]
    params += [real(out, units)] * (out != units)
    if data.draw(st.booleans()):
        params[data.draw(st.integers(0, len(params) - 1))] = real(rows, inside + 1)
    flag = data.draw(st.sampled_from([False, False, True]))
    closed = agree(
        f"aten.{op}.input", input=x, hx=(h, c) if op == "lstm" else c, params=tuple(params),
        has_biases=biases, num_layers=data.draw(st.sampled_from([1, 1, 2])), dropout=0.0,
        train=True, bidirectional=flag, batch_first=first,
    )  # fmt: skip
    assert closed is None or not flag
