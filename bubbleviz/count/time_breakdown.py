"""Time breakdown: every nanosecond of every rank's window attributed to one use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from bubbleviz.count.rank_iterations import RankSlice, joined_ranks
from bubbleviz.count.ratios import Windows
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.operations import RunningTimes
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.values import frozen


@frozen
class TimeBreakdown:
    """How the time of each (iteration, rank) window was used; shape (iterations, ranks)."""

    compute_ns: Ints
    optimizer_ns: Ints
    overlap_ns: Ints
    unattributed_ns: Ints
    bubble_ns: Ints


@frozen
class BusyTimes:
    """When the ranks of a slice were busy.

    Attributes:
        breakdowns: of every window of every rank, by name of the ratio.
        phase_ns: union of each phase's busy time, shape (iterations, ranks, phases of COMPUTE).
        compute_ns: union of the busy time of F, B, W, BW, R and FB, shape (iterations, ranks).
    """

    breakdowns: Mapping[str, TimeBreakdown]
    phase_ns: Ints
    compute_ns: Ints


def busy_times(part: RankSlice, windows: Mapping[str, Windows]) -> BusyTimes:
    """Return when the ranks of a slice were busy.

    The first use that covers an instant counts::

        iteration's own compute   ███   ██████
        its Optimizer                          ▓▓▓
        other iterations                          ░░░░
        unattributed compute         ▒▒
        window                    ├──────────────────────┤   the rest is bubble

    Args:
        part: some ranks of a run.
        windows: of all ranks, by name of the ratio.
    """
    computing = _busy_of(part)
    working = computing.take(among(computing.phase, WORK))
    loose, ranks = part.unattributed, part.shape[1]
    everything = intervals.group_union(computing.rank, ranks, computing.start_ns, computing.end_ns)
    occupied = everything
    if len(loose):
        unattributed = loose.rank, loose.start_ns, loose.end_ns
        both = (np.concatenate(pair) for pair in zip(everything, unattributed, strict=True))
        rank, start_ns, end_ns = both
        occupied = intervals.group_union(rank, ranks, start_ns, end_ns)
    cells, own = part.iterations * ranks, slice(part.first, part.end)
    work = _of_iterations(working, part.shape)
    covers = _Covers(
        working=intervals.GroupCover(work, cells),
        computing=intervals.GroupCover(_of_iterations(computing, part.shape), cells),
        everything=intervals.GroupCover(everything, ranks),
        occupied=intervals.GroupCover(occupied, ranks),
    )
    return BusyTimes(
        {name: _breakdown(window.of_ranks(own), covers) for name, window in windows.items()},
        _by_phase(computing, part.shape),
        intervals.group_sum(work[0], cells, work[2] - work[1]).reshape(part.shape),
    )


@frozen
class _Covers:
    """When ranks were busy, laid out to be measured in any windows.

    Attributes:
        working: with an iteration's own work; a set an (iteration, rank).
        computing: that with the Optimizer; likewise.
        everything: with any compute operation; a set a rank.
        occupied: that with compute outside operations; likewise.
    """

    working: intervals.GroupCover
    computing: intervals.GroupCover
    everything: intervals.GroupCover
    occupied: intervals.GroupCover


@frozen
class _Busy(Table):
    """Busy intervals of operations."""

    rank: Ints
    iteration: Ints
    phase: Ints
    start_ns: Ints
    end_ns: Ints


def _busy_of(part: RankSlice) -> _Busy:
    """Return when operations that compute keep their rank busy."""
    operations, busy = part.operations, part.busy
    if np.array_equal(busy.operation, np.arange(len(operations))):
        columns = operations.rank, operations.iteration, operations.phase
    else:
        owner = busy.operation
        columns = operations.rank[owner], operations.iteration[owner], operations.phase[owner]
    table = _Busy(*columns, busy.start_ns, busy.end_ns)
    computes = among(table.phase, COMPUTE)
    return table if computes.all() else table.take(computes)


def _of_iterations(busy: _Busy, shape: tuple[int, int]) -> intervals.GroupIntervals:
    """Return the sets of each (iteration, rank)'s own intervals."""
    if busy.iteration.min(initial=0) < 0:
        busy = busy.take(busy.iteration >= 0)
    cell, cells = busy.iteration * shape[1] + busy.rank, shape[0] * shape[1]
    return intervals.group_union(cell, cells, busy.start_ns, busy.end_ns)


