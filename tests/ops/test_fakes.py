"""Short ways of stand-in tensors: the shapes, dtypes and strides of torch's own decompositions."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_impls import get_fast_op_impls
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from archgraph.ops.fakes import ACTIVATIONS, short_ways


def outlines(training, dtype, layout):
    """Shapes, dtypes and strides of both forms of batch norm, the batch size a symbol."""
    axes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3]
    x = torch.empty(4, 3, 5, 6, dtype=dtype).to(memory_format=layout)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes))
        weight, bias, mean, variance = (torch.empty(3) for _ in range(4))
        statistics = (mean, variance, training, 0.1, 1e-5)
        results = [torch.batch_norm(x, weight, bias, *statistics, False)]
        results += torch.ops.aten._native_batch_norm_legit(x, weight, bias, *statistics)[:1]
    return [(str(tuple(t.shape)), t.dtype, str(t.stride())) for t in results]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_short_way_gives_the_outline_of_the_long_one(training, dtype, layout):
    expected = outlines(training, dtype, layout)
    with short_ways():
        assert outlines(training, dtype, layout) == expected


def shaped(size, order, work):
    """Shapes, dtypes and strides of an operator's results, the batch size a symbol."""
    axes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (len(size) - 1)]
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = torch.empty(size)
        x = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes))
        results = work(x.permute(order))
    results = results if isinstance(results, tuple) else (results,)
    return [(str(tuple(t.shape)), t.dtype, str(t.stride())) for t in results]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3)])
@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("affine", [False, True])
def test_a_layer_norm_has_the_outline_of_a_real_one(order, last, dtype, affine):
    def work(x):
        sizes = [int(n) for n in x.shape[-last:]]
        weight, bias = (torch.empty(sizes, dtype=dtype) if affine else None for _ in range(2))
        results = torch.native_layer_norm(x.to(dtype), sizes, weight, bias, 1e-5)
        return [(tuple(map(int, t.shape)), t.dtype, tuple(map(int, t.stride()))) for t in results]

    expected = work(torch.empty(4, 3, 5, 6).permute(order))
    with short_ways(), FakeTensorMode(shape_env=ShapeEnv()) as mode:
        axes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3]
        x = torch.empty(4, 3, 5, 6)
        x = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes))
        assert work(x.permute(order)) == expected


VIEWS = (
    lambda x: x.view(x.shape[0], -1),
    lambda x: x.view(-1),
    lambda x: x.view(-1, 6),
    lambda x: x.view(x.shape[0], 3, 1, 5, 2, 3),
    lambda x: x.view(x.shape[0] * 3, 5, 6),
    lambda x: x[1:].view(-1, 30),
    lambda x: x[:, 1:].view(-1, 2, 15, 2),
    lambda x: x.sum().view(1, 1),
)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_outline_of_the_long_one(view):
    expected = shaped((4, 3, 5, 6), (0, 1, 2, 3), view)
    with short_ways():
        assert shaped((4, 3, 5, 6), (0, 1, 2, 3), view) == expected


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (3, 0, 1, 2)])
def test_a_view_that_is_none_raises_the_same_error(order):
    def work(x):
        return x.view(-1, 15)

    messages = []
    for way in (contextlib.nullcontext(), short_ways()):
        with way, pytest.raises(Exception) as caught:
            shaped((4, 3, 5, 6), order, work)
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(0, 2, 3, 1),
    "with gaps": lambda x: x[..., ::2],
    "repeated": lambda x: x[:, :1].expand(-1, 3, -1, -1),
}


@pytest.mark.sample(30)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*ACTIVATIONS, *(f"{name}_" for name in ACTIVATIONS)])
def test_an_activation_has_the_outline_of_the_long_way(name, layout):
    """Of integers, too, where torch has the function for them."""
    operator = getattr(torch.ops.aten, name, None)
    if operator is None or (name.endswith("_") and layout == "repeated"):
        return  # torch has no such form, or refuses to write there

    def outline(dtype):
        x = LAYOUTS[layout](torch.ones(4, 3, 5, 6).to(dtype))
        axes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3]
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            x = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes))
            assert x._has_symbolic_sizes_strides
            try:
                result = operator.default(x)
            except (RuntimeError, ValueError):
                return None
        return str(tuple(result.shape)), result.dtype, str(result.stride())

    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool):
        expected = outline(dtype)
        with short_ways():
            assert outline(dtype) == expected, dtype


