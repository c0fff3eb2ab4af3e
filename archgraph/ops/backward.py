"""The tensors that autograd saves for an operator, and the gradients that it allocates.

The descriptions hold for PyTorch on a CPU. ``tests/ops/test_backward.py`` compares every row with
``torch.autograd.graph.saved_tensors_hooks``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from archgraph.ops.operands import Amount, Counted, numel

Extra: TypeAlias = Callable[[Counted], "list[tuple[Amount, str]]"]
"""Tensors that an operator saves in addition to its operands and results, each with its number of
elements and its dtype. An empty dtype stands for the dtype of the first result."""


@dataclass(frozen=True, slots=True)
class Backward:
    """The tensors that autograd saves and allocates for an operator.

    Attributes:
        operands: Dict from each saved argument to a space-separated list of the arguments whose
            gradients need the saved argument. An empty string means that any gradient needs it.
        results: Indices of the results that are saved.
        extra: Function that returns further saved tensors.
        working: Large temporary tensors of the backward pass.
        matrices: Arguments whose leading dimensions are flattened into one before they are saved,
            each with the number of trailing dimensions that stay. If an argument cannot be
            flattened without a copy, the copy is saved.
        passes: True if the gradients of the operands are the gradient of the result or views of
            this gradient, so that no memory is allocated.
        stops: True if no gradient flows through the operator.
        same: True if the operator returns its first operand itself.
        order: Argument whose memory order the result has; empty for row-major order.
        checked: True if PyTorch saves exactly these tensors. If False, they are an upper bound.
    """

    operands: Mapping[str, str] = field(default_factory=dict)
    results: tuple[int, ...] = ()
    extra: Extra | None = None
    working: Extra | None = None
    matrices: Mapping[str, int] = field(default_factory=dict)
    passes: bool = False
    stops: bool = False
    same: bool = False
    order: str = ""
    checked: bool = True


def saves(
    *operands: str,
    results: tuple[int, ...] = (),
    extra: Extra | None = None,
    matrices: Mapping[str, int] | None = None,
    **needed: str,
) -> Backward:
    """Return the :class:`Backward` of an operator that saves tensors for backward.

    Args:
        operands: Arguments that are saved if any gradient is needed.
        results: Indices of the results that are saved.
        extra: Function that returns further saved tensors.
        matrices: Dict from flattened argument to the number of dimensions that are not flattened.
        needed: For each argument that is saved only for the gradients of some arguments, a
            space-separated list of these arguments.

    >>> saves("self", weight="input").operands
    {'self': '', 'weight': 'input'}
    """
    saved = {**dict.fromkeys(operands, ""), **needed}
    return Backward(saved, results, extra, matrices=matrices or {})


def as_large_as_result(count: int = 1, dtype: str = "") -> Extra:
    """Return a rule for ``count`` additional tensors of the result's size."""
    return lambda of: [(numel(of.result), dtype)] * count


NOTHING = Backward()
PASSES = Backward(passes=True)
STOPS = Backward(stops=True)
INPUT = saves("self")
RESULT = saves(results=(0,))
