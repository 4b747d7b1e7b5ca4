"""Rank means: what the averaged iterations say of each rank, as columns, and how it is spread.

A run of many ranks is read from these: which ranks differ, and by how much, from the others of
their stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from bubbleviz.count.iterations import RankIteration
from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report

#: A run of more ranks than this is summarised: tables show how numbers are spread and the ranks at
#: the ends, pictures a row a stage, the interactive page one pipeline at a time.
MANY_RANKS = 256


def many_ranks(ranks: int) -> bool:
    """Return whether a run of so many ranks is summarised by outputs."""
    return ranks > MANY_RANKS


@frozen
class RankMeans:
    """Means over the averaged iterations, by rank; NaN where they are unknown.

    Attributes:
        ratio: name of the ratio; the headline, or schedule where no rank has it.
        bubble_ratio: of the rank, shape (ranks,).
        bubble_ns: length of its bubble, shape (ranks,).
        busy_ns: by printed phase name, of phases that any rank ran, shape (ranks,) each.
        launch_gap: share of the busy time in which no kernel ran, shape (ranks,).
        idle_ns: by cause, shape (ranks, causes).
        communication_ns: by column of ``CommunicationTimes``, shape (ranks,) each.
    """

    ratio: str
    bubble_ratio: Floats
    bubble_ns: Floats
    busy_ns: Mapping[str, Floats]
    launch_gap: Floats
    idle_ns: Floats
    communication_ns: Mapping[str, Floats]


@frozen
class Distribution:
    """How values of ranks are spread.

    Attributes:
        n: known values.
        low, median, p95, high: the least, the middle, that which 95 % do not exceed, the most.
    """

    n: int
    low: float
    median: float
    p95: float
    high: float


def rank_means(report: Report) -> RankMeans:
    """Return the means of a report's ranks; of the typical iteration where none is averaged."""
    typical = report.typical_iteration()
    shown = [i for i in report.iterations if i.averaged] or [i for i in (typical,) if i]
    entries = [entry for iteration in shown for entry in iteration.ranks]
    name = report.headline
    if not any(name in entry.accounts for entry in entries):
        name = "schedule"
    mean = _Mean(len(report.ranks), entries)
    at = np.array([i.index for i in shown], np.int64)
    causes, times = report.explanation.causes.idle_ns, report.explanation.communication
    idle_ns = causes.get(name, causes[report.bubbles.ratio])
    accounts = [entry.accounts.get(name) for entry in entries]
    busy_ns = {p.label: mean.of([e.busy_ns.get(p.label, 0) for e in entries]) for p in COMPUTE}
    return RankMeans(
        ratio=name,
        bubble_ratio=mean.of([entry.bubble_ratio.get(name) for entry in entries]),
        bubble_ns=mean.of([None if own is None else own.bubble_ns for own in accounts]),
        busy_ns={label: column for label, column in busy_ns.items() if np.any(column > 0)},
        launch_gap=mean.of(
            [1 - e.active_ns / e.compute_ns if e.compute_ns else None for e in entries]
        ),
        idle_ns=_over_iterations(idle_ns, at),
        communication_ns={
            field.name: _over_iterations(getattr(times, field.name), at) for field in fields(times)
        },
    )


def _over_iterations(column: Ints, at: Ints) -> Floats:
    """Return the mean over some iterations of a column of shape (iterations, ranks, ...)."""
    zero = np.zeros(column.shape[1:])
    return np.asarray(column[at].mean(axis=0), np.float64) if len(at) else zero


class _Mean:
    """Means by rank of what entries say."""

    def __init__(self, ranks: int, entries: Sequence[RankIteration]) -> None:
        self._ranks = ranks
        self._rank = np.fromiter((entry.rank for entry in entries), np.int64, len(entries))

    def of(self, values: Sequence[float | None]) -> Floats:
        """Return the mean of each rank's known values."""
        given = np.array(values, np.float64)
        known = ~np.isnan(given)
        counts = np.bincount(self._rank[known], minlength=self._ranks)
        sums = np.bincount(self._rank[known], given[known], minlength=self._ranks)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(counts > 0, sums / counts, np.nan), np.float64)


def distribution(values: Floats) -> Distribution | None:
    """Return how values are spread, those that are NaN left out; None without any."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    low, median, p95, high = np.quantile(known, (0, 0.5, 0.95, 1)).tolist()
    return Distribution(len(known), low, median, p95, high)


def to_median_of_stage(report: Report, values: Floats) -> Floats:
    """Return each rank's value as a multiple of the median of its stage; NaN where it has none."""
    stages = [-1 if rank.stage is None else rank.stage for rank in report.ranks]
    _, of_rank = np.unique(np.array(stages, np.int64), return_inverse=True)
    multiples = np.full(len(values), np.nan)
    for stage in range(int(of_rank.max(initial=-1)) + 1):
        own = of_rank == stage
        known = values[own][~np.isnan(values[own])]
        middle = float(np.median(known)) if len(known) else 0.0
        if middle > 0:
            multiples[own] = values[own] / middle
    return multiples
