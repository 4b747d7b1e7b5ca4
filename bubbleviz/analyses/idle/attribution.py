"""Attribution: every nanosecond in which a device was idle, and what its host did then.

The parts of a gap, first that fits:

1. ``profiler``: under the profiler's own overhead.
2. ``kernel-to-kernel gaps``: the gap is too short to be attributed.
3. ``page migration`` before pages of managed memory that move, which no call launches; before other
   work ``launch not recorded``: the call that launched it is unknown.
4. Up to that call: what the launching thread did; where nothing is recorded of it, the thread
   that launches most, then the process's main thread; then ``no host trace``.
5. In the call, and as long as a launch takes: ``launch``, or ``transfer`` for a copy.
6. From there on, as long as the work's stream is proved to wait for an event: ``blocked by
   communication``, ``blocked by copies`` or ``blocked by compute``.
7. The rest: ``stream or rank dependency``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from bubbleviz.analyses.idle.blocked_gaps import BLOCKED, BlockedGaps, Kind
from bubbleviz.analyses.idle.gaps import GapLaunches, Gaps, covered, cuts_of, split
from bubbleviz.analyses.idle.held_work import HostWaits
from bubbleviz.analyses.idle.host_timeline import (
    GapSegments,
    HostIntervals,
    collapsed,
    with_activities,
)
from bubbleviz.analyses.idle.record_times import RecordTimes
from bubbleviz.conventions.host_activities import (
    DEVICE,
    FRAME,
    KNOWN,
    LAUNCH,
    MIGRATION,
    OTHER_DEVICE,
    PROFILER,
    SHORT,
    TRANSFER,
    UNLINKED,
    UNTRACED,
    WAITING,
    ActivityLookup,
)
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, joined
from bubbleviz.model.grouping import distinct, found_in, looked_up
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Activities, CallLog, Calls, Ranges, process_of
from bubbleviz.model.values import frozen
from bubbleviz.sources.in_memory import no_calls

#: Shorter calls and ranges count as part of what is around them.
GRAIN_NS = 1_000
#: About so many calls in gaps are kept; where there are more, the longer ones.
_MOST = 1 << 20
#: Numbers of activities from here on are calls in which a host waited for known work.
SYNCHRONISED = 1 << 40


@frozen
class GapCalls:
    """The calls of a profile that matter to idle gaps, in order of their rows.

    They are the calls that launched the work after a gap, and those that ran during one.

    Attributes:
        calls: themselves.
        launched: row of the activities: the one that a call launched; -1 none.
        shortest_ns: calls in gaps that are shorter are left out.
    """

    calls: Calls
    launched: Ints
    shortest_ns: int


def gap_calls_of(
    log: CallLog,
    call: Codes,
    launching: Ints,
    idle: Mapping[int, intervals.Intervals],
    records: RecordTimes | None = None,
) -> GapCalls:
    """Return the calls that matter to idle gaps.

    Args:
        log: the profile's calls.
        call: row of the launching call of each activity; -1 unknown.
        launching: rows of the calls that launched the work after gaps, distinct and ascending.
        idle: when a device of each process was idle.
        records: sees all calls; None for nothing.
    """
    kept: list[Calls] = []
    count, shortest_ns = 0, GRAIN_NS
    for block in log.blocks():
        if records is not None:
            records.add(block)
        chosen = block.take(
            (found_in(launching, block.row) != NONE) | _in_gaps(block, idle, shortest_ns)
        )
        kept.append(chosen)
        count += len(chosen)
        while count > _MOST + len(launching):
            shortest_ns *= 2
            calls = joined(kept)
            lasting = calls.end_ns - calls.start_ns >= shortest_ns
            kept = [calls.take(lasting | (found_in(launching, calls.row) != NONE))]
            count = len(kept[0])
    calls = joined(kept) if kept else no_calls().calls
    calls = calls.take(np.argsort(calls.row, kind="stable"))
    return GapCalls(calls, _launched(calls, call), shortest_ns)


def _in_gaps(calls: Calls, idle: Mapping[int, intervals.Intervals], shortest_ns: int) -> Bools:
    """Tell which calls last long enough and touch a time in which a device was idle."""
    touching = np.zeros(len(calls), bool)
    lasting = np.flatnonzero(calls.end_ns - calls.start_ns >= shortest_ns)
    process = process_of(calls.thread[lasting])
    for number in distinct(process).tolist():
        if number in idle:
            rows = lasting[process == number]
            before = np.searchsorted(idle[number][1], calls.start_ns[rows], side="right")
            touching[rows] = before < np.searchsorted(idle[number][0], calls.end_ns[rows])
    return touching


def _launched(calls: Calls, call: Codes) -> Ints:
    """Return an activity that each call launched; -1 none."""
    launched = np.full(len(calls), NONE, np.int64)
    at = found_in(calls.row, call)
    rows = np.flatnonzero(at != NONE)
    launched[at[rows]] = rows
    return launched


@frozen
class SynchronisedCalls(Table):
    """Calls in which a host waited for work that is known.

    Attributes:
        by: row of the activities: the work.
        name_id: row of ``names``.
        names: distinct names of calls.
    """

    by: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})


@frozen
class HostRecord:
    """What the threads of a profile did around gaps.

    Attributes:
        ranges: ranges of threads that launch, and of main threads, without steps.
        calls: calls in gaps that launched nothing.
        launches: calls in gaps that launched an activity.
        launched: the activity that each of these launched.
        synchronised: calls in gaps that waited for known work; the activities of ``calls`` that are
            :data:`SYNCHRONISED` or more count from there in them.
    """

    ranges: HostIntervals
    calls: HostIntervals
    launches: HostIntervals
    launched: Ints
    synchronised: SynchronisedCalls


def host_record_of(
    ranges: Ranges,
    gap_calls: GapCalls,
    log: CallLog,
    lookup: ActivityLookup,
    numbers: Numbering[str],
    waits: HostWaits,
) -> HostRecord:
    """Return the ranges and calls of threads as activities.

    Args:
        ranges: of threads that launch, and of main threads, without steps.
        gap_calls: the calls that matter.
        log: of the profile's calls, for their names.
        lookup: activities of names.
        numbers: of the activities' names.
        waits: calls in which a host waited for work that is known.
    """
    calls = gap_calls.calls
    lasting = calls.end_ns - calls.start_ns >= gap_calls.shortest_ns
    launching = gap_calls.launched != NONE
    others = calls.take(lasting & ~launching)
    launches = calls.take(lasting & launching)
    names = log.names(others.row)
    of_call = {name: lookup.call(name) for name in set(names)}
    of_range = [lookup.of(name) for name in ranges.names]
    range_activity = np.array([numbers.number(name) for name, _ in of_range], np.int64)
    range_strength = np.array([strength for _, strength in of_range], np.int64)
    activity = np.array([numbers.number(of_call[name][0]) for name in names], np.int64)
    waits_in = np.array([of_call[name][0] == WAITING for name in names], bool)
    waiting, synchronised = _synchronised(others, names, np.flatnonzero(waits_in), waits)
    activity[waiting] = SYNCHRONISED + np.arange(len(waiting))
    return HostRecord(
        ranges=collapsed(
            _intervals(ranges, range_activity[ranges.name_id], range_strength[ranges.name_id]),
            FRAME,
        ),
        calls=_intervals(
            others,
            activity,
            np.array([of_call[name][1] for name in names], np.int64),
        ),
        launches=_intervals(
            launches, np.zeros(len(launches), np.int64), np.full(len(launches), KNOWN)
        ),
        launched=gap_calls.launched[lasting & launching],
        synchronised=synchronised,
    )


def _synchronised(
    calls: Calls, names: Sequence[str], rows: Ints, waits: HostWaits
) -> tuple[Ints, SynchronisedCalls]:
    """Return which of some rows of calls waited for known work, and for which.

    Args:
        calls: in gaps.
        names: of them.
        rows: of those that wait.
        waits: calls in which a host waited for work that is known.
    """
    keys = waits.process, waits.correlation_id
    wanted = process_of(calls.thread[rows]), calls.correlation_id[rows].astype(np.int64)
    by = looked_up(keys, waits.by, wanted)
    rows, by = rows[by != NONE], by[by != NONE]
    texts = Numbering[str]()
    name_id = np.array([texts.number(names[row]) for row in rows.tolist()], np.int64)
    return rows, SynchronisedCalls(by, name_id, texts.values)


def _intervals(rows: Ranges | Calls, activity: Ints, strength: Ints) -> HostIntervals:
    return HostIntervals(rows.thread, rows.start_ns, rows.end_ns, activity, strength)


def host_of_rank(
    record: HostRecord, activities: Activities, rank: int, threads: Ints, numbers: Numbering[str]
) -> HostIntervals:
    """Return the ranges and calls of some threads as activities, seen from one rank.

    Args:
        record: what all threads did.
        activities: kernels and copies.
        rank: that was idle meanwhile; launches for others are ``other device``.
        threads: that may have kept it waiting.
        numbers: of the activities' names.
    """
    elsewhere = activities.rank[record.launched] != rank
    copies = record.launched >= activities.kernels
    activity = np.where(
        elsewhere,
        numbers.number(OTHER_DEVICE),
        np.where(copies, numbers.number(TRANSFER), numbers.number(LAUNCH)),
    )
    calls = record.launches
    launches = HostIntervals(calls.thread, calls.start_ns, calls.end_ns, activity, calls.strength)
    tables = (record.ranges, record.calls, launches)
    return joined([table.take(np.isin(table.thread, threads)) for table in tables])


@frozen
class AttributedIdle(Table):
    """Idle time of a rank in pieces, disjoint and ascending; they add up to it.

    Attributes:
        gap: row of the gaps.
        start_ns: start.
        end_ns: end.
        activity: number of the activity that it is attributed to.
        synchronised: row of the calls in which the host waited for known work meanwhile; -1 none.
        blocked: whether the stream of the next work waited for an event.
    """

    gap: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints
    synchronised: Ints
    blocked: Bools


def attribute(
    gaps: Gaps,
    launches: GapLaunches,
    blocked: BlockedGaps,
    host: HostIntervals,
    others: Sequence[int],
    overhead: intervals.Intervals,
    shortest_ns: int,
    numbers: Numbering[str],
    migrations: Bools,
) -> AttributedIdle:
    """Attribute the idle time of a device to what its host did.

    Args:
        gaps: its idle gaps.
        launches: the call that launched the work after each.
        blocked: how long the stream of that work waited for an event, and for what.
        host: what threads did.
        others: threads to look at where nothing is recorded of the launching one.
        overhead: when the profiler held the process up.
        shortest_ns: shorter gaps are kernel-to-kernel gaps.
        numbers: of the activities' names.
        migrations: whether the work after each gap is a page migration.
    """
    cuts = cuts_of(gaps, launches)
    short = gaps.end_ns - gaps.start_ns < shortest_ns
    attributable = ~short & (launches.thread != NONE)
    row = np.arange(len(gaps))
    unlaunched = [numbers.number(UNLINKED)]
    if migrations.any():
        unlaunched.append(numbers.number(MIGRATION))
    whole = np.where(short, numbers.number(SHORT), np.array(unlaunched)[migrations.astype(int)])
    in_call = np.where(launches.copies, numbers.number(TRANSFER), numbers.number(LAUNCH))
    device = np.full(len(gaps), numbers.number(DEVICE))
    until_ns = np.clip(blocked.until_ns, cuts.under_way_ns, gaps.end_ns)
    by = np.array(
        [
            numbers.number(BLOCKED[kind]) if (blocked.kind == at).any() else NONE
            for at, kind in enumerate(Kind)
        ]
    )
    unknown = np.full(len(row), NONE)
    before_call = GapSegments(row, launches.thread, gaps.start_ns, cuts.entered_ns, unknown)
    waits = _host_activities(before_call.take(attributable), host, others)
    untraced = numbers.number(UNTRACED)
    pieces = [
        (
            waits.gap,
            waits.start_ns,
            waits.end_ns,
            np.where(waits.activity == NONE, untraced, waits.activity),
        ),
        *(
            (row[mask], start[mask], end[mask], activity[mask])
            for mask, start, end, activity in (
                (~attributable, gaps.start_ns, gaps.end_ns, whole),
                (attributable, cuts.entered_ns, cuts.under_way_ns, in_call),
                (attributable, cuts.under_way_ns, until_ns, by[blocked.kind]),
                (attributable, until_ns, gaps.end_ns, device),
            )
        ),
    ]
    gap, start_ns, end_ns, activity = (np.concatenate(c) for c in zip(*pieces, strict=True))
    order = np.argsort(start_ns, kind="stable")
    order = order[(end_ns > start_ns)[order]]
    idle = _pieces(gap[order], start_ns[order], end_ns[order], activity[order], by, numbers)
    return _merged(_with_overhead(idle, overhead, numbers))


def _pieces(
    gap: Ints, start_ns: Ints, end_ns: Ints, activity: Ints, by: Ints, numbers: Numbering[str]
) -> AttributedIdle:
    """Return pieces of idle time, the calls in which a host waited apart from what it did."""
    in_call = activity >= SYNCHRONISED
    synchronised = np.where(in_call, activity - SYNCHRONISED, NONE)
    if in_call.any():
        activity = np.where(in_call, numbers.number(WAITING), activity)
    return AttributedIdle(gap, start_ns, end_ns, activity, synchronised, np.isin(activity, by))


def _host_activities(
    segments: GapSegments, host: HostIntervals, others: Sequence[int]
) -> GapSegments:
    """Return segments with the launching thread's activities, else those of other threads."""
    segments = segments.take(segments.end_ns > segments.start_ns)
    segments = with_activities(segments, host)
    for thread in others:
        unknown = (segments.activity == NONE) & (segments.thread != thread)
        rest = segments.take(unknown)
        on_thread = GapSegments(
            rest.gap,
            np.full(len(rest), thread, np.int64),
            rest.start_ns,
            rest.end_ns,
            rest.activity,
        )
        segments = joined((segments.take(~unknown), with_activities(on_thread, host)))
    return segments


