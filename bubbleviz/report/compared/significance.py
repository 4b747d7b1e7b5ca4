"""Significance: Welch's t-test for whether two means over iterations differ.

B. L. Welch, The generalization of Student's problem when several different population variances are
involved, Biometrika 34 (1947): unequal variances, degrees of freedom by Satterthwaite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleviz.count.statistics import estimate_welch_error

if TYPE_CHECKING:
    from bubbleviz.report.summary import Average

#: The assumptions that the tests make, as text for users.
ASSUMPTIONS = (
    "Welch's t-test, two-sided, not corrected for multiple comparisons. The test assumes that "
    "iterations are independent and approximately normal. If they are correlated, p is too small. "
    "Variation between runs is not included."
)
#: Significance level: a difference is significant if its p-value is less than this.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class MeanDifference:
    """The difference between two means, along with the result of a t-test.

    All attributes except ``mean`` are None if no test is possible. This is the case if a sample has
    fewer than two values, or if both samples have zero variance.

    Attributes:
        mean: The later mean minus the earlier mean.
        ci95: 95 % confidence interval of ``mean``.
        t: Test statistic.
        df: Degrees of freedom.
        p: The p-value, which is the probability of a difference at least this large if the true
            means are equal.
    """

    mean: float
    ci95: tuple[float, float] | None = None
    t: float | None = None
    df: float | None = None
    p: float | None = None

    @property
    def significant_sign(self) -> int:
        """1 for an increase, -1 for a decrease, or 0 if the difference is not significant.

        If no test was possible, the value is the sign of the difference.
        """
        if not self.mean or (self.p is not None and self.p >= SIGNIFICANT):
            return 0
        return 1 if self.mean > 0 else -1


def compare_means(earlier: Average, later: Average) -> MeanDifference | None:
    """Compare two means with a two-sided Welch's t-test.

    The difference is the later mean minus the earlier mean. If no test is possible, only the
    difference is set. The result is None if either mean is unknown.
    """
    if earlier.mean is None or later.mean is None:
        return None
    mean = later.mean - earlier.mean
    if earlier.std is None or later.std is None or not max(earlier.std, later.std):
        return MeanDifference(mean)
    error, df = estimate_welch_error(earlier.std, earlier.n, later.std, later.n)
    if error == 0 or not math.isfinite(t := mean / error):
        return MeanDifference(mean)
    # Importing scipy.special takes a third as long as importing scipy.stats.
    from scipy.special import stdtr, stdtrit

    half_width = float(stdtrit(df, 0.975)) * error
    p = 2 * float(stdtr(df, -abs(t)))
    return MeanDifference(mean, (mean - half_width, mean + half_width), t, df, p)
