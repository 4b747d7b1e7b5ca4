"""Significance: whether two means over iterations differ, by Welch's t-test.

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

#: Assumptions of every test, for readers.
ASSUMPTIONS = (
    "Welch's t-test, two-sided, uncorrected for multiple comparisons; assumes independent, about "
    "normal iterations: correlated ones make p too small, and variation between runs is not "
    "included."
)
#: Level of significance.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class MeanDifference:
    """The difference of two means.

    All attributes but ``mean`` are None if no test is possible, because a sample has fewer than two
    values or because neither sample has any variance.

    Attributes:
        mean: The later mean minus the earlier one.
        ci95: The 95 % confidence interval of ``mean``.
        t: The test statistic.
        df: Degrees of freedom.
        p: Probability of a difference at least as large if the means are equal.
    """

    mean: float
    ci95: tuple[float, float] | None = None
    t: float | None = None
    df: float | None = None
    p: float | None = None

    @property
    def significant_sign(self) -> int:
        """1 for an increase, -1 for a decrease, 0 if chance may explain the difference.

        Without a test, this is the sign of the difference.
        """
        if not self.mean or (self.p is not None and self.p >= SIGNIFICANT):
            return 0
        return 1 if self.mean > 0 else -1


def compare_means(earlier: Average, later: Average) -> MeanDifference | None:
    """Compare two means with Welch's t-test: later minus earlier, or None if one is unknown.

    The test is two-sided, and the confidence interval is 95 %. Without a variance, only the
    difference is returned.
    """
    if earlier.mean is None or later.mean is None:
        return None
    mean = later.mean - earlier.mean
    if earlier.std is None or later.std is None or not max(earlier.std, later.std):
        return MeanDifference(mean)
    error, df = estimate_welch_error(earlier.std, earlier.n, later.std, later.n)
    if error == 0 or not math.isfinite(t := mean / error):
        return MeanDifference(mean)
    # Importing scipy.special takes a third of the time of scipy.stats.
    from scipy.special import stdtr, stdtrit

    half_width = float(stdtrit(df, 0.975)) * error
    p = 2 * float(stdtr(df, -abs(t)))
    return MeanDifference(mean, (mean - half_width, mean + half_width), t, df, p)
