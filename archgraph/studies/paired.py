"""Whether one method is better than another: a paired statistic over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# How often a verdict on two equal methods is wrong, on each side.
LEVEL = 0.05
# Most seeds that are tried.
MANY = 1000


@dataclass(frozen=True)
class Paired:
    """Differences between two methods under the same seeds, and what follows from them.

    The differences are taken as independent draws from one normal distribution. With mean d,
    standard deviation s and n seeds, t = d √n / s follows Student's distribution with n - 1 degrees
    of freedom if the methods are equal. Source: Student, *The probable error of a mean*,
    Biometrika 6, 1908.

    Attributes:
        differences: By seed, in the direction of the claim: positive where it holds.
    """

    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of the differences."""
        return statistics.fmean(self.differences)

    @property
    def std(self) -> float | None:
        """Standard deviation of the sample (n - 1), or None for a single seed."""
        return statistics.stdev(self.differences) if len(self.differences) > 1 else None

    @property
    def p(self) -> float | None:
        """Probability of so large a t, or a larger one, if the methods are equal (one-sided).

        Example:
            >>> round(Paired((1.0, 2.0, 3.0)).p, 4)
            0.0371
        """
        return _p(self.mean, self.std, len(self.differences))

    @property
    def verdict(self) -> Literal["holds", "does not hold", "undecided"]:
        """Holds: better at the level. Does not hold: worse at the level, or equal in every seed.

        Example:
            >>> [Paired(d).verdict for d in ((1.0, 2.0, 3.0), (1.0, -1.0), (-2.0, -2.1), (1.0,))]
            ['holds', 'undecided', 'does not hold', 'undecided']
        """
        if self.p is None:  # one seed has no deviation
            return "undecided"
        if not any(self.differences):  # t is 0 / 0
            return "does not hold"
        if self.p < LEVEL:
            return "holds"
        return "does not hold" if 1 - self.p < LEVEL else "undecided"

    @property
    def needed(self) -> int | None:
        """Seeds that would decide if mean and deviation stayed as they are; None if too many.

        Example:
            >>> Paired((1.0, 2.0, 0.0)).needed, Paired((1.0, -1.0)).needed
            (5, None)
        """
        have = len(self.differences)
        if self.verdict != "undecided":
            return have
        if self.std is None:
            return None
        for n in range(have + 1, MANY + 1):
            tail = _p(abs(self.mean), self.std, n)
            if tail is not None and tail < LEVEL:
                return n
        return None


def _p(mean: float, std: float | None, n: int) -> float | None:
    if std is None:
        return None
    if std == 0:  # t is infinite, or equal in every seed
        return 0.5 if mean == 0 else float(mean < 0)
    from scipy.special import stdtr  # 0.1 s, which most commands do not need

    # Of the other sign instead of 1 - stdtr: a small probability keeps its digits.
    return float(stdtr(n - 1, -mean * math.sqrt(n) / std))


def paired(better: Sequence[float], other: Sequence[float], *, more: bool = True) -> Paired:
    """Pair two methods seed by seed; differences are positive where the first is better.

    Args:
        better: Figures of the method that is claimed to be better.
        other: Those of the other one, under the same seeds.
        more: Whether more is better.

    Raises:
        ValueError: If there are not as many of both.
    """
    pairs = zip(better, other, strict=True)
    return Paired(tuple((a - b) if more else (b - a) for a, b in pairs))
