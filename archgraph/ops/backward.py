"""What autograd does for an operator: what it saves for backward, which gradients it makes.

The facts are PyTorch's on a CPU, as ``torch.autograd.graph.saved_tensors_hooks`` sees them
(``tests/ops/test_backward.py`` compares every row with it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from archgraph.ops.operands import Amount, Counted, numel

Extra: TypeAlias = Callable[[Counted], "list[tuple[Amount, str]]"]
"""Tensors that an operator saves beside its operands and results: numbers of elements and their
type; an empty type is that of its first result."""


@dataclass(frozen=True, slots=True)
class Backward:
    """What autograd does for an operator.

    Attributes:
        operands: Arguments that it saves, each with the arguments whose gradients need it, with
            blanks between; an empty text: any gradient.
        results: Numbers of the results that it saves.
        extra: What else it saves.
        working: What its backward pass allocates and frees again, where that is large.
        matrices: Arguments that it saves with their leading dimensions flattened, and how many
            dimensions stay: a copy of those that lie in memory in another order.
        passes: Gradients of its operands are its result's, or views of it: nothing is allocated.
        stops: No gradient passes.
        same: Whether it returns its first operand itself.
        order: Argument whose order in memory its result has; empty: rows before columns.
        checked: Whether these are PyTorch's facts; otherwise it saves no more than this.
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
    """Return what autograd does for an operator that saves tensors.

    Args:
        operands: Arguments that it saves whatever gradient is needed.
        results: Numbers of the results that it saves.
        extra: What else it saves.
        matrices: Arguments whose leading dimensions are flattened, and how many stay.
        needed: Arguments that it saves for the gradients of others only.

    >>> saves("self", weight="input").operands
    {'self': '', 'weight': 'input'}
    """
    saved = {**dict.fromkeys(operands, ""), **needed}
    return Backward(saved, results, extra, matrices=matrices or {})


def as_large_as_result(count: int = 1, dtype: str = "") -> Extra:
    """Return further tensors of the result's size."""
    return lambda of: [(numel(of.result), dtype)] * count


NOTHING = Backward()
PASSES = Backward(passes=True)
STOPS = Backward(stops=True)
INPUT = saves("self")
RESULT = saves(results=(0,))
