"""Fast fake-tensor implementations of operators that otherwise use long decompositions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import (
    infer_size,
    is_contiguous_or_false,
    make_contiguous_strides_for,
)
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_impls import _view_meta, get_fast_op_impls
from torch.fx.experimental.symbolic_shapes import statically_known_true

_ATEN = torch.ops.aten


def _training(
    mode: FakeTensorMode, input: Tensor, weight: object, bias: object, mean: object,
    variance: object, training: bool, *rest: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Create the result and batch statistics of a batch norm in one step.

    PyTorch's decomposition runs eleven operators.
    """
    with mode:
        # Without statistics in evaluation: the kernel also returns empty tensors there.
        size = input.shape[1] if training else 0
        return torch.empty_like(input), input.new_empty((size,)), input.new_empty((size,))


def _layer_norm(
    mode: FakeTensorMode, input: Tensor, shape: Sequence[int], *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Create the result and statistics of a layer norm in one step.

    PyTorch's decomposition runs a dozen operators. The result is contiguous, as that of the kernels
    is; the result of the decomposition is not always contiguous.
    """
    exact = input.device.type == "cpu"  # elsewhere, statistics are at least in single precision
    dtype = input.dtype if exact else torch.promote_types(input.dtype, torch.float32)
    with mode:
        sizes = (*input.shape[: -len(shape)], *[1] * len(shape))
        mean, deviation = (input.new_empty(sizes, dtype=dtype) for _ in range(2))
        return torch.empty_like(input, memory_format=torch.contiguous_format), mean, deviation


def _view(mode: FakeTensorMode, input: FakeTensor, shape: tuple[int, ...]) -> Tensor:
    """Create a view of contiguous memory in one step; torch's function works axis by axis."""
    with mode:
        sizes = infer_size(shape, input.numel())
        same = statically_known_true(math.prod(sizes) == input.numel())
        if same and is_contiguous_or_false(input):
            return input.as_strided(sizes, make_contiguous_strides_for(sizes))
        return _view_meta(mode, _ATEN.view.default, input, *sizes)


def _where(
    fits: Callable[..., object], op: torch._ops.OpOverload, results: Callable[..., object]
) -> Callable[..., object]:
    """Return a function that uses a fast path if a condition holds.

    The decomposition, which it uses otherwise, runs up to thirty operators.
    """

    def way(mode: FakeTensorMode, *args: object, **kwargs: object) -> object:
        with mode:
            return (results if fits(*args) else decomposition_table[op])(*args, **kwargs)

    return way


def _is_contiguous(input: Tensor, *_: object) -> bool:
    return input.is_floating_point() and is_contiguous_or_false(input)


def _is_row(bias: Tensor, input: Tensor, weight: Tensor) -> bool:
    """Return whether a product plus a bias has the shape and dtype of the product."""
    return (
        bias.dim() == 1
        and bias.is_floating_point()
        and bias.dtype == input.dtype == weight.dtype
        and statically_known_true(bias.shape[0] == weight.shape[-1])
    )


ACTIVATIONS = (
    *("elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "mish", "sigmoid", "silu"),
    *("softplus", "tanh"),
)

# Operators whose results are as contiguous as their input.
_CONTIGUOUS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    _ATEN._safe_softmax.default: lambda x, dim, dtype=None: torch.softmax(x, dim, dtype),
    _ATEN.native_group_norm.default: lambda x, weight, bias, examples, channels, size, groups, _: (
        torch.empty_like(x),
        *(x.new_empty((examples, groups)) for _ in range(2)),
    ),
    _ATEN.roll.default: lambda x, *_: torch.empty_like(x),
}
_WAYS: dict[torch._ops.OpOverload, Callable[..., object]] = {
    **{op: _where(_is_contiguous, op, results) for op, results in _CONTIGUOUS.items()},
    **{
        # Integers are treated differently.
        op: _where(
            lambda x, *_: x.is_floating_point(),
            op,
            (lambda x, *_, **more: x) if end else (lambda x, *_, **more: torch.empty_like(x)),
        )
        for name in ACTIVATIONS
        for end in ("", "_")
        if (op := getattr(getattr(_ATEN, name + end, None), "default", None)) is not None
    },
    _ATEN.native_dropout.default: _where(
        lambda x, p, train: train and p and _is_contiguous(x),  # otherwise the input is returned
        _ATEN.native_dropout.default,
        lambda x, p, train: (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)),
    ),
    _ATEN.addmm.default: _where(
        _is_row, _ATEN.addmm.default, lambda bias, a, b, **scales: torch.mm(a, b)
    ),
    _ATEN._native_batch_norm_legit.default: _training,
    _ATEN._native_batch_norm_legit_no_training.default: (
        lambda mode, input, *rest: _training(mode, input, None, None, None, None, False)
    ),
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.view.default: _view,
    _ATEN._unsafe_view.default: _view,
}
_SEQUENCES = (_ATEN.lstm.input, _ATEN.gru.input, _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input)
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


def _sequence(long: Callable[..., object]) -> Callable[..., object]:
    """Create the results of a recurrent layer in one step.

    PyTorch's decomposition runs every time step: 10.1 s of CPU time instead of 0.4 s for two
    bidirectional layers over 35 steps.
    """

    def way(input: Tensor, hx: Any, params: object, *options: Any) -> object:
        if not isinstance(input, FakeTensor):
            return long(input, hx, params, *options)
        *_, bidirectional, first = options
        states = hx if isinstance(hx, (list, tuple)) else (hx,)
        width = states[0].shape[-1] * (2 if bidirectional else 1)
        sizes = [input.shape[1], input.shape[0]] if first else list(input.shape[:2])
        y = input.new_empty((*sizes, width))  # time-major in memory
        ends = (s.new_empty(s.shape) for s in states)
        return (y.transpose(0, 1) if first else y, *ends)

    return way


@contextlib.contextmanager
def short_ways() -> Iterator[None]:
    """Temporarily use this module's fast implementations for fake tensors of symbolic shape."""
    ways = get_fast_op_impls()
    # Later versions of torch may have their own implementations: keep those.
    added = {op: way for op, way in _WAYS.items() if op not in ways}
    ways.update(added)
    before = {op: dict(op.py_kernels) for op in _SEQUENCES}
    for op, kernels in before.items():
        op.py_kernels.update({key: _sequence(kernels[key]) for key in _KEYS if key in kernels})
        # Operators cache their kernels by dispatch key.
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op in added:
            del ways[op]
        for op, kernels in before.items():
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
