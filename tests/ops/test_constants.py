"""Constants: tensors inside a graph keep every bit, and have a largest size."""

from __future__ import annotations

import pytest
import torch

from archgraph.errors import GraphError
from archgraph.limits import LIMITS
from archgraph.ops.constants import constant, constant_tensor


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_constants_keep_every_bit(dtype):
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    assert torch.equal(constant_tensor(constant(tensor)), tensor)
    assert constant_tensor(constant(torch.empty(0, 3))).shape == (0, 3)


def test_a_constant_larger_than_a_graph_may_hold_is_refused():
    large = torch.zeros(1).expand(LIMITS.constant_bytes // 4 + 1)  # one element in memory
    with pytest.raises(
        GraphError, match=r"constant is too large for a graph.*register it as a buffer"
    ):
        constant(large)


def test_one_element_may_stand_in_any_stride():
    whole = torch.arange(10)[::5]
    assert constant_tensor(constant(whole)).tolist() == [0, 5]
    assert constant_tensor(constant(whole[:1])).tolist() == [0]
