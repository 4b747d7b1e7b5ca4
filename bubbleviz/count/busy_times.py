"""Busy times: how ranks spent every nanosecond of their windows, and how long kernels ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from bubbleviz.count.rank_slices import RankSlice
from bubbleviz.count.ratios import Windows
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints, Table, scatter
from bubbleviz.model.operations import RankIntervals, RunningTimes
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, WORK, Phase

#: The uses of the time in a window. Their times add up to the window length.
USES = ("compute_ns", "optimizer_ns", "overlap_ns", "unattributed_ns", "bubble_ns")


def measure_use(
    part: RankSlice, windows: Mapping[str, Windows]
) -> dict[tuple[str, str], npt.NDArray[np.int64]]:
    """Measure how the ranks in a slice spent the time in their windows.

    Every instant of a window is assigned to the first use in this list that covers it::

        iteration's own compute   ███   ██████
        its Optimizer                          ▓▓▓
        other iterations                          ░░░░
        unattributed compute         ▒▒
        window                    ├──────────────────────┤   the rest is bubble

    Args:
        part: Consecutive ranks of the run, along with their operations.
        windows: Windows of all ranks, keyed by ratio name.

    Returns:
        Times in ns, under these keys:

        - ``(ratio, use)``: Time spent on a use from :data:`USES` in the windows of a ratio, shape
          (iterations, ranks).
        - ``("", "phase_ns")``: Busy time of each phase in ``COMPUTE``, shape
          (iterations, ranks, phases).
        - ``("", "compute_ns")``: Combined busy time of F, B, W, BW, R and FB, shape (iterations,
          ranks).

        Busy times count overlaps only once.
    """
    n_ranks = part.shape[1]
    compute = _select_compute(part)
    all_compute = intervals.group_union(compute.rank, n_ranks, compute.start_ns, compute.end_ns)
    if compute.iteration.min(initial=0) < 0:
        compute = compute.take(compute.iteration >= 0)
    n_cells, cell = prod(part.shape), compute.iteration * n_ranks + compute.rank
    work = intervals.group_union(
        cell, n_cells, compute.start_ns, compute.end_ns, mask_phases(compute.phase, WORK)
    )
    with_step = intervals.group_union(cell, n_cells, compute.start_ns, compute.end_ns)
    work_ns = intervals.group_sum(work[0], n_cells, work[2] - work[1])
    times = {
        ("", "phase_ns"): _measure_phases(compute, cell, part.shape),
        ("", "compute_ns"): work_ns.reshape(part.shape),
    }
    low, high = _collect_windows(part, windows)
    covered = [_measure_by_cell(sets, low, high) for sets in (work, with_step)]
    covered.extend(_measure_rank_cover(part, all_compute, low, high))
    return times | _subtract_covered_times(tuple(windows), covered, high - low)


def _measure_rank_cover(
    part: RankSlice, compute: intervals.GroupIntervals, low: Ints, high: Ints
) -> tuple[Ints, Ints]:
    """Measure, in ns, how much of each window is covered by the rank's compute in any iteration.

    Args:
        part: Consecutive ranks of the run, along with their operations.
        compute: Rank, start and end of disjoint intervals in which compute operations were busy.
        low: Window starts, shape (ratios, iterations, ranks).
        high: Window ends, with the same shape.

    Returns:
        attributed: Time covered by ``compute``.
        any_compute: Time covered by ``compute`` or unattributed compute.
    """
    attributed = _measure_by_rank(compute, low, high)
    if not len(part.unattributed):
        return attributed, attributed
    occupied = _add_intervals(compute, part.unattributed, part.shape[1])
    return attributed, _measure_by_rank(occupied, low, high)


def _subtract_covered_times(
    ratios: Sequence[str], covered_ns: Sequence[Ints], window_ns: Ints
) -> dict[tuple[str, str], Ints]:
    """Compute the time spent on each use from the times covered by nested sets of intervals.

    Each set contains the previous one, so the time spent on a use is ``covered_ns[use] -
    covered_ns[use - 1]``. The last use (bubble) gets the rest of the window.

    Args:
        ratios: Names of the ratios.
        covered_ns: For each use except the last, the part of each window that the set covers, shape
            (ratios, iterations, ranks).
        window_ns: Window lengths, with the same shape.

    Returns:
        Time spent on each use in ns, shape (iterations, ranks), keyed by (ratio, use).
    """
    times: dict[tuple[str, str], Ints] = {}
    parts_ns = np.diff([np.zeros_like(window_ns), *covered_ns, window_ns], axis=0)
    for ratio, of_uses in zip(ratios, np.moveaxis(parts_ns, 1, 0), strict=True):
        times |= {(ratio, use): part_ns for use, part_ns in zip(USES, of_uses, strict=True)}
    return times


@dataclass(frozen=True, eq=False, repr=False)
class _Compute(Table):
    """Busy intervals of compute operations, sorted by (rank, start).

    Attributes:
        rank: Rank within the slice.
        iteration: Iteration to which the operation belongs, or -1 if there is none.
        phase: Phase of the operation.
        start_ns: Start of the interval.
        end_ns: End of the interval.
    """

    rank: Ints
    iteration: Ints
    phase: Ints
    start_ns: Ints
    end_ns: Ints


def _select_compute(part: RankSlice) -> _Compute:
    """Return the busy intervals of a slice's compute operations."""
    operations, busy = part.operations, part.busy
    rank, iteration, phase = operations.rank, operations.iteration, operations.phase
    # Most operations have exactly one busy interval.
    if not np.array_equal(busy.operation, np.arange(len(operations))):
        rank, iteration, phase = (c[busy.operation] for c in (rank, iteration, phase))
    compute = _Compute(rank, iteration, phase, busy.start_ns, busy.end_ns)
    is_compute = mask_phases(phase, COMPUTE)
    return compute if is_compute.all() else compute.take(is_compute)


