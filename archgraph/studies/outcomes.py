"""Statistics of a difference between two methods: its interval, p and the detectable difference.

The compared pairs are fixed before the runs, in the study's file. Intervals and p values are
two-sided.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from archgraph.errors import RunError
from archgraph.hints import optional_module

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Two-sided level of every test, and of the correction over the comparisons of a study.
LEVEL = 0.05
# Probability with which a study finds a detectable difference.
POWER = 0.8

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Paired:
    """Differences between two methods under the same seeds.

    The differences are taken as independent draws from one normal distribution. With mean d,
    standard deviation s and n seeds, t = d √n / s follows Student's distribution with n - 1 degrees
    of freedom if the methods are equal. (A sign test of three seeds cannot reach 5 %.) Source:
    Student, *The probable error of a mean*, Biometrika 6, 1908.

    Attributes:
        differences: Differences by seed.
        resampled: Standard deviation of the mean when seeds and test examples are drawn again
            together (:func:`resampled`), for small test sets. Default: seeds only.
    """

    differences: tuple[float, ...]
    resampled: float | None = None

    @property
    def mean(self) -> float:
        """Mean of the differences."""
        return statistics.fmean(self.differences)

    @property
    def error(self) -> float | None:
        """Standard error of the mean: over seeds, or over seeds and examples if that is larger.

        None for a single seed.
        """
        if len(self.differences) < 2:
            return None
        return max(
            statistics.stdev(self.differences) / math.sqrt(len(self.differences)),
            self.resampled or 0.0,
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the mean; None for a single seed.

        Example:
            >>> low, high = Paired((1.0, 2.0, 3.0)).interval
            >>> round(low, 2), round(high, 2)
            (-0.48, 4.48)
        """
        if self.error is None:
            return None
        half = float(_scipy("special").stdtrit(self._freedom, 1 - LEVEL / 2)) * self.error
        return self.mean - half, self.mean + half

    @property
    def p(self) -> float | None:
        """Probability of a |t| as large, or larger, if the methods are equal (two-sided).

        Example:
            >>> round(Paired((1.0, 2.0, 3.0)).p, 4)
            0.0742
        """
        if self.error is None:
            return None
        if self.error == 0:  # equal in every seed: the limit of vanishing deviations
            return float(self.mean == 0)
        return 2 * float(_scipy("special").stdtr(self._freedom, -abs(self.mean) / self.error))

    def detectable(self, level: float = LEVEL) -> float | None:
        """Return the smallest true difference that these seeds find with probability 80 %.

        It follows from the measured spread; None for a single seed.

        Args:
            level: Two-sided level of the test, smaller where it is corrected for other tests.

        Example:
            >>> one = Paired((1.0, 2.0, 3.0))
            >>> round(one.detectable(), 2), round(one.detectable(0.01), 2)
            (3.26, 7.32)
        """
        if self.error is None:
            return None
        sf = _scipy("stats").nct.sf
        bound = float(_scipy("special").stdtrit(self._freedom, 1 - level / 2))

        def missing(shift: float) -> float:
            """Return how much of the power a true mean of `shift` standard errors lacks."""
            return POWER - float(sf(bound, self._freedom, shift))

        return self.error * float(_scipy("optimize").brentq(missing, 0.0, 4 * bound + 10))

    @property
    def _freedom(self) -> int:
        return len(self.differences) - 1


def holm(values: Mapping[_Key, float]) -> dict[_Key, float]:
    """Correct p values so that the level bounds the probability of any false verdict among them.

    The smallest of m values is multiplied by m, the next by m - 1, and so on; none becomes smaller
    than the one before it. Source: Holm, *A simple sequentially rejective multiple test procedure*,
    Scandinavian Journal of Statistics 6, 1979.

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    corrected: dict[_Key, float] = {}
    largest = 0.0
    ordered = sorted(values.items(), key=lambda item: item[1])
    for rank, (key, p) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(values) - rank) * p))
        corrected[key] = largest
    return {key: corrected[key] for key in values}


def resampled(better: ArrayLike, other: ArrayLike, *, draws: int = 2000) -> float:
    """Return the standard deviation of a mean difference in per cent over seeds and examples.

    1. Draw as many seeds as there are, with replacement.
    2. Draw as many test examples as there are, the same for both methods and all seeds.
    3. Average the differences of correct answers; repeat, and take the deviation.

    Args:
        better: Whether each test example was classified correctly, or the share of averaged models
            that did, ``[seed, example]``.
        other: The same for the other method, with the same seeds and examples.
        draws: Repetitions; they are drawn from a fixed seed.
    """
    import numpy as np

    gaps = np.asarray(better, float) - np.asarray(other, float)
    seeds, examples = gaps.shape
    random = np.random.default_rng(0)
    means = np.empty(draws)
    for draw in range(draws):
        # Weights instead of copies: the number of draws of each seed and each example.
        rows = np.bincount(random.integers(seeds, size=seeds), minlength=seeds)  # 1
        columns = np.bincount(random.integers(examples, size=examples), minlength=examples)  # 2
        means[draw] = rows @ gaps @ columns / (seeds * examples)  # 3
    return float(100 * means.std(ddof=1))


def _scipy(part: str) -> ModuleType:
    """Import a part of scipy: 0.1 s, which most commands do not need."""
    return optional_module(f"scipy.{part}", kind=RunError, where="intervals of a study")
