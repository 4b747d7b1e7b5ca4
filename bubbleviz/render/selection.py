"""The part of a report that a picture shows: rows, iterations, and the time they span."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import account_column, accounted, indices_of, rank_column
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Rank
from bubbleviz.model.values import frozen
from bubbleviz.render.rows import RankRow, rows_of
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


@frozen
class Selection:
    """The part of a report that is drawn: rows, iterations, and the time they span.

    Attributes:
        rows: from top to bottom.
        iterations: the iterations, ascending.
        windows: of each of these, by index of rank, the (start, end) that its ratio counts.
        start_ns: left edge.
        end_ns: right edge, after ``start_ns``.
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
        """The ranks that are drawn, by row."""
        return tuple(row.rank for row in self.rows)

    @property
    def row_of_rank(self) -> Ints:
        """Row by index of rank; ``-1`` where the rank is not drawn."""
        rows = np.full(max((rank.index for rank in self.ranks), default=0) + 1, NONE, np.int64)
        for row, rank in enumerate(self.ranks):
            rows[rank.index] = row
        return rows

    def drawn(self, iterations: Ints) -> Bools:
        """Return which of these iteration indices are among the drawn ones."""
        return np.isin(iterations, [iteration.index for iteration in self.iterations])


def select(report: Report, view: View, *, with_standouts: bool = False) -> Selection | None:
    """Return the part of ``report`` that ``view`` names; None where there is nothing to draw.

    Args:
        report: any report.
        view: what is drawn of it.
        with_standouts: see :func:`bubbleviz.render.rows.rows_of`.
    """
    rows = rows_of(report, view, with_standouts=with_standouts)
    chosen = set(view.iterations)
    iterations = tuple(it for it in report.iterations if it.index in chosen)
    if not chosen and (typical := report.typical_iteration()) is not None:
        iterations = (typical,)
    if not rows or not iterations:
        return None
    windows = tuple(counted_windows(it, report.headline) for it in iterations)
    ends = [end for by_rank in windows for _, end in by_rank.values()]
    start = min(it.start_ns for it in iterations)
    end = max(*(it.end_ns for it in iterations), *ends, start + 1)
    return Selection(rows, iterations, windows, start, end)


def counted_windows(iteration: Iteration, headline: str) -> Mapping[int, tuple[int, int]]:
    """Return by rank the window in which its idle time counts as bubble.

    It is that of the primary ratio. Where the iteration has none (the last one has no
    ``period``) it is that of ``schedule``, and failing that the extent of the rank's work.
    """
    ranks = iteration.ranks
    start_ns, end_ns = rank_column(ranks, "first_ns"), rank_column(ranks, "last_ns")
    for name in ("schedule", headline):
        known = accounted(ranks, name)
        start_ns = np.where(known, account_column(ranks, name, "start_ns"), start_ns)
        end_ns = np.where(known, account_column(ranks, name, "end_ns"), end_ns)
    ends = zip(start_ns.tolist(), end_ns.tolist(), strict=True)
    return dict(zip(indices_of(ranks), ends, strict=True))
