"""Cause times: how long ranks were idle for each cause, in each window; they add up exactly.

Idle time before a rank's first operation of an iteration is its warm-up, and after its last one its
drain, unless the profiler or a collective that moves data takes it; in between, idle time keeps its
own cause::

    window   ├── warmup ──┤ first operation ... last operation ├── drain ──┤
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from bubbleviz.align.arrivals import Arrivals
from bubbleviz.count.ratios import CountedWork, RatioDefinition, list_ratios
from bubbleviz.explain.causes.bubbles import Bubbles, merge_bubbles
from bubbleviz.explain.causes.cause import ALWAYS, Cause
from bubbleviz.explain.causes.forward_waits import forward_waits
from bubbleviz.explain.causes.idle_ranks import find_idle
from bubbleviz.explain.dependencies import Dependencies, Inputs
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import expand_ranges
from bubbleviz.model.intervals import group_sum

#: Causes that count in every region of a window.
_COUNTS_ALWAYS = np.isin(np.arange(len(Cause)), ALWAYS)
_LABELS = tuple(cause.label for cause in Cause)


@dataclass(frozen=True)
class CauseTimes:
    """How long ranks were idle for each cause.

    Attributes:
        idle_ns: by name of the ratio whose window it is, shape (iterations, ranks, causes).
    """

    idle_ns: Mapping[str, Ints]

    def columns(self, ratio: str, iteration: int, rank: Ints) -> dict[str, list[int]]:
        """Return nanoseconds of some ranks in an iteration's window, as a column for each cause."""
        return dict(zip(_LABELS, self.idle_ns[ratio][iteration][rank].T.tolist(), strict=True))

    def of_iteration(self, ratio: str, iteration: int) -> dict[str, int]:
        """Return nanoseconds by cause, summed over the ranks."""
        return _by_label(self.idle_ns[ratio][iteration].sum(axis=0).tolist())

    def of_iterations(self, ratio: str, iterations: Ints) -> dict[str, int]:
        """Return nanoseconds by cause, summed over ranks and some iterations."""
        return _by_label(self.idle_ns[ratio][iterations].sum(axis=(0, 1)).tolist())


def _by_label(idle_ns: list[int]) -> dict[str, int]:
    return dict(zip(_LABELS, idle_ns, strict=True))


def causes_of(
    stretch: Stretch, inputs: Inputs, arrivals: Arrivals
) -> tuple[CauseTimes, Bubbles, IdleIntervals, Dependencies]:
    """Return why ranks were idle.

    Args:
        stretch: Some pipelines of a run.
        inputs: What their operations waited for on other ranks.
        arrivals: When receives show that it was there.

    Returns:
        Idle times by cause, the bubbles of the kept ranks, all idle time, and in a run that only
        goes forward, which steps waited for the token of another one.
    """
    idle, tokens = find_idle(stretch, inputs, arrivals), Dependencies.make_empty()
    if stretch.forward:
        idle, tokens = forward_waits(stretch.operations, stretch.ranks, inputs, idle)
    n_iterations, n_ranks = stretch.extents.present.shape
    shape = n_iterations, n_ranks, len(Cause)
    bubbles = Bubbles.empty(stretch.listed, stretch.operations, stretch.collectives.kinds)
    idle_ns = {name: np.zeros(shape, np.int64) for name in stretch.windows}
    for ratio in list_ratios():
        if ratio.name not in stretch.windows:
            continue
        regions = _regions(stretch, ratio)
        rank, iteration, *cut = regions
        windows = rank, iteration * n_ranks + rank, *cut
        idle_ns[ratio.name] = _time_by_cause(idle, windows, prod(shape[:2])).reshape(shape)
        if ratio.name == stretch.listed:
            is_kept = np.flatnonzero(stretch.kept[rank])
            kept = tuple(column[is_kept] for column in regions)
            bubbles = merge_bubbles(_list_bubbles(stretch, idle, kept), inputs.producer)
    return CauseTimes(idle_ns), bubbles, idle, tokens


