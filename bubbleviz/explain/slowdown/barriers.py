"""Add the gradient synchronization of data-parallel ranks if it was not recorded.

Data-parallel ranks reduce their gradients in the last backward of an iteration. No rank can end it
before all ranks have entered the reduction. If the reduction was not recorded, as in a recording of
ranges only, the waiting of the fast ranks looks like work of their last backward::

    rank 0   ├ F ┤├──────── B ────────────┤         ├ F ┤├─ B ─┤├─ waits ──────┤
    rank 1   ·· late ··├ F ┤├──── B ──────┤   ->    ·· late ··├ F ┤├─ B ─┤├────┤

The ranks do equal amounts of work. In each iteration, the rank that starts its last backward last
waits least. The last backwards of the other ranks are cut to the time that this rank took, scaled
by how fast each rank usually is. The time that was cut off becomes a collective of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.explain.slowdown.replayed_run import ReplayedRun
from bubbleviz.explain.slowdown.run_work import find_computing_rows
from bubbleviz.explain.slowdown.work import group_medians
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Floats, Ints, Table
from bubbleviz.model.grouping import Groups, find_first_rows, group_rows, sort_rows
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import BACKWARD, Phase

#: Minimum spread of the starts of the last backwards, as a multiple of the spread of their ends.
_MIN_SPREAD_RATIO = 4.0
#: Maximum standard deviation, over iterations, of the logarithm of the work in last backwards.
_MAX_VARIATION = 0.2
#: Minimum fraction of the iterations in which ranks wait for each other.
_MIN_WAITING_ITERATIONS = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class _LastBackwards(Table):
    """The last backward of each rank in each averaged iteration, sorted by (iteration, rank).

    Attributes:
        row: Row of the operations table.
        rank: Index of the rank.
        iteration: Index of the iteration.
        start_ns: Start of the backward.
        end_ns: End of the backward.
    """

    row: Ints
    rank: Ints
    iteration: Ints
    start_ns: Ints
    end_ns: Ints


def insert_barriers(run: ReplayedRun) -> ReplayedRun:
    """Add a collective of all ranks at the end of each iteration, if it was not recorded.

    The run is returned unchanged unless its ranks are data-parallel and wait for each other. The
    following conditions must hold:

    - There are several ranks, all on one host and in one stage, and no collective was recorded.
    - Every rank has a backward in each averaged iteration in which any rank has one.
    - The work of the last backwards is about the same in all iterations.
    - In at least half of these iterations, the last backwards start at least four times as far
      apart as they end.

    Args:
        run: The replayed run.
    """
    is_single_stage = len({rank.stage for rank in run.ranks}) == 1
    is_single_host = len({rank.host for rank in run.ranks}) == 1
    if len(run.ranks) < 2 or not is_single_stage or not is_single_host or len(run.collectives):
        return run
    last = _find_last_backwards(run)
    iterations = group_rows(last.iteration)
    n_iterations = len(iterations)
    if not n_iterations or len(last) != n_iterations * len(run.ranks):
        return run
    if not _end_together(last, iterations):
        return run

    own_ns = _estimate_own_times(run, last, iterations)
    if own_ns is None:
        return run
    own_end_ns = last.start_ns + np.rint(own_ns).astype(np.int64)
    operations = _cut_operations(run.operations, last, own_end_ns)
    barriers = _make_barriers(run, last, iterations, own_end_ns)
    return replace(run, operations=operations, collectives=barriers)


def _find_last_backwards(run: ReplayedRun) -> _LastBackwards:
    """Find the last backward of each rank in each averaged iteration."""
    operations = run.operations
    rows = find_computing_rows(operations, run.averaged, BACKWARD)
    parts = group_rows(operations.iteration[rows], operations.rank[rows])
    last_rows = rows[find_first_rows(parts.of_row, -operations.end_ns[rows])]
    return _LastBackwards(
        last_rows,
        operations.rank[last_rows],
        operations.iteration[last_rows],
        operations.start_ns[last_rows],
        operations.end_ns[last_rows],
    )


def _end_together(last: _LastBackwards, iterations: Groups) -> bool:
    """Return whether ranks seem to wait for each other in their last backwards.

    In at least half of the iterations, the starts of the last backwards must be at least
    ``_MIN_SPREAD_RATIO`` times as far apart as their ends.

    Args:
        last: The last backwards.
        iterations: Groups of last backwards in the same iteration.
    """
    group = iterations.of_row, len(iterations)
    first_start_ns, last_start_ns = group_extents(*group, last.start_ns, last.start_ns)
    first_end_ns, last_end_ns = group_extents(*group, last.end_ns, last.end_ns)
    start_spread_ns, end_spread_ns = last_start_ns - first_start_ns, last_end_ns - first_end_ns
    is_waiting = start_spread_ns >= _MIN_SPREAD_RATIO * np.maximum(end_spread_ns, 1)
    return bool(is_waiting.mean() >= _MIN_WAITING_ITERATIONS)


def _estimate_own_times(
    run: ReplayedRun, last: _LastBackwards, iterations: Groups
) -> Floats | None:
    """Estimate how long each last backward computed, without waiting, in ns.

    The rank whose last backward starts last waits least, so its length is the norm of the
    iteration. The other ranks are assumed to compute equally long, scaled by their pace
    (:func:`_measure_forward_paces`), and at most as long as measured.

    Args:
        run: The replayed run.
        last: The last backwards.
        iterations: Groups of last backwards in the same iteration.

    Returns:
        One time per last backward. None if the norms of the iterations differ by more than
        ``_MAX_VARIATION``, because the amount of work then varies between iterations or ranks.
    """
    length_ns = (last.end_ns - last.start_ns).astype(np.float64)
    pace = _measure_forward_paces(run)[last.rank]
    latest = find_first_rows(iterations.of_row, -last.start_ns)
    norm_ns = np.maximum((length_ns / pace)[latest], 1.0)
    if float(np.log(norm_ns).std()) > _MAX_VARIATION:
        return None
    return np.asarray(np.minimum(norm_ns[iterations.of_row] * pace, length_ns), np.float64)


def _measure_forward_paces(run: ReplayedRun) -> Floats:
    """Return the pace of each rank: its median forward time, relative to the median over all ranks.

    All paces are 1 if any rank has no forward.
    """
    operations = run.operations
    rows = find_computing_rows(operations, run.averaged, (Phase.F,))
    length_ns = (operations.end_ns - operations.start_ns)[rows].astype(np.float64)
    n_ranks = len(run.ranks)
    median_ns = group_medians(operations.rank[rows], n_ranks, length_ns)
    if np.isnan(median_ns).any():
        return np.ones(n_ranks)
    return np.asarray(np.maximum(median_ns, 1.0) / max(float(np.median(median_ns)), 1.0))


def _cut_operations(operations: Operations, last: _LastBackwards, own_end_ns: Ints) -> Operations:
    """Shorten the last backwards so that they end when their own work ends.

    Args:
        operations: Operations of all ranks.
        last: The last backwards.
        own_end_ns: Time at which each last backward ends its own work.
    """
    end_ns, busy_ns, active_ns = (
        column.copy() for column in (operations.end_ns, operations.busy_ns, operations.active_ns)
    )
    waited_ns = last.end_ns - own_end_ns
    end_ns[last.row] = own_end_ns
    busy_ns[last.row] = np.maximum(busy_ns[last.row] - waited_ns, 0)
    active_ns[last.row] = np.minimum(active_ns[last.row], busy_ns[last.row])
    return operations.replace_columns(end_ns=end_ns, busy_ns=busy_ns, active_ns=active_ns)


def _make_barriers(
    run: ReplayedRun, last: _LastBackwards, iterations: Groups, own_end_ns: Ints
) -> CollectiveIntervals:
    """Build one collective of all ranks per iteration. Each rank enters it when its own work ends.

    Args:
        run: The replayed run.
        last: The last backwards.
        iterations: Groups of last backwards in the same iteration.
        own_end_ns: Time at which each last backward ends its own work.
    """
    unset = np.full(len(last), NONE, np.int64)
    zero = np.zeros(len(last), np.int64)
    collectives = CollectiveIntervals(
        rank=last.rank,
        iteration=last.iteration,
        kind=unset,
        group=unset,
        order=zero,
        sequence=unset,
        start_ns=own_end_ns,
        end_ns=last.end_ns,
        late_ns=zero,
        operation=unset,
        meeting=iterations.of_row,
        kinds=run.collectives.kinds,
        groups=run.collectives.groups,
    )
    return collectives.take(sort_rows(last.rank, own_end_ns))
