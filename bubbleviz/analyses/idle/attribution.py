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

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.waits import NEVER
from bubbleviz.analyses.idle import report
from bubbleviz.analyses.idle.gaps import LATENCY_NS, Device, Launches
from bubbleviz.analyses.idle.host import HostEvents, events_around
from bubbleviz.analyses.idle.waits import BLOCKED, KIND_NAMES, HeldWork, Waiting, kinds_of
from bubbleviz.conventions import host_activities
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.explain.idle import (
    IdleIntervals,
    Wait,
    cut_at_waits,
    cut_idle,
    lay_over,
    merge_pieces,
)
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, constant, joined
from bubbleviz.model.grouping import Numbering, distinct, found_in, groups_of, sorted_rows
from bubbleviz.model.intervals import Intervals
from bubbleviz.model.profile import PAGE_MIGRATION, Activities, Profile
from bubbleviz.model.texts import printed_part

#: The name of work that has none.
COPY_NAME = "copy or memset"


def work_name(activities: Activities, row: int) -> str:
    """Return the name of a kernel or copy."""
    name = int(activities.name_id[row])
    return COPY_NAME if name == NONE else printed_part(activities.names[name])


def attribute(
    device: Device,
    launches: Launches,
    activities: Activities,
    held: HeldWork,
    host: HostEvents,
    others: Sequence[int],
    numbers: Numbering[str],
) -> IdleIntervals:
    """Attribute the gaps of a device to what its host did.

    Args:
        device: The device.
        launches: Calls that launched the work after each gap.
        activities: Kernels and copies.
        held: Work that waited for an event.
        host: Ranges and calls of the host's threads.
        others: Threads to use where nothing is recorded for the launching thread.
        numbers: Numbers of the activities' names.

    Returns:
        The gaps in pieces with an activity each. ``interval`` is a row of the gaps, and
        ``host_call`` the row of the host's event if the host waited for known work.
    """
    waits = _waits_around_launch(device, launches, activities, held, numbers)
    idle = _name_host_activity(cut_at_waits(device.gaps, waits), launches, host, others, numbers)
    # The last one overrides the others, so the profiler's overhead takes precedence.
    for times, name in (
        (device.unrecorded, host_activities.UNRECORDED),
        (device.overhead, host_activities.PROFILER),
    ):
        if len(times[0]):
            idle = lay_over(idle, times, activity=numbers.number(name))
    return merge_pieces(idle, "interval", "activity", "host_call")


def _waits_around_launch(
    device: Device,
    launches: Launches,
    activities: Activities,
    held: HeldWork,
    numbers: Numbering[str],
) -> tuple[Wait, ...]:
    """Return what each gap of a device waits for, in order.

    The first wait is for the launching call; it has no activity yet. In gaps that are not
    attributed to the host it takes all of the time::

        gap     ├── host ──┤├── launch ──┤├── blocked ──┤├── device ──┤
                        call starts   under way   event completes

    Args:
        device: The device.
        launches: Calls that launched the work after each gap.
        activities: Kernels and copies.
        held: Work that waited for an event.
        numbers: Numbers of the activities' names.
    """
    gaps, is_short = device.gaps, device.is_short
    is_linked = ~is_short & (launches.thread != NONE)
    is_copy = gaps.after >= activities.kernels
    migrates = np.array([*(name == PAGE_MIGRATION for name in activities.names), False], bool)
    is_migration = migrates[activities.name_id[gaps.after]] & is_copy
    unlinked = numbers.number(host_activities.UNLINKED)
    migration = numbers.number(host_activities.MIGRATION) if is_migration.any() else unlinked
    short = numbers.number(host_activities.SHORT)
    transfer, launch = map(numbers.number, (host_activities.TRANSFER, host_activities.LAUNCH))
    dependency = numbers.number(host_activities.DEVICE)
    unattributed = np.where(is_short, short, np.where(is_migration, migration, unlinked))
    under_way_ns = np.maximum(launches.end_ns, launches.start_ns + LATENCY_NS)
    held_row = found_in(held.work, gaps.after)
    completed_ns = np.append(held.end_ns, NEVER)[held_row]
    return (
        Wait.of(
            np.where(is_linked, launches.start_ns, gaps.end_ns),
            activity=np.where(is_linked, NONE, unattributed),
        ),
        Wait.of(under_way_ns, activity=np.where(is_copy, transfer, launch)),
        Wait.of(completed_ns, activity=_number_blocking(held, held_row, numbers)),
        Wait.of(constant(NEVER, len(gaps)), activity=dependency),
    )


