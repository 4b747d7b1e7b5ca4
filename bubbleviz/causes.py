"""Causes: why a rank was idle, every nanosecond of it put down to one cause.

An idle interval before an operation is cut where what it waits for comes to be, in this order::

    last work ├──────────┬─────────┬───────────────┬──────┤ next operation
               dependency    host    communication   other
                         ready     launched      ...

What lies under the profiler's own work, or under a collective, goes to these first; what lies
before a rank's first and after its last operation of an iteration is its warm-up and its drain.
Where a receive is seen, its launch and its end are what host and communication are told by; the
operation's own launch counts from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from bubbleviz import intervals
from bubbleviz.align import Run
from bubbleviz.arrivals import NEVER, Arrivals, arrivals
from bubbleviz.columns import NONE, Bools, Ints, Table, joined
from bubbleviz.count import Counts
from bubbleviz.model import Operations, RankIntervals
from bubbleviz.needs import Inputs
from bubbleviz.phases import COMPUTE
from bubbleviz.statistics import Counted, Windows, statistics


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
class Causes:
    """How long ranks were idle for which cause.

    Attributes:
        idle_ns: by name of the ratio whose window it is, shape (iterations, ranks, causes).
    """

    idle_ns: Mapping[str, Ints]

    def of_rank(self, ratio: str, iteration: int, rank: int) -> dict[str, int]:
        """Return nanoseconds by cause of a rank in an iteration's window."""
        return _by_label(self.idle_ns[ratio][iteration, rank])

    def of_iteration(self, ratio: str, iteration: int) -> dict[str, int]:
        """Return nanoseconds by cause, summed over the ranks."""
        return _by_label(self.idle_ns[ratio][iteration].sum(axis=0))

    def of_iterations(self, ratio: str, iterations: Ints) -> dict[str, int]:
        """Return nanoseconds by cause, summed over ranks and some iterations."""
        return _by_label(self.idle_ns[ratio][iterations].sum(axis=(0, 1)))


def _by_label(idle_ns: Ints) -> dict[str, int]:
    return {cause.label: int(idle_ns[cause]) for cause in Cause}


@dataclass(frozen=True)
class Gaps(Table):
    """Idle intervals in the windows of one ratio, a row for each cause; -1 none.

    In order of (rank, iteration, start). Rows of one idle interval have the same ``interval``.

    Attributes:
        rank: that was idle.
        iteration: whose window it is.
        interval: number of the idle interval within the rank.
        start_ns: start on the report's clock.
        end_ns: end.
        cause: code of :class:`Cause`.
        before: row of the operation that ended last before the idle interval.
        after: row of the next one.
        giver: row of the operation on another rank whose result that one takes.
        host_call_id: row of the operations' ``names``: the CUDA call that the launching thread was
            in, where the host is the cause.
        host_range_id: likewise the innermost range.
        ratio: name of the ratio.
    """

    rank: Ints
    iteration: Ints
    interval: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Ints
    before: Ints
    after: Ints
    giver: Ints
    host_call_id: Ints
    host_range_id: Ints
    ratio: str = field(metadata={"shared": True})

    def doing(self, host_call_id: Ints, host_range_id: Ints) -> Gaps:
        """Return the gaps with what the host did."""
        return replace(self, host_call_id=host_call_id, host_range_id=host_range_id)


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


@dataclass(frozen=True)
class _Regions:
    """Where a rank's windows are cut, shape (iterations,) each, ascending.

    Between ``low`` and ``first`` lies the warm-up, between ``last`` and ``drained`` the drain, and
    between ``filling`` and ``high`` the warm-up of the next iteration (of ``period`` alone).
    """

    low: Ints
    first: Ints
    last: Ints
    drained: Ints
    filling: Ints
    high: Ints

    def each(self) -> Iterator[tuple[Ints, Ints, Cause | None]]:
        """Yield (low, high, cause) of each region; None where the idle time's own cause holds."""
        yield self.low, self.first, Cause.WARMUP
        yield self.first, self.last, None
        yield self.last, self.drained, Cause.DRAIN
        yield self.drained, self.filling, None
        yield self.filling, self.high, Cause.WARMUP


#: Causes that hold whatever the window is.
_ALWAYS = (Cause.PROFILER, Cause.COLLECTIVE)
_WITHIN = (Cause.DEPENDENCY, Cause.HOST, Cause.COMMUNICATION, Cause.OTHER)


def causes_of(run: Run, counts: Counts, inputs: Inputs) -> tuple[Causes, Gaps, tuple[Idle, ...]]:
    """Return how long ranks were idle for which cause, the idle intervals of the headline, and all.

    Args:
        run: the profiles put together.
        counts: windows of the ratios.
        inputs: what operations waited for.
    """
    shape = (len(run.iteration_names), len(run.ranks), len(Cause))
    idle_ns = {name: np.zeros(shape, np.int64) for name in counts.windows}
    headline = _told(counts)
    gaps, idle = [], []
    for rank, own in enumerate(_idle(run, counts, inputs)):
        idle.append(own)
        sets = {cause: own.of((cause,)) for cause in (*_ALWAYS, *_WITHIN)}
        either = own.of(_WITHIN)
        for name in counts.windows:
            regions = _regions(counts, name, rank)
            idle_ns[name][:, rank] = _tally(sets, either, regions)
            if name == headline:
                gaps.append(_gaps(own, regions, rank, inputs.giver, headline))
    nothing = _gaps_of_nothing(headline)
    return Causes(idle_ns), joined(gaps or [nothing]), tuple(idle)


