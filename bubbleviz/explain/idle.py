"""Idle: when ranks ran nothing, and why, whatever the window.

An idle interval before an operation is cut where what it waits for comes to be, in this order::

    last work ├──────────┬─────────┬───────────────┬──────┤ next operation
               dependency    host    communication   other
                         ready     launched      ...

What lies under the profiler's own work, or under a collective, goes to these first. Where a receive
is seen, its launch and its end are what host and communication are told by; the operation's own
launch counts from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from bubbleviz.align.arrivals import NEVER, Arrivals, arrivals
from bubbleviz.align.run import Run
from bubbleviz.count.count import Counts
from bubbleviz.count.ratios import Windows
from bubbleviz.explain.dependencies import Inputs
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.operations import Operations, RankIntervals
from bubbleviz.model.phases import COMPUTE


class Cause(IntEnum):
    """Why a rank was idle; in the order in which they are looked for."""

    PROFILER = 0
    COLLECTIVE = 1
    WARMUP = 2
    DRAIN = 3
    DEPENDENCY = 4
    HOST = 5
    COMMUNICATION = 6
    OTHER = 7

    @property
    def label(self) -> str:
        """The name as reports print it."""
        return self.name.lower()


#: What each cause means, for people.
MEANINGS = {
    Cause.PROFILER: "the profiler held the process up",
    Cause.COLLECTIVE: "a collective ran and nothing else",
    Cause.WARMUP: "before the rank's first operation of the iteration",
    Cause.DRAIN: "after its last one",
    Cause.DEPENDENCY: "another rank had not finished what the next operation takes",
    Cause.HOST: "that was there, and the host had not launched the next operation",
    Cause.COMMUNICATION: "the input was on its way",
    Cause.OTHER: "none of these (launch latency)",
}


@dataclass(frozen=True)
class Idle(Table):
    """The idle time of one rank, cut by cause; warm-up and drain depend on the window."""

    start_ns: Ints
    end_ns: Ints
    cause: Ints
    interval: Ints
    before: Ints
    after: Ints

    def of(self, causes: tuple[Cause, ...]) -> intervals.Intervals:
        """Return when ranks were idle for one of these causes."""
        rows = np.isin(self.cause, causes)
        return self.start_ns[rows], self.end_ns[rows]


def idle_of(run: Run, counts: Counts, inputs: Inputs) -> Iterator[Idle]:
    """Yield the idle time of each rank between its earliest and its latest window."""
    operations = run.operations
    waits = _waits(operations, inputs)
    computing = np.isin(operations.phase, COMPUTE)
    ranks = np.arange(len(run.ranks) + 1)
    bounds = np.searchsorted(operations.rank[run.busy.operation], ranks).tolist()
    for rank in range(len(run.ranks)):
        low, high = _ends(counts.windows, counts.extents.present[:, rank], rank)
        rows = np.arange(bounds[rank], bounds[rank + 1])
        rows = rows[computing[run.busy.operation[rows]]]
        rows = rows[np.argsort(run.busy.start_ns[rows], kind="stable")]
        start_ns, end_ns = run.busy.start_ns[rows], run.busy.end_ns[rows]
        loose = _of(run.unattributed, rank)
        covered = intervals.union(
            np.concatenate((start_ns, loose[0])), np.concatenate((end_ns, loose[1]))
        )
        gaps = intervals.difference(intervals.union(low, high), covered)
        of_busy = run.busy.operation[rows]
        after = _next(gaps[1], start_ns, of_busy)
        before = _previous(gaps[0], end_ns, of_busy)
        own = _cut(waits, gaps, before, after)
        own = _laid_over(own, _of(run.exposed, rank), Cause.COLLECTIVE)
        yield _laid_over(own, _of(run.overheads, rank), Cause.PROFILER)


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


def _of(table: RankIntervals, rank: int) -> intervals.Intervals:
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


@dataclass(frozen=True)
class _Waits(Table):
    """What each operation waited for, in this order; the last row is that of no operation.

    Attributes:
        ready_ns: until its input was ready on another rank; ``NEVER`` where it needs none.
        sent_ns: until its receive was launched.
        received_ns: until that was over.
        launched_ns: until it was launched itself.
        remote: whether it takes anything from another rank.
    """

    ready_ns: Ints
    sent_ns: Ints
    received_ns: Ints
    launched_ns: Ints
    remote: Bools


def _waits(operations: Operations, inputs: Inputs) -> _Waits:
    """Return what operations waited for."""
    sent_ns, received_ns = _received(operations, arrivals(operations))
    known = inputs.ready_ns != NEVER
    # Where it is not known who gave it, waiting and moving cannot be told apart: a receive waits.
    ready_ns = np.where(known, inputs.ready_ns, received_ns)
    launched_ns = np.where(operations.launched_ns == NONE, NEVER, operations.launched_ns)
    return _Waits(
        np.append(ready_ns, NEVER),
        np.append(sent_ns, NEVER),
        np.append(received_ns, NEVER),
        np.append(launched_ns, NEVER),
        np.append(known | (received_ns != NEVER), False),
    )


def _cut(waits: _Waits, gaps: intervals.Intervals, before: Ints, after: Ints) -> Idle:
    """Return idle intervals cut at what the operation after them waited for."""
    low, high = gaps
    own = waits.take(after)
    kinds = (Cause.DEPENDENCY, Cause.HOST, Cause.COMMUNICATION, Cause.HOST)
    ends = own.ready_ns, own.sent_ns, own.received_ns, own.launched_ns
    cuts, causes, since = [low], [], low
    for upto, kind in zip(ends, kinds, strict=True):
        since = np.clip(upto, since, high)
        cuts.append(since)
        causes.append(np.full(len(low), kind, np.int64))
    causes.append(np.where(own.remote, Cause.COMMUNICATION, Cause.OTHER).astype(np.int64))
    start_ns, end_ns = np.stack(cuts, axis=1), np.stack((*cuts[1:], high), axis=1)
    real = end_ns > start_ns
    cause = np.stack(causes, axis=1)[real]
    interval = np.broadcast_to(np.arange(len(low))[:, None], real.shape)[real]
    return Idle(start_ns[real], end_ns[real], cause, interval, before[interval], after[interval])


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


def _laid_over(idle: Idle, times: intervals.Intervals, cause: Cause) -> Idle:
    """Return idle time in which a cause takes what lies under some times."""
    if len(times[0]) == 0 or len(idle) == 0:
        return idle
    inside = (times[1] > idle.start_ns[0]) & (times[0] < idle.end_ns[-1])
    points = np.concatenate((idle.start_ns, idle.end_ns, times[0][inside], times[1][inside]))
    points = np.unique(points)
    starts, ends = points[:-1], points[1:]
    row = np.searchsorted(idle.start_ns, starts, side="right") - 1
    held = (row >= 0) & (starts < idle.end_ns[np.maximum(row, 0)])
    starts, ends, row = starts[held], ends[held], row[held]
    at = np.searchsorted(times[0], starts, side="right") - 1
    under = (at >= 0) & (starts < times[1][np.maximum(at, 0)])
    own = idle.take(row)
    return Idle(
        starts, ends, np.where(under, cause, own.cause), own.interval, own.before, own.after
    )