def _number_blocking(held: HeldWork, held_row: Ints, numbers: Numbering[str]) -> Ints:
    """Return the number of the activity that blocks the work after each gap, or -1 if none does.

    Args:
        held: Work that waited for an event.
        held_row: Row of ``held`` after each gap, or -1.
        numbers: Numbers of the activities' names.
    """
    kind = np.append(held.kind, NONE)[held_row]
    is_present = np.isin(np.arange(len(BLOCKED)), kind)
    number_of_kind = np.array(
        [
            numbers.number(name) if present else NONE
            for name, present in zip(BLOCKED, is_present.tolist(), strict=True)
        ],
        np.int64,
    )
    number: Ints = np.append(number_of_kind, NONE)[kind]
    return number


def _name_host_activity(
    idle: IdleIntervals,
    launches: Launches,
    host: HostEvents,
    others: Sequence[int],
    numbers: Numbering[str],
) -> IdleIntervals:
    """Cut the pieces without an activity by what the launching thread did, else other threads.

    Args:
        idle: Idle time of a device.
        launches: Calls that launched the work after each gap.
        host: Ranges and calls of the host's threads.
        others: Threads to use where nothing is recorded for the launching thread.
        numbers: Numbers of the activities' names.

    Returns:
        The pieces, in order of time.
    """
    untraced = numbers.number(host_activities.UNTRACED)
    # The last place is that of no event.
    activity_of_event = np.append(host.activity, untraced)
    waits_for_work = np.append(host.by, NONE) != NONE
    waiting_call = np.where(waits_for_work, np.arange(len(host) + 1), NONE)
    is_named = idle.activity != NONE
    pieces = idle.take(~is_named)
    parts = [idle.take(is_named)]
    for other in (None, *others):
        launching = launches.thread[pieces.interval]
        thread = launching if other is None else np.full(len(pieces), other, np.int64)
        row, start_ns, end_ns, event = events_around(host, thread, pieces.start_ns, pieces.end_ns)
        pieces = replace(
            pieces.take(row),
            start_ns=start_ns,
            end_ns=end_ns,
            activity=activity_of_event[event],
            host_call=waiting_call[event],
        )
        is_seen = event != NONE
        parts.append(pieces.take(is_seen))
        pieces = pieces.take(~is_seen)
    idle = joined([*parts, pieces])
    return idle.take(sorted_rows(idle.start_ns))


# Proved waits: what streams and hosts waited for, summed by who waited and for which work.


def proved_waits(
    device: Device,
    times: Mapping[str, intervals.Intervals],
    profile: Profile,
    waiting: Waiting,
    host: HostEvents,
    idle: IdleIntervals,
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
    pieces = np.flatnonzero(idle.host_call != NONE)
    call, spent_ns = idle.host_call[pieces], idle.end_ns[pieces] - idle.start_ns[pieces]
    # A call may be in several gaps.
    once = np.zeros(len(pieces), np.int64)
    once[np.unique(call, return_index=True)[1]] = 1
    of_host = np.append(np.zeros(len(rows), np.int64), np.ones(len(pieces), np.int64))
    work, by = held.work[rows], np.append(held.by[rows], host.by[call])
    who = np.append(waiting.streams[work], host.call[call])
    kind = np.append(held.kind[rows], kinds_of(activities, host.by[call], kinds))
    computing_ns = intervals.measure_within(times["compute"], low_ns, high_ns)
    # Of the idle time before held work, what is attributed to its wait.
    at = found_in(held.work, idle.after)
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
    idle: IdleIntervals,
    device: Device,
    busy: Intervals,
    names: Sequence[str],
    example: Callable[[int, int], report.Example | None],
) -> tuple[report.ActivityIdle, ...]:
    """Return the idle time of a device by activity, the longest first.

    Args:
        idle: Attributed idle time of the device. All other idle time is in short gaps.
        device: The device.
        busy: When any kernel or copy ran on it.
        names: Names of the activities.
        example: Function that describes a gap of which an activity (its number) took most.
    """
    each = groups_of(idle.activity, idle.interval)
    spent_ns = intervals.group_sum(each.of_row, len(each), idle.end_ns - idle.start_ns)
    activity, gap = idle.activity[each.first], idle.interval[each.first]
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
    span_ns = device.span_ns[1] - device.span_ns[0]
    short_ns = span_ns - intervals.measure(busy) - int(spent_ns.sum())
    return _with_short_gaps(totals, device, short_ns)