OPERATORS = {
    "addmm": lambda x: (
        torch.addmm(x.flatten(1), x.flatten(1)[:, :9], torch.ones(9, x[0].numel()).to(x)),
    ),
    "addmm of a row": lambda x: (
        torch.addmm(torch.ones(7).to(x), x.flatten(1), torch.ones(x[0].numel(), 7).to(x), beta=2),
        torch.addmm(torch.ones(1).to(x), x.flatten(1), torch.ones(x[0].numel(), 7).to(x)),
        torch.addmm(torch.ones(1).to(x), x.flatten(1), torch.ones(x[0].numel(), 1).to(x)),
    ),
    "addmm of another row": lambda x: (
        torch.addmm(torch.ones(3).to(x), x.flatten(1), torch.ones(x[0].numel(), 7).to(x)),
    ),
    "addmm of rows": lambda x: (
        torch.addmm(torch.ones(4, 4).to(x), x.flatten(1), torch.ones(x[0].numel(), 4).to(x)),
    ),
    "roll": lambda x: (x.roll(2), x.roll((1, 1), (2, 3)), x.roll(1, 0)),
    "softmax": lambda x: (
        torch._safe_softmax(x, -1), torch._safe_softmax(x, 1, dtype=torch.float64),
    ),
    "dropout": lambda x: tuple(
        t for p, train in ((0.5, True), (1.0, True), (0.0, True), (0.5, False))
        for t in torch.native_dropout(x, p, train)
    ),
    "group norm": lambda x: tuple(
        t
        for weight, groups in ((torch.ones(3).to(x), 3), (None, 1))
        for t in torch.native_group_norm(
            x, weight, None, x.shape[0], 3, x[0, 0].numel(), groups, 1e-5
        )
    ),
}  # fmt: skip


DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)
# Operators that are to raise, by dtype; every other one has results.
RAISES = {
    "addmm of another row": DTYPES, "dropout": (torch.int64,), "group norm": (torch.int64,),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_the_outline_of_the_long_way(name, layout):
    """Shapes, dtypes, strides and whose memory it is; the guards and errors, too."""

    def outline(dtype):
        x = LAYOUTS[layout](torch.ones(4, 3, 6, 6).to(dtype))
        axes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * 3]
        shape_env = ShapeEnv()
        with FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True) as mode:
            x = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes))
            if name == "group norm" and x.shape[1] != 3:
                x = x.permute(0, 3, 1, 2)
            try:
                results = OPERATORS[name](x)
            except (RuntimeError, ValueError) as error:
                return type(error)
        described = [(str(tuple(t.shape)), t.dtype, str(t.stride()), t is x) for t in results]
        return described, [str(guard.expr) for guard in shape_env.guards]

    for dtype in DTYPES:
        expected = outline(dtype)
        assert isinstance(expected, type) == (dtype in RAISES.get(name, ())), dtype
        with short_ways():
            assert outline(dtype) == expected, dtype


def sequences(kind, first, **options):
    """Shapes, dtypes and strides of a recurrent layer's results, the batch size a symbol."""
    layer = kind(3, 6, batch_first=first, **options)
    x = torch.empty((4, 5, 3) if first else (5, 4, 3))
    axes = [DimDynamic.STATIC] * 3
    axes[0 if first else 1] = DimDynamic.DYNAMIC
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True) as mode:
        x = mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes))
        with enable_python_dispatcher():
            y, ends = layer(x)
    results = [y, *(ends if isinstance(ends, tuple) else (ends,))]
    return [(str(tuple(t.shape)), t.dtype) for t in results], str(y.stride())


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN], ids=lambda k: k.__name__)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_recurrent_layer_is_outlined_without_its_steps(kind, first, ways):
    options = {"bidirectional": ways == 2, "num_layers": 2}
    if kind is nn.LSTM:
        options["proj_size"] = 2
    expected = sequences(kind, first, **options)
    with short_ways():
        assert sequences(kind, first, **options) == expected
        with enable_python_dispatcher():  # real numbers go the long way
            torch.manual_seed(0)
            short = kind(3, 6)(torch.ones(2, 1, 3))[0]
    torch.manual_seed(0)
    assert torch.equal(kind(3, 6)(torch.ones(2, 1, 3))[0], short)


def test_the_short_ways_are_taken_and_taken_back():
    before = dict(get_fast_op_impls())
    with short_ways():
        added = get_fast_op_impls().keys() - before.keys()
        others = ("addmm", "roll", "_safe_softmax", "native_dropout", "native_group_norm")
        names = ("batch_norm", "layer_norm", "view", *others, *ACTIVATIONS)
        assert all(any(n in str(op) for n in names) for op in added)
        assert {str(op).split(".")[1] for op in added} >= {
            *ACTIVATIONS,
            "view",
            "native_layer_norm",
            *others,
        }
    assert get_fast_op_impls() == before
