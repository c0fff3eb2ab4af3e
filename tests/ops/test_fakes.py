"""Short ways of stand-in tensors: the shapes, dtypes and strides of torch's own decompositions."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode, fake_impls

from archgraph.ops.fakes import short_ways


def outlines(training, dtype, layout):
    with FakeTensorMode():
        x = torch.empty(4, 3, 5, 6, dtype=dtype).to(memory_format=layout)
        weight, bias, mean, variance = (torch.empty(3) for _ in range(4))
        found = torch.batch_norm(x, weight, bias, mean, variance, training, 0.1, 1e-5, True)
        direct = torch.native_batch_norm(x, weight, bias, mean, variance, training, 0.1, 1e-5)
    return [(t.shape, t.dtype, t.stride()) for t in (found, direct[0])]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_short_way_gives_the_outline_of_the_long_one(training, dtype, layout):
    expected = outlines(training, dtype, layout)
    with short_ways():
        assert outlines(training, dtype, layout) == expected


def test_the_short_ways_are_taken_back():
    before = dict(fake_impls.op_implementations_dict)
    with short_ways():
        assert fake_impls.op_implementations_dict != before
    assert fake_impls.op_implementations_dict == before