def _with_short_gaps(
    totals: Sequence[report.ActivityIdle], device: Device, short_ns: int
) -> tuple[report.ActivityIdle, ...]:
    """Return totals by activity with the short gaps that have no rows, the longest first.

    Args:
        totals: Totals of the gaps that have rows.
        device: The device.
        short_ns: Length of all short gaps that have no rows.
    """
    by_name = {total.activity: total for total in totals}
    if short_ns:
        name = host_activities.SHORT
        listed = by_name.get(name, report.ActivityIdle(name, 0, 0, 0, None))
        by_name[name] = report.ActivityIdle(
            activity=name,
            idle_ns=listed.idle_ns + short_ns,
            gaps=listed.gaps + len(device.after_short),
            longest_ns=max(listed.longest_ns, device.longest_short_ns),
            example=None,
        )
    return tuple(sorted(by_name.values(), key=report.ActivityIdle.order))


def by_step(
    idle: IdleIntervals,
    device: Device,
    busy: Intervals,
    steps: Steps,
    names: Sequence[str],
) -> tuple[report.StepIdle, ...]:
    """Return the steps of a device, and the time outside of them.

    Args:
        idle: Attributed idle time of the device. All other idle time is in short gaps.
        device: The device.
        busy: When any kernel or copy ran on it.
        steps: Steps of its process.
        names: Names of the activities.
    """
    low_ns, high_ns = (
        np.clip(column, *device.span_ns) for column in (steps.start_ns, steps.end_ns)
    )
    busy_ns = intervals.measure_within(busy, low_ns, high_ns)
    pieces = cut_idle(idle, low_ns, high_ns)
    step = intervals.covering(steps.start_ns, steps.end_ns, pieces.start_ns)
    each = groups_of(step, pieces.activity)
    spent_ns = intervals.group_sum(each.of_row, len(each), pieces.end_ns - pieces.start_ns)
    spent: defaultdict[int, dict[str, int]] = defaultdict(dict)
    sums = step[each.first], pieces.activity[each.first], spent_ns
    for owner, activity, activity_ns in zip(*(column.tolist() for column in sums), strict=True):
        spent[owner][names[activity]] = activity_ns

    columns = (steps.name_id, low_ns, high_ns, busy_ns)
    rows = enumerate(zip(*(column.tolist() for column in columns), strict=True))
    inside = [
        _step_of(
            steps.names[name], (start_ns, end_ns), end_ns - start_ns, step_busy_ns, spent[number]
        )
        for number, (name, start_ns, end_ns, step_busy_ns) in rows
    ]
    span_ns = device.span_ns[1] - device.span_ns[0]
    rest_ns = span_ns - sum(own.length_ns for own in inside)
    if not rest_ns:
        return tuple(inside)
    rest_busy_ns = intervals.measure(busy) - sum(own.busy_ns for own in inside)
    return (*inside, _step_of(None, (None, None), rest_ns, rest_busy_ns, spent[NONE]))


def _step_of(
    name: str | None,
    times_ns: tuple[int | None, int | None],
    length_ns: int,
    busy_ns: int,
    spent_ns: Mapping[str, int],
) -> report.StepIdle:
    """Return a step, whose idle time without an activity is in short gaps.

    Args:
        name: Name of the step, or None for the time outside of all steps.
        times_ns: Start and end of the step.
        length_ns: Length of the step.
        busy_ns: How long anything ran in it.
        spent_ns: Idle time by activity.
    """
    short_ns = length_ns - busy_ns - sum(spent_ns.values())
    totals_ns = dict(spent_ns)
    if short_ns:
        totals_ns[host_activities.SHORT] = totals_ns.get(host_activities.SHORT, 0) + short_ns
    activities = tuple(sorted(totals_ns.items(), key=lambda pair: (-pair[1], pair[0])))
    return report.StepIdle(name, *times_ns, length_ns, busy_ns, activities, short_ns)
