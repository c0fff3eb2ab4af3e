"""Short ways of stand-in tensors: the shapes, dtypes and strides of torch's own decompositions."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_impls import get_fast_op_impls
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from archgraph.ops.fakes import short_ways


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
        assert len(added) == 2 and all("batch_norm" in str(op) for op in added)
    assert get_fast_op_impls() == before
