"""The worst ranks: those whose bubble is well above the others', and what most of it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import indices_of, own_ratios, with_index
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.model.texts import one_line, percent
from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report

#: Causes that are named of a rank, and the share of its window below which none is.
_CAUSES, _NOTICEABLE = 2, 0.005


@frozen
class WorstRank:
    """A rank with a large bubble.

    Attributes:
        rank: its index.
        ratio: mean over iterations.
        sentence: it, its bubble, and what most of that is.
    """

    rank: int
    ratio: float
    sentence: str


def worst_ranks(report: Report, iteration: Iteration | None, above: float) -> tuple[WorstRank, ...]:
    """Return the ranks whose bubble is above the median of all, that with the most first.

    Args:
        report: any report.
        iteration: looked at where none is averaged.
        above: by how much, as a fraction of 1.
    """
    name = report.explanation.listed_ratio
    iterations = [i for i in report.iterations if i.averaged] or [i for i in (iteration,) if i]
    values: dict[int, list[float]] = {}
    for shown in iterations:
        own = zip(indices_of(shown.ranks), own_ratios(shown.ranks, name), strict=True)
        for rank, value in own:
            if value is not None:
                values.setdefault(rank, []).append(value)
    means = {rank: sum(known) / len(known) for rank, known in values.items()}
    if not means:
        return ()
    limit = statistics.median(means.values()) + above
    worst = sorted((rank for rank in means if means[rank] >= limit), key=lambda r: (-means[r], r))
    return tuple(
        WorstRank(rank, means[rank], _sentence(report, rank, means[rank], iterations))
        for rank in worst[:10]
    )


def _sentence(report: Report, rank: int, ratio: float, iterations: Sequence[Iteration]) -> str:
    own = report.ranks[rank]
    stage = "" if own.stage is None else f", stage {own.stage}"
    causes = _causes(report, rank, iterations)
    return f"{percent(ratio)} rank {rank} ({one_line(own.label, 40)}){stage}{causes}"


def _causes(report: Report, rank: int, iterations: Sequence[Iteration]) -> str:
    """Return what most of the idle time of a rank is, in % of its window."""
    name = report.explanation.listed_ratio
    index = np.array([i.index for i in iterations], np.int64)
    idle_ns = report.explanation.causes.idle_ns[name][index, rank].sum(axis=0)
    own = (with_index(i.ranks, rank) for i in iterations)
    window_ns = sum(each.accounts[name].window_ns for each in own if each and name in each.accounts)
    most = np.argsort(-idle_ns, kind="stable")[:_CAUSES].tolist()
    named = [
        f"{Cause(code).label} {100 * idle_ns[code] / window_ns:.2f}"
        for code in most
        if window_ns and idle_ns[code] >= _NOTICEABLE * window_ns
    ]
    return f": {', '.join(named)}" if named else ""
