"""Axes of pictures on a page: where a value stands, and which values are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# Steps between ticks, as parts of a power of ten.
_STEPS = (1.0, 2.0, 5.0, 10.0)
# How many times the smallest value the largest one is where logarithms are worth a button.
_SPREAD = 2.0


@dataclass(frozen=True)
class Ruler:
    """An axis of a picture.

    Attributes:
        low: The value at its start.
        high: The value at its end.
        start: Where it starts, in units of the picture.
        end: Where it ends.
        log: Whether it is logarithmic.
        integer: Whether only whole numbers are ticks.

    Example:
        >>> axis = Ruler(0.0, 1.0, 200.0, 0.0)
        >>> axis.at(0.25), axis.ticks(5)
        (150.0, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    integer: bool = False

    def at(self, value: float) -> float:
        """Return where a value stands, in units of the picture."""
        low, high, value = (
            (math.log(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int) -> tuple[float, ...]:
        """Return round values on the axis, at most one more than asked for."""
        if self.log and self.high >= 10 * self.low:
            return self._powers(most)
        step = _step((self.high - self.low) / most)
        if self.integer:
            step = max(step, 1.0)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        # Multiplied, not added: 0.1 + 0.2 would be written with all its digits.
        values = (float(f"{i * step:.12g}") for i in range(first, last + 1))
        return tuple(v for v in values if v or not self.log)

    def _powers(self, most: int) -> tuple[float, ...]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(math.ceil((last - first) / most), 1)
        parts = (1.0, 2.0, 5.0) if 3 * (last - first) <= 2 * most else (1.0,)
        values = (part * 10.0**n for n in range(first, last + 1, every) for part in parts)
        return tuple(v for v in values if self.low <= v <= self.high)


def _step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def fitted_scale(
    values: Iterable[float],
    ends: tuple[float, float],
    *,
    log: bool = False,
    integer: bool = False,
    share: bool = False,
) -> Ruler:
    """Return an axis with a little room around values.

    Args:
        values: All that is drawn.
        ends: Where it starts and ends, in units of the picture.
        log: Whether it is logarithmic; then all values are positive.
        integer: Whether only whole numbers are ticks.
        share: Whether values are shares: the axis ends where shares do.
    """
    known = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if log:
        room = max((high / low) ** 0.05, 1.02)
        return Ruler(low / room, high * room, *ends, log=True, integer=integer)
    if share:
        # Never less than two points of a per cent: rounding is not a trend.
        room = max(0.06 * (high - low), 0.01)
        return Ruler(max(low - room, -0.01), min(high + room, 1.01), *ends)
    # Differences of rounding are not drawn.
    flat = high - low < 1e-9 * abs(high)
    room = (0.0 if flat else 0.05 * (high - low)) or 0.5 * abs(high) or 0.5
    return Ruler(low - room, high + room, *ends, integer=integer)


def logarithmic(values: Iterable[float]) -> bool:
    """Return whether a logarithmic axis of these values makes sense.

    >>> logarithmic([1, 10]), logarithmic([0, 10]), logarithmic([9, 10])
    (True, False, False)
    """
    known = [v for v in values if math.isfinite(v)]
    return bool(known) and 0 < _SPREAD * min(known) <= max(known)