def _with_overhead(
    idle: AttributedIdle, overhead: intervals.Intervals, numbers: Numbering[str]
) -> AttributedIdle:
    """Return the pieces, those under the profiler's overhead attributed to it."""
    if len(overhead[0]) == 0:
        return idle
    row, start_ns, end_ns = split(idle.start_ns, idle.end_ns, distinct(*overhead))
    under = covered(overhead, start_ns)
    activity = np.where(under, numbers.number(PROFILER), idle.activity[row])
    synchronised = np.where(under, NONE, idle.synchronised[row])
    blocked = idle.blocked[row] & ~under
    return AttributedIdle(idle.gap[row], start_ns, end_ns, activity, synchronised, blocked)


def _merged(idle: AttributedIdle) -> AttributedIdle:
    """Return the pieces, neighbours of one activity (and call that waits) in one gap merged."""
    first = np.zeros(len(idle.gap), bool)
    first[:1] = True
    for column in (idle.gap, idle.activity, idle.synchronised):
        first[1:] |= column[1:] != column[:-1]
    last = np.append(first[1:], True)[: len(first)]
    return AttributedIdle(
        idle.gap[first],
        idle.start_ns[first],
        idle.end_ns[last],
        idle.activity[first],
        idle.synchronised[first],
        idle.blocked[first],
    )
