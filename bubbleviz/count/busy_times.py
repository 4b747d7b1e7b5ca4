"""Busy times: how each nanosecond of a rank's window was used, and how long kernels ran in it."""

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

#: Uses of the time in a window. They add up to its length.
USES = ("compute_ns", "optimizer_ns", "overlap_ns", "unattributed_ns", "bubble_ns")


def measure_use(
    part: RankSlice, windows: Mapping[str, Windows]
) -> dict[tuple[str, str], npt.NDArray[np.int64]]:
    """Measure how the ranks of a slice used the time of their windows.

    The first use that covers an instant counts::

        iteration's own compute   ███   ██████
        its Optimizer                          ▓▓▓
        other iterations                          ░░░░
        unattributed compute         ▒▒
        window                    ├──────────────────────┤   the rest is bubble

    Args:
        part: Slice of the ranks of a run.
        windows: Windows of all ranks, keyed by ratio name.

    Returns:
        ``(ratio, use)``: Time of each use in the windows of a ratio, shape (iterations, ranks).
        ``("", "phase_ns")``: Busy time (union) of each phase of COMPUTE, shape (iterations, ranks,
        phases). ``("", "compute_ns")``: Busy time (union) of F, B, W, BW, R and FB, shape
        (iterations, ranks).
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
    """Measure how much of each window is covered by compute of its rank, of any iteration, in ns.

    Args:
        part: Slice of the ranks of a run.
        compute: Rank, start and end of disjoint intervals in which compute operations were busy.
        low: Start of each window, shape (ratios, iterations, ranks).
        high: End of each window, same shape.

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
    """Return the time of each use of the windows, given the time that sets of intervals cover.

    Each set contains the previous one, so the uses are the differences.

    Args:
        ratios: Names of the ratios.
        covered_ns: Part of each window that is covered by one set per use except the last, shape
            (ratios, iterations, ranks) each.
        window_ns: Length of each window, same shape.

    Returns:
        ``(ratio, use)``: Time, shape (iterations, ranks).
    """
    times: dict[tuple[str, str], Ints] = {}
    parts_ns = np.diff([np.zeros_like(window_ns), *covered_ns, window_ns], axis=0)
    for ratio, of_uses in zip(ratios, np.moveaxis(parts_ns, 1, 0), strict=True):
        times |= {(ratio, use): part_ns for use, part_ns in zip(USES, of_uses, strict=True)}
    return times


@dataclass(frozen=True, eq=False, repr=False)
class _Compute(Table):
    """Busy intervals of compute operations, in order of (rank, start).

    Attributes:
        rank: Rank within the slice.
        iteration: Iteration of the operation, or -1 if it belongs to none.
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
    """Return the busy intervals of the compute operations of a slice."""
    operations, busy = part.operations, part.busy
    rank, iteration, phase = operations.rank, operations.iteration, operations.phase
    # Most operations have exactly one busy interval.
    if not np.array_equal(busy.operation, np.arange(len(operations))):
        rank, iteration, phase = (c[busy.operation] for c in (rank, iteration, phase))
    compute = _Compute(rank, iteration, phase, busy.start_ns, busy.end_ns)
    is_compute = mask_phases(phase, COMPUTE)
    return compute if is_compute.all() else compute.take(is_compute)


def _measure_by_cell(sets: intervals.GroupIntervals, low: Ints, high: Ints) -> Ints:
    """Measure how much of each window is covered by intervals of its iteration and rank, in ns.

    Args:
        sets: Cell, start and end of disjoint intervals.
        low: Start of each window, shape (ratios, iterations, ranks).
        high: End of each window, same shape.
    """
    shape = low.shape[1:]
    cells = np.broadcast_to(np.arange(prod(shape)).reshape(shape), low.shape)
    return intervals.measure_windows(sets, prod(shape), cells, low, high)


def _measure_by_rank(sets: intervals.GroupIntervals, low: Ints, high: Ints) -> Ints:
    """Measure how much of each window is covered by intervals of its rank, of any iteration, in ns.

    Args:
        sets: Rank, start and end of disjoint intervals.
        low: Start of each window, shape (ratios, iterations, ranks).
        high: End of each window, same shape.
    """
    ranks = np.broadcast_to(np.arange(low.shape[2]), low.shape)
    return intervals.measure_windows(sets, low.shape[2], ranks, low, high)


def _measure_phases(compute: _Compute, cell: Ints, shape: tuple[int, int]) -> Ints:
    """Measure the busy time (union) of each phase, shape (iterations, ranks, phases of COMPUTE).

    Args:
        compute: Busy intervals of compute operations in iterations.
        cell: Number of the iteration and rank of each interval.
        shape: Number of iterations and number of ranks.
    """
    index_of_phase = scatter(len(Phase), list(COMPUTE), np.arange(len(COMPUTE)))
    group = cell * len(COMPUTE) + index_of_phase[compute.phase]
    table_shape = (*shape, len(COMPUTE))
    busy_ns = intervals.group_measure(group, prod(table_shape), compute.start_ns, compute.end_ns)
    return busy_ns.reshape(table_shape)


def _collect_windows(part: RankSlice, windows: Mapping[str, Windows]) -> tuple[Ints, Ints]:
    """Return the starts and ends of a slice's windows, shape (ratios, iterations, ranks).

    Unknown windows are empty.

    Args:
        part: Slice of the ranks of a run.
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
    """Return the union of the intervals of each rank with further intervals.

    Args:
        sets: Rank, start and end of disjoint intervals.
        added: Further intervals of ranks.
        n_ranks: Number of ranks.
    """
    columns = added.rank, added.start_ns, added.end_ns
    rank, start_ns, end_ns = (np.concatenate(pair) for pair in zip(sets, columns, strict=True))
    return intervals.group_union(rank, n_ranks, start_ns, end_ns)


def measure_within_windows(times: RunningTimes, time_ns: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return the sum of a measured time over the intervals inside each window [low, high].

    If a window cuts an interval, its time counts in proportion to the part inside the window. The
    first start and last end of an iteration cut no interval.

    Args:
        times: Intervals of ranks with measured times.
        time_ns: Measured time of each interval, a column of ``times``.
        low_ns: Start of each window, shape (windows, ranks).
        high_ns: End of each window, not before its start, shape (windows, ranks).
    """
    sets, n_ranks = (times.rank, times.start_ns, times.end_ns), low_ns.shape[1]
    cover = intervals.GroupCover(sets, n_ranks, time_ns)
    return cover.within(np.arange(n_ranks), low_ns, high_ns)
