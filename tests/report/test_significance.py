"""Welch's test against scipy's own, and where there can be none."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bubbleviz.count.count import spread
from bubbleviz.report.comparison import difference
from bubbleviz.report.saved import Average

NONE = Average(None, None, 0)
VALUES = st.lists(st.floats(0, 1).map(lambda x: round(x, 6)), min_size=0, max_size=12)


def average(values: list[float]) -> Average:
    found = spread(list(values))
    return Average(found.mean, found.std, found.n)


@pytest.mark.parametrize("other", [[0.25], [0.25, 0.75], []])
def test_a_single_value_gives_no_test(other: list[float]) -> None:
    found = difference(average([0.25]), average(other))

    assert found is None or (found.ci95, found.t, found.df, found.p) == (None,) * 4


def test_ties_without_any_spread_give_no_test() -> None:
    same, apart = average([0.5, 0.5, 0.5]), average([0.25, 0.25])

    for found, mean in ((difference(same, same), 0.0), (difference(same, apart), -0.25)):
        assert found is not None
        assert astuple(found) == (mean, None, None, None, None)


def test_one_run_without_spread_is_tested() -> None:
    found = difference(average([0.5, 0.5, 0.5]), average([0.3, 0.4]))

    assert found is not None
    assert found.df == pytest.approx(1)  # that of the run with the spread
    assert found.t == pytest.approx(-3)  # -0.15 / (0.0707 / sqrt 2)
    assert found.p == pytest.approx(2 * math.atan(1 / 3) / math.pi)  # Cauchy's distribution


def test_unequal_variances_by_the_formulas_written_out() -> None:
    a = [30.02, 29.99, 30.11, 29.97, 30.01, 29.99, 30.02]
    b = [29.89, 29.93, 29.72, 29.98, 30.02]
    found = difference(average(a), average(b))
    v1 = sum((x - sum(a) / 7) ** 2 for x in a) / 6 / 7
    v2 = sum((x - sum(b) / 5) ** 2 for x in b) / 4 / 5

    assert found is not None
    assert found.t == pytest.approx((sum(b) / 5 - sum(a) / 7) / math.sqrt(v1 + v2))
    assert found.df == pytest.approx((v1 + v2) ** 2 / (v1**2 / 6 + v2**2 / 4))


@given(VALUES, VALUES)
def test_it_is_that_of_scipy(first: list[float], other: list[float]) -> None:
    from scipy import stats

    assume(len(first) > 1 and len(other) > 1)
    one, two = average(first), average(other)
    assume((one.std or 0) > 1e-9 or (two.std or 0) > 1e-9)
    found = difference(one, two)
    expected = stats.ttest_ind_from_stats(
        *(two.mean, two.std, two.n), *(one.mean, one.std, one.n), equal_var=False
    )
    assert found is not None
    assert found.ci95 is not None
    assert found.t == pytest.approx(float(expected.statistic), rel=1e-6, abs=1e-9)
    assert found.p == pytest.approx(float(expected.pvalue), rel=1e-6, abs=1e-12)
    error = math.sqrt((one.std or 0) ** 2 / one.n + (two.std or 0) ** 2 / two.n)
    expected_ends = stats.t.interval(0.95, found.df, loc=found.mean, scale=error)
    assert found.ci95 == pytest.approx([float(end) for end in expected_ends], abs=1e-9)


@given(
    st.builds(
        Average,
        st.floats(-1e30, 1e30),
        st.floats(0, 1e30),
        st.integers(2, 10**9),
    ),
    st.builds(
        Average,
        st.floats(-1e30, 1e30),
        st.floats(0, 1e-300),
        st.integers(2, 10**9),
    ),
)
def test_no_number_is_ever_nan_or_infinite(one: Average, two: Average) -> None:
    for found in (difference(one, two), difference(two, one), difference(two, two)):
        assert found is not None
        numbers = [found.mean, found.t, found.df, found.p, *(found.ci95 or ())]
        assert all(np.isfinite(number) for number in numbers if number is not None)
