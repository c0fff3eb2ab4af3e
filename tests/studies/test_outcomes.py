"""Statistics of differences: closed forms, scipy's tests, error rates by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from archgraph.studies.outcomes import LEVEL, POWER, Paired, holm, resampled

FLOATS = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 6))
MANY = st.lists(FLOATS, min_size=2, max_size=8).filter(lambda d: np.std(d) > 1e-3)


@given(MANY)
def test_p_and_interval_are_those_of_scipy(differences: list[float]):
    one = Paired(tuple(differences))
    expected = stats.ttest_1samp(differences, 0.0)
    assert one.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert one.interval == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-9)


def test_equal_in_every_seed():
    assert (Paired((0.0, 0.0, 0.0)).p, Paired((-2.0, -2.0)).p) == (1.0, 0.0)
    alone = Paired((2.0,))
    assert (alone.interval, alone.p, alone.detectable()) == (None, None, None)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_monotone_and_no_smaller(values: list[float]):
    raw = dict(enumerate(values))
    corrected = holm(raw)
    assert list(corrected) == list(raw)
    assert all(corrected[key] >= raw[key] for key in raw)
    assert min(corrected.values()) == pytest.approx(min(1.0, len(raw) * min(values)))
    ordered = sorted(raw, key=raw.__getitem__)
    assert [corrected[k] for k in ordered] == sorted(corrected.values())


@pytest.mark.full
def test_holm_keeps_one_false_verdict_in_twenty():
    random, wrong, repeats = np.random.default_rng(0), 0, 2000
    for _ in range(repeats):
        draws = random.normal(size=(4, 5))
        ps = {i: float(Paired(tuple(row)).p or 1) for i, row in enumerate(draws.tolist())}
        wrong += any(p < LEVEL for p in holm(ps).values())
    assert wrong / repeats < LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / repeats)


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("level", [LEVEL, LEVEL / 12])
def test_a_detectable_difference_is_found_as_often_as_it_says(level: float):
    """The true mean is `detectable` for the true spread: the t test finds it at its power."""
    random, n, repeats = np.random.default_rng(1), 5, 4000
    unit = Paired(tuple(np.linspace(-1, 1, n) / np.std(np.linspace(-1, 1, n), ddof=1)))
    detectable = unit.detectable(level)
    assert detectable is not None
    draws = random.normal(detectable, 1.0, size=(repeats, n))
    hits = np.mean([stats.ttest_1samp(row, 0.0).pvalue < level for row in draws])
    assert hits == pytest.approx(POWER, abs=3 * math.sqrt(POWER * (1 - POWER) / repeats))


def test_examples_drawn_again_widen_the_interval_of_a_small_test_set():
    random = np.random.default_rng(2)
    better = random.random((3, 100)) < 0.8
    other = random.random((3, 100)) < 0.7
    deviation = resampled(better.tolist(), other.tolist())
    # Of independent answers: examples are drawn once for all seeds.
    per_example = (better.astype(int) - other.astype(int)).mean(0)
    assert deviation >= 100 * per_example.std() / math.sqrt(100) * 0.8
    gaps = 100 * (better.mean(1) - other.mean(1))
    narrow, wide = Paired(tuple(gaps)), Paired(tuple(gaps), resampled=1e3)
    assert narrow.interval and wide.interval
    assert wide.interval[0] < narrow.interval[0] < narrow.interval[1] < wide.interval[1]
