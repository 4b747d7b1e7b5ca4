"""Quantiles of Student's t are those of scipy."""

from __future__ import annotations

import pytest
from scipy.special import stdtrit

from bubbleviz.count.count import quantile


@pytest.mark.parametrize("df", [*range(1, 103), 1000])
def test_quantiles_are_those_of_scipy(df: int) -> None:
    assert quantile(df) == pytest.approx(float(stdtrit(df, 0.975)), rel=1e-14)
