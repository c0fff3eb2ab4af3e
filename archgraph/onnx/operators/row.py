"""A row of the operator table: how one ONNX operator is computed with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from archgraph.errors import SpecError

# What is known while a file is read: sizes (which may be those of a batch) and constants.
Known: TypeAlias = "np.ndarray[Any, Any]"
OnnxValue: TypeAlias = "torch.Tensor | Known | None"


@dataclass(frozen=True)
class Attributes:
    """Attributes of an operator, and what a row may ask about it beside its inputs."""

    values: Mapping[str, Any]
    opset: int
    outputs: int
    training: bool = False

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.values.get(name, default)

    def need(self, name: str) -> Any:
        """Return an attribute that has no default.

        Raises:
            SpecError: If it is not there.
        """
        if name not in self.values:
            raise SpecError("lacks an attribute", expected=name)
        return self.values[name]

    def refuse(self, name: str, *allowed: Any) -> None:
        """Refuse an attribute that has another value than these, the first of which is its default.

        Raises:
            SpecError: If it has.
        """
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise SpecError(
                "has an option that is not read", found=f"{name}={value!r}", expected=expected
            )


Compute: TypeAlias = Callable[..., Any]


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

    compute: Compute
    known: Sequence[int] = ()
    numbers: bool = False
    buffers: Sequence[int] = ()
    zeros: Sequence[int] = ()
    types: Sequence[int] = ()
    since: int = 1


OnnxTable: TypeAlias = dict[str, OnnxRow]


def plain(function: Callable[..., Any], **options: Any) -> OnnxRow:
    """Return the row of an operator without attributes that PyTorch has under another name."""
    return OnnxRow(lambda at, *inputs: function(*inputs), **options)


def whole(value: Known | Sequence[int] | None) -> list[Any]:
    """Known sizes, axes or positions as a list; nothing where they are left out.

    Raises:
        SpecError: If they depend on the data.
    """
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        raise SpecError("depends on numbers that are computed from the input", expected="constants")
    return [item if isinstance(item, torch.SymInt) else int(item) for item in np.ravel(value)]


def axes_of(at: Attributes, value: Known | None) -> list[int] | None:
    """Axes, which older opsets give as an attribute; None where they are left out."""
    if value is not None:
        return whole(value)
    axes = at.get("axes")
    return None if axes is None else list(axes)
