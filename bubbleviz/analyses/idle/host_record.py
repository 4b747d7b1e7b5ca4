"""Host record: the ranges and calls of threads, as activities of hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field, replace

import numpy as np

from bubbleviz.analyses.idle.gap_calls import GRAIN_NS, GapCalls
from bubbleviz.analyses.idle.gaps import split
from bubbleviz.analyses.idle.held_work import HostWaits
from bubbleviz.conventions.host_activities import (
    FRAME,
    KNOWN,
    LAUNCH,
    OTHER_DEVICE,
    TRANSFER,
    WAITING,
    ActivityLookup,
)
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.interpret.iterations import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.grouping import Numbering, distinct, looked_up
from bubbleviz.model.intervals import Innermost, disjoint_layers
from bubbleviz.model.profile import (
    DEVICE_THREAD,
    Activities,
    CallLog,
    Calls,
    Profile,
    Ranges,
    Thread,
    pid_of,
    process_of,
)
from bubbleviz.model.values import frozen

# Host timeline: what threads did at every instant of some segments of time.
#
# Of the ranges and calls around an instant the strongest counts, of equally strong ones the
# innermost::
#
#     range       ├─data loading (3)──────────────┤
#     call            ├─cudaMemcpy (2)─┤            ├─cudaMalloc (2)─┤
#     segment     ├───────────────────────────────────────────────────────┤
#     result      ├─data loading──────────────────┤.├─cudaMalloc─────┤....    . unknown


@frozen
class HostIntervals(Table):
    """Ranges and calls of threads, each with an activity.

    Attributes:
        thread: of the range or call.
        start_ns: start.
        end_ns: end.
        activity: number of what the host does in it.
        strength: of the activity (:mod:`bubbleviz.conventions.host_activities`).
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints
    strength: Ints


def collapsed(host: HostIntervals, strength: int) -> HostIntervals:
    """Return the same, the intervals of one strength united by thread if they are one activity.

    Frames of Python lie a hundred deep, and all have the same activity.
    """
    mask = host.strength == strength
    alike = host.take(mask)
    if len(alike) == 0 or (alike.activity != alike.activity[0]).any():
        return host
    threads, number = np.unique(alike.thread, return_inverse=True)
    group, start_ns, end_ns = intervals.group_union(
        number, len(threads), alike.start_ns, alike.end_ns
    )
    activity, strengths = (
        np.full(len(group), value) for value in (alike.activity[0], np.int64(strength))
    )
    united = HostIntervals(threads[group], start_ns, end_ns, activity, strengths)
    return joined((host.take(~mask), united))


@frozen
class GapSegments(Table):
    """Segments of gaps, those of one gap disjoint, each with a thread and what it did.

    Attributes:
        gap: row of the gaps.
        thread: of the host.
        start_ns: start.
        end_ns: end.
        activity: what the thread did; -1 unknown.
    """

    gap: Ints
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints


def with_activities(segments: GapSegments, host: HostIntervals) -> GapSegments:
    """Return segments with what their threads did, cut where that changes.

    Args:
        segments: those of one thread disjoint, none empty; one with an activity is left as it is.
        host: ranges and calls of threads.

    Returns:
        First the segments that had an activity, then the others by (thread, start).
    """
    done = segments.take(segments.activity != NONE)
    segments = segments.take(segments.activity == NONE)
    if len(segments) == 0 or len(host) == 0:
        return joined((done, segments))
    segments = segments.take(np.lexsort((segments.start_ns, segments.thread)))
    threads, number = np.unique(segments.thread, return_inverse=True)
    extents = intervals.group_extents(number, len(threads), segments.start_ns, segments.end_ns)
    # One line on which the times of different threads do not meet.
    line = intervals.Packing.of(*extents)
    start, end = line.place(number, segments.start_ns), line.place(number, segments.end_ns)
    host = host.take(np.isin(host.thread, threads))
    group = np.searchsorted(threads, host.thread)
    low_ns, high_ns = extents[0][group], extents[1][group]
    host_start = line.place(group, np.clip(host.start_ns, low_ns, high_ns))
    host_end = line.place(group, np.clip(host.end_ns, low_ns, high_ns))
    near = np.flatnonzero(
        np.searchsorted(end, host_start, side="right") < np.searchsorted(start, host_end)
    )
    host, host_start, host_end = host.take(near), host_start[near], host_end[near]
    row, begin, stop = split(start, end, distinct(host_start, host_end))
    strongest = _strongest(host, host_start, host_end).around(begin, stop)
    cut = GapSegments(
        gap=segments.gap[row],
        thread=segments.thread[row],
        start_ns=begin - start[row] + segments.start_ns[row],
        end_ns=stop - start[row] + segments.start_ns[row],
        activity=np.append(host.activity, NONE)[strongest],
    )
    return joined((done, cut))