def _breakdown(window: Windows, covers: _Covers) -> TimeBreakdown:
    """Return how the windows of a ratio were used."""
    known = window.known[:, None]
    low = np.where(known, window.start_ns, 0)
    high = np.maximum(np.where(known, window.end_ns, 0), low)
    cell = np.arange(low.size).reshape(low.shape)
    rank = np.broadcast_to(np.arange(low.shape[1]), low.shape)
    compute_ns = covers.working.within(cell, low, high)
    step_ns = covers.computing.within(cell, low, high)
    covered_ns = covers.everything.within(rank, low, high)
    occupied_ns = covers.occupied.within(rank, low, high)
    return TimeBreakdown(
        compute_ns=compute_ns,
        optimizer_ns=step_ns - compute_ns,
        overlap_ns=covered_ns - step_ns,
        unattributed_ns=occupied_ns - covered_ns,
        bubble_ns=high - low - occupied_ns,
    )


def _by_phase(busy: _Busy, shape: tuple[int, int]) -> Ints:
    """Return the union of each phase's busy time, shape (iterations, ranks, phases of COMPUTE)."""
    place = np.full(len(Phase), NONE, np.int64)
    place[list(COMPUTE)] = np.arange(len(COMPUTE))
    if busy.iteration.min(initial=0) < 0:
        busy = busy.take(busy.iteration >= 0)
    kinds = (*shape, len(COMPUTE))
    cell = (busy.iteration * shape[1] + busy.rank) * len(COMPUTE) + place[busy.phase]
    total = intervals.group_measure(cell, prod(kinds), busy.start_ns, busy.end_ns)
    return total.reshape(kinds)


def joined_times(parts: Sequence[BusyTimes]) -> BusyTimes:
    """Return the times of all slices of a run as one.

    Args:
        parts: of the slices, in their order.
    """
    names = parts[0].breakdowns
    return BusyTimes(
        {
            name: TimeBreakdown(*joined_ranks([vars(part.breakdowns[name]) for part in parts]))
            for name in names
        },
        *joined_ranks([{"phase_ns": p.phase_ns, "compute_ns": p.compute_ns} for p in parts]),
    )


# Running time: how long kernels and copies ran in windows of iterations.


def time_within(times: RunningTimes, time_ns: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return how much of a time lies in each window [low, high].

    Of a stretch that a window cuts, the time counts by the share of the stretch inside. Iterations'
    own first starts and last ends cut none.

    Args:
        times: the stretches of the ranks.
        time_ns: one of their columns.
        low_ns: starts of windows, shape (windows, ranks).
        high_ns: their ends, likewise; none is before its start.
    """
    if len(times) == 0:
        return np.zeros_like(low_ns)
    every = np.arange(low_ns.shape[1])
    sets = times.rank, times.start_ns, times.end_ns
    cover = intervals.GroupCover(sets, len(every))
    (start, end), low, high = cover.line, cover.place(every, low_ns), cover.place(every, high_ns)
    before_ns = np.concatenate(([0], np.cumsum(time_ns)))

    def upto(place: Ints) -> Ints:
        row = np.searchsorted(start, place, side="right") - 1
        at = np.maximum(row, 0)
        share = np.clip((place - start[at]) / np.maximum(end[at] - start[at], 1), 0, 1)
        part_ns = np.rint(time_ns[at] * share).astype(np.int64)
        return np.where(row >= 0, before_ns[at] + part_ns, 0)

    return upto(high) - upto(low)
