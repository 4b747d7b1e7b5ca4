"""Significance: whether two means over iterations differ, by Welch's t-test.

B. L. Welch, The generalization of Student's problem when several different population variances
are involved, Biometrika 34 (1947): unequal variances, degrees of freedom by Satterthwaite.
"""

from __future__ import annotations

import math

from bubbleviz.model.values import frozen
from bubbleviz.report.saved import Average

#: Assumptions of every test, for readers.
ASSUMPTIONS = (
    "Welch's t-test, two-sided, not corrected for multiple comparisons; it assumes iterations of a "
    "run to be independent and approximately normal: correlated neighbours make p too small, and "
    "variation between repeated runs is not included."
)


@frozen
class MeanDifference:
    """The difference of two means; None for an unknown value.

    There is no test where either has fewer than two values, or where neither has any spread.

    Attributes:
        mean: the other minus the first.
        ci95: its 95 % confidence interval.
        t: the test statistic.
        df: degrees of freedom.
        p: probability of a difference at least as large if the means are equal.
    """

    mean: float
    ci95: tuple[float, float] | None = None
    t: float | None = None
    df: float | None = None
    p: float | None = None


def difference(first: Average, other: Average) -> MeanDifference | None:
    """Return the difference of ``other`` from ``first``; None where either has no mean."""
    if first.mean is None or other.mean is None:
        return None
    apart = other.mean - first.mean
    if first.std is None or other.std is None or not (widest := max(first.std, other.std)):
        return MeanDifference(apart)
    # As shares of the wider spread, so that their squares do not both underflow.
    first_var = (first.std / widest) ** 2 / first.n
    other_var = (other.std / widest) ** 2 / other.n
    error = widest * math.sqrt(first_var + other_var)
    df = (first_var + other_var) ** 2 / (
        first_var**2 / (first.n - 1) + other_var**2 / (other.n - 1)
    )
    if error == 0 or not math.isfinite(t := apart / error):
        return MeanDifference(apart)
    # Importing scipy.special takes a third of the time of scipy.stats.
    from scipy.special import stdtr, stdtrit

    half_width = float(stdtrit(df, 0.975)) * error
    return MeanDifference(
        apart, (apart - half_width, apart + half_width), t, df, 2 * float(stdtr(df, -abs(t)))
    )
