"""Counters that say what they are compared with, so that a call far ahead can be tried at once."""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_SCALES = (operator.mul, operator.truediv, operator.floordiv, operator.mod)
_MOVES = (operator.add, operator.sub, operator.pow)
_LIMITS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_SIGNS = (operator.neg, operator.pos, operator.abs)
_LOOKED_UP = ("hash", "int", "float", "complex", "round", "trunc", "floor", "ceil", "array")
_SHOWN = (operator.index, str, repr, format)  # a number that only shows, or an index in a range


@dataclass
class Asked:
    """What forward asked counters and containers that grow.

    Attributes:
        scales: Numbers that counters were multiplied with or divided by.
        limits: Numbers that they were compared with.
        length: Whether the length of a container was asked for.
        otherwise: Whether a counter was looked up or converted: nothing tells where it acts.
    """

    scales: set[float] = field(default_factory=set)
    limits: set[float] = field(default_factory=set)
    length: bool = False
    otherwise: bool = False

    def probes(self, step: float) -> set[float]:
        """Values at which a counter that moves by ``step`` could act, and those around them."""
        around = {limit + n for limit in self.limits for n in (0, 1)}
        products = {limit * scale for limit in around for scale in self.scales}
        products |= {limit / scale for limit in self.limits for scale in self.scales if scale}
        values = self.scales | self.limits | products
        return {value + n * step for value in values for n in (-2, -1, 0, 1, 2)}


def counted(value: Any, asked: Asked) -> Any:
    """A number that notes what it is compared with; any other value as it is."""
    kind: Any = type(value)
    return _number(kind)(value, asked) if kind is int or kind is float else value


def plain(value: Any) -> Any:
    """A value as it is without notes."""
    return value.value if isinstance(value, _Noting) else value


def growing(value: Any, asked: Asked) -> Any:
    """A container that notes whether its length is asked; any other value as it is."""
    kind: Any = type(value)
    if kind in (list, set, dict):
        return _container(kind)(asked, value)
    return _container(deque)(asked, value, value.maxlen) if kind is deque else value


class _Noting:
    """Stands for a number. It is none, so that nothing can read it without a method that notes."""

    def __init__(self, value: Any, asked: Asked) -> None:
        self.value, self.asked = value, asked

    def __bool__(self) -> bool:
        self.asked.limits.add(0)
        return bool(self.value)

    def __getattr__(self, name: str) -> Any:
        self.asked.otherwise |= not name.startswith("__")  # torch asks for protocols
        return getattr(self.value, name)


@functools.cache
def _number(kind: Any) -> Callable[[Any, Asked], Any]:
    """A class of numbers that note the other side of what is done with them."""

    def method(work: Any, reflected: bool) -> Any:
        notes = "limits" if work in _LIMITS else "scales"

        def noted(self: Any, other: Any) -> Any:
            other = plain(other)
            if isinstance(other, (int, float)):
                getattr(self.asked, notes).add(float(other))
            return counted(
                work(other, self.value) if reflected else work(self.value, other), self.asked
            )

        return noted

    def looked_up(name: str) -> Any:
        def noted(self: Any, *args: Any) -> Any:
            self.asked.otherwise = True
            return getattr(self.value, f"__{name}__")(*args)

        return noted

    members: dict[str, Any] = {"__class__": property(lambda _: kind)}
    members |= {f"__{name}__": looked_up(name) for name in _LOOKED_UP}
    for shown in _SHOWN:
        members[f"__{shown.__name__}__"] = lambda self, *args, to=shown: to(self.value, *args)
    for sign in _SIGNS:
        members[f"__{sign.__name__}__"] = lambda self, to=sign: counted(to(self.value), self.asked)
    for work in (*_SCALES, *_MOVES, *_LIMITS):
        members[f"__{work.__name__}__"] = method(work, reflected=False)
        if work not in _LIMITS:
            members[f"__r{work.__name__}__"] = method(work, reflected=True)
    return type("Counted", (_Noting,), members)


@functools.cache
def _container(kind: Any) -> Callable[..., Any]:
    """A class of containers that note when their length is asked."""

    def init(self: Any, asked: Asked, *args: Any) -> None:
        kind.__init__(self, *args)
        self.asked = asked

    def length(self: Any) -> int:
        self.asked.length = True
        return kind.__len__(self)

    def iterator(self: Any) -> Any:
        self.asked.length = True
        return kind.__iter__(self)

    members = {
        "__new__": lambda cls, *_: kind.__new__(cls),
        "__init__": init,
        "__len__": length,
        "__iter__": iterator,
        "__bool__": lambda self: kind.__len__(self) > 0,
        "__hash__": None,
    }
    return type("Growing", (kind,), members)
