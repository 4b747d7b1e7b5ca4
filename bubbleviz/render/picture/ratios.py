"""Bubble ratios as a picture prints them: of an iteration, and beside each row."""

from __future__ import annotations

from bubbleviz.count.iterations import Iteration, Ratio
from bubbleviz.count.rank_iterations import indices_of, own_ratios
from bubbleviz.render.picture.page import UNKNOWN, percent
from bubbleviz.render.selection import Selection
from bubbleviz.report.report import Report

#: A ratio and its lower bound are both printed if they differ by more than this.
_RATIO_GRAIN = 0.01


def shows_lower_bound(ratio: Ratio | None) -> bool:
    """Return whether a ratio is printed as a range, from its lower bound."""
    if ratio is None or ratio.value is None or ratio.low is None:
        return False
    return ratio.value - ratio.low > _RATIO_GRAIN


def iteration_ratio(report: Report, iteration: Iteration) -> str:
    """Return the headline ratio, as a range where unattributed compute changes it."""
    ratio = iteration.ratios.get(report.headline)
    if ratio is None or ratio.value is None:
        return UNKNOWN
    mark = " !" if ratio.contradicted else ""
    low = f"{100 * ratio.low:.1f} to " if ratio.low is not None and shows_lower_bound(ratio) else ""
    return f"{low}{percent(ratio.value)}{mark}"


def row_ratios(report: Report, selection: Selection) -> tuple[float | None, ...]:
    """Return the bubble ratio of each row: the mean over its replicas and the drawn iterations.

    Of several iterations only those that are averaged count, as in the caption.
    """
    drawn = selection.iterations
    by_iteration = [
        dict(
            zip(
                indices_of(iteration.ranks),
                own_ratios(iteration.ranks, report.headline),
                strict=True,
            )
        )
        for iteration in [i for i in drawn if i.averaged] or drawn
    ]
    return tuple(_mean_ratio(by_iteration, row.replicas) for row in selection.rows)


def ratio_ranges(report: Report, selection: Selection) -> list[tuple[float, float] | None]:
    """Return the least and the most ratio of each row's ranks in the drawn iterations."""
    known: dict[int, list[float]] = {}
    for iteration in selection.iterations:
        ratios = own_ratios(iteration.ranks, report.headline)
        for rank, ratio in zip(indices_of(iteration.ranks), ratios, strict=True):
            if ratio is not None:
                known.setdefault(rank, []).append(ratio)
    rows = [[r for rank in row.replicas for r in known.get(rank, ())] for row in selection.rows]
    return [(min(ratios), max(ratios)) if ratios else None for ratios in rows]


def _mean_ratio(
    by_iteration: list[dict[int, float | None]], replicas: tuple[int, ...]
) -> float | None:
    means = []
    for by_rank in by_iteration:
        ratios = [by_rank[rank] for rank in replicas if rank in by_rank]
        known = [ratio for ratio in ratios if ratio is not None]
        # As in the table: a mean needs the ratio of every replica.
        if known and len(known) == len(ratios):
            means.append(sum(known) / len(known))
    return sum(means) / len(means) if means else None
