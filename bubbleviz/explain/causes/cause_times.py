"""Sum the idle time of ranks by cause in each window.

The times of all causes add up exactly to the idle time. Idle time before the first operation of a
rank in an iteration counts as warm-up, and idle time after its last operation counts as drain.
Three kinds of idle time keep their own cause everywhere: profiler overhead, collectives that are
moving data, and time during which unrecorded work may have run. Idle time between the first and the
last operation always keeps its own cause::

    window   ├── warmup ──┤ first operation ... last operation ├── drain ──┤
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.count.ratios import CountedWork, RatioDefinition, list_ratios
from bubbleviz.explain.causes.bubbles import Bubbles, merge_bubbles
from bubbleviz.explain.causes.cause import ALWAYS, Cause
from bubbleviz.explain.causes.forward_waits import explain_forward_waits
from bubbleviz.explain.causes.idle_ranks import find_idle
from bubbleviz.explain.dependencies import Dependencies, Inputs
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import expand_ranges
from bubbleviz.model.intervals import group_sum

#: For each cause code, whether idle time keeps this cause in every region of a window.
_COUNTS_ALWAYS = np.isin(np.arange(len(Cause)), ALWAYS)
_LABELS = tuple(cause.label for cause in Cause)


@dataclass(frozen=True)
class CauseTimes:
    """Idle time of ranks by cause.

    Attributes:
        idle_ns: Idle time in ns in the windows of each ratio, keyed by ratio name. The arrays have
            the shape (iterations, ranks, causes).
    """

    idle_ns: Mapping[str, Ints]

    def columns(self, ratio: str, iteration: int, rank: Ints) -> dict[str, list[int]]:
        """Return each rank's idle time in an iteration in ns, with one column per cause label."""
        return dict(zip(_LABELS, self.idle_ns[ratio][iteration][rank].T.tolist(), strict=True))

    def of_iteration(self, ratio: str, iteration: int) -> dict[str, int]:
        """Return an iteration's idle time in ns by cause label, summed over the ranks."""
        return _label_times(self.idle_ns[ratio][iteration].sum(axis=0).tolist())

    def of_iterations(self, ratio: str, iterations: Ints) -> dict[str, int]:
        """Return the idle time in ns by cause label, summed over ranks and iterations."""
        return _label_times(self.idle_ns[ratio][iterations].sum(axis=(0, 1)).tolist())


def _label_times(idle_ns: list[int]) -> dict[str, int]:
    """Return the idle times, keyed by cause label."""
    return dict(zip(_LABELS, idle_ns, strict=True))


@dataclass(frozen=True, eq=False, repr=False)
class _Regions(Table):
    """The parts (regions) into which the windows of ranks are split, one row per region.

    Attributes:
        rank: Index of the rank.
        iteration: Index of the iteration.
        start_ns: Start of the region.
        end_ns: End of the region.
        cause: Cause of all idle time in the region, or -1 if idle time keeps its own cause.
    """

    rank: Ints
    iteration: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Ints


def measure_causes(
    stretch: Stretch, inputs: Inputs, arrivals: Arrivals
) -> tuple[CauseTimes, Bubbles, IdleIntervals, Dependencies]:
    """Determine why the ranks in a stretch were idle, and for how long.

    Args:
        stretch: The stretch to explain, a group of complete pipelines.
        inputs: Inputs that operations received from other ranks.
        arrivals: Arrival times of the inputs, measured from receives.

    Returns:
        causes: Idle time by cause in the windows of each ratio.
        bubbles: Idle time of the kept ranks in the windows of the listed ratio.
        idle: All idle time, including idle time outside windows.
        tokens: For an inference run, pairs of an operation and the operation whose token it waited
            for. Empty for other runs.
    """
    idle, tokens = find_idle(stretch, inputs, arrivals), Dependencies.make_empty()
    if stretch.forward:
        idle, tokens = explain_forward_waits(stretch.operations, stretch.ranks, inputs, idle)
    n_iterations, n_ranks = stretch.extents.present.shape
    shape = n_iterations, n_ranks, len(Cause)
    bubbles = Bubbles.empty(stretch.listed_ratio, stretch.operations, stretch.collectives.kinds)
    idle_ns = {name: np.zeros(shape, np.int64) for name in stretch.windows}
    for ratio in list_ratios():
        if ratio.name not in stretch.windows:
            continue
        regions = _list_regions(stretch, ratio)
        cell = regions.iteration * n_ranks + regions.rank
        times_ns = _sum_by_cause(idle, regions, cell, n_iterations * n_ranks)
        idle_ns[ratio.name] = times_ns.reshape(shape)
        if ratio.name == stretch.listed_ratio:
            kept_regions = regions.take(np.flatnonzero(stretch.is_kept[regions.rank]))
            bubbles = merge_bubbles(_list_bubbles(stretch, idle, kept_regions), inputs.producer)
    return CauseTimes(idle_ns), bubbles, idle, tokens


def _list_bubbles(stretch: Stretch, idle: IdleIntervals, regions: _Regions) -> Bubbles:
    """Return the idle time in the windows of the listed ratio, one row per piece and region.

    Pieces are clipped to their region and get the cause that :func:`_find_overlaps` returns.

    Args:
        stretch: The stretch whose bubbles are listed.
        idle: Idle time of all ranks.
        regions: Regions into which the windows are split.
    """
    region, row, cause = _find_overlaps(idle, regions)
    pieces = idle.take(row)
    # If the cause became WARMUP or DRAIN, the transfer ahead in the queue is dropped.
    keeps_peer = (pieces.cause == cause) | (pieces.cause != Cause.QUEUED)
    return Bubbles.of(
        replace(
            pieces,
            start_ns=np.maximum(pieces.start_ns, regions.start_ns[region]),
            end_ns=np.minimum(pieces.end_ns, regions.end_ns[region]),
            cause=cause,
            peer_operation=np.where(keeps_peer, pieces.peer_operation, NONE),
        ),
        regions.iteration[region],
        ratio=stretch.listed_ratio,
        operations=stretch.operations,
        kinds=stretch.collectives.kinds,
    )


