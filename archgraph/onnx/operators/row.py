"""Classes for the rows of the ONNX operator table, and for the nodes of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from archgraph.errors import SpecError

# A value that is known when a file is read: a constant, or sizes with symbols for open sizes.
Known: TypeAlias = "np.ndarray[Any, Any]"
# A number, a string, a tensor, or a list of these.
OnnxSetting: TypeAlias = Any


@dataclass(frozen=True)
class Attributes:
    """Attributes of a node, with the opset, the number of results and the training mode."""

    values: Mapping[str, OnnxSetting]
    opset: int
    outputs: int
    training: bool = False

    def get(self, name: str, default: object = None) -> OnnxSetting:
        """Return an attribute, or the default if the node lacks the attribute."""
        return self.values.get(name, default)

    def need(self, name: str) -> OnnxSetting:
        """Return a required attribute.

        Raises:
            SpecError: If the attribute is missing.
        """
        if name not in self.values:
            raise SpecError("lacks an attribute", expected=name)
        return self.values[name]

    def refuse(self, name: str, default: object) -> None:
        """Raise an error if an attribute does not have its default value.

        Raises:
            SpecError: If the attribute has another value.
        """
        value = self.values.get(name, default)
        if value != default:
            raise SpecError(
                "has an unsupported option", found=f"{name}={value!r}", expected=repr(default)
            )

    def results(self, *values: Tensor | None) -> object:
        """Return as many results as the node has: a tuple, or a single result."""
        return values[: self.outputs] if self.outputs > 1 else values[0]


@dataclass(frozen=True)
class OnnxRow:
    """How to compute an ONNX operator with PyTorch.

    Attributes:
        compute: Function of attributes and inputs (``None`` for an omitted input) that returns the
            result, or a tuple of results.
        known: Indices of inputs that must be known when the file is read: shapes, axes, bounds.
        numbers: Whether constant inputs without dimensions may be passed as Python numbers.
        buffers: Indices of inputs that are running statistics.
        zeros: Indices of inputs that are ignored if all their elements are zero. PyTorch's exporter
            writes a bias of zeros for a layer without bias.
        types: Indices of inputs of which only the dtype is used.
        since: Oldest opset to which the row applies.
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
    """Return the row of an operator that has no attributes and equals a PyTorch function."""
    return OnnxRow(lambda at, *inputs: function(*inputs), types=types)


def integers(value: Known | Sequence[int] | None) -> list[int]:
    """Return known sizes, axes or indices as a list; an empty list if the input is omitted.

    Raises:
        SpecError: If the value depends on the data.
    """
    if value is None:
        return []
    if isinstance(value, Tensor):
        raise SpecError("depends on numbers that are computed from the input")
    # Keep symbols, since int() would fix the batch size.
    return [
        cast(int, item) if isinstance(item, torch.SymInt) else int(item) for item in np.ravel(value)
    ]


def axes_of(at: Attributes, value: Known | None) -> list[int] | None:
    """Return the axes from the input or, in older opsets, from the attribute; None if omitted."""
    axes = at.get("axes") if value is None else integers(value)
    return None if axes is None else list(axes)


def slices_of(at: Attributes, *inputs: Known | None) -> Iterator[tuple[int, slice]]:
    """Yield each axis and slice of a ``Slice`` node of opset 1, which stores them as attributes."""
    starts, ends, axes, steps = (*inputs, None, None, None, None)[:4]
    first = list(at.need("starts")) if starts is None else integers(starts)
    last = list(at.need("ends")) if ends is None else integers(ends)
    along = axes_of(at, axes) or range(len(first))
    every = integers(steps) or [1] * len(first)
    for axis, start, end, step in zip(along, first, last, every, strict=True):
        yield axis, slice(start, end, step)


@dataclass(frozen=True)
class OnnxStep:
    """A node of the file, with its row, inputs, attributes and module."""

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
        """Return the attributes for the row; trailing results without a name are not counted."""
        return Attributes(
            self.attributes,
            opset,
            max((i + 1 for i, name in enumerate(self.outputs) if name), default=0),
            training,
        )

    def inputs_at(self, positions: Iterable[int]) -> list[str]:
        """Return the names of the inputs with these indices, without omitted trailing inputs."""
        return [self.inputs[i] for i in positions if i < len(self.inputs)]
