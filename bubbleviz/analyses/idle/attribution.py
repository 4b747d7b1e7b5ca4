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

from collections.abc import Sequence

import numpy as np

from bubbleviz.analyses.idle.gap_calls import BLOCKED, BlockedGaps, Kind
from bubbleviz.analyses.idle.gaps import GapLaunches, Gaps, covered, cuts_of, split
from bubbleviz.analyses.idle.host_record import (
    SYNCHRONISED,
    GapSegments,
    HostIntervals,
    with_activities,
)
from bubbleviz.conventions.host_activities import (
    DEVICE,
    LAUNCH,
    MIGRATION,
    PROFILER,
    SHORT,
    TRANSFER,
    UNLINKED,
    UNTRACED,
    WAITING,
)
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, joined
from bubbleviz.model.grouping import Numbering, distinct
from bubbleviz.model.values import frozen


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
    by = _blocked_by(blocked, numbers)
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


def _blocked_by(blocked: BlockedGaps, numbers: Numbering[str]) -> Ints:
    """Return the number of the activity for each kind that blocks any gap; -1 for the others."""
    kinds = set(blocked.kind[blocked.held != NONE].tolist())
    return np.array([numbers.number(BLOCKED[k]) if k in kinds else NONE for k in Kind], np.int64)


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
