"""Functions with a gradient of their own, and what is saved for gradients: whether either matters.

An exported program has the forward of such a function, and its gradient is what that leads to.
Where the function only computes the same gradient in another way (to save memory), nothing is
lost; a straight-through estimator or a reversed gradient is. Both are run on random numbers. So are
functions that pack what is saved for the gradients: it may come back as it was, or rounded.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from archgraph.capture.places import place
from archgraph.errors import TraceError

_DRAWS = (torch.randn, torch.rand)  # numbers of both signs, and numbers that have a logarithm


def arguments_of(args: tuple[Any, ...]) -> list[Any]:
    """Arguments of a call without the capture's stand-ins: tensors as shape and dtype."""
    return [shape_of(a) if isinstance(a, torch.Tensor) else a for a in args]


def shape_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a stand-in, with the example's sizes."""
    return tuple(map(_number, tensor.shape)), tensor.dtype


def _number(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint)


def other_gradient(function: Any, given: list[Any]) -> TraceError | None:
    """The error for a function whose gradient is not that of its forward; None where it is."""
    try:
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(0)
            if all(_agrees(function, given, draw) for draw in _DRAWS):
                return None
    except Exception:  # whatever the user's function raises on random numbers
        pass
    code = function.backward.__code__
    return TraceError(
        f"{function.__qualname__.rpartition('.')[2]} has a gradient of its own; a graph has that "
        "of its forward",
        where=f"{code.co_filename}:{code.co_firstlineno}",
        hint="write forward so that its gradient is the right one (x + (y - x).detach() passes "
        "the gradient straight through), or trace with strict=False",
    )


def _agrees(function: Any, given: list[Any], draw: Any) -> bool:
    """Whether a function and its forward have one gradient on random numbers."""

    def drawn(item: Any) -> Any:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], torch.dtype)):
            return item
        if not item[1].is_floating_point:
            return torch.zeros(item[0], dtype=item[1])
        return draw(item[0]).to(torch.float64).requires_grad_()

    args = [drawn(item) for item in given]
    inputs = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]

    def gradients(result: Any) -> list[torch.Tensor]:
        results = result if isinstance(result, tuple) else (result,)
        smooth = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        total = torch.stack(
            [(r * torch.linspace(1, 2, r.numel()).view_as(r)).sum() for r in smooth]
        )
        found = torch.autograd.grad(total.sum(), inputs, allow_unused=True)
        return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]

    apart = function.setup_context is not torch.autograd.function._SingleLevelFunction.setup_context

    def copies() -> list[Any]:  # a leaf cannot be written in place
        return [a * 1 if isinstance(a, torch.Tensor) and a.requires_grad else a for a in args]

    context = () if apart else (_Context(len(args)),)
    plain = function.forward(*context, *copies())
    pairs = zip(gradients(function.apply(*copies())), gradients(plain), strict=True)
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True) for a, b in pairs)


def other_saved(
    pack: Any, unpack: Any, where: str, saved: Collection[tuple[tuple[int, ...], torch.dtype]]
) -> TraceError | None:
    """The error for hooks that give back something else than was saved; None where they do not."""
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            drawn = [(10 * torch.randn(shape)).to(dtype) for shape, dtype in saved]
            if all(torch.equal(unpack(pack(tensor.clone())), tensor) for tensor in drawn):
                return None
    except Exception:  # whatever the user's hooks raise on random numbers
        pass
    return TraceError(
        "changes what is saved for the gradients; a graph saves what it computes",
        where=where,
        found=place(pack),
        hint="build without these hooks and run the built module under them, or trace with "
        "strict=False",
    )


class _Context:
    """Stands in for the context that forward saves tensors to; nothing is ever read back."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None
