"""Rows of tables and pictures: one row per rank, or one row per stage with all its replicas.

Tensor- and data-parallel replicas of a stage do the same work at the same time. One row of a
picture shows one of them: the replica in the pipeline that the first advice is about, otherwise the
first replica, or the replica with the median ratio if the run has very many ranks. The ratio next
to the row is the ratio of the drawn rank. Rows of tables contain means over the replicas, and their
titles say so. In pictures, ranks that stand out have separate rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import (
    account_column,
    has_account,
    indices_of,
    own_ratios,
    rank_column,
)
from bubbleviz.explain.standouts import Standout
from bubbleviz.model.choices import ROWS, one_of, style_settings
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Rank
from bubbleviz.report.advice import advise, shown_iteration
from bubbleviz.report.rank_means import many_ranks, rank_means, standouts
from bubbleviz.report.report import Report
from bubbleviz.report.view import View

#: Maximum number of ranks with separate rows, unless the view sets the rows; and the maximum in a
#: figure for a paper, where each row needs the height of a line of text.
MOST_RANKS, MOST_RANKS_ON_PAPER = 64, 16
#: Maximum number of rows for ranks that stand out.
_MOST_STANDOUTS = 8


@dataclass(frozen=True)
class RankRow:
    """One row of a picture or table.

    Attributes:
        rank: The rank that is drawn.
        replicas: Indices of all ranks that the row stands for, including the drawn one.
        spread: Whether the rank is the median of its replicas, whose spread is shown.
        why: Reason why the rank stands out, or "" for a row that is not added for that reason.
    """

    rank: Rank
    replicas: tuple[int, ...]
    spread: bool = False
    why: str = ""


def row_kind(report: Report, view: View) -> str:
    """Return what a row stands for, one of ``ROWS``.

    Raises:
        UsageError: The view asks for rows of an unknown kind.
    """
    one_of(view.rows, ROWS, "--rows")
    if view.rows is not None:
        return view.rows
    shown = len(view.ranks or report.ranks)
    if many_ranks(shown):
        return "spread"
    paper = style_settings(view.style)[0] == "paper"
    most = MOST_RANKS_ON_PAPER if paper else MOST_RANKS
    return "stage" if shown > most else "rank"


def chosen_ranks(report: Report, view: View) -> list[Rank]:
    """Return the ranks of a view in pipeline order. The view gives their numbers in the job."""
    wanted = set(view.ranks)
    return [rank for rank in report.ranks if not wanted or rank.number in wanted]


def rows_of(report: Report, view: View, *, with_standouts: bool = False) -> tuple[RankRow, ...]:
    """Return the rows of the ranks of a view. A rank of unknown stage has a separate row.

    Args:
        report: Any report.
        view: The ranks, and what a row stands for.
        with_standouts: Whether rows for ranks that stand out follow if the spread is shown.
    """
    ranks = chosen_ranks(report, view)
    kind = row_kind(report, view)
    if kind == "rank":
        return tuple(RankRow(rank, (rank.index,)) for rank in ranks)
    of_row: dict[tuple[str, int], list[Rank]] = {}
    for rank in ranks:
        key = ("rank", rank.index) if rank.stage is None else ("stage", rank.stage)
        of_row.setdefault(key, []).append(rank)
    # The first pipeline may lack a stage.
    stages = iter(sorted(key for key in of_row if key[0] == "stage"))
    replicas = [of_row[next(stages) if key[0] == "stage" else key] for key in of_row]
    if kind != "spread" and not many_ranks(len(ranks)):
        return tuple(RankRow(some[0], tuple(r.index for r in some)) for some in replicas)
    means = rank_means(report)
    ratio = means.bubble_ratio.tolist()
    rows = [_median_row(some, ratio) for some in replicas]
    if kind == "spread" and with_standouts:
        hidden = {rank.index for rank in report.ranks} - {rank.index for rank in ranks}
        drawn = hidden | {row.rank.index for row in rows}
        rows += _standing_out(report, standouts(report, means), drawn)
    return tuple(rows)


def advised_pipeline(
    report: Report, rows: Iterable[RankRow], marked: Collection[int]
) -> tuple[RankRow, ...]:
    """Change rows to draw the replicas in the pipeline with the most marked ranks.

    Otherwise a mark next to a row could contradict the replica that is drawn. If several pipelines
    have equally many marked ranks, the pipeline of the first marked rank wins. A row without a
    replica in that pipeline is not changed.

    Args:
        report: Any report.
        rows: Rows of the report.
        marked: Indices of the marked ranks. If there are none, no row is changed.
    """
    if not marked:
        return tuple(rows)
    marked_in = Counter(report.ranks[rank].pipeline for rank in sorted(marked))
    ((pipeline, _),) = marked_in.most_common(1)
    shown = []
    for row in rows:
        replicas = [rank for rank in row.replicas if report.ranks[rank].pipeline == pipeline]
        drawn = min(replicas, key=lambda rank: (rank not in marked, rank), default=None)
        shown.append(row if drawn is None else replace(row, rank=report.ranks[drawn], spread=False))
    return tuple(shown)


def _median_row(replicas: list[Rank], ratio: list[float]) -> RankRow:
    """Return a row that draws the replica with the lower median ratio; NaNs are sorted last."""
    ordered = sorted(replicas, key=lambda r: (ratio[r.index] != ratio[r.index], ratio[r.index]))
    known = sum(ratio[rank.index] == ratio[rank.index] for rank in replicas)
    middle = ordered[max(known - 1, 0) // 2]
    return RankRow(middle, tuple(rank.index for rank in replicas), spread=len(replicas) > 1)


def _standing_out(
    report: Report, found: tuple[Standout, ...], drawn: set[int]
) -> Iterator[RankRow]:
    """Yield a row for each group of ranks that stands out: its first rank without a row."""
    shown = 0
    for standout in found:
        ranks = [rank for rank in standout.ranks if rank not in drawn]
        # A stage has a row already.
        if not ranks or standout.kind == "stage" or shown == _MOST_STANDOUTS:
            continue
        shown += 1
        number = report.ranks[ranks[0]].number
        name = f"rank {number}" if len(standout.ranks) == 1 else f"one of {standout.name}"
        yield RankRow(report.ranks[ranks[0]], (ranks[0],), why=f"{name}: {standout.short}")


@dataclass(frozen=True)
class Selection:
    """The part of a report that is drawn: rows, iterations, and the time they span.

    Attributes:
        rows: Rows from top to bottom.
        iterations: Iterations in ascending order.
        windows: For each iteration, the (start, end) that the ratio of a rank counts, keyed by the
            index of the rank.
        start_ns: Left edge.
        end_ns: Right edge, after ``start_ns``.
    """

    rows: tuple[RankRow, ...]
    iterations: tuple[Iteration, ...]
    windows: tuple[Mapping[int, tuple[int, int]], ...]
    start_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """Length of the time that is drawn."""
        return self.end_ns - self.start_ns

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The rank that each row draws."""
        return tuple(row.rank for row in self.rows)

    @cached_property
    def _row_of_rank(self) -> Ints:
        """Row of each rank by its index, or -1 if it is not drawn; the last element is -1."""
        n_ranks = max((rank.index for rank in self.ranks), default=0) + 1
        rows = np.full(n_ranks + 1, NONE, np.int64)
        for row, rank in enumerate(self.ranks):
            rows[rank.index] = row
        return rows

    def row_of(self, ranks: Ints) -> Ints:
        """Return the row of each of these rank indices, or -1 if the rank is not drawn."""
        return self._row_of_rank[np.minimum(ranks, len(self._row_of_rank) - 1)]

    def drawn(self, iterations: Ints) -> Bools:
        """Return a mask of the iteration indices that are drawn."""
        return np.isin(iterations, [iteration.index for iteration in self.iterations])


