"""Rows: a rank each, or a stage each with all its copies.

Tensor- and data-parallel copies of a stage do the same at the same time. As one row they are
drawn as the first of them ran, and counted as their mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from bubbleviz.model.choices import ROWS, one_of
from bubbleviz.model.operations import Rank
from bubbleviz.report.report import Report, View

#: More ranks than this are shown by stage where nothing else is asked for.
MOST_RANKS = 64


@dataclass(frozen=True)
class Row:
    """One row: the rank that is drawn, and the indices of all that it stands for."""

    rank: Rank
    copies: tuple[int, ...]


def by_stage(report: Report, view: View) -> bool:
    """Tell whether copies of a stage share a row.

    Raises:
        UsageError: the view asks for rows of another kind.
    """
    one_of(view.rows, ROWS, "--rows")
    if view.rows is None:
        shown = view.ranks or report.ranks
        return len(shown) > MOST_RANKS
    return view.rows == "stage"


def rows_of(report: Report, view: View) -> tuple[Row, ...]:
    """Return the rows of the ranks that the view asks for; ranks of no known stage stand alone."""
    wanted = set(view.ranks)
    ranks = [rank for rank in report.ranks if not wanted or rank.index in wanted]
    if not by_stage(report, view):
        return tuple(Row(rank, (rank.index,)) for rank in ranks)
    copies: dict[tuple[str, int], list[Rank]] = {}
    for rank in ranks:
        key = ("rank", rank.index) if rank.stage is None else ("stage", rank.stage)
        copies.setdefault(key, []).append(rank)
    return tuple(Row(own[0], tuple(rank.index for rank in own)) for own in copies.values())
