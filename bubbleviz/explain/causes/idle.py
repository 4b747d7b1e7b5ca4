"""Idle intervals: when ranks ran nothing, cut by cause, independent of any window.

An idle interval before an operation is cut where the operation's input becomes ready, where the
receive is launched, and where the receive ends::

    last work ├──────────┬─────────┬───────────────┬──────┤ next operation
               dependency    host    communication   other
                         ready     launched      received

Where the stages are unknown, so is whether the input of an operation without a receive was ready.
Time under the profiler's own work goes to it first. Under a collective, a rank depends on the last
member until that has entered; from then on the collective is the cause. Where a receive was
recorded, its launch and end are the cuts; the operation's own launch counts from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals, arrivals
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Windows
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.collective_waits import CollectiveWaits
from bubbleviz.explain.causes.idle_intervals import IdleIntervals, in_collectives, overlaid
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.values import frozen


def idle_of(
    run: Run, counts: Counts, inputs: Inputs, collectives: CollectiveWaits
) -> Iterator[IdleIntervals]:
    """Yield the idle intervals of each rank between its earliest and its latest window."""
    operations = run.operations
    waits = _waits(operations, inputs)
    computing = np.isin(operations.phase, COMPUTE)
    ranks = np.arange(len(run.ranks) + 1)
    bounds = np.searchsorted(operations.rank[run.busy.operation], ranks).tolist()
    at = np.searchsorted(collectives.rank, ranks).tolist()
    for rank in range(len(run.ranks)):
        low, high = _ends(counts.windows, counts.extents.present[:, rank], rank)
        rows = np.arange(bounds[rank], bounds[rank + 1])
        rows = rows[computing[run.busy.operation[rows]]]
        rows = rows[np.argsort(run.busy.start_ns[rows], kind="stable")]
        start_ns, end_ns = run.busy.start_ns[rows], run.busy.end_ns[rows]
        loose = _of_rank(run.unattributed, rank)
        covered = intervals.union(
            np.concatenate((start_ns, loose[0])), np.concatenate((end_ns, loose[1]))
        )
        gaps = intervals.difference(intervals.union(low, high), covered)
        of_busy = run.busy.operation[rows]
        after = _next(gaps[1], start_ns, of_busy)
        before = _previous(gaps[0], end_ns, of_busy)
        idle = _cut(waits, gaps, before, after)
        idle = in_collectives(
            idle, _of_rank(run.exposed, rank), collectives.take(slice(*at[rank : rank + 2]))
        )
        yield overlaid(idle, _of_rank(run.overheads, rank), Cause.PROFILER)


def _ends(windows: Mapping[str, Windows], present: Bools, rank: int) -> intervals.Intervals:
    """Return the earliest start and the latest end of a rank's windows, if it has any."""
    starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for window in windows.values():
        known = window.known & present
        starts.append(window.start_ns[known, rank])
        ends.append(window.end_ns[known, rank])
    start_ns, end_ns = np.concatenate(starts), np.concatenate(ends)
    if len(start_ns) == 0:
        return intervals.empty()
    return start_ns.min(keepdims=True), end_ns.max(keepdims=True)


def _of_rank(table: RankIntervals, rank: int) -> intervals.Intervals:
    low, high = np.searchsorted(table.rank, (rank, rank + 1)).tolist()
    return table.start_ns[low:high], table.end_ns[low:high]


def _next(time_ns: Ints, start_ns: Ints, operation: Ints) -> Ints:
    """Return the operation that starts next at or after each time; -1 none."""
    at = np.searchsorted(start_ns, time_ns)
    return np.append(operation, NONE)[at]


def _previous(time_ns: Ints, end_ns: Ints, operation: Ints) -> Ints:
    """Return the operation that ended last before or at each time; -1 none."""
    order = np.argsort(end_ns, kind="stable")
    at = np.searchsorted(end_ns[order], time_ns, side="right") - 1
    return np.append(operation[order], NONE)[at]


@frozen
class _Waits(Table):
    """What each operation waited for, in this order; the last row stands for no operation.

    Attributes:
        ready_ns: until its input was ready on another rank; ``NEVER`` where it needs none.
        receive_launched_ns: until its receive was launched.
        received_ns: until the receive ended.
        launched_ns: until the operation itself was launched.
        remote: whether it takes anything from another rank.
        unknown: whether it may, and neither its producer nor a receive shows until when.
    """

    ready_ns: Ints
    receive_launched_ns: Ints
    received_ns: Ints
    launched_ns: Ints
    remote: Bools
    unknown: Bools


def _waits(operations: Operations, inputs: Inputs) -> _Waits:
    """Return the waits of operations."""
    receive_launched_ns, received_ns = _received(operations, arrivals(operations))
    known = inputs.ready_ns != NEVER
    # With an unknown producer, waiting and transfer look the same: the receive counts as waiting.
    ready_ns = np.where(known, inputs.ready_ns, received_ns)
    launched_ns = np.where(operations.launched_ns == NONE, NEVER, operations.launched_ns)
    return _Waits(
        np.append(ready_ns, NEVER),
        np.append(receive_launched_ns, NEVER),
        np.append(received_ns, NEVER),
        np.append(launched_ns, NEVER),
        np.append(known | (received_ns != NEVER), False),
        np.append(inputs.unknown & (received_ns == NEVER), False),
    )


def _cut(waits: _Waits, gaps: intervals.Intervals, before: Ints, after: Ints) -> IdleIntervals:
    """Return idle intervals cut by what the operation after them waited for."""
    low, high = gaps
    wait = waits.take(after)
    kinds = (Cause.DEPENDENCY, Cause.HOST, Cause.COMMUNICATION, Cause.HOST)
    ends = wait.ready_ns, wait.receive_launched_ns, wait.received_ns, wait.launched_ns
    cuts, causes, cut = [low], [], low
    for end_ns, kind in zip(ends, kinds, strict=True):
        cut = np.clip(end_ns, cut, high)
        cuts.append(cut)
        causes.append(np.full(len(low), kind, np.int64))
    causes.append(np.where(wait.remote, Cause.COMMUNICATION, Cause.OTHER).astype(np.int64))
    start_ns, end_ns = np.stack(cuts, axis=1), np.stack((*cuts[1:], high), axis=1)
    some = end_ns > start_ns
    cause = np.where(wait.unknown[:, None], Cause.UNKNOWN, np.stack(causes, axis=1))[some]
    interval = np.broadcast_to(np.arange(len(low))[:, None], some.shape)[some]
    none = np.full(len(interval), NONE, np.int64)
    return IdleIntervals(
        start_ns=start_ns[some],
        end_ns=end_ns[some],
        cause=cause,
        interval=interval,
        before=before[interval],
        after=after[interval],
        peer_operation=none,
        collective=none.copy(),
    )


def _received(operations: Operations, known: Arrivals) -> tuple[Ints, Ints]:
    """Return when the last receive of each operation was launched, and when it ended."""
    inside = operations.received_ns != NONE
    launched_ns = np.where(inside, operations.receive_launched_ns, NONE)
    named = (known.receive >= 0) & (np.append(operations.has_span, 0)[known.receive] == 1)
    of_name = np.append(operations.launched_ns, NONE)[known.receive]
    ended_ns = np.append(operations.end_ns, NONE)[known.receive]
    later = named & (~inside | (ended_ns > operations.received_ns))
    launched_ns = np.where(later, of_name, launched_ns)
    return np.where(launched_ns == NONE, NEVER, launched_ns), known.exact_ns
