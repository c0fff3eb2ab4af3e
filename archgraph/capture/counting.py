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


@dataclass
class Asked:
    """What forward asked counters: the numbers beside them, and whether it asked for a length."""

    scales: set[float] = field(default_factory=set)
    limits: set[float] = field(default_factory=set)
    length: bool = False

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


def growing(value: Any, asked: Asked) -> Any:
    """A container that notes whether its length is asked; any other value as it is."""
    kind: Any = type(value)
    if kind in (list, set, dict):
        return _container(kind)(asked, value)
    return _container(deque)(asked, value, value.maxlen) if kind is deque else value


@functools.cache
def _number(kind: Any) -> Callable[[Any, Asked], Any]:
    """A class of numbers that note the other side of what is done with them."""

    def new(cls: Any, value: Any, asked: Asked) -> Any:
        number = kind.__new__(cls, value)
        number.asked = asked
        return number

    def method(work: Any, reflected: bool) -> Any:
        notes = "limits" if work in _LIMITS else "scales"

        def noted(self: Any, other: Any) -> Any:
            if not isinstance(other, (int, float)):
                return NotImplemented
            getattr(self.asked, notes).add(float(other))
            value = kind(self)
            result = work(other, value) if reflected else work(value, other)
            return counted(result, self.asked)

        return noted

    members = {"__new__": new, "__hash__": kind.__hash__}
    for work in (*_SCALES, *_MOVES, *_LIMITS):
        members[f"__{work.__name__}__"] = method(work, reflected=False)
        if work not in _LIMITS:
            members[f"__r{work.__name__}__"] = method(work, reflected=True)
    return type("Counted", (kind,), members)


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
