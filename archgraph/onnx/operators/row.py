"""A row of the operator table: how one ONNX operator is computed with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import SpecError

# What is known while a file is read: sizes (which may be those of a batch) and constants.
Known: TypeAlias = "np.ndarray[Any, Any]"
# A number, a text, a tensor or a list of these: which one, the operator's definition says.
OnnxSetting: TypeAlias = Any


@dataclass(frozen=True)
class Attributes:
    """Attributes of an operator, and what a row may ask about it beside its inputs."""

    values: Mapping[str, OnnxSetting]
    opset: int
    outputs: int
    training: bool = False

    def get(self, name: str, default: object = None) -> OnnxSetting:
        """Return an attribute, or its default."""
        return self.values.get(name, default)

    def need(self, name: str) -> OnnxSetting:
        """Return an attribute that has no default.

        Raises:
            SpecError: If it is not there.
        """
        if name not in self.values:
            raise SpecError("lacks an attribute", expected=name)
        return self.values[name]

    def refuse(self, name: str, default: object) -> None:
        """Refuse an attribute whose value is not its default.

        Raises:
            SpecError: If it has another value.
        """
        value = self.values.get(name, default)
        if value != default:
            raise SpecError(
                "has an option that is not read", found=f"{name}={value!r}", expected=repr(default)
            )

    def results(self, *values: Tensor | None) -> object:
        """Return as many results as the node has: a tuple, or the only one."""
        return values[: self.outputs] if self.outputs > 1 else values[0]


@dataclass(frozen=True)
class OnnxRow:
    """How an operator is computed.

    Attributes:
        compute: From attributes and inputs (``None`` where one is left out) to the result, or a
            tuple of them.
        known: Inputs that must be known while the file is read: shapes, axes, bounds.
        numbers: Whether inputs of one number may be Python's.
        buffers: Inputs that are running statistics.
        zeros: Inputs that say nothing where they are known to be zero, as PyTorch's exporter writes
            biases that a layer lacks.
        types: Inputs of which only the type is read.
        since: Oldest opset of which the row is right.
    """

    compute: Callable[..., object]
    known: Sequence[int] = ()
    numbers: bool = False
    buffers: Sequence[int] = ()
    zeros: Sequence[int] = ()
    types: Sequence[int] = ()
    since: int = 1


OnnxTable: TypeAlias = dict[str, OnnxRow]


def bare(function: Callable[..., object], types: Sequence[int] = ()) -> OnnxRow:
    """Return the row of an operator without attributes that PyTorch has under another name."""
    return OnnxRow(lambda at, *inputs: function(*inputs), types=types)


def integers(value: Known | Sequence[int] | None) -> list[int]:
    """List known sizes, axes or positions; nothing where they are left out.

    Raises:
        SpecError: If they depend on the data.
    """
    if value is None:
        return []
    if isinstance(value, Tensor):
        raise SpecError("depends on numbers that are computed from the input")
    # A symbol acts as a number; int() would fix the size of the batch to that of the example.
    return [
        cast(int, item) if isinstance(item, torch.SymInt) else int(item) for item in np.ravel(value)
    ]


def axes_of(at: Attributes, value: Known | None) -> list[int] | None:
    """Return the axes, which older opsets give as an attribute; None where they are left out."""
    axes = at.get("axes") if value is None else integers(value)
    return None if axes is None else list(axes)


def slices_of(at: Attributes, *inputs: Known | None) -> Iterator[tuple[int, slice]]:
    """Yield axis and slice of each part of a Slice, which opset 1 has as attributes."""
    starts, ends, axes, steps = (*inputs, None, None, None, None)[:4]
    first = list(at.need("starts")) if starts is None else integers(starts)
    last = list(at.need("ends")) if ends is None else integers(ends)
    along = axes_of(at, axes) or range(len(first))
    every = integers(steps) or [1] * len(first)
    for axis, start, end, step in zip(along, first, last, every, strict=True):
        yield axis, slice(start, end, step)


@dataclass(frozen=True)
class OnnxStep:
    """A node of the file: its row, and where its inputs, attributes and module are."""

    name: str
    kind: str
    row: OnnxRow | None
    attributes: Mapping[str, OnnxSetting]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()

    def at(self, opset: int, training: bool = False) -> Attributes:
        """Return what a row may ask about the node; results behind the last one with a name go."""
        return Attributes(
            self.attributes,
            opset,
            max((i + 1 for i, name in enumerate(self.outputs) if name), default=0),
            training,
        )

    def inputs_at(self, positions: Iterable[int]) -> list[str]:
        """Return the names of the inputs at some positions; nodes may leave out the last ones."""
        return [self.inputs[i] for i in positions if i < len(self.inputs)]
