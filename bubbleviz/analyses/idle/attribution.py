"""Attribution: every nanosecond in which a device was idle, and what its host did then.

The parts of a gap, first that fits:

1. ``profiler``: under the profiler's own overhead.
2. ``work not recorded``: the device may have run work that was launched but not recorded.
3. ``kernel-to-kernel gaps``: the gap is too short to be attributed.
4. ``page migration`` before pages of managed memory that move, which no call launches; before other
   work ``launch not recorded``: the call that launched it is unknown.
5. Up to that call: what the launching thread did; where nothing is recorded of it, the thread
   that launches most, then the process's main thread; then ``no host trace``.
6. In the call, and as long as a launch takes: ``launch``, or ``transfer`` for a copy.
7. From there on, as long as the work's stream is proved to wait for an event: ``blocked by
   communication``, ``blocked by copies`` or ``blocked by compute``.
8. The rest: ``stream or rank dependency``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.idle import report
from bubbleviz.analyses.idle.gaps import LATENCY_NS, Device, Gaps, Launches
from bubbleviz.analyses.idle.host import HostEvents, events_around
from bubbleviz.analyses.idle.waits import BLOCKED, COMPUTE, KIND_NAMES, HeldWork, Waiting, kinds_of
from bubbleviz.conventions import host_activities as known
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.interpret.iterations import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, scattered
from bubbleviz.model.grouping import Numbering, begins, distinct, found_in, groups_of
from bubbleviz.model.profile import PAGE_MIGRATION, Activities, Profile
from bubbleviz.model.texts import printed_part

#: The name of work that has none.
COPY_NAME = "copy or memset"


def work_name(activities: Activities, row: int) -> str:
    """Return the name of a kernel or copy."""
    name = int(activities.name_id[row])
    return COPY_NAME if name == NONE else printed_part(activities.names[name])


def attribute(
    gaps: Gaps,
    launches: Launches,
    activities: Activities,
    held: HeldWork,
    host: HostEvents,
    others: Sequence[int],
    unrecorded: intervals.Intervals,
    overhead: intervals.Intervals,
    numbers: Numbering[str],
) -> report.AttributedIdle:
    """Attribute the idle time of a device to what its host did.

    Args:
        gaps: Idle gaps of the device.
        launches: Calls that launched the work after each gap.
        activities: Kernels and copies.
        held: Work that waited for an event.
        host: Ranges and calls of the host's threads.
        others: Threads to use where nothing is recorded for the launching thread.
        unrecorded: Intervals in which the device may have run work that was not recorded.
        overhead: Intervals in which the profiler delayed the process.
        numbers: Numbers of the activities' names.
    """
    idle = _pieces_of(gaps, launches, activities, held, host, others, numbers)
    idle = idle.take(np.argsort(idle.start_ns, kind="stable"))
    idle = idle.take(idle.end_ns > idle.start_ns)

    # The last one overrides the others, so the profiler's overhead takes precedence.
    for times, name in ((unrecorded, known.UNRECORDED), (overhead, known.PROFILER)):
        if len(times[0]):
            idle = _reattribute(idle, times, numbers.number(name))
    # Merge adjacent pieces of a gap with the same activity and waiting call.
    first = begins(idle.gap, idle.activity, idle.waiting)
    last = np.append(first[1:], True)[: len(first)]
    return replace(idle.take(first), end_ns=idle.end_ns[last])


def _reattribute(
    idle: report.AttributedIdle, times: intervals.Intervals, number: int
) -> report.AttributedIdle:
    """Assign the idle time inside the given intervals to another activity.

    Args:
        idle: Idle time, in order of time.
        times: Disjoint, ascending intervals.
        number: Number of the activity.
    """
    row, start_ns, end_ns = intervals.cut(idle.start_ns, idle.end_ns, np.concatenate(times))
    is_inside = intervals.covering(*times, start_ns) != NONE
    activity = np.where(is_inside, number, idle.activity[row])
    waiting = np.where(is_inside, NONE, idle.waiting[row])
    return report.AttributedIdle(idle.gap[row], start_ns, end_ns, activity, waiting)


def _pieces_of(
    gaps: Gaps,
    launches: Launches,
    activities: Activities,
    held: HeldWork,
    host: HostEvents,
    others: Sequence[int],
    numbers: Numbering[str],
) -> report.AttributedIdle:
    """Cut gaps into pieces by activity, without the profiler's overhead.

    Args:
        gaps: Idle gaps of a device.
        launches: Calls that launched the work after each gap.
        activities: Kernels and copies.
        held: Work that waited for an event.
        host: Ranges and calls of the host's threads.
        others: Threads to use where nothing is recorded for the launching thread.
        numbers: Numbers of the activities' names.

    Returns:
        The pieces in any order. Some have a length of 0.
    """
    start_ns, end_ns, row = gaps.start_ns, gaps.end_ns, np.arange(len(gaps))
    called = launches.thread != NONE
    linked = ~gaps.short & called
    copies = gaps.after >= activities.kernels
    migrates = np.array([*(name == PAGE_MIGRATION for name in activities.names), False], bool)
    migrations = migrates[activities.name_id[gaps.after]] & copies
    unlinked = numbers.number(known.UNLINKED)
    migration = numbers.number(known.MIGRATION) if migrations.any() else unlinked
    whole = np.where(migrations, migration, unlinked)
    whole = np.where(gaps.short, numbers.number(known.SHORT), whole)
    in_call = np.where(copies, numbers.number(known.TRANSFER), numbers.number(known.LAUNCH))
    device = np.full(len(gaps), numbers.number(known.DEVICE))

    # [start, entered) is the host's, [entered, under way) the launch's, the rest the device's, of
    # which [under way, until) is that of the event that the stream waited for.
    due_ns = np.maximum(launches.end_ns, launches.start_ns + LATENCY_NS)
    entered_ns, under_way_ns = (
        np.clip(np.where(called, time_ns, end_ns), start_ns, end_ns)
        for time_ns in (launches.start_ns, due_ns)
    )
    at = found_in(held.work, gaps.after)
    until_ns = np.append(held.end_ns, np.iinfo(np.int64).min)[at]
    until_ns = np.clip(until_ns, under_way_ns, end_ns)
    kind = np.append(held.kind, COMPUTE)[at]
    kinds = set(kind[at != NONE].tolist())
    blocked = [numbers.number(name) if k in kinds else NONE for k, name in enumerate(BLOCKED)]
    untraced, unknown = numbers.number(known.UNTRACED), np.full(len(row), NONE)
    pieces = [
        (row[mask], start[mask], end[mask], activity[mask], unknown[mask])
        for mask, start, end, activity in (
            (~linked, start_ns, end_ns, whole),
            (linked, entered_ns, under_way_ns, in_call),
            (linked, under_way_ns, until_ns, np.array(blocked, np.int64)[kind]),
            (linked, until_ns, end_ns, device),
        )
    ]

    # What the launching thread did before its call, else what other threads did.
    waits = np.where(np.append(host.by, NONE) != NONE, np.arange(len(host) + 1), NONE)
    activity = np.append(host.activity, untraced)
    row = np.flatnonzero(linked & (entered_ns > start_ns))
    start_ns, end_ns = start_ns[row], entered_ns[row]
    for other in (None, *others):
        thread = launches.thread[row] if other is None else np.full(len(row), other, np.int64)
        piece, start_ns, end_ns, event = events_around(host, thread, start_ns, end_ns)
        row, seen = row[piece], event != NONE
        columns = (row, start_ns, end_ns, activity[event], waits[event])
        pieces.append(tuple(column[seen] for column in columns))
        row, start_ns, end_ns = row[~seen], start_ns[~seen], end_ns[~seen]
    none = np.full(len(row), NONE)
    pieces.append((row, start_ns, end_ns, np.full(len(row), untraced), none))
    return report.AttributedIdle(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


# Proved waits: what streams and hosts waited for, summed by who waited and for which work.


def proved_waits(
    device: Device,
    times: Mapping[str, intervals.Intervals],
    profile: Profile,
    waiting: Waiting,
    host: HostEvents,
    idle: report.AttributedIdle,
    numbers: Numbering[str],
    kinds: Kinds,
) -> tuple[tuple[report.ProvedWait, ...], int, int]:
    """Return the waits of a device's streams, and of hosts while it was idle.

    Args:
        device: that they delayed.
        times: When the device ran each kind of work.
        profile: with its work.
        waiting: what it proves of waiting.
        host: what threads did.
        idle: the device's idle time, attributed.
        numbers: of the activities' names.
        kinds: names of communication kernels.

    Returns:
        The waits, those with most time without compute first; then how much of the exposed
        communication, and of the exposed copies, streams waited for.
    """
    activities, held = profile.activities, waiting.held

    def stream(row: int) -> str:
        """Return the stream of an activity, with its device where that is another."""
        text, rank = f"stream {int(waiting.streams[row])}", int(activities.rank[row])
        if rank == device.rank:
            return text
        return f"{profile.source.place(int(activities.ranks[rank, 1]))} {text}"

    # Rows are waits of streams, then pieces of idle time in which a host waited.
    rows = np.flatnonzero(activities.rank[held.work] == device.rank)
    low_ns, high_ns = (np.clip(t[rows], *device.span_ns) for t in (held.start_ns, held.end_ns))
    lasting = high_ns > low_ns
    rows, low_ns, high_ns = rows[lasting], low_ns[lasting], high_ns[lasting]
    pieces = np.flatnonzero(idle.waiting != NONE)
    call, spent_ns = idle.waiting[pieces], idle.end_ns[pieces] - idle.start_ns[pieces]
    # A call may be in several gaps.
    once = np.zeros(len(pieces), np.int64)
    once[np.unique(call, return_index=True)[1]] = 1
    of_host = np.append(np.zeros(len(rows), np.int64), np.ones(len(pieces), np.int64))
    work, by = held.work[rows], np.append(held.by[rows], host.by[call])
    who = np.append(waiting.streams[work], host.call[call])
    kind = np.append(held.kind[rows], kinds_of(activities, host.by[call], kinds))
    computing_ns = intervals.measure_within(times["compute"], low_ns, high_ns)
    # Of the idle time before held work, what is attributed to its wait.
    at = found_in(held.work, device.gaps.after)[idle.gap]
    blocked = np.array([name in BLOCKED for name in numbers.values], bool)[idle.activity]
    before = np.flatnonzero(
        (at != NONE) & blocked & (idle.start_ns < np.append(held.end_ns, NONE)[at])
    )
    idle_ns = np.zeros(len(held), np.int64)
    np.add.at(idle_ns, at[before], idle.end_ns[before] - idle.start_ns[before])
    blocked_ns = high_ns - low_ns
    columns = (
        np.append(np.ones(len(rows), np.int64), once),
        np.append(blocked_ns, spent_ns),
        np.append(blocked_ns - computing_ns, spent_ns),
        np.append(idle_ns[rows], spent_ns),
    )
    rank, name = activities.rank[by].astype(np.int64), activities.name_id[by].astype(np.int64)
    each = groups_of(of_host, who, rank, waiting.streams[by], name, kind)
    sums = (intervals.group_sum(each.of_row, len(each), column).tolist() for column in columns)
    # A file may give a name several numbers, whose waits are the same.
    by_text: dict[tuple[str, str, str, str], list[int]] = {}
    for first, *spent in zip(each.first.tolist(), *sums, strict=True):
        key = (
            f"host, {host.calls[int(who[first])]}" if of_host[first] else stream(int(work[first])),
            stream(int(by[first])),
            work_name(activities, int(by[first])),
            KIND_NAMES[int(kind[first])],
        )
        earlier = by_text.get(key, [0] * len(spent))
        by_text[key] = [total + more for total, more in zip(earlier, spent, strict=True)]
    found = [report.ProvedWait(*key, *spent) for key, spent in by_text.items()]

    def awaited_ns(part: str, kind: str) -> int:
        of_kind = held.kind[rows] == KIND_NAMES.index(kind)
        waits = intervals.union(low_ns[of_kind], high_ns[of_kind])
        exposed = times[part]
        return intervals.measure(exposed) - intervals.measure(intervals.difference(exposed, waits))

    return (
        tuple(sorted(found, key=report.ProvedWait.order)),
        awaited_ns("exposed_communication", "communication"),
        awaited_ns("exposed_copy", "copy"),
    )


# Totals: attributed idle time summed by activity, and by step.


def by_activity(
    idle: report.AttributedIdle,
    gaps: int,
    names: Sequence[str],
    example: Callable[[int, int], report.Example | None],
) -> tuple[tuple[report.ActivityIdle, ...], Ints]:
    """Return the idle time of a rank by activity, the longest first, and what each gap is mostly.

    Args:
        idle: of the rank.
        gaps: how many it has.
        names: of activities.
        example: describes a gap of which an activity (its number) took most.

    Returns:
        The activities; and the number of the one with most of each gap, shape (gaps,), of equal
        ones the lower number.
    """
    each = groups_of(idle.activity, idle.gap)
    spent_ns = intervals.group_sum(each.of_row, len(each), idle.end_ns - idle.start_ns)
    activity, gap = idle.activity[each.first], idle.gap[each.first]
    order = np.lexsort((-activity, spent_ns, gap))
    main = scattered(gaps, gap[order], activity[order])
    totals = []
    # Few: as many as there are names.
    for number in distinct(activity).tolist():
        rows = np.flatnonzero(activity == number)
        longest = rows[spent_ns[rows].argmax()]
        totals.append(
            report.ActivityIdle(
                activity=names[number],
                idle_ns=int(spent_ns[rows].sum()),
                gaps=len(rows),
                longest_ns=int(spent_ns[longest]),
                example=example(int(gap[longest]), number),
            )
        )
    return tuple(sorted(totals, key=report.ActivityIdle.order)), main


def by_step(
    idle: report.AttributedIdle,
    device: Device,
    busy: intervals.Intervals,
    steps: Steps,
    names: Sequence[str],
) -> tuple[report.StepIdle, ...]:
    """Return the steps of a rank, and the time outside of them.

    Args:
        idle: attributed idle time of the rank.
        device: that was idle.
        busy: When any kernel or copy ran on it.
        steps: of its process.
        names: of activities.
    """
    span_ns = device.span_ns
    low_ns, high_ns = (np.clip(column, *span_ns) for column in (steps.start_ns, steps.end_ns))
    busy_ns = intervals.measure_within(busy, low_ns, high_ns)
    row, start_ns, end_ns = intervals.cut(idle.start_ns, idle.end_ns, np.append(low_ns, high_ns))
    step = intervals.covering(steps.start_ns, steps.end_ns, start_ns)
    each = groups_of(step, idle.activity[row])
    spent_ns = intervals.group_sum(each.of_row, len(each), end_ns - start_ns)
    owner, activity = step[each.first], idle.activity[row][each.first]
    bounds = np.searchsorted(owner, np.arange(-1, len(steps) + 1)).tolist()

    def activities(number: int) -> tuple[tuple[str, int], ...]:
        rows = slice(bounds[number + 1], bounds[number + 2])
        pairs = zip(activity[rows].tolist(), spent_ns[rows].tolist(), strict=True)
        named = ((names[number], spent) for number, spent in pairs)
        return tuple(sorted(named, key=lambda pair: (-pair[1], pair[0])))

    columns = (steps.name_id, low_ns, high_ns, busy_ns)
    inside = [
        report.StepIdle(steps.names[name], start, end, end - start, busy, activities(number))
        for number, (name, start, end, busy) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]
    rest_ns = span_ns[1] - span_ns[0] - sum(step.length_ns for step in inside)
    if not rest_ns:
        return tuple(inside)
    rest_busy_ns = intervals.measure(busy) - sum(step.busy_ns for step in inside)
    return (*inside, report.StepIdle(None, None, None, rest_ns, rest_busy_ns, activities(NONE)))
