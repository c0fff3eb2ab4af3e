"""Statistics of the difference between two methods: interval, p value, detectable difference.

The study's file fixes the compared pairs before the runs. Intervals and p values are two-sided.
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

# Two-sided significance level of every test, and of the correction over all comparisons.
LEVEL = 0.05
# Probability (power) with which a study finds a detectable difference.
POWER = 0.8

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True)
class Paired:
    """Differences between two methods under the same seeds, for a paired t test.

    The test assumes that the differences are independent draws from one normal distribution. With
    mean d, standard deviation s and n seeds, t = d √n / s follows Student's distribution with n - 1
    degrees of freedom if the methods are equal. Source: Student, *The probable error of a mean*,
    Biometrika 6, 1908.

    Attributes:
        differences: The difference of each seed.
        resampled: Standard deviation of the mean under resampling of seeds and test examples
            (:func:`resampled`), for small test sets. Default: only seeds vary.
    """

    differences: tuple[float, ...]
    resampled: float | None = None

    @property
    def mean(self) -> float:
        """Mean of the differences."""
        return statistics.fmean(self.differences)

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None for a single seed.

        If ``resampled`` is set, this is the larger of ``resampled`` and the error over seeds.
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
        """Two-sided p value: the probability of such a |t| or a larger one for equal methods.

        Example:
            >>> round(Paired((1.0, 2.0, 3.0)).p, 4)
            0.0742
        """
        if self.error is None:
            return None
        if self.error == 0:  # the limit for vanishing deviations
            return float(self.mean == 0)
        return 2 * float(_scipy("special").stdtr(self._freedom, -abs(self.mean) / self.error))

    def detectable(self, level: float = LEVEL) -> float | None:
        """Return the smallest true difference that the test finds with probability 80 %.

        It depends on the number of seeds and the standard error. The result is None for a single
        seed.

        Args:
            level: Two-sided significance level of the test.

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
            """Return the power that the test lacks if the true mean is `shift` standard errors."""
            return POWER - float(sf(bound, self._freedom, shift))

        return self.error * float(_scipy("optimize").brentq(missing, 0.0, 4 * bound + 10))

    @property
    def _freedom(self) -> int:
        return len(self.differences) - 1


def holm(values: Mapping[_Key, float]) -> dict[_Key, float]:
    """Correct p values for multiple comparisons by Holm's method.

    The smallest of m values is multiplied by m, the next by m - 1, and so on. No corrected value is
    smaller than the one before it. The significance level then bounds the probability of at least
    one false rejection. Source: Holm, *A simple sequentially rejective multiple test procedure*,
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
    """Return the standard deviation of a mean accuracy difference, in percentage points.

    1. Resample the seeds with replacement.
    2. Resample the test examples with replacement, equally for both methods and all seeds.
    3. Compute the mean accuracy difference. Repeat, and compute the standard deviation of the
       means.

    Args:
        better: Whether each test example was classified correctly, or the fraction of several
            models that classified it correctly, ``[seed, example]``.
        other: The same for the other method, with the same seeds and examples.
        draws: Number of repetitions. The random seed is fixed.
    """
    import numpy as np

    gaps = np.asarray(better, float) - np.asarray(other, float)
    seeds, examples = gaps.shape
    random = np.random.default_rng(0)
    means = np.empty(draws)
    for draw in range(draws):
        # Instead of copies, weights: how often each seed and each example was drawn.
        rows = np.bincount(random.integers(seeds, size=seeds), minlength=seeds)  # 1
        columns = np.bincount(random.integers(examples, size=examples), minlength=examples)  # 2
        means[draw] = rows @ gaps @ columns / (seeds * examples)  # 3
    return float(100 * means.std(ddof=1))


def _scipy(part: str) -> ModuleType:
    """Import a part of scipy. Done on use, because the import takes 0.1 s."""
    return optional_module(f"scipy.{part}", kind=RunError, where="intervals of a study")
