"""Time breakdown: every nanosecond of every rank's window attributed to one use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.ratios import Windows
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
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

    @staticmethod
    def zeros(iterations: int, ranks: int) -> TimeBreakdown:
        """Return columns of zeros, to be filled in."""
        zero = np.zeros((5, iterations, ranks), np.int64)
        return TimeBreakdown(zero[0], zero[1], zero[2], zero[3], zero[4])


def time_breakdowns(run: Run, windows: Mapping[str, Windows]) -> Mapping[str, TimeBreakdown]:
    """Return the breakdown of every window of every rank, by name of the ratio.

    The first use that covers an instant counts::

        iteration's own compute   ███   ██████
        its Optimizer                          ▓▓▓
        other iterations                          ░░░░
        unattributed compute         ▒▒
        window                    ├──────────────────────┤   the rest is bubble
    """
    iterations, ranks = len(run.iteration_names), len(run.ranks)
    breakdowns = {name: TimeBreakdown.zeros(iterations, ranks) for name in windows}
    phase, iteration = run.operations.phase, run.operations.iteration
    rank_of_busy = run.operations.rank[run.busy.operation]
    bounds = np.searchsorted(rank_of_busy, np.arange(ranks + 1))
    unattributed_bounds = np.searchsorted(run.unattributed.rank, np.arange(ranks + 1))
    for rank in range(ranks):
        rows = slice(bounds[rank], bounds[rank + 1])
        operation = run.busy.operation[rows]
        busy = _Busy(
            phase[operation], iteration[operation], run.busy.start_ns[rows], run.busy.end_ns[rows]
        )
        unattributed_rows = slice(unattributed_bounds[rank], unattributed_bounds[rank + 1])
        unattributed = (
            run.unattributed.start_ns[unattributed_rows],
            run.unattributed.end_ns[unattributed_rows],
        )
        _break_down_rank(busy, unattributed, rank, windows, breakdowns)
    return breakdowns


@frozen
class _Busy:
    """Busy intervals of one rank."""

    phase: Ints
    iteration: Ints
    start_ns: Ints
    end_ns: Ints

    def of(self, phases: Sequence[Phase]) -> _Busy:
        """Return those of some phases."""
        rows = np.isin(self.phase, phases)
        return _Busy(self.phase[rows], self.iteration[rows], self.start_ns[rows], self.end_ns[rows])


def _break_down_rank(
    busy: _Busy,
    unattributed: intervals.Intervals,
    rank: int,
    windows: Mapping[str, Windows],
    breakdowns: Mapping[str, TimeBreakdown],
) -> None:
    """Fill in one rank's column."""
    work, compute = busy.of(WORK), busy.of(COMPUTE)
    everything = intervals.union(compute.start_ns, compute.end_ns)
    occupied_intervals = intervals.union(
        np.concatenate((everything[0], unattributed[0])),
        np.concatenate((everything[1], unattributed[1])),
    )
    for name, window in windows.items():
        low = np.where(window.known, window.start_ns[:, rank], 0)
        high = np.maximum(np.where(window.known, window.end_ns[:, rank], 0), low)
        compute_ns = _iteration_time(work, low, high)
        step_ns = _iteration_time(compute, low, high)
        covered = intervals.measure_within(everything, low, high)
        occupied = intervals.measure_within(occupied_intervals, low, high)
        breakdown = breakdowns[name]
        breakdown.compute_ns[:, rank] = compute_ns
        breakdown.optimizer_ns[:, rank] = step_ns - compute_ns
        breakdown.overlap_ns[:, rank] = covered - step_ns
        breakdown.unattributed_ns[:, rank] = occupied - covered
        breakdown.bubble_ns[:, rank] = high - low - occupied


def _iteration_time(busy: _Busy, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return for each iteration the union of its own intervals inside its window."""
    rows = busy.iteration >= 0
    iteration = busy.iteration[rows]
    start_ns = np.clip(busy.start_ns[rows], low_ns[iteration], high_ns[iteration])
    end_ns = np.clip(busy.end_ns[rows], low_ns[iteration], high_ns[iteration])
    return intervals.group_measure(iteration, len(low_ns), start_ns, end_ns)


def busy_by_phase(run: Run) -> Ints:
    """Return the union of each phase's busy time, shape (iterations, ranks, phases of COMPUTE)."""
    place = np.full(len(Phase), NONE, np.int64)
    place[list(COMPUTE)] = np.arange(len(COMPUTE))
    return _busy_time(run, place, len(COMPUTE))


def compute_time(run: Run) -> Ints:
    """Return the union of the busy time of F, B, W, BW, R and FB, shape (iterations, ranks)."""
    together = np.full(len(Phase), NONE, np.int64)
    together[list(WORK)] = 0
    return _busy_time(run, together, 1)[:, :, 0]


def _busy_time(run: Run, kind_of_phase: Ints, kinds: int) -> Ints:
    """Return the union of each kind's busy time, shape (iterations, ranks, kinds); -1 is none."""
    shape = (len(run.iteration_names), len(run.ranks), kinds)
    operation = run.busy.operation
    kind = kind_of_phase[run.operations.phase[operation]]
    iteration = run.operations.iteration[operation]
    rows = (kind >= 0) & (iteration >= 0)
    cell = (iteration * shape[1] + run.operations.rank[operation]) * shape[2] + kind
    total = intervals.group_measure(
        cell[rows], shape[0] * shape[1] * shape[2], run.busy.start_ns[rows], run.busy.end_ns[rows]
    )
    return total.reshape(shape)