def select(report: Report, view: View, *, with_standouts: bool = False) -> Selection | None:
    """Return the part of ``report`` that ``view`` names, or None if there is nothing to draw.

    Args:
        report: Any report.
        view: The ranks and iterations to draw.
        with_standouts: See :func:`rows_of`.
    """
    rows = rows_of(report, view, with_standouts=with_standouts)
    if not any(row.spread for row in rows):
        rows = advised_pipeline(report, rows, advise(report).marked_ranks)
    chosen = set(view.iterations)
    iterations = tuple(it for it in report.iterations if it.index in chosen)
    if not chosen:
        # Without an explicit selection, the critical path is drawn for the typical iteration.
        shown = report.typical_iteration() if view.critical else shown_iteration(report)
        iterations = () if shown is None else (shown,)
    if not rows or not iterations:
        return None
    windows = tuple(counted_windows(it, report.headline) for it in iterations)
    ends = [end for by_rank in windows for _, end in by_rank.values()]
    start = min(it.start_ns for it in iterations)
    end = max(*(it.end_ns for it in iterations), *ends, start + 1)
    return Selection(rows, iterations, windows, start, end)


def row_ratios(
    report: Report, selection: Selection
) -> list[tuple[float | None, tuple[float, float] | None]]:
    """Return the bubble ratio that each row shows, and the range of the ratios of its replicas.

    The ratio describes the drawn rank. If several iterations are drawn, it is the mean over the
    averaged iterations, or over all iterations if none is averaged.

    Args:
        report: Any report.
        selection: Rows and iterations that are drawn.

    Returns:
        One pair per row: the ratio, or None if it is unknown in all iterations, and the (minimum,
        maximum) ratio of all replicas in the drawn iterations, or None if all are unknown.
    """
    by_iteration = {
        iteration.index: dict(
            zip(
                indices_of(iteration.ranks),
                own_ratios(iteration.ranks, report.headline),
                strict=True,
            )
        )
        for iteration in selection.iterations
    }
    averaged = [iteration.index for iteration in selection.iterations if iteration.averaged]
    counted = [by_iteration[index] for index in averaged or by_iteration]
    rows: list[tuple[float | None, tuple[float, float] | None]] = []
    for row in selection.rows:
        of_rank = [by_rank.get(row.rank.index) for by_rank in counted]
        ratios = [ratio for ratio in of_rank if ratio is not None]
        mean = sum(ratios) / len(ratios) if ratios else None
        of_replicas = [
            ratio
            for by_rank in by_iteration.values()
            for rank in row.replicas
            if (ratio := by_rank.get(rank)) is not None
        ]
        rows.append((mean, (min(of_replicas), max(of_replicas)) if of_replicas else None))
    return rows


def counted_windows(iteration: Iteration, headline: str) -> Mapping[int, tuple[int, int]]:
    """Return the window in which idle time counts as bubble, keyed by the index of the rank.

    It is the window of the headline ratio. If the iteration has no such ratio (the last one has no
    ``period``), it is the window of ``schedule``, or else the extent of the rank's work.
    """
    ranks = iteration.ranks
    start_ns, end_ns = rank_column(ranks, "first_ns"), rank_column(ranks, "last_ns")
    for name in ("schedule", headline):
        if has_account(ranks, name):
            start_ns = account_column(ranks, name, "start_ns")
            end_ns = account_column(ranks, name, "end_ns")
    ends = zip(start_ns.tolist(), end_ns.tolist(), strict=True)
    return dict(zip(indices_of(ranks), ends, strict=True))
