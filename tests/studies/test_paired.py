"""The statistic of claims, against closed forms and against scipy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from archgraph.studies.paired import Paired, paired


@pytest.mark.parametrize("t", [-3.0, -0.5, 0.0, 0.5, 2.0, 40.0])
def test_two_and_three_seeds_have_closed_forms(t: float):
    # Differences d ± 1 have the deviation √2 and so t = d; d and d ± 1 have 1, and t = d √3.
    two = Paired((t - 1, t + 1)).p
    assert two == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-15)
    three = Paired(tuple(t / math.sqrt(3) + x for x in (-1, 0, 1))).p
    assert three == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)), abs=1e-15)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=3, max_size=8))
def test_the_statistic_is_the_paired_t_test_of_scipy(pairs: list[tuple[float, float]]):
    first, second = zip(*pairs, strict=True)
    found = paired(first, second)
    if found.std is None or found.std < 1e-6:
        return
    expected = stats.ttest_rel(first, second, alternative="greater").pvalue
    assert found.p == pytest.approx(expected, abs=1e-6)
    assert paired(first, second, more=False).p == pytest.approx(1 - expected, abs=1e-6)


def test_two_equal_methods_are_told_apart_as_often_as_the_level_says():
    """5 % on each side, whatever the number of seeds; 4,000 draws: within four deviations."""
    import numpy as np

    draws = np.random.default_rng(0).normal(size=(4000, 3))
    verdicts = [Paired(tuple(map(float, row))).verdict for row in draws]
    for verdict in ("holds", "does not hold"):
        assert abs(verdicts.count(verdict) / 4000 - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 4000)


def test_what_one_seed_or_equal_figures_say():
    assert Paired((5.0,)).verdict == "undecided" and Paired((5.0,)).needed is None
    assert Paired((0.0, 0.0, 0.0)).verdict == "does not hold"
    assert Paired((2.0, 2.0)).verdict == "holds"
    assert Paired((-2.0, -2.0)).verdict == "does not hold"


@given(st.floats(0.05, 3), st.integers(2, 6))
def test_as_many_seeds_as_are_needed_decide_and_one_fewer_does_not(mean: float, n: int):
    spread = [mean + (1.0 if i % 2 else -1.0) for i in range(2 * (n // 2))]
    have = Paired(tuple(spread))
    needed = have.needed
    if have.verdict != "undecided":
        assert needed == len(spread)
    elif needed is not None and have.std is not None:
        t = have.mean / have.std
        assert stats.t.sf(t * math.sqrt(needed), needed - 1) < 0.05
        if needed > len(spread) + 1:
            assert stats.t.sf(t * math.sqrt(needed - 1), needed - 2) >= 0.05
