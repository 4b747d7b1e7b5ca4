"""Rank means: what the averaged iterations say of each rank, as columns, and how it is spread.

A run of many ranks is read from these: which ranks differ, and by how much, from the others of
their stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from bubbleviz.count.iterations import RankIteration
from bubbleviz.count.rank_iterations import (
    account_column,
    accounted,
    has_account,
    indices_of,
    own_ratios,
    phase_columns,
    rank_column,
)
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.texts import one_line, percent
from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import ONE_STAGE, UNPROVEN

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
    ranks = [iteration.ranks for iteration in shown]
    name = report.headline
    if not any(has_account(own, name) for own in ranks):
        name = "schedule"
    mean = _Mean(len(report.ranks), ranks)
    at = np.array([i.index for i in shown], np.int64)
    causes, times = report.explanation.causes.idle_ns, report.explanation.communication
    idle_ns = causes.get(name, causes[report.explanation.listed_ratio])
    busy_ns = {
        phase.label: mean.of([phase_columns(own)[:, place] for own in ranks])
        for place, phase in enumerate(COMPUTE)
    }
    return RankMeans(
        ratio=name,
        bubble_ratio=mean.of([np.array(own_ratios(own, name), np.float64) for own in ranks]),
        bubble_ns=mean.of([_bubble_ns(own, name) for own in ranks]),
        busy_ns={label: column for label, column in busy_ns.items() if np.any(column > 0)},
        launch_gap=mean.of([_launch_gap(own) for own in ranks]),
        idle_ns=_over_iterations(idle_ns, at),
        communication_ns={
            field.name: _over_iterations(getattr(times, field.name), at) for field in fields(times)
        },
    )


def _over_iterations(column: Ints, at: Ints) -> Floats:
    """Return the mean over some iterations of a column of shape (iterations, ranks, ...)."""
    zero = np.zeros(column.shape[1:])
    return np.asarray(column[at].mean(axis=0), np.float64) if len(at) else zero


def _bubble_ns(ranks: Sequence[RankIteration], name: str) -> Floats:
    bubble_ns = account_column(ranks, name, "bubble_ns").astype(np.float64)
    return np.where(accounted(ranks, name), bubble_ns, np.nan)


def _launch_gap(ranks: Sequence[RankIteration]) -> Floats:
    compute_ns = rank_column(ranks, "compute_ns")
    gaps = 1 - rank_column(ranks, "active_ns") / np.maximum(compute_ns, 1)
    return np.where(compute_ns > 0, gaps, np.nan)


class _Mean:
    """Means by rank of what iterations say."""

    def __init__(self, count: int, ranks: Sequence[Sequence[RankIteration]]) -> None:
        self._ranks = count
        places = [np.array(indices_of(own), np.int64) for own in ranks]
        self._rank = np.concatenate(places) if places else np.zeros(0, np.int64)

    def of(self, values: Sequence[Floats | Ints]) -> Floats:
        """Return the mean of each rank's known values, given by iteration."""
        given = np.concatenate(values).astype(np.float64) if values else np.zeros(0)
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


def as_multiples(values: Floats, middle: Floats) -> Floats:
    """Return values as multiples of medians; NaN where these are 0 or unknown."""
    multiples = np.full(len(values), np.nan)
    return np.asarray(np.divide(values, middle, out=multiples, where=middle > 0), np.float64)


def median_of_stage(report: Report, values: Floats) -> Floats:
    """Return for each rank the median of the values of its stage; NaN where none is known."""
    stages = [-1 if rank.stage is None else rank.stage for rank in report.ranks]
    of_rank = groups_of(np.array(stages, np.int64)).of_row
    medians = np.full(len(values), np.nan)
    for stage in range(int(of_rank.max(initial=-1)) + 1):
        own = of_rank == stage
        known = values[own][~np.isnan(values[own])]
        if len(known):
            medians[own] = np.median(known)
    return medians


# Rank parts: groups of whole pipelines, and the part of a report that is theirs.
#
# What is written for very many ranks is written part by part: no more than one is held beside the
# report.


#: Ranks of a part at least, where there are so many; pipelines of more are cut at the most.
_FEWEST_RANKS, _MOST_RANKS = 256, 1024