def sum_idle_by_cause(idle: IdleIntervals, rank: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return the idle time in each window by cause in ns, with shape (windows, causes).

    Args:
        idle: Idle time of all ranks.
        rank: Rank of each window.
        low_ns: Start of each window.
        high_ns: End of each window.
    """
    unset = np.full(len(rank), NONE, np.int64)
    windows = _Regions(rank, unset, low_ns, high_ns, unset)
    return _sum_by_cause(idle, windows, np.arange(len(rank)), len(rank))


def _sum_by_cause(idle: IdleIntervals, regions: _Regions, cell: Ints, n_cells: int) -> Ints:
    """Return the idle time by cause in ns, summed over groups of regions, shape (cells, causes).

    Args:
        idle: Idle time of all ranks.
        regions: Regions into which the windows are split.
        cell: For each region, the row of the result to which its idle time is added.
        n_cells: Number of result rows.
    """
    region, row, cause = _find_overlaps(idle, regions)
    start_ns = np.maximum(idle.start_ns[row], regions.start_ns[region])
    end_ns = np.minimum(idle.end_ns[row], regions.end_ns[region])
    group = cell[region] * len(Cause) + cause
    return group_sum(group, n_cells * len(Cause), end_ns - start_ns).reshape(n_cells, len(Cause))


def _find_overlaps(idle: IdleIntervals, regions: _Regions) -> tuple[Ints, Ints, Ints]:
    """Find the idle intervals that overlap each region, and their cause within that region.

    The cause is usually the region's cause. The idle interval keeps its own cause in three cases:

    - The region has no cause.
    - Unrecorded work may have run in the interval.
    - The cause of the interval applies in every region (:data:`.ALWAYS`).

    Args:
        idle: Idle time of all ranks.
        regions: Regions into which the windows are split.

    Returns:
        region: For each overlap, the row of the region.
        row: For each overlap, the row of the idle interval.
        cause: For each overlap, the cause.
    """
    # The first overlapping interval follows the last interval that ended by the region's start.
    # The last overlapping interval is the last one that begins before the region's end.
    last_ended = intervals.find_last_before(
        idle.rank, idle.end_ns, regions.rank, regions.start_ns, or_at=True
    )
    last = intervals.find_last_before(idle.rank, idle.start_ns, regions.rank, regions.end_ns)
    first = np.where(last_ended == NONE, np.searchsorted(idle.rank, regions.rank), last_ended + 1)
    region, row = expand_ranges(first, np.maximum(first, last + 1))
    cause, region_cause = idle.cause[row], regions.cause[region]
    keeps_cause = _COUNTS_ALWAYS[cause] | (idle.unrecorded[row] == 1)
    return region, row, np.where((region_cause == NONE) | keeps_cause, cause, region_cause)


def _list_regions(stretch: Stretch, ratio: RatioDefinition) -> _Regions:
    """Split the windows of a ratio into regions, and return the non-empty ones.

    All idle time in a warm-up or drain region gets the cause of the region. Idle time in all other
    regions keeps its own cause. Unknown windows have no regions::

        low    first         last    drained        filling     high
         ├warmup┤  own cause  ├─drain─┤  own cause   ├──warmup──┤
                                                     of the next iteration, only in ``period``
    """
    cuts_ns = _list_cuts(stretch, ratio)
    rank, iteration, number = np.nonzero(cuts_ns[:, :, :-1] < cuts_ns[:, :, 1:])
    causes = np.array((Cause.WARMUP, NONE, Cause.DRAIN, NONE, Cause.WARMUP), np.int64)
    return _Regions(
        rank,
        iteration,
        cuts_ns[rank, iteration, number],
        cuts_ns[rank, iteration, number + 1],
        causes[number],
    )


def _list_cuts(stretch: Stretch, ratio: RatioDefinition) -> Ints:
    """Return the six bounds of the five regions in each window, shape (ranks, iterations, 6).

    :func:`_list_regions` shows the regions. Bounds are in ascending order, and regions may be
    empty. All regions of an unknown window are empty.
    """
    window, extents = stretch.windows[ratio.name], stretch.extents
    is_known = (window.is_known[:, None] & extents.present).T
    low_ns = np.where(is_known, window.start_ns.T, 0)
    high_ns = np.maximum(np.where(is_known, window.end_ns.T, 0), low_ns)
    last_ns = extents.last_ns if ratio.work is CountedWork.ITERATION else extents.step_last_ns
    first_ns = np.clip(extents.first_ns.T, low_ns, high_ns)
    last_ns = np.clip(last_ns.T, first_ns, high_ns)
    drained_ns = filling_ns = high_ns
    if ratio.work is CountedWork.EVERYTHING:
        # Inference pipelines do not drain between iterations.
        drained_ns = last_ns if stretch.forward else np.clip(stretch.ended_ns, last_ns, high_ns)
        filling_ns = high_ns if stretch.forward else np.clip(stretch.begun_ns, drained_ns, high_ns)
    return np.stack((low_ns, first_ns, last_ns, drained_ns, filling_ns, high_ns), axis=2)
