"""Chooses the ranks that outputs mark: the ranks that the advice is about, or else outliers.

All outputs mark the same ranks: pictures, terminals, tables and the interactive page.
"""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.explain.standouts import Standout
from bubbleviz.report.advice import advise
from bubbleviz.report.rank_means import compute_rank_means, is_many_ranks, list_standouts
from bubbleviz.report.report import Report

#: Maximum number of outliers that the first screen names.
MAX_NAMED_OUTLIERS = 2


@dataclass(frozen=True)
class MarkedRanks:
    """The ranks that outputs mark, and the reason for the mark.

    Attributes:
        ranks: Indices of the marked ranks, in ascending order.
        outliers: The marked outliers. Empty if the ranks are marked because of the advice.
    """

    ranks: tuple[int, ...]
    outliers: tuple[Standout, ...] = ()

    @property
    def meaning(self) -> str:
        """The meaning of the mark, for a legend."""
        return "outlier" if self.outliers else "see the advice"

    @property
    def sentence(self) -> str:
        """Sentence that names the marked outliers, or "" if there are none."""
        descriptions = "; ".join(outlier.sentence for outlier in self.outliers)
        return f"Outliers: {descriptions}" if descriptions else ""


def choose_marked_ranks(report: Report) -> MarkedRanks:
    """Return the ranks to mark: those that the advice is about, or else the named outliers.

    Outliers are marked only if they contain at most half of the ranks in total. If there are very
    many ranks, they are not marked, because rows do not show single ranks. Simulated runs have no
    marks. The result is computed once and cached in the report.
    """
    return report.derive(make_marked_ranks)


def make_marked_ranks(report: Report) -> MarkedRanks:
    """Choose the ranks to mark; see :func:`choose_marked_ranks`."""
    advised_ranks = advise(report).marked_ranks
    if advised_ranks or is_many_ranks(len(report.ranks)) or report.is_simulated:
        return MarkedRanks(advised_ranks)
    outliers = list_standouts(report, compute_rank_means(report))[:MAX_NAMED_OUTLIERS]
    ranks = sorted(rank for outlier in outliers for rank in outlier.ranks)
    if 2 * len(ranks) > len(report.ranks):
        return MarkedRanks(())
    return MarkedRanks(tuple(ranks), outliers)
