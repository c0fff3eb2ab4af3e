"""Patterns of operators, to be matched with values of a graph or of an ONNX file.

A pattern is a tree of operators (:class:`Applied`) and variables. A variable that occurs twice must
match the same value both times. Operands of a sum or a product match in either order.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

V = TypeVar("V")  # a value: an operand or an attribute
S = TypeVar("S")  # an operator of the graph or file

CLOSE = 1e-6  # constants are stored in single precision
COMMUTATIVE = frozenset({"add", "mul"})


@dataclass(frozen=True)
class Variable:
    """A variable that matches values of one kind. The :class:`PatternReader` defines the kinds."""

    name: str
    kind: str = "tensor"


@dataclass(frozen=True)
class Either:
    """Several alternative patterns, in order of preference."""

    ways: tuple[Pattern, ...]


@dataclass(frozen=True)
class Applied:
    """An operator applied to patterns.

    Attributes:
        kind: Name of the operator, in any letter case, or space-separated names of alternatives.
        inputs: Patterns of its first arguments. A name is a variable for any value, a number
            matches a constant, a tuple matches a list, and None matches an omitted argument.
        options: Dict from the names of other arguments to patterns. Arguments that are not in the
            dict must have their defaults. If None, other arguments may have any value.
    """

    kind: str
    inputs: tuple[Pattern, ...]
    options: Mapping[str, Pattern] | None = field(default_factory=dict)


Pattern: TypeAlias = "str | float | tuple[Pattern, ...] | Variable | Either | Applied | None"


class Operators:
    """Namespace of the operators in patterns, for example ``op.Add("x", 1.0)``."""

    def __getattr__(self, kind: str) -> Callable[..., Applied]:
        return lambda *inputs, **options: Applied(kind, inputs, options)


op = Operators()


def either(*ways: Pattern) -> Either:
    """Return a pattern that matches any of several patterns."""
    return Either(ways)


@dataclass(frozen=True)
class PatternMatch(Generic[V, S]):
    """A match of a pattern: the values of its variables, and the matched operators."""

    values: Mapping[str, V] = field(default_factory=dict)
    steps: Mapping[str, S] = field(default_factory=dict)


class PatternReader(ABC, Generic[V, S]):
    """Base class of readers, which match the values of a graph or file with patterns."""

    @abstractmethod
    def applied(
        self, operand: V, pattern: Applied
    ) -> tuple[Sequence[V], Mapping[str, V], Mapping[str, S]] | None:
        """Return the arguments of the operator that computes a value.

        Returns:
            The first arguments; a dict of the other arguments that the pattern lists or that differ
            from their defaults; and the nodes that belong to the match. None if another operator
            than the pattern's computes the value.
        """

    @abstractmethod
    def admitted(self, kind: str, operand: V) -> V | None:
        """Return the value that a variable of a kind matches; None if it does not match."""

    @abstractmethod
    def number(self, operand: V) -> float | None:
        """Return the number in a constant with a single element; None for other values."""

    @abstractmethod
    def items(self, operand: V) -> Sequence[V] | None:
        """Return the items of a list; None for other values."""

    def matches(
        self, pattern: Pattern, operand: V, matched: PatternMatch[V, S]
    ) -> Iterator[PatternMatch[V, S]]:
        """Yield all matches of a pattern with a value.

        Args:
            pattern: The pattern.
            operand: The value.
            matched: The match of the pattern so far.
        """
        match pattern:
            case None:
                yield from [matched] if operand is None else ()
            case str():
                if matched.values.get(pattern, operand) == operand:
                    values = {**matched.values, pattern: operand}
                    yield dataclasses.replace(matched, values=values)
            case Variable(name, kind):
                value = self.admitted(kind, operand)
                yield from () if value is None else self.matches(name, value, matched)
            case Either(ways):
                for way in ways:
                    yield from self.matches(way, operand, matched)
            case Applied():
                yield from self._applied(pattern, operand, matched)
            case tuple():
                yield from self._all(pattern, self.items(operand), [matched])
            case _:
                number = self.number(operand)
                same = number is not None and math.isclose(number, pattern, rel_tol=CLOSE)
                yield from [matched] if same else ()

    def _applied(
        self, pattern: Applied, operand: V, matched: PatternMatch[V, S]
    ) -> Iterator[PatternMatch[V, S]]:
        application = self.applied(operand, pattern)
        if application is None:
            return
        operands, options, steps = application
        ways = [dataclasses.replace(matched, steps={**matched.steps, **steps})]
        if pattern.options is not None:
            expected = [*map(pattern.options.get, options)]
            ways = self._all(expected, [*options.values()], ways)
        yield from self._all(pattern.inputs, operands, ways)
        if pattern.kind.lower() in COMMUTATIVE:
            yield from self._all(pattern.inputs, operands[::-1], ways)

    def _all(
        self,
        patterns: Sequence[Pattern],
        operands: Sequence[V] | None,
        ways: list[PatternMatch[V, S]],
    ) -> list[PatternMatch[V, S]]:
        if operands is None or len(operands) != len(patterns):
            return []
        for pattern, operand in zip(patterns, operands, strict=True):
            ways = [new for way in ways for new in self.matches(pattern, operand, way)]
        return ways
