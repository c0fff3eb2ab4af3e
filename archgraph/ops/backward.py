"""How autograd treats an operator: the tensors that it saves, the gradients that it allocates.

The facts hold for PyTorch on a CPU, as observed with ``torch.autograd.graph.saved_tensors_hooks``
(``tests/ops/test_backward.py`` compares every row with it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from archgraph.ops.operands import Amount, Counted, numel

Extra: TypeAlias = Callable[[Counted], "list[tuple[Amount, str]]"]
"""Tensors that an operator saves in addition to its operands and results: number of elements and
dtype of each; an empty dtype is that of the first result."""


@dataclass(frozen=True, slots=True)
class Backward:
    """The tensors that autograd saves and allocates for an operator.

    Attributes:
        operands: Dict from each argument that the operator saves to a space-separated list of the
            arguments whose gradients need it. An empty string means any gradient.
        results: Indices of the results that it saves.
        extra: Further tensors that it saves.
        working: Large temporary tensors of the backward pass.
        matrices: Dict from each argument that is saved with leading dimensions flattened to the
            number of remaining dimensions. An argument in another memory order is copied.
        passes: Whether the gradients of the operands are the gradient of the result or views of it,
            so that no memory is allocated.
        stops: Whether no gradient flows through the operator.
        same: Whether the operator returns its first operand itself.
        order: Argument whose memory order the result has; empty for row-major order.
        checked: Whether these facts are exactly PyTorch's; if False, they are an upper bound.
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
        operands: Arguments that it saves whichever gradient is needed.
        results: Indices of the results that it saves.
        extra: Further tensors that it saves.
        matrices: Dict from flattened argument to the number of remaining dimensions.
        needed: Arguments that it saves only for the gradients of others.

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