def _strongest(host: HostIntervals, start: Ints, end: Ints) -> Innermost:
    """Return a search for the strongest interval around a time, of equals the innermost."""
    row = np.arange(len(host))
    length_ns = host.end_ns - host.start_ns
    weakest_first = np.lexsort((row, host.start_ns, -length_ns, host.strength))
    depth = np.empty(len(row), np.int64)
    depth[weakest_first] = row
    return Innermost(start, end, depth, disjoint_layers(start, end))


#: Numbers of activities from here on are calls in which a host waited for known work.
SYNCHRONISED = 1 << 40


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
    of_range = [lookup.of(name) for name in ranges.names]
    range_activity = np.array([numbers.number(name) for name, _ in of_range], np.int64)
    range_strength = np.array([strength for _, strength in of_range], np.int64)
    calls_in_gaps, synchronised = _calls(others, log.names(others.row), lookup, numbers, waits)
    return HostRecord(
        ranges=collapsed(
            _intervals(ranges, range_activity[ranges.name_id], range_strength[ranges.name_id]),
            FRAME,
        ),
        calls=calls_in_gaps,
        launches=_intervals(
            launches, np.zeros(len(launches), np.int64), np.full(len(launches), KNOWN)
        ),
        launched=gap_calls.launched[lasting & launching],
        synchronised=synchronised,
    )


def _calls(
    calls: Calls,
    names: Sequence[str],
    lookup: ActivityLookup,
    numbers: Numbering[str],
    waits: HostWaits,
) -> tuple[HostIntervals, SynchronisedCalls]:
    """Return calls that launched nothing as activities, and those that waited for known work.

    Args:
        calls: in gaps.
        names: of them.
        lookup: activities of names.
        numbers: of the activities' names.
        waits: calls in which a host waited for work that is known.
    """
    of_call = {name: lookup.call(name) for name in set(names)}
    activity = np.array([numbers.number(of_call[name][0]) for name in names], np.int64)
    strength = np.array([of_call[name][1] for name in names], np.int64)
    rows = np.flatnonzero(np.array([of_call[name][0] == WAITING for name in names], bool))
    rows = rows if len(waits) else rows[:0]
    ids = process_of(calls.thread[rows]), calls.correlation_id[rows].astype(np.int64)
    keys = waits.process, waits.correlation_id
    by = looked_up(keys, waits.by, ids) if len(rows) else rows
    rows, by = rows[by != NONE], by[by != NONE]
    activity[rows] = SYNCHRONISED + np.arange(len(rows))
    texts = Numbering[str]()
    name_id = np.array([texts.number(names[row]) for row in rows.tolist()], np.int64)
    synchronised = SynchronisedCalls(by, name_id, texts.values)
    return _intervals(calls, activity, strength), synchronised


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


# Host ranges: the ranges of a profile that show what hosts did while devices were idle.


#: The name that ranges of a device's own thread get.
ON_DEVICE = "a module runs on the device"
#: What XLA names the ranges of what it runs on a device.
_XLA = re.compile(r"(?:XlaModule|Thunk):#")
#: What XLA's profiler names the thread that runs the program, whose number it does not record.
_PYTHON = re.compile(r"(?:python[0-9.]*|main(?:[ _]?thread)?)\Z", re.IGNORECASE)


