"""Patterns of nodes: expressions that a value of a file is compared with.

A pattern is a tree of :class:`Applied` operators over variables. Where a variable stands twice,
both places must read the same value. Operands of a sum or a product match in either order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from archgraph.onnx.network import OnnxStep

FEW = 4096  # numbers of a tensor that is compared
CLOSE = 1e-6  # constants are written in single precision
COMMUTATIVE = frozenset({"Add", "Mul"})
# Attributes that newer opsets have as inputs; the place is that of the input.
AS_INPUTS = {"ReduceMean": (("axes",),), "Clip": (("min",), ("max",))}
DEFAULTS: Mapping[tuple[str, str], Any] = {
    ("ReduceMean", "keepdims"): 1,
    ("ReduceMean", "noop_with_empty_axes"): 0,
    ("Reshape", "allowzero"): 0,
    ("Shape", "start"): 0,
    ("HardSigmoid", "alpha"): 0.2,
    ("HardSigmoid", "beta"): 0.5,
    ("InstanceNormalization", "epsilon"): 1e-5,
}


@dataclass(frozen=True)
class NumberVariable:
    """A variable for a constant of one number; it stands for the number."""

    name: str


@dataclass(frozen=True)
class DerivedVariable:
    """A variable for one number of shapes and constants: the number, or the value's name."""

    name: str


@dataclass(frozen=True)
class TensorVariable:
    """A variable for a tensor of the file."""

    name: str


@dataclass(frozen=True)
class Either:
    """One of several patterns, the first that fits."""

    ways: tuple[Pattern, ...]


@dataclass(frozen=True)
class Applied:
    """An operator applied to patterns.

    Attributes:
        kind: The operator.
        inputs: What its inputs match: a name is a variable for any value, a number a constant, a
            tuple whole numbers.
        options: What its attributes must be; a name is a variable.
    """

    kind: str
    inputs: tuple[Pattern, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


VariableOf: TypeAlias = NumberVariable | DerivedVariable | TensorVariable
Pattern: TypeAlias = "str | float | tuple[int, ...] | VariableOf | Either | Applied"


def operator(kind: str) -> Callable[..., Applied]:
    """Return a function that writes an operator in a pattern."""
    return lambda *inputs, **options: Applied(kind, inputs, options)


def either(*ways: Pattern) -> Either:
    """One of several patterns."""
    return Either(ways)


@dataclass(frozen=True)
class Found:
    """What a pattern matched: its variables, and the steps that it covers, by their results."""

    values: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[str, OnnxStep] = field(default_factory=dict)

    def bound(self, name: str, value: Any) -> Iterator[Found]:
        """With a variable, unless it stands for something else already."""
        if name not in self.values:
            yield dataclasses.replace(self, values={**self.values, name: value})
        elif self.values[name] == value:
            yield self

    def covering(self, step: OnnxStep) -> Found:
        """With a step more."""
        return dataclasses.replace(self, steps={**self.steps, step.outputs[0]: step})


@dataclass(frozen=True)
class OnnxReader:
    """What is known of a file's values where patterns are matched.

    Attributes:
        made: The step that computes a value.
        known: Constants.
        stored: Tensors.
        derived: What follows from shapes and constants.
        singles: What of that is one number.
        opset: The file's.
    """

    made: Mapping[str, OnnxStep]
    known: Mapping[str, Any]
    stored: Mapping[str, torch.Tensor]
    derived: Collection[str]
    singles: Collection[str]
    opset: int

    def matches(self, pattern: Pattern, operand: Any, found: Found) -> Iterator[Found]:
        """Ways in which a value is what a pattern says.

        Args:
            pattern: The pattern.
            operand: The value's name, or an attribute in place of it.
            found: What matched so far.
        """
        match pattern:
            case str():
                yield from found.bound(pattern, operand)
            case NumberVariable(name):
                number = self.number(operand)
                yield from () if number is None else found.bound(name, number)
            case DerivedVariable(name):
                number = self.number(operand)
                if number is not None or operand in self.singles:
                    yield from found.bound(name, operand if number is None else number)
            case TensorVariable(name):
                yield from found.bound(name, operand) if operand in self.stored else ()
            case Either(ways):
                for way in ways:
                    yield from self.matches(way, operand, found)
            case Applied():
                yield from self._applied(pattern, operand, found)
            case tuple():
                yield from [found] if self.numbers(operand) == [*pattern] else ()
            case _:
                number = self.number(operand)
                if number is not None and math.isclose(number, pattern, rel_tol=CLOSE):
                    yield found

    def _applied(self, pattern: Applied, operand: Any, found: Found) -> Iterator[Found]:
        step = self.made.get(operand) if isinstance(operand, str) else None
        if step is None or step.kind != pattern.kind:
            return
        operands: list[Any] = [*step.inputs]
        attributes = dict(step.attributes)
        for names in AS_INPUTS.get(step.kind, ()):
            operands += [attributes.pop(name) for name in names if name in attributes]
        if len(operands) != len(pattern.inputs):
            return
        ways = [found.covering(step)]
        for name in {**attributes, **pattern.options}:
            default = DEFAULTS.get((step.kind, name))
            value = attributes.get(name, default)
            wanted = pattern.options.get(name, default)
            ways = [new for way in ways for new in _option(wanted, value, way)]
        orders = [operands]
        if step.kind in COMMUTATIVE:
            orders.append(operands[::-1])
        for order in orders:
            yield from self._all(pattern.inputs, order, ways)

    def _all(
        self, patterns: Sequence[Pattern], operands: Sequence[Any], ways: list[Found]
    ) -> list[Found]:
        for pattern, operand in zip(patterns, operands, strict=True):
            ways = [new for way in ways for new in self.matches(pattern, operand, way)]
        return ways

    def numbers(self, operand: Any) -> list[Any] | None:
        """Return the numbers of a constant of at most one axis; None if the value is not known."""
        array = self._constant(operand)
        if array is None or array.ndim > 1:
            return None
        # 1e-5 for the number of single precision next to it
        return [float(str(n)) if array.dtype.kind == "f" else n.item() for n in array.ravel()]

    def number(self, operand: Any) -> float | None:
        """Return the number of a constant that has only one, or None.

        A constant of more axes could add axes to the other operand, so it does not count.
        """
        numbers = self.numbers(operand)
        return float(numbers[0]) if numbers is not None and len(numbers) == 1 else None

    def _constant(self, operand: Any) -> np.ndarray[Any, Any] | None:
        if not isinstance(operand, str):
            return np.asarray(operand)
        value = self.known.get(operand)
        if value is None and operand in self.stored and self.stored[operand].numel() <= FEW:
            tensor = self.stored[operand]
            value = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        return None if value is None or value.dtype == object else value


def _option(wanted: Any, value: Any, found: Found) -> Iterator[Found]:
    if isinstance(wanted, str):
        yield from found.bound(wanted, value)
    elif value == wanted or (
        isinstance(wanted, float) and math.isclose(value, wanted, rel_tol=1e-4)
    ):
        yield found
