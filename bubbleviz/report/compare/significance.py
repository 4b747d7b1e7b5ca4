"""Significance: whether two means over iterations differ, by Welch's t-test.

B. L. Welch, The generalization of Student's problem when several different population variances
are involved, Biometrika 34 (1947): unequal variances, degrees of freedom by Satterthwaite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bubbleviz.report.saved import Average

#: What a reader must know of every test.
ASSUMPTIONS = (
    "Welch's t-test, two-sided, without a correction for several comparisons: it takes the "
    "iterations of a run as independent and about normally distributed; neighbours that resemble "
    "each other make p too small, and what differs between repeated runs is not in it."
)


@dataclass(frozen=True)
class Difference:
    """How far a mean is from another; what cannot be told is None.

    There is no test where either has fewer than two values, or where none has any spread.

    Attributes:
        mean: the other less the first.
        ci95: its 95 % confidence interval.
        t: the statistic.
        df: degrees of freedom.
        p: how likely a difference at least as large is where there is none.
    """

    mean: float
    ci95: tuple[float, float] | None = None
    t: float | None = None
    df: float | None = None
    p: float | None = None


def difference(first: Average, other: Average) -> Difference | None:
    """Return how far ``other`` is from ``first``; None where either has no mean."""
    if first.mean is None or other.mean is None:
        return None
    apart = other.mean - first.mean
    if first.std is None or other.std is None or not (widest := max(first.std, other.std)):
        return Difference(apart)
    # As shares of the wider spread, whose squares cannot vanish both.
    one, two = (own**2 / n for own, n in _shares(first, other, widest))
    error = widest * math.sqrt(one + two)
    df = (one + two) ** 2 / (one**2 / (first.n - 1) + two**2 / (other.n - 1))
    if error == 0 or not math.isfinite(t := apart / error):
        return Difference(apart)
    # Importing scipy.special takes a third of the time of scipy.stats.
    from scipy.special import stdtr, stdtrit

    reach = float(stdtrit(df, 0.975)) * error
    return Difference(apart, (apart - reach, apart + reach), t, df, 2 * float(stdtr(df, -abs(t))))


def _shares(first: Average, other: Average, widest: float) -> tuple[tuple[float, int], ...]:
    return tuple(((own.std or 0.0) / widest, own.n) for own in (first, other))
