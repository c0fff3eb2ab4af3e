"""Shapes of operators that torch's stand-in tensors otherwise compute by a long decomposition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.fake_impls import get_fast_op_impls

Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _training(
    mode: Any, input: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any,
    training: bool, *rest: float,
) -> Results:  # fmt: skip
    """Result and batch statistics of a batch norm: the decomposition takes eleven operators."""
    with mode:
        size = input.shape[1] if training else 0
        return torch.empty_like(input), input.new_empty((size,)), input.new_empty((size,))


def _evaluation(mode: Any, input: torch.Tensor, *rest: Any) -> Results:
    return _training(mode, input, None, None, None, None, False)


_WAYS = {
    torch.ops.aten._native_batch_norm_legit.default: _training,
    torch.ops.aten._native_batch_norm_legit_no_training.default: _evaluation,
}


_ATEN: Any = torch.ops.aten
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