def _list_bubbles(stretch: Stretch, idle: IdleIntervals, regions: tuple[Ints, ...]) -> Bubbles:
    """Return the idle time in the windows of the listed ratio, one row per piece and region.

    Args:
        stretch: Some pipelines of a run.
        idle: Idle time of all ranks.
        regions: Regions of the windows, as returned by :func:`_regions`.
    """
    _, iteration, *_ = regions
    region, row, start_ns, end_ns, cause = _pieces(idle, regions)
    pieces = idle.take(row)
    # Where a rank warms up or drains, that alone is the cause.
    keeps_peer = (pieces.cause == cause) | (pieces.cause != Cause.QUEUED)
    peer_operation = np.where(keeps_peer, pieces.peer_operation, NONE)
    return Bubbles.of(
        replace(
            pieces, start_ns=start_ns, end_ns=end_ns, cause=cause, peer_operation=peer_operation
        ),
        iteration[region],
        ratio=stretch.listed,
        operations=stretch.operations,
        kinds=stretch.collectives.kinds,
    )


def idle_by_cause(idle: IdleIntervals, rank: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return how long ranks were idle in windows [low, high] of theirs, shape (windows, causes)."""
    count = len(rank)
    windows = rank, np.arange(count), low_ns, high_ns, np.full(count, NONE, np.int64)
    return _time_by_cause(idle, windows, count)


def _time_by_cause(idle: IdleIntervals, windows: tuple[Ints, ...], cells: int) -> Ints:
    """Return how long ranks were idle in windows, shape (cells, causes).

    Args:
        idle: of all ranks.
        windows: the rank, the cell, start and end of each, and the cause of all idle time in it; -1
            where this keeps its own.
        cells: how many there are.
    """
    _, cell, *_ = windows
    first, shape = cell * len(Cause), (cells, len(Cause))
    region, _, start_ns, end_ns, cause = _pieces(idle, windows)
    return group_sum(first[region] + cause, prod(shape), end_ns - start_ns).reshape(shape)


def _pieces(idle: IdleIntervals, regions: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Return the region and row of each idle interval in a region, start and end there, and cause.

    Args:
        idle: of all ranks.
        regions: as of :func:`_time_by_cause`.
    """
    rank, _, low, high, given = regions
    # The last that ended by then, and the last that begins before the end.
    over = intervals.find_last_before(idle.rank, idle.end_ns, rank, low, or_at=True)
    last = intervals.find_last_before(idle.rank, idle.start_ns, rank, high)
    first = np.where(over == NONE, np.searchsorted(idle.rank, rank), over + 1)
    region, row = expand_ranges(first, np.maximum(first, last + 1))
    own, of_region = idle.cause[row], given[region]
    keeps_cause = _COUNTS_ALWAYS[own] | (idle.unrecorded[row] == 1)
    cause = np.where((of_region == NONE) | keeps_cause, own, of_region)
    start_ns = np.maximum(idle.start_ns[row], low[region])
    return region, row, start_ns, np.minimum(idle.end_ns[row], high[region]), cause


def _regions(stretch: Stretch, ratio: RatioDefinition) -> tuple[Ints, ...]:
    """Return where the windows of a ratio are cut.

    ::

        low    first         last    drained        filling     high
         ├warmup┤  own cause  ├─drain─┤  own cause   ├──warmup──┤
                                                     of the next iteration, in ``period`` alone

    Returns:
        Rank, iteration, start and end of each region, and the cause of idle time in it; -1 where
        this keeps its own.
    """
    window, extents = stretch.windows[ratio.name], stretch.extents
    known = (window.is_known[:, None] & extents.present).T
    low = np.where(known, window.start_ns.T, 0)
    high = np.maximum(np.where(known, window.end_ns.T, 0), low)
    last = extents.last_ns if ratio.work is CountedWork.ITERATION else extents.step_last_ns
    first_ns = np.clip(extents.first_ns.T, low, high)
    last_ns = np.clip(last.T, first_ns, high)
    drained = filling = high
    if ratio.work is CountedWork.EVERYTHING:
        # Between its iterations a run that only goes forward does not drain.
        drained = last_ns if stretch.forward else np.clip(stretch.ended_ns, last_ns, high)
        filling = high if stretch.forward else np.clip(stretch.begun_ns, drained, high)
    cuts = np.stack((low, first_ns, last_ns, drained, filling, high), axis=2)
    rank, iteration, region = np.nonzero(cuts[:, :, :-1] < cuts[:, :, 1:])
    causes = np.array((Cause.WARMUP, NONE, Cause.DRAIN, NONE, Cause.WARMUP), np.int64)
    since, until = cuts[rank, iteration, region], cuts[rank, iteration, region + 1]
    return rank, iteration, since, until, causes[region]
