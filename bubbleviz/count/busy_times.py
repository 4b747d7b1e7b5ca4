"""Busy times: the use of each nanosecond of each rank's window, and running times of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from bubbleviz.count.rank_slices import RankSlice
from bubbleviz.count.ratios import Windows
from bubbleviz.model import intervals
from bubbleviz.model.columns import Ints, scatter
from bubbleviz.model.operations import RunningTimes
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE, WORK, Phase

#: Uses of a window's time, which add up to it.
USES = ("compute_ns", "optimizer_ns", "overlap_ns", "unattributed_ns", "bubble_ns")


def measure_use(
    part: RankSlice, windows: Mapping[str, Windows]
) -> dict[tuple[str, str], npt.NDArray[np.int64]]:
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

    Returns:
        By the name of a ratio and of a use, how long each window was used so, shape (iterations,
        ranks); and by "" and ``phase_ns`` the union of each phase's busy time, shape (iterations,
        ranks, phases of COMPUTE), by "" and ``compute_ns`` that of F, B, W, BW, R and FB.
    """
    loose, (iterations, ranks) = part.unattributed, part.shape
    operations, busy = part.operations, part.busy
    columns: list[Ints] = [operations.rank, operations.iteration, operations.phase]
    if not np.array_equal(busy.operation, np.arange(len(operations))):
        columns = [column[busy.operation] for column in columns]
    computing = [*columns, busy.start_ns, busy.end_ns]
    computes = mask_phases(computing[2], COMPUTE)
    if not computes.all():
        computing = [column[computes] for column in computing]
    everything = intervals.group_union(computing[0], ranks, computing[3], computing[4])
    if computing[1].min(initial=0) < 0:
        computing = [column[computing[1] >= 0] for column in computing]
    rank, iteration, phase, start_ns, end_ns = computing
    place = scatter(len(Phase), list(COMPUTE), np.arange(len(COMPUTE)))
    owner = iteration * ranks + rank
    kinds, cells = (iterations, ranks, len(COMPUTE)), iterations * ranks
    owner_of_phase = owner * len(COMPUTE) + place[phase]
    phase_ns = intervals.group_measure(owner_of_phase, prod(kinds), start_ns, end_ns)
    work = intervals.group_union(owner, cells, start_ns, end_ns, mask_phases(phase, WORK))
    with_step = intervals.group_union(owner, cells, start_ns, end_ns)
    compute_ns = intervals.group_sum(work[0], cells, work[2] - work[1])
    times = {
        ("", "phase_ns"): phase_ns.reshape(kinds),
        ("", "compute_ns"): compute_ns.reshape(part.shape),
    }
    own_windows = [of_run.of_ranks(slice(part.first, part.end)) for of_run in windows.values()]
    known = np.stack([window.is_known[:, None] for window in own_windows])
    low = np.where(known, np.stack([window.start_ns for window in own_windows]), 0)
    high = np.where(known, np.stack([window.end_ns for window in own_windows]), 0)
    high = np.maximum(high, low)
    cell = np.broadcast_to(np.arange(cells).reshape(part.shape), low.shape)
    every_rank = np.broadcast_to(np.arange(ranks), low.shape)
    # Each covers what the one before does, and more.
    covered = [intervals.measure_windows(s, cells, cell, low, high) for s in (work, with_step)]
    covered.append(intervals.measure_windows(everything, ranks, every_rank, low, high))
    covered.append(covered[-1])
    if len(loose):
        unattributed = loose.rank, loose.start_ns, loose.end_ns
        both = [np.concatenate(pair) for pair in zip(everything, unattributed, strict=True)]
        occupied = intervals.group_union(both[0], ranks, both[1], both[2])
        covered[-1] = intervals.measure_windows(occupied, ranks, every_rank, low, high)
    parts = np.diff([np.zeros_like(low), *covered, high - low], axis=0)
    for name, of_uses in zip(windows, np.moveaxis(parts, 1, 0), strict=True):
        times |= {(name, use): part_ns for use, part_ns in zip(USES, of_uses, strict=True)}
    return times


def measure_within_windows(times: RunningTimes, time_ns: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return how much of a time lies in each window [low, high].

    Of a stretch that a window cuts, the time counts by the share of the stretch inside. Iterations'
    own first starts and last ends cut none.

    Args:
        times: the stretches of the ranks.
        time_ns: one of their columns.
        low_ns: starts of windows, shape (windows, ranks).
        high_ns: their ends, likewise; none is before its start.
    """
    sets, ranks = (times.rank, times.start_ns, times.end_ns), low_ns.shape[1]
    return intervals.GroupCover(sets, ranks, time_ns).within(np.arange(ranks), low_ns, high_ns)