def _told(counts: Counts) -> str:
    """Return the ratio whose gaps are listed: the headline, or another one that ranks have."""
    ranks = [own for iteration in counts.iterations for own in iteration.ranks]
    names = (counts.headline, *(s.name for s in statistics()))
    return next((n for n in names if any(n in own.accounts for own in ranks)), counts.headline)


def _regions(counts: Counts, name: str, rank: int) -> _Regions:
    """Return where the windows of a ratio are cut on a rank; empty ones where there is none."""
    window, extents = counts.windows[name], counts.extents
    statistic = next(s for s in statistics() if s.name == name)
    known = window.known & extents.present[:, rank]
    low = np.where(known, window.start_ns[:, rank], 0)
    high = np.maximum(np.where(known, window.end_ns[:, rank], 0), low)
    last = extents.last_ns if statistic.work is Counted.ITERATION else extents.step_last_ns
    first_ns = np.clip(extents.first_ns[:, rank], low, high)
    last_ns = np.clip(last[:, rank], first_ns, high)
    if statistic.work is not Counted.EVERYTHING:
        return _Regions(low, first_ns, last_ns, high, high, high)
    ended, begun = _ends_and_starts(counts)
    drained = np.clip(ended, last_ns, high)
    return _Regions(low, first_ns, last_ns, drained, np.clip(begun, drained, high), high)


def _ends_and_starts(counts: Counts) -> tuple[Ints, Ints]:
    """Return when each iteration ended on all ranks, and when the next one began on any.

    Where clocks cannot be compared, nothing is known: the earliest and the latest time there is.
    """
    extents, never, always = counts.extents, NEVER, np.iinfo(np.int64).max
    if not extents.present.size:
        return np.zeros(len(extents.first_ns), np.int64), np.zeros(len(extents.first_ns), np.int64)
    ended = np.where(extents.present, extents.step_last_ns, never).max(axis=1)
    begun = np.where(extents.present, extents.first_ns, always).min(axis=1)
    ended = np.where(counts.one_clock, ended, never)
    begun = np.where(counts.one_clock, begun, always)
    return ended, np.append(begun[1:], always)


def _tally(
    sets: Mapping[Cause, intervals.Intervals], either: intervals.Intervals, regions: _Regions
) -> Ints:
    """Return idle time by cause in each window, shape (iterations, causes).

    Args:
        sets: idle time by the causes that hold in any window, or within an iteration.
        either: that of all of the latter.
        regions: where the windows are cut.
    """
    total = np.zeros((len(regions.low), len(Cause)), np.int64)
    for always in _ALWAYS:
        total[:, always] = intervals.measure_within(sets[always], regions.low, regions.high)
    for low, high, cause in regions.each():
        if cause is not None:
            total[:, cause] += intervals.measure_within(either, low, high)
            continue
        for one in _WITHIN:
            total[:, one] += intervals.measure_within(sets[one], low, high)
    return total


def _gaps(idle: Idle, regions: _Regions, rank: int, giver: Ints, ratio: str) -> Gaps:
    """Return the idle intervals in a rank's windows, by cause."""
    parts = []
    cuts = [(low.tolist(), high.tolist(), cause) for low, high, cause in regions.each()]
    for k in range(len(regions.low)):
        for lows, highs, cause in cuts:
            low, high = lows[k], highs[k]
            if low >= high:
                continue
            rows = np.arange(
                np.searchsorted(idle.end_ns, low, side="right"),
                np.searchsorted(idle.start_ns, high),
            )
            own = idle.take(rows)
            always = np.isin(own.cause, _ALWAYS)
            kind = own.cause if cause is None else np.where(always, own.cause, cause)
            parts.append((np.full(len(rows), k), own, low, high, kind))
    if not parts:
        return _gaps_of_nothing(ratio)
    iteration = np.concatenate([part[0] for part in parts])
    own = joined([part[1] for part in parts])
    start_ns = np.concatenate([np.maximum(p.start_ns, low) for _, p, low, _, _ in parts])
    end_ns = np.concatenate([np.minimum(p.end_ns, high) for _, p, _, high, _ in parts])
    kind = np.concatenate([part[4] for part in parts])
    # What one cause explains without a break is one row.
    goes_on = (iteration[1:] == iteration[:-1]) & (own.interval[1:] == own.interval[:-1])
    goes_on &= (kind[1:] == kind[:-1]) & (start_ns[1:] == end_ns[:-1])
    first = np.append(True, ~goes_on)[: len(kind)]
    last = np.append(first[1:], True)[: len(kind)]
    # What comes after the drain is of the next iteration, and was not waited for.
    after = np.where(kind[first] == Cause.DRAIN, NONE, own.after[first])
    return Gaps(
        rank=np.full(int(first.sum()), rank),
        iteration=iteration[first],
        interval=own.interval[first],
        start_ns=start_ns[first],
        end_ns=end_ns[last],
        cause=kind[first],
        before=own.before[first],
        after=after,
        giver=np.append(giver, NONE)[after],
        host_call_id=np.full(len(after), NONE),
        host_range_id=np.full(len(after), NONE),
        ratio=ratio,
    )


def _gaps_of_nothing(ratio: str) -> Gaps:
    nothing: dict[str, Ints] = {name: np.empty(0, np.int64) for name in Gaps.column_names()}
    return Gaps(**nothing, ratio=ratio)


def _idle(run: Run, counts: Counts, inputs: Inputs) -> Iterator[Idle]:
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
