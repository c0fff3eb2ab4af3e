"""Functions with a gradient of their own, and what is saved for gradients: whether either matters.

An exported program has the forward of such a function, and its gradient is what that leads to.
Where the function only computes the same gradient in another way (to save memory), nothing is
lost; a straight-through estimator or a reversed gradient is. Both are run on random numbers of
several sizes and batches. So are functions that pack what is saved for the gradients: it may come
back as it was, or rounded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from archgraph.capture.held import Held
from archgraph.capture.places import place
from archgraph.capture.restored import redrawn, restored
from archgraph.errors import TraceError

_SCALES = (1e-6, 1e-3, 1.0, 1e3, 1e6)  # of random numbers, and of what they are weighted with
_BATCHES = (2, 16)  # other batches, as multiples of the example's
_Draw = Callable[[tuple[int, ...]], torch.Tensor]


class Varying(int):
    """A size of the example that goes with the batch."""


def arguments_of(args: tuple[Any, ...]) -> Any:
    """Arguments of a call without the capture's stand-ins: tensors as :class:`StandIn`."""

    def known(item: Any) -> Any:
        return shape_of(item) if isinstance(item, torch.Tensor) else _size(item)

    return pytree.tree_map(known, args)


@dataclass(frozen=True)
class StandIn:
    """StandIn and dtype of a stand-in, with the example's sizes."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    def drawn(self, draw: _Draw, times: int) -> torch.Tensor:
        """Random numbers for a batch that is some times as large."""
        return draw(tuple(_times(size, times) for size in self.sizes))


def shape_of(tensor: torch.Tensor) -> StandIn:
    """StandIn and dtype of a stand-in."""
    return StandIn(tuple(map(_size, tensor.shape)), tensor.dtype)


def _size(value: Any) -> Any:
    return Varying(value.node.hint) if isinstance(value, torch.SymInt) else value


def _times(value: Any, times: int) -> Any:
    return int(value) * times if isinstance(value, Varying) else value


def _normal(shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64) * scale


def _positive(shape: tuple[int, ...], scale: float) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64) * scale


def _outliers(shape: tuple[int, ...]) -> torch.Tensor:
    return _normal(shape) * 10 ** (6 * _normal(shape).tanh())


_DRAWS: tuple[_Draw, ...] = (
    *(functools.partial(draw, scale=scale) for draw in (_normal, _positive) for scale in _SCALES),
    _outliers,
)


def other_gradient(function: Any, given: Any) -> TraceError | None:
    """The error for a function whose gradient is not that of its forward; None where it is."""
    kept = Held()
    for work in (function.forward, function.backward):
        kept.function(work, function)
    kept.methods()
    trials = [
        *((draw, 1.0, 1) for draw in _DRAWS),
        *((_normal, scale, 1) for scale in _SCALES),
        *((_normal, 1.0, times) for times in _BATCHES),
    ]
    try:
        with redrawn(), torch.enable_grad(), restored(torch.nn.Module(), kept):
            torch.manual_seed(0)
            before = [space.prints() for space in kept.spaces]
            if all(_agrees(function, given, *trial) for trial in trials):
                if before == [space.prints() for space in kept.spaces]:
                    return None
    except Exception:  # whatever the user's function raises on random numbers
        pass
    code = function.backward.__code__
    return TraceError(
        f"{function.__qualname__.rpartition('.')[2]} has a gradient of its own; a graph has that "
        "of its forward",
        where=f"{code.co_filename}:{code.co_firstlineno}",
        hint="write forward so that its gradient is the right one (x + (y - x).detach() passes "
        "the gradient straight through)",
    )


def _agrees(function: Any, given: Any, draw: _Draw, weight: float, times: int) -> bool:
    """Whether a function and its forward have one gradient on random numbers."""

    def drawn(item: Any) -> Any:
        if not isinstance(item, StandIn):
            return _times(item, times)
        numbers = item.drawn(draw, times)
        if item.dtype.is_floating_point:
            return numbers.requires_grad_()
        return torch.zeros_like(numbers, dtype=item.dtype)

    args = pytree.tree_map(drawn, given)
    inputs = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]

    def gradients(result: Any) -> list[torch.Tensor]:
        results = result if isinstance(result, tuple) else (result,)
        smooth = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        total = torch.stack(
            [(r * weight * torch.linspace(1, 2, r.numel()).view_as(r)).sum() for r in smooth]
        )
        found = torch.autograd.grad(total.sum(), inputs, allow_unused=True)
        return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]

    apart = function.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context

    def copies() -> list[Any]:  # a leaf cannot be written in place
        return [a * 1 if isinstance(a, torch.Tensor) and a.requires_grad else a for a in args]

    context = () if apart else (_Context(len(args)),)
    plain = function.forward(*context, *copies())
    pairs = zip(gradients(function.apply(*copies())), gradients(plain), strict=True)
    return all(_close(a, b) for a, b in pairs)


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether gradients are equal up to rounding, small ones beside large ones."""
    largest = float(expected.nan_to_num(0, 0, 0).abs().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=1e-6, atol=1e-9 * largest, equal_nan=True)


def other_saved(
    pack: Any, unpack: Any, where: str, saved: Collection[StandIn]
) -> TraceError | None:
    """The error for hooks that give back something else than was saved; None where they do not."""
    try:
        with redrawn(), torch.no_grad():
            torch.manual_seed(0)
            trials = [(draw, 1) for draw in _DRAWS] + [(_normal, times) for times in _BATCHES]
            pairs = itertools.product(saved, trials)
            drawn = (shape.drawn(*trial).to(shape.dtype) for shape, trial in pairs)
            if all(torch.equal(unpack(pack(tensor.clone())), tensor) for tensor in drawn):
                return None
    except Exception:  # whatever the user's hooks raise on random numbers
        pass
    return TraceError(
        "changes what is saved for the gradients; a graph saves what it computes",
        where=where,
        found=place(pack),
        hint="build without these hooks and run the built module under them",
    )


class _Context:
    """Stands in for the context that forward saves tensors to; nothing is ever read back."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None
