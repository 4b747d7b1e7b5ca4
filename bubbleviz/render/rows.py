"""Rows of tables and pictures: a rank each, or a stage each with all its replicas.

Tensor- and data-parallel replicas of a stage do the same at the same time. As one row they are
drawn as the first of them ran, of very many ranks as that with the median ratio, and counted as
their mean. What stands out of the many has rows of its own in pictures.
"""

from __future__ import annotations

from collections.abc import Iterator

from bubbleviz.model.choices import ROWS, one_of
from bubbleviz.model.operations import Rank
from bubbleviz.model.values import frozen
from bubbleviz.report.rank_means import many_ranks, rank_means
from bubbleviz.report.report import Report
from bubbleviz.report.standouts import Standout, standouts
from bubbleviz.report.view import View

#: More ranks than this have a row per stage, unless the view says otherwise; and in a figure for
#: a paper, where each row has a line of letters.
MOST_RANKS, MOST_RANKS_ON_PAPER = 64, 16
#: Of what stands out of very many ranks, so many have a row.
_MOST_STANDOUTS = 8


@frozen
class RankRow:
    """One row.

    Attributes:
        rank: the rank that is drawn.
        replicas: the indices of all ranks that it stands for, its own included.
        spread: whether it is the median of its replicas, whose spread is shown.
        why: by what it stands out; empty where it has a row anyway.
    """

    rank: Rank
    replicas: tuple[int, ...]
    spread: bool = False
    why: str = ""


def row_kind(report: Report, view: View) -> str:
    """Return what a row is, one of ``ROWS``.

    Raises:
        UsageError: the view has rows of another kind.
    """
    one_of(view.rows, ROWS, "--rows")
    if view.rows is not None:
        return view.rows
    shown = len(view.ranks or report.ranks)
    if many_ranks(shown):
        return "spread"
    most = MOST_RANKS_ON_PAPER if view.style == "paper" else MOST_RANKS
    return "stage" if shown > most else "rank"


def by_stage(report: Report, view: View) -> bool:
    """Return whether the replicas of a stage share a row.

    Raises:
        UsageError: the view has rows of another kind.
    """
    return row_kind(report, view) != "rank"


def rows_of(report: Report, view: View, *, with_standouts: bool = False) -> tuple[RankRow, ...]:
    """Return the rows of the ranks of a view; a rank of unknown stage has a row of its own.

    Args:
        report: any report.
        view: the ranks, and what a row is.
        with_standouts: whether what stands out follows, where the spread is shown.
    """
    wanted = set(view.ranks)
    ranks = [rank for rank in report.ranks if not wanted or rank.index in wanted]
    kind = row_kind(report, view)
    if kind == "rank":
        return tuple(RankRow(rank, (rank.index,)) for rank in ranks)
    of_row: dict[tuple[str, int], list[Rank]] = {}
    for rank in ranks:
        key = ("rank", rank.index) if rank.stage is None else ("stage", rank.stage)
        of_row.setdefault(key, []).append(rank)
    # Of the first pipeline a stage may be missing.
    stages = iter(sorted(key for key in of_row if key[0] == "stage"))
    replicas = [of_row[next(stages) if key[0] == "stage" else key] for key in of_row]
    if kind != "spread" and not many_ranks(len(ranks)):
        return tuple(RankRow(some[0], tuple(r.index for r in some)) for some in replicas)
    means = rank_means(report)
    ratio = means.bubble_ratio.tolist()
    rows = [_median_row(some, ratio) for some in replicas]
    if kind == "spread" and with_standouts:
        drawn = {row.rank.index for row in rows} | ({r.index for r in report.ranks} - _all(ranks))
        rows += _standing_out(report, standouts(report, means), drawn)
    return tuple(rows)


def _all(ranks: list[Rank]) -> set[int]:
    return {rank.index for rank in ranks}


def _median_row(replicas: list[Rank], ratio: list[float]) -> RankRow:
    """Return the row of a stage as the copy with the lower median ratio ran; NaN comes last."""
    ordered = sorted(replicas, key=lambda r: (ratio[r.index] != ratio[r.index], ratio[r.index]))
    known = sum(ratio[rank.index] == ratio[rank.index] for rank in replicas)
    middle = ordered[max(known - 1, 0) // 2]
    return RankRow(middle, tuple(rank.index for rank in replicas), spread=len(replicas) > 1)


def _standing_out(
    report: Report, found: tuple[Standout, ...], drawn: set[int]
) -> Iterator[RankRow]:
    """Yield a row for what stands out, as the first of its ranks that has none."""
    shown = 0
    for standout in found:
        ranks = [rank for rank in standout.ranks if rank not in drawn]
        # A stage has a row already.
        if not ranks or standout.name.startswith("stage ") or shown == _MOST_STANDOUTS:
            continue
        shown += 1
        name = f"rank {ranks[0]}" if len(standout.ranks) == 1 else f"one of {standout.name}"
        yield RankRow(report.ranks[ranks[0]], (ranks[0],), why=f"{name}: {standout.short}")