def rank_groups(
    pipelines: Sequence[int | None], fewest: int, most: int, unknown: int
) -> list[tuple[int, int]]:
    """Return groups of ranks, of whole pipelines, as (first, behind the last).

    Args:
        pipelines: of each rank, which are in order of these; None for unknown ones.
        fewest: pipelines of fewer ranks share a group, of up to so many.
        most: ranks of a group; larger pipelines are cut.
        unknown: ranks of a group where pipelines are not known.
    """
    count = len(pipelines)
    starts = [r for r in range(count) if r == 0 or pipelines[r] != pipelines[r - 1]]
    groups: list[tuple[int, int]] = []
    for first, last in zip(starts, [*starts[1:], count], strict=False):
        size = unknown if pipelines[first] is None else most
        if groups and last - groups[-1][0] <= fewest:
            groups[-1] = (groups[-1][0], last)
        else:
            groups.extend((at, min(at + size, last)) for at in range(first, last, size))
    return groups


def rank_parts(report: Report) -> list[tuple[int, int]]:
    """Return the ranks of each part of a report as (first, behind the last)."""
    pipelines = [rank.pipeline for rank in report.ranks]
    return rank_groups(pipelines, _FEWEST_RANKS, _MOST_RANKS, _FEWEST_RANKS)


def part_of(report: Report, first: int, last: int) -> Report:
    """Return a report with the operations of some ranks alone; all else is the whole's.

    Args:
        report: any report.
        first: of the ranks.
        last: behind the last.
    """
    rows = rows_of_ranks(report.operations.rank, first, last)
    operations, busy = report.operations.take(rows), report.busy
    at_work = busy.take((busy.operation >= rows.start) & (busy.operation < rows.stop))
    collectives = report.collectives
    collectives = collectives.take((collectives.rank >= first) & (collectives.rank < last))
    own = np.where(collectives.operation == NONE, NONE, collectives.operation - rows.start)
    return replace(
        report,
        operations=operations,
        busy=replace(at_work, operation=at_work.operation - rows.start),
        collectives=replace(collectives, operation=own),
        unattributed=_of_ranks(report.unattributed, first, last),
        exposed=_of_ranks(report.exposed, first, last),
        overheads=_of_ranks(report.overheads, first, last),
        pauses=_of_ranks(report.pauses, first, last),
    )


def rows_of_ranks(rank: Ints, first: int, last: int) -> slice:
    """Return the rows of some ranks in a column in order of these."""
    low, high = np.searchsorted(rank, (first, last)).tolist()
    return slice(low, high)


def _of_ranks(times: RankIntervals, first: int, last: int) -> RankIntervals:
    return times.take((times.rank >= first) & (times.rank < last))


# Measure: what the primary ratio is called; the idle time of no pipeline is no bubble of one.


@frozen
class Measure:
    """What the primary ratio is called.

    Attributes:
        name: in a headline: ``bubble ratio (schedule)``.
        idle: what it is the share of: ``bubble``, or ``idle time``.
    """

    name: str
    idle: str


def measure_of(report: Report) -> str:
    """Return the name of the primary ratio in a headline: ``bubble ratio (schedule)``."""
    return _measure(report.headline, pipeline=report.no_pipeline is None).name


def idle_of(report: Report) -> str:
    """Return what the ratio is a share of, in words: ``bubble``, or ``idle time``."""
    return _measure(report.headline, pipeline=report.no_pipeline is None).idle


def saved_measure(document: Mapping[str, Any]) -> Measure:
    """Return what the ratio of a report is called that was written as JSON."""
    none = {ONE_STAGE.code, UNPROVEN.code}
    codes = {restriction.get("code") for restriction in document.get("restrictions") or ()}
    return _measure(document["headline"], pipeline=not none & codes)


def _measure(headline: str, *, pipeline: bool) -> Measure:
    if pipeline:
        return Measure(f"bubble ratio ({headline})", "bubble")
    return Measure("idle in iterations", "idle time")


# Kernel time: how much of the averaged iterations kernels ran, beside the bubble.
#
# A bubble is time in which no operation keeps a rank busy. What else may be lost lies inside
# operations (launch gaps), or is compute that no operation holds::
#
#     operation    ├──── F0 ────┤        ├──── F1 ────┤
#     kernels      ██  ██  ██  ██   ████ ██  ██  ██  ██
#                    gaps            outside
#                               ├ bubble ┤


#: Of the window: gaps, or compute outside operations, below this share are not worth a sentence.
_NOTICEABLE = 0.01
#: Of the time that operations keep a GPU busy: gaps above this share make it no time of work.
_MOSTLY = 0.5