def _measure_by_cell(sets: intervals.GroupIntervals, low: Ints, high: Ints) -> Ints:
    """Measure, in ns, how much of each window is covered by intervals of its iteration and rank.

    Args:
        sets: Cell (``iteration * n_ranks + rank``), start and end of disjoint intervals.
        low: Window starts, shape (ratios, iterations, ranks).
        high: Window ends, with the same shape.
    """
    shape = low.shape[1:]
    cells = np.broadcast_to(np.arange(prod(shape)).reshape(shape), low.shape)
    return intervals.measure_windows(sets, prod(shape), cells, low, high)


def _measure_by_rank(sets: intervals.GroupIntervals, low: Ints, high: Ints) -> Ints:
    """Measure, in ns, how much of each window is covered by intervals of its rank in any iteration.

    Args:
        sets: Rank, start and end of disjoint intervals.
        low: Window starts, shape (ratios, iterations, ranks).
        high: Window ends, with the same shape.
    """
    ranks = np.broadcast_to(np.arange(low.shape[2]), low.shape)
    return intervals.measure_windows(sets, low.shape[2], ranks, low, high)


def _measure_phases(compute: _Compute, cell: Ints, shape: tuple[int, int]) -> Ints:
    """Measure the busy time of each phase in ``COMPUTE``, shape (iterations, ranks, phases).

    Overlapping intervals of a phase are counted only once.

    Args:
        compute: Busy intervals of compute operations in iterations.
        cell: Cell (``iteration * n_ranks + rank``) of each interval.
        shape: Number of iterations, and number of ranks.
    """
    index_of_phase = scatter(len(Phase), list(COMPUTE), np.arange(len(COMPUTE)))
    group = cell * len(COMPUTE) + index_of_phase[compute.phase]
    table_shape = (*shape, len(COMPUTE))
    busy_ns = intervals.group_measure(group, prod(table_shape), compute.start_ns, compute.end_ns)
    return busy_ns.reshape(table_shape)


def _collect_windows(part: RankSlice, windows: Mapping[str, Windows]) -> tuple[Ints, Ints]:
    """Return a slice's window starts and ends, shape (ratios, iterations, ranks).

    Unknown windows are replaced by empty ones.

    Args:
        part: Consecutive ranks of the run, along with their operations.
        windows: Windows of all ranks, keyed by ratio name.
    """
    of_slice = [of_run.of_ranks(slice(part.first, part.end)) for of_run in windows.values()]
    is_known = np.stack([window.is_known[:, None] for window in of_slice])
    low = np.where(is_known, np.stack([window.start_ns for window in of_slice]), 0)
    high = np.where(is_known, np.stack([window.end_ns for window in of_slice]), 0)
    return low, np.maximum(high, low)


def _add_intervals(
    sets: intervals.GroupIntervals, added: RankIntervals, n_ranks: int
) -> intervals.GroupIntervals:
    """Add intervals to each rank's disjoint intervals, and return the union.

    Args:
        sets: Rank, start and end of disjoint intervals.
        added: Additional intervals of ranks.
        n_ranks: Number of ranks.
    """
    columns = added.rank, added.start_ns, added.end_ns
    rank, start_ns, end_ns = (np.concatenate(pair) for pair in zip(sets, columns, strict=True))
    return intervals.group_union(rank, n_ranks, start_ns, end_ns)


def measure_within_windows(times: RunningTimes, time_ns: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Sum a measured time over the intervals in each window.

    If only a fraction of an interval lies inside a window, that fraction of its measured time is
    added. Intervals are never cut by an iteration's first start or last end.

    Args:
        times: Intervals of ranks with measured times.
        time_ns: Measured time of each interval, for example ``times.running_ns``.
        low_ns: Start of each window, shape (windows, ranks).
        high_ns: End of each window, shape (windows, ranks). An end must not be before its start.

    Returns:
        Sum for each window, in ns, shape (windows, ranks).
    """
    sets, n_ranks = (times.rank, times.start_ns, times.end_ns), low_ns.shape[1]
    cover = intervals.GroupCover(sets, n_ranks, time_ns)
    return cover.within(np.arange(n_ranks), low_ns, high_ns)
