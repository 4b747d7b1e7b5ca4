"""Time breakdown: every nanosecond of every rank's window attributed to one use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bubbleviz.align.run import Run
from bubbleviz.count.ratios import Windows
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table
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


def time_breakdowns(run: Run, windows: Mapping[str, Windows]) -> Mapping[str, TimeBreakdown]:
    """Return the breakdown of every window of every rank, by name of the ratio.

    The first use that covers an instant counts::

        iteration's own compute   ███   ██████
        its Optimizer                          ▓▓▓
        other iterations                          ░░░░
        unattributed compute         ▒▒
        window                    ├──────────────────────┤   the rest is bubble
    """
    computing, working = _busy_of(run, COMPUTE), _busy_of(run, WORK)
    loose, ranks = run.unattributed, len(run.ranks)
    everything = intervals.group_union(computing.rank, ranks, computing.start_ns, computing.end_ns)
    occupied = everything
    if len(loose):
        unattributed = loose.rank, loose.start_ns, loose.end_ns
        both = (np.concatenate(pair) for pair in zip(everything, unattributed, strict=True))
        rank, start_ns, end_ns = both
        occupied = intervals.group_union(rank, ranks, start_ns, end_ns)
    shape = len(run.iteration_names), ranks
    covers = _Covers(
        working=_of_iterations(working, shape),
        computing=_of_iterations(computing, shape),
        everything=intervals.GroupCover(everything, ranks),
        occupied=intervals.GroupCover(occupied, ranks),
    )
    return {name: _breakdown(window, covers) for name, window in windows.items()}


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
    start_ns: Ints
    end_ns: Ints


def _busy_of(run: Run, phases: Sequence[Phase]) -> _Busy:
    """Return when operations of some phases keep their rank busy."""
    of_row = run.operations.phase[run.busy.operation]
    rows = np.flatnonzero(np.isin(of_row, phases))
    operation = run.busy.operation[rows]
    return _Busy(
        run.operations.rank[operation],
        run.operations.iteration[operation],
        run.busy.start_ns[rows],
        run.busy.end_ns[rows],
    )


def _of_iterations(busy: _Busy, shape: tuple[int, int]) -> intervals.GroupCover:
    """Return the sets of each (iteration, rank)'s own intervals."""
    if busy.iteration.min(initial=0) < 0:
        busy = busy.take(busy.iteration >= 0)
    cell, cells = busy.iteration * shape[1] + busy.rank, shape[0] * shape[1]
    sets = intervals.group_union(cell, cells, busy.start_ns, busy.end_ns)
    return intervals.GroupCover(sets, cells)


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
