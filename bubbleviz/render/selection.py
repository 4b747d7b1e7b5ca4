"""Selects the part of a report shown in a picture: rows, iterations and a time span."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import (
    compute_rank_ratios,
    get_account_column,
    get_rank_column,
    has_account,
    list_indices,
)
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operations import Rank
from bubbleviz.render.rows import RankRow, draw_marked_pipeline, make_rows
from bubbleviz.report.advice import choose_shown_iteration
from bubbleviz.report.marked_ranks import MarkedRanks, choose_marked_ranks
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


@dataclass(frozen=True)
class Selection:
    """The part of a report to draw: rows, iterations, and the time they span.

    Attributes:
        rows: The rows, from top to bottom.
        iterations: The iterations to draw, in ascending order.
        windows: For each iteration, a mapping from rank index to the (start, end) in ns of the
            window in which idle time counts as bubble.
        start_ns: Time at the left edge of the picture, in ns.
        end_ns: Time at the right edge of the picture, in ns. Always later than ``start_ns``.
    """

    rows: tuple[RankRow, ...]
    iterations: tuple[Iteration, ...]
    windows: tuple[Mapping[int, tuple[int, int]], ...]
    start_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """Time between the left and the right edge of the picture, in ns."""
        return self.end_ns - self.start_ns

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The drawn rank of each row, from top to bottom."""
        return tuple(row.rank for row in self.rows)

    @cached_property
    def _row_of_rank(self) -> Ints:
        """Row of each rank, indexed by rank index, or -1 if the rank is not drawn.

        The last element is always -1, so that larger rank indices can be clipped to it.
        """
        n_ranks = max((rank.index for rank in self.ranks), default=0) + 1
        rows = np.full(n_ranks + 1, NONE, np.int64)
        for row, rank in enumerate(self.ranks):
            rows[rank.index] = row
        return rows

    def row_of(self, ranks: Ints) -> Ints:
        """Return the row that draws each of the given ranks, or -1 if no row does."""
        return self._row_of_rank[np.minimum(ranks, len(self._row_of_rank) - 1)]

    def is_selected(self, iterations: Ints) -> Bools:
        """Return a mask of the iteration indices that are drawn."""
        return np.isin(iterations, [iteration.index for iteration in self.iterations])


def select(report: Report, view: View, *, with_standouts: bool = False) -> Selection | None:
    """Return the part of a report that a view selects, or None if there is nothing to draw.

    If the view selects no iterations, :func:`.choose_shown_iteration` chooses one. If the view
    requests the critical path, the typical iteration is drawn instead. Rows draw the replicas in
    the pipeline with the most marked ranks, unless they show the spread of replicas. The drawn time
    span covers all drawn iterations and their windows.

    Args:
        report: The report.
        view: The ranks and iterations to draw, and the kind of rows.
        with_standouts: Whether to append rows for ranks that stand out; see
            :func:`bubbleviz.render.rows.make_rows`.
    """
    rows = make_rows(report, view, with_standouts=with_standouts)
    if not any(row.spread for row in rows):
        rows = draw_marked_pipeline(report, rows, choose_marked_ranks(report).ranks)
    indices = set(view.iterations)
    iterations = tuple(it for it in report.iterations if it.index in indices)
    if not indices:
        # The critical path is known only for the typical iteration.
        default_iteration = (
            report.typical_iteration() if view.critical else choose_shown_iteration(report)
        )
        iterations = () if default_iteration is None else (default_iteration,)
    if not rows or not iterations:
        return None
    windows = tuple(get_windows(it, report.headline) for it in iterations)
    window_ends = [end for by_rank in windows for _, end in by_rank.values()]
    start = min(it.start_ns for it in iterations)
    end = max(*(it.end_ns for it in iterations), *window_ends, start + 1)
    return Selection(rows, iterations, windows, start, end)


def choose_row_marks(report: Report, selection: Selection) -> MarkedRanks:
    """Return the ranks to mark in a picture; see :func:`.choose_marked_ranks`.

    Outliers are not marked if rows show the spread of replicas, because outliers have additional
    rows then.
    """
    marked = choose_marked_ranks(report)
    has_spread = any(row.spread for row in selection.rows)
    return MarkedRanks(()) if marked.outliers and has_spread else marked


def measure_row_ratios(
    report: Report, selection: Selection
) -> list[tuple[float | None, tuple[float, float] | None]]:
    """Return the bubble ratio to show next to each row, and the range over its replicas.

    The ratio is the drawn rank's mean primary ratio. The mean is taken over the drawn iterations
    that the report averages, or over all drawn iterations if none of them are averaged. The range
    covers all replicas of the row and all drawn iterations. Unknown ratios are ignored.

    Args:
        report: The report.
        selection: Rows and iterations that are drawn.

    Returns:
        For each row, the ratio (or None if it is unknown) and the (minimum, maximum) ratio of the
        replicas (or None if all are unknown).
    """
    by_iteration = {
        iteration.index: _get_ratio_by_rank(iteration, report.headline)
        for iteration in selection.iterations
    }
    averaged = [iteration.index for iteration in selection.iterations if iteration.averaged]
    averaged_ratios = [by_iteration[index] for index in averaged or by_iteration]
    rows: list[tuple[float | None, tuple[float, float] | None]] = []
    for row in selection.rows:
        ratios = _list_known(averaged_ratios, [row.rank.index])
        of_replicas = _list_known(by_iteration.values(), row.replicas)
        mean = sum(ratios) / len(ratios) if ratios else None
        extremes = (min(of_replicas), max(of_replicas)) if of_replicas else None
        rows.append((mean, extremes))
    return rows


def _get_ratio_by_rank(iteration: Iteration, name: str) -> dict[int, float | None]:
    """Return the bubble ratio of each rank that is active in an iteration, keyed by rank index.

    The value is None if the rank's ratio is unknown.
    """
    ranks = iteration.ranks
    return dict(zip(list_indices(ranks), compute_rank_ratios(ranks, name), strict=True))


def _list_known(
    iterations: Iterable[Mapping[int, float | None]], ranks: Iterable[int]
) -> list[float]:
    """Return the known ratios of the given ranks in the given iterations as a flat list.

    Args:
        iterations: For each iteration, a mapping from rank index to the ratio, or None if unknown.
        ranks: Indices of the ranks.
    """
    ratios = [by_rank.get(rank) for by_rank, rank in product(iterations, ranks)]
    return [ratio for ratio in ratios if ratio is not None]


def get_windows(iteration: Iteration, headline: str) -> Mapping[int, tuple[int, int]]:
    """Return for each rank the window in which idle time counts as bubble.

    The window is the first of the following that exists:

    1. The window of the primary ratio. The last iteration has no ``period`` window.
    2. The window of ``schedule``.
    3. The time from the start of the rank's first operation to the end of its last operation.

    Args:
        iteration: The iteration.
        headline: Name of the primary ratio.

    Returns:
        (start, end) in ns, keyed by rank index. Only active ranks are included.
    """
    ranks = iteration.ranks
    start_ns, end_ns = get_rank_column(ranks, "first_ns"), get_rank_column(ranks, "last_ns")
    for name in ("schedule", headline):
        if has_account(ranks, name):
            start_ns = get_account_column(ranks, name, "start_ns")
            end_ns = get_account_column(ranks, name, "end_ns")
    bounds = zip(start_ns.tolist(), end_ns.tolist(), strict=True)
    return dict(zip(list_indices(ranks), bounds, strict=True))
