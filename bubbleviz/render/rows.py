"""Rows of tables and pictures: a rank each, or a stage each with all its replicas.

Tensor- and data-parallel replicas of a stage do the same at the same time. As one row they are
drawn as the first of them ran, and counted as their mean.
"""

from __future__ import annotations

from bubbleviz.model.choices import ROWS, one_of
from bubbleviz.model.operations import Rank
from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: More ranks than this have a row per stage, unless the view says otherwise; and in a figure for
#: a paper, where each row has a line of letters.
MOST_RANKS, MOST_RANKS_ON_PAPER = 64, 16


@frozen
class RankRow:
    """One row.

    Attributes:
        rank: the rank that is drawn.
        replicas: the indices of all ranks that it stands for, its own included.
    """

    rank: Rank
    replicas: tuple[int, ...]


def by_stage(report: Report, view: View) -> bool:
    """Return whether the replicas of a stage share a row.

    Raises:
        UsageError: the view has rows of another kind.
    """
    one_of(view.rows, ROWS, "--rows")
    if view.rows is None:
        shown = view.ranks or report.ranks
        return len(shown) > (MOST_RANKS_ON_PAPER if view.style == "paper" else MOST_RANKS)
    return view.rows == "stage"


def rows_of(report: Report, view: View) -> tuple[RankRow, ...]:
    """Return the rows of the ranks of a view; a rank of unknown stage has a row of its own."""
    wanted = set(view.ranks)
    ranks = [rank for rank in report.ranks if not wanted or rank.index in wanted]
    if not by_stage(report, view):
        return tuple(RankRow(rank, (rank.index,)) for rank in ranks)
    replicas: dict[tuple[str, int], list[Rank]] = {}
    for rank in ranks:
        key = ("rank", rank.index) if rank.stage is None else ("stage", rank.stage)
        replicas.setdefault(key, []).append(rank)
    return tuple(RankRow(some[0], tuple(r.index for r in some)) for some in replicas.values())
