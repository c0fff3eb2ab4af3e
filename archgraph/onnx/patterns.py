"""Patterns of nodes: expressions that a value of a file is compared with.

A pattern is a tree of :class:`Applied` operators over variables. Where a variable stands twice,
both places must read the same value. Operands of a sum or a product match in either order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archgraph.onnx.operators.row import Known, OnnxSetting, OnnxStep

FEW = 4096  # numbers of a tensor that is compared
CLOSE = 1e-6  # constants are written in single precision
COMMUTATIVE = frozenset({"Add", "Mul"})
# Attributes that newer opsets have as inputs, in the order of these, behind the others.
AS_INPUTS = {"ReduceMean": ("axes",), "Clip": ("min", "max")}
DEFAULTS: Mapping[tuple[str, str], OnnxSetting] = {
    ("ReduceMean", "keepdims"): 1,
    ("ReduceMean", "noop_with_empty_axes"): 0,
    ("Reshape", "allowzero"): 0,
    ("Shape", "start"): 0,
    ("HardSigmoid", "alpha"): 0.2,
    ("HardSigmoid", "beta"): 0.5,
    ("InstanceNormalization", "epsilon"): 1e-5,
}


@dataclass(frozen=True)
class Variable:
    """A variable for a value of one kind.

    Attributes:
        name: Its name.
        kind: ``tensor``: a tensor of the file, by name. ``number``: a constant of one number, as
            that number. ``derived``: what follows from shapes and constants, by name if it is not
            a number yet. It may then be several numbers, which the row has to tell.
    """

    name: str
    kind: Literal["tensor", "number", "derived"] = "tensor"


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
    options: Mapping[str, OnnxSetting] = field(default_factory=dict)


Pattern: TypeAlias = "str | float | tuple[int, ...] | Variable | Either | Applied"


class Operators:
    """Operators in patterns, by name: ``op.Add("x", 1.0)``."""

    def __getattr__(self, kind: str) -> Callable[..., Applied]:
        return lambda *inputs, **options: Applied(kind, inputs, options)


op = Operators()


def either(*ways: Pattern) -> Either:
    """One of several patterns."""
    return Either(ways)


@dataclass(frozen=True)
class PatternMatch:
    """What a pattern matched: its variables, and the steps that it covers, by their results."""

    values: Mapping[str, OnnxSetting] = field(default_factory=dict)
    steps: Mapping[str, OnnxStep] = field(default_factory=dict)

    def bound(self, name: str, value: OnnxSetting) -> Iterator[PatternMatch]:
        """Yield the match with a variable, unless it stands for something else already."""
        if name not in self.values:
            yield dataclasses.replace(self, values={**self.values, name: value})
        elif self.values[name] == value:
            yield self

    def covering(self, step: OnnxStep) -> PatternMatch:
        """Return the match with a step more."""
        return dataclasses.replace(self, steps={**self.steps, step.outputs[0]: step})


@dataclass(frozen=True)
class OnnxReader:
    """What is known of a file's values where patterns are matched.

    Attributes:
        producer: The step that computes a value.
        known: Constants.
        stored: Tensors.
        derived: What follows from shapes and constants, without these.
        opset: The file's.
    """

    producer: Mapping[str, OnnxStep]
    known: Mapping[str, Known]
    stored: Mapping[str, Tensor]
    derived: Collection[str]
    opset: int

    def matches(
        self, pattern: Pattern, operand: OnnxSetting, matched: PatternMatch
    ) -> Iterator[PatternMatch]:
        """Yield the ways in which a value is what a pattern says.

        Args:
            pattern: The pattern.
            operand: The value's name, or an attribute in place of it.
            matched: What matched so far.
        """
        match pattern:
            case str():
                yield from matched.bound(pattern, operand)
            case Variable(name, "tensor"):
                yield from matched.bound(name, operand) if operand in self.stored else ()
            case Variable(name, kind):
                setting = self._setting(operand, derived=kind == "derived")
                yield from () if setting is None else matched.bound(name, setting)
            case Either(ways):
                for way in ways:
                    yield from self.matches(way, operand, matched)
            case Applied():
                yield from self._applied(pattern, operand, matched)
            case tuple():
                yield from [matched] if self.numbers(operand) == [*pattern] else ()
            case _:
                number = self.number(operand)
                same = number is not None and math.isclose(number, pattern, rel_tol=CLOSE)
                yield from [matched] if same else ()

    def _setting(self, operand: OnnxSetting, *, derived: bool) -> OnnxSetting:
        """Return the number that an operand is, or the operand where that follows from shapes."""
        number = self.number(operand)
        if number is None and derived and operand in self.derived:
            return operand
        return number

    def _applied(
        self, pattern: Applied, operand: OnnxSetting, matched: PatternMatch
    ) -> Iterator[PatternMatch]:
        step = self.producer.get(operand) if isinstance(operand, str) else None
        if step is None or step.kind != pattern.kind:
            return
        attributes = dict(step.attributes)
        names = [name for name in AS_INPUTS.get(step.kind, ()) if name in attributes]
        operands = [*step.inputs, *map(attributes.pop, names)]
        if len(operands) != len(pattern.inputs):
            return
        ways = [matched.covering(step)]
        # An attribute that the pattern leaves out must have its default: it changes the operator.
        for name in {**attributes, **pattern.options}:
            default = DEFAULTS.get((step.kind, name))
            value, expected = attributes.get(name, default), pattern.options.get(name, default)
            ways = [new for way in ways for new in _option(expected, value, way)]
        yield from self._all(pattern.inputs, operands, ways)
        if step.kind in COMMUTATIVE:
            yield from self._all(pattern.inputs, operands[::-1], ways)

    def _all(
        self, patterns: Sequence[Pattern], operands: Sequence[OnnxSetting], ways: list[PatternMatch]
    ) -> list[PatternMatch]:
        for pattern, operand in zip(patterns, operands, strict=True):
            ways = [new for way in ways for new in self.matches(pattern, operand, way)]
        return ways

    def numbers(self, operand: OnnxSetting) -> list[float] | None:
        """Return the numbers of a constant of at most one axis; None if the value is not known."""
        array = self._constant(operand)
        if array is None or array.ndim > 1:
            return None
        # 1e-5 for the number of single precision next to it
        return [float(str(n)) if array.dtype.kind == "f" else n.item() for n in array.ravel()]

    def number(self, operand: OnnxSetting) -> float | None:
        """Return the number of a constant that has only one, or None.

        A constant of more axes could add axes to the other operand, so it does not count.
        """
        numbers = self.numbers(operand)
        return float(numbers[0]) if numbers is not None and len(numbers) == 1 else None

    def _constant(self, operand: OnnxSetting) -> Known | None:
        if not isinstance(operand, str):
            return np.asarray(operand)
        value = self.known.get(operand)
        if value is None and operand in self.stored and self.stored[operand].numel() <= FEW:
            value = as_array(self.stored[operand])
        # An array of objects may hold the size of a batch, which is not a number yet.
        return None if value is None or value.dtype == object else value


def as_array(tensor: Tensor) -> Known:
    """Convert a tensor to an array; NumPy lacks bfloat16."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _option(
    expected: OnnxSetting, value: OnnxSetting, matched: PatternMatch
) -> Iterator[PatternMatch]:
    if isinstance(expected, str):
        yield from matched.bound(expected, value)
    elif value == expected or (
        isinstance(expected, float) and math.isclose(value, expected, rel_tol=1e-4)
    ):
        yield matched