def host_ranges_of(
    profile: Profile,
    idle: Mapping[int, intervals.Intervals],
    threads: Ints,
    steps: Mapping[int, Steps],
    shortest_ns: int,
) -> Ranges:
    """Return the ranges of some threads that touch idle time, without steps.

    Args:
        profile: as read.
        idle: when a device of each process was idle.
        threads: that launch, and main ones.
        steps: of each process.
        shortest_ns: shorter gaps are not attributed, so shorter ranges do not count.
    """
    since, until = (np.concatenate(c) for c in zip(*idle.values(), strict=True))
    lasting_ns = max(GRAIN_NS, shortest_ns)
    logs = [log for log in (profile.every_range, profile.system_calls) if log is not None]
    ranges = _merged([log.lasting(lasting_ns, threads, since, until) for log in logs])
    process = process_of(ranges.thread)
    keep = np.zeros(len(ranges), bool)
    for number, (since, until) in idle.items():
        rows = np.flatnonzero(process == number)
        before = np.searchsorted(until, ranges.start_ns[rows], side="right")
        keep[rows] = before < np.searchsorted(since, ranges.end_ns[rows])
    step_names = {name for table in steps.values() for name in table.names}
    return _on_device(_renamed(ranges.take(keep), step_names), profile.threads)


def _merged(logs: Sequence[Ranges]) -> Ranges:
    """Return the ranges of several logs in one table."""
    names = tuple(name for log in logs for name in log.names)
    first = np.cumsum([0, *(len(log.names) for log in logs)]).tolist()
    renumbered = (
        replace(log, name_id=log.name_id + at) for log, at in zip(logs, first, strict=False)
    )
    return replace(joined(tuple(renumbered)), names=names)


def _renamed(ranges: Ranges, left_out: Set[str]) -> Ranges:
    """Return ranges without those of some names, and with names as conventions take them."""
    used, row = np.unique(ranges.name_id, return_inverse=True)
    distinct = Numbering[str]()
    texts = (bare_name(ranges.names[name]) for name in used.tolist())
    of_name = np.array(
        [NONE if text in left_out else distinct.number(text) for text in texts],
        np.int64,
    )
    name_id = of_name[row]
    return replace(ranges, name_id=name_id, names=distinct.values).take(name_id != NONE)


def _on_device(ranges: Ranges, threads: Iterable[Thread]) -> Ranges:
    """Return ranges in which those of XLA on a device's own thread are named ``ON_DEVICE``.

    A trace records modules and instructions there in the device's time: the host does not do them.
    Other ranges of such threads are left out.
    """
    device_threads = [thread.thread for thread in threads if thread.name.startswith(DEVICE_THREAD)]
    if not device_threads:
        return ranges
    there = np.isin(ranges.thread, device_threads)
    of_xla = np.array([_XLA.match(name) is not None for name in ranges.names], bool)
    name_id = np.where(there, len(ranges.names), ranges.name_id)
    keep = ~there | of_xla[ranges.name_id]
    return replace(ranges, name_id=name_id, names=(*ranges.names, ON_DEVICE)).take(keep)


def main_thread(process: int, threads: Iterable[Thread]) -> int:
    """Return the main thread of a process: its first one, or else one named as Python's is."""
    first = (process << 24) + pid_of(process)
    names = {thread.thread: thread.name for thread in threads if thread.thread >> 24 == process}
    python = sorted(thread for thread, name in names.items() if _PYTHON.match(name))
    return python[0] if python and first not in names else first


def names_around(ranges: Ranges, thread: int, time_ns: int) -> tuple[str, ...]:
    """Return the names of a thread's ranges around an instant, outermost first."""
    rows = np.flatnonzero(
        (ranges.thread == thread) & (ranges.start_ns <= time_ns) & (time_ns <= ranges.end_ns)
    )
    length_ns = ranges.end_ns[rows] - ranges.start_ns[rows]
    order = np.lexsort((rows, ranges.start_ns[rows], -length_ns))
    return tuple(ranges.names[name] for name in ranges.name_id[rows[order]].tolist())