@frozen
class KernelTime:
    """Sums over the ranks of the averaged iterations, in nanoseconds.

    Attributes:
        window_ns: windows of the primary ratio.
        kernel_ns: of these, time in which any kernel (communication included) or copy ran.
        bubble_ns: bubble in these.
        gap_ns: launch gaps: an operation kept the GPU busy, and no kernel ran.
        unattributed_ns: compute outside every operation, in the windows of the primary ratio.
        work_ns: how long F, B, W, BW, R and FB kept the ranks busy, launch gaps included.
        rank: where gaps fill most of the work of single ranks alone, the label of the one of these
            with the most; None elsewhere.
        rank_time: the same times of that rank.
    """

    window_ns: int
    kernel_ns: int
    bubble_ns: int
    gap_ns: int
    unattributed_ns: int
    work_ns: int = 0
    rank: str | None = None
    rank_time: KernelTime | None = None

    @property
    def share(self) -> float | None:
        """Share of the windows in which any kernel ran; None where no rank has any time."""
        return self.kernel_ns / self.window_ns if self.window_ns else None

    @property
    def gaps_outweigh(self) -> bool:
        """Whether launch gaps take more time than the bubble does."""
        return self._outweighs(self.gap_ns)

    @property
    def gaps_fill_work(self) -> bool:
        """Whether launch gaps take most of the time that operations kept the ranks busy."""
        return (
            self.gap_ns > _MOSTLY * self.work_ns and self.gap_ns >= _NOTICEABLE * self.window_ns > 0
        )

    @property
    def unattributed_outweighs(self) -> bool:
        """Whether compute outside operations takes more time than the bubble does."""
        return self._outweighs(self.unattributed_ns)

    @property
    def beside_headline(self) -> bool:
        """Whether the share of time in which any kernel ran stands beside the headline ratio."""
        of_run = self.gaps_outweigh or self.gaps_fill_work or self.unattributed_outweighs
        return self.share is not None and (of_run or self.rank_time is not None)

    @property
    def sentence(self) -> str | None:
        """What stands beside the headline ratio; None where nothing does."""
        if not self.beside_headline or self.share is None:
            return None
        told = f"any kernel ran for {percent(self.share)} of the time"
        if self.rank_time is None or self.rank_time.share is None:
            return told
        return f"{told} ({percent(self.rank_time.share)} on {self.rank})"

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in JSON."""
        return {
            **asdict(self),
            "share": self.share,
            "beside_headline": self.beside_headline,
            "sentence": self.sentence,
            "rank_time": self.rank_time and self.rank_time.entry,
        }

    def _outweighs(self, time_ns: int) -> bool:
        return (
            self.window_ns > 0
            and time_ns > self.bubble_ns
            and time_ns >= _NOTICEABLE * self.window_ns
        )


def kernel_time_of(report: Report) -> KernelTime:
    """Return how long kernels ran in the averaged iterations of a report."""
    of_rank = _kernel_time_of_ranks(report)
    time = KernelTime(*of_rank.sum(axis=1).tolist())
    if time.gaps_fill_work:
        return time
    window_ns, gap_ns, work_ns = of_rank[0], of_rank[3], of_rank[5]
    # As ``gaps_fill_work``, of each rank alone.
    filled = (gap_ns > _MOSTLY * work_ns) & (gap_ns >= _NOTICEABLE * window_ns) & (window_ns > 0)
    if not filled.any():
        return time
    slowest = int(np.where(filled, gap_ns, NONE).argmax())
    label = one_line(report.ranks[slowest].label, 60)
    return replace(time, rank=label, rank_time=KernelTime(*of_rank[:, slowest].tolist()))


def _kernel_time_of_ranks(report: Report) -> Ints:
    """Return the times of each rank, summed over the averaged iterations; shape (times, ranks).

    They are the times of :class:`KernelTime`, in their order.
    """
    ratio = report.headline
    times = np.zeros((6, len(report.ranks)), np.int64)
    for iteration in report.iterations:
        if iteration.averaged:
            ranks = iteration.ranks
            times[:, indices_of(ranks)] += np.stack(
                (
                    account_column(ranks, ratio, "window_ns"),
                    account_column(ranks, ratio, "running_ns"),
                    account_column(ranks, ratio, "bubble_ns"),
                    rank_column(ranks, "gap_ns"),
                    account_column(ranks, ratio, "unattributed_ns"),
                    rank_column(ranks, "compute_ns"),
                )
            )
    return times
