"""Shapes of operators that torch's stand-in tensors otherwise compute by a long decomposition."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._prims_common import (
    infer_size,
    is_contiguous_or_false,
    make_contiguous_strides_for,
)
from torch._subclasses import FakeTensor
from torch._subclasses.fake_impls import _view_meta, get_fast_op_impls
from torch.fx.experimental.symbolic_shapes import statically_known_true

Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _training(
    mode: Any, input: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any,
    training: bool, *rest: float,
) -> Results:  # fmt: skip
    """Make the result and batch statistics of a batch norm.

    The decomposition takes eleven operators.
    """
    with mode:
        size = input.shape[1] if training else 0
        return torch.empty_like(input), input.new_empty((size,)), input.new_empty((size,))


def _evaluation(mode: Any, input: torch.Tensor, *rest: Any) -> Results:
    return _training(mode, input, None, None, None, None, False)


def _layer_norm(mode: Any, input: torch.Tensor, shape: Any, *rest: Any) -> Results:
    """Make the result and statistics of a layer norm: the decomposition takes a dozen operators.

    The result is contiguous, as kernels make it; that of the decomposition is only sometimes.
    """
    exact = input.device.type == "cpu"  # elsewhere statistics are in single precision at least
    dtype = input.dtype if exact else torch.promote_types(input.dtype, torch.float32)
    with mode:
        sizes = (*input.shape[: -len(shape)], *[1] * len(shape))
        mean, deviation = (input.new_empty(sizes, dtype=dtype) for _ in range(2))
        return torch.empty_like(input, memory_format=torch.contiguous_format), mean, deviation


def _view(mode: Any, input: FakeTensor, shape: Any) -> Any:
    """Make a view of contiguous memory in one step: torch's function goes from axis to axis."""
    with mode:
        sizes = infer_size(shape, input.numel())
        same = statically_known_true(math.prod(sizes) == input.numel())
        if same and is_contiguous_or_false(input):
            return input.as_strided(sizes, make_contiguous_strides_for(sizes))
        return _view_meta(mode, _ATEN.view.default, input, *sizes)


_ATEN: Any = torch.ops.aten
_WAYS: dict[Any, Callable[..., Any]] = {
    _ATEN._native_batch_norm_legit.default: _training,
    _ATEN._native_batch_norm_legit_no_training.default: _evaluation,
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.view.default: _view,
    _ATEN._unsafe_view.default: _view,
}
_SEQUENCES = (_ATEN.lstm.input, _ATEN.gru.input, _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input)
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


def _sequence(long: Callable[..., Any]) -> Callable[..., Any]:
    """Results of a recurrent layer: the decomposition runs every step."""

    def way(input: torch.Tensor, hx: Any, params: Any, *options: Any) -> Any:
        if not isinstance(input, FakeTensor):
            return long(input, hx, params, *options)
        *_, bidirectional, first = options
        states = hx if isinstance(hx, (list, tuple)) else (hx,)
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        sizes = [input.shape[1], input.shape[0]] if first else list(input.shape[:2])
        y = input.new_empty((*sizes, width))  # memory has time first
        ends = (s.new_empty(s.shape) for s in states)
        return (y.transpose(0, 1) if first else y, *ends)

    return way


@contextlib.contextmanager
def short_ways() -> Iterator[None]:
    """Let stand-in tensors of symbolic shape pass these operators without their decompositions."""
    ways = get_fast_op_impls()
    added = {op: way for op, way in _WAYS.items() if op not in ways}
    ways.update(added)
    kept = {op: dict(op.py_kernels) for op in _SEQUENCES}
    for op, kernels in kept.items():
        op.py_kernels.update({key: _sequence(kernels[key]) for key in _KEYS if key in kernels})
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op in added:
            del ways[op]
        for op, kernels in kept.items():
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
