"""Calls on their way into a graph: their spelling, and writes into views of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from archgraph.graph.ir import Size, Value

# An operator's name and its arguments.
Call: TypeAlias = "tuple[str, dict[str, Value]]"


@dataclass(frozen=True, slots=True)
class Spelling:
    """A call before it has its canonical form."""

    op: str
    args: dict[str, Value]
    sizes: Mapping[str, tuple[Size, ...]]  # shapes of tensor arguments
    shapes: tuple[tuple[Size, ...], ...]  # of the results


@dataclass(frozen=True, slots=True)
class ViewWrite:
    """A write into a view that an operator made of a tensor, in canonical form."""

    op: str
    args: Mapping[str, Value]
    tensor: Value  # before the write
    part: Value  # what the view contains now
    shape: tuple[Size, ...]  # of the tensor
    index: int  # which result of the operator the view is

    def scattered(self, op: str, **position: Value) -> Call:
        """Return the call that writes the view's part into the tensor."""
        return op, {"self": self.tensor, "src": self.part, **position}
