"""Host: what threads did at every instant, according to their ranges and calls.

The strongest of the ranges and calls around an instant counts. If several are equally strong, it is
the innermost::

    range       ├─data loading (3)──────────────┤
    call            ├─cudaMemcpy (2)─┤            ├─cudaMalloc (2)─┤
    segment     ├───────────────────────────────────────────────────────┤
    result      ├─data loading──────────────────┤.├─cudaMalloc─────┤....    . unknown
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.analyses.idle.waits import made_by
from bubbleviz.conventions import host_activities as known
from bubbleviz.conventions import range_names
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, join_tables, make_constant
from bubbleviz.model.grouping import (
    find_distinct,
    find_positions,
    invert_permutation,
    lookup_values,
)
from bubbleviz.model.nesting import Innermost
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.synchronisation import EventRecords
from bubbleviz.sources.in_memory import make_no_calls

#: Minimum length of a call or range; shorter ones count as part of what is around them.
GRAIN_NS = 1_000
#: Approximate maximum number of calls in gaps; if there are more, the longest ones are kept.
_MOST = 1 << 20
#: Name given to ranges of a device's own thread.
ON_DEVICE = "a module runs on the device"
#: Matches XLA's names of ranges for what it runs on a device.
_XLA = re.compile(r"(?:XlaModule|Thunk):#")
#: Matches XLA's names of the thread that runs the program, whose number it does not record.
_PYTHON = re.compile(r"(?:python[0-9.]*|main(?:[ _]?thread)?)\Z", re.IGNORECASE)


def gap_calls_of(
    profile: model.Profile,
    launching: Ints,
    idle: Mapping[int, intervals.Intervals],
    records: EventRecords,
) -> tuple[model.Calls, model.Calls, int]:
    """Return the calls that launched the work after a gap, or ran during one, by their rows.

    Args:
        profile: The profile with its calls.
        launching: Rows of the calls that launched the work after gaps, distinct and ascending.
        idle: When a device of each process was idle.
        records: Records of events.

    Returns:
        The calls, those that made records, and the length below which calls that launched nothing
        are left out.
    """
    kept, made = [make_no_calls().calls], [make_no_calls().calls]
    count, shortest_ns = 0, GRAIN_NS
    for block in profile.calls.blocks():
        if len(records):
            made.append(block.take(made_by(records, block)))
        rows = np.flatnonzero(block.end_ns - block.start_ns >= shortest_ns)
        in_gap = _in_idle_time(block, rows, idle)
        kept.append(block.take(in_gap | (find_positions(launching, block.row) != NONE)))
        count += len(kept[-1])
        while count > _MOST + len(launching):
            shortest_ns *= 2
            calls = join_tables(kept)
            lasting = calls.end_ns - calls.start_ns >= shortest_ns
            kept = [calls.take(lasting | (find_positions(launching, calls.row) != NONE))]
            count = len(kept[0])
    calls = join_tables(kept)
    return calls.take(np.argsort(calls.row, kind="stable")), join_tables(made), shortest_ns


def _in_idle_time(
    table: model.Calls | model.Ranges, rows: Ints, idle: Mapping[int, intervals.Intervals]
) -> Bools:
    """Return a mask of the rows that share time with idle time of a device of their process."""
    inside, process = np.zeros(len(table), bool), model.process_of(table.thread[rows])
    for number in idle.keys() & set(find_distinct(process).tolist()):
        own = rows[process == number]
        inside[own] = intervals.mask_overlapping(
            table.start_ns[own], table.end_ns[own], idle[number]
        )
    return inside


@dataclass(frozen=True, eq=False, repr=False)
class HostEvents(Table):
    """Ranges, then calls, of threads that launch and of main threads, each with an activity.

    Attributes:
        thread: Thread of the range or call.
        start_ns: Start.
        end_ns: End.
        activity: Number of the activity of the host.
        strength: Strength of the activity (:mod:`bubbleviz.conventions.host_activities`).
        launched: Row of the work that a call launched, or -1 if there is none.
        by: Row of the work that a call waited for last, or -1 if there is none or it is unknown.
        call: Row of ``calls`` with the name of a call that waited for known work, else -1.
        calls: Distinct names of these calls.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints
    strength: Ints
    launched: Ints
    by: Ints
    call: Ints
    calls: tuple[str, ...] = field(metadata={"shared": True})

    def seen_from(
        self, activities: model.Activities, rank: int, threads: Ints, numbers: Numbering[str]
    ) -> HostEvents:
        """Return the events of some threads with activities as seen from a rank.

        Args:
            activities: Kernels and copies.
            rank: The idle rank. Launches for other ranks are ``other device``.
            threads: Threads that may have kept it waiting.
            numbers: Numbers of the activities' names.
        """
        elsewhere, transfer, launch = map(
            numbers.number, (known.OTHER_DEVICE, known.TRANSFER, known.LAUNCH)
        )
        events = self.take(np.isin(self.thread, threads))
        activity = np.where(events.launched >= activities.kernels, transfer, launch)
        activity = np.where(activities.rank[events.launched] == rank, activity, elsewhere)
        activity = np.where(events.launched == NONE, events.activity, activity)
        return replace(events, activity=activity)


def host_events_of(
    ranges: model.Ranges,
    calls: model.Calls,
    call: Codes,
    profile: model.Profile,
    lookup: known.ActivityList,
    numbers: Numbering[str],
    waits: tuple[Ints, ...],
) -> HostEvents:
    """Return the ranges and calls of threads as activities.

    Args:
        ranges: Ranges of threads that launch, and of main threads, without steps.
        calls: The calls that matter, by row.
        call: Row of the call that launched each kernel and copy, or -1 if unknown.
        profile: The profile with the names of its calls.
        lookup: Activities by name.
        numbers: Numbers of the activities' names.
        waits: Process, correlation id and awaited work of calls in which a host waited.
    """
    of_range = [lookup.classify_range(name) for name in ranges.names]
    of_ranges = numbers.numbers(name for name, _ in of_range)
    launched = np.full(len(calls), NONE, np.int64)
    at = find_positions(calls.row, call)
    rows = np.flatnonzero(at != NONE)
    launched[at[rows]] = rows
    others = np.flatnonzero(launched == NONE)
    names = np.array(profile.calls.names(calls.row[others]), object)
    of_call = {name: lookup.classify_call(name) for name in set(names.tolist())}
    activity, strength = np.full(len(calls), NONE), np.full(len(calls), known.KNOWN)
    activity[others] = numbers.numbers(of_call[name][0] for name in names)
    strength[others] = [of_call[name][1] for name in names]
    by, text, texts = np.full(len(calls), NONE), np.full(len(calls), NONE), Numbering[str]()
    waiting = np.array([of_call[name][0] == known.WAITING for name in names], bool)
    if waits and waiting.any():
        asked = others[waiting]
        ids = model.process_of(calls.thread[asked]), calls.correlation_id[asked].astype(np.int64)
        by[asked] = lookup_values(waits[:2], waits[2], ids)
        told = by[asked] != NONE
        text[asked[told]] = texts.numbers(names[waiting][told])
    none = make_constant(NONE, len(ranges))
    of_strength = np.array([strength for _, strength in of_range], np.int64)
    events = HostEvents(
        thread=np.append(ranges.thread, calls.thread),
        start_ns=np.append(ranges.start_ns, calls.start_ns),
        end_ns=np.append(ranges.end_ns, calls.end_ns),
        activity=np.append(of_ranges[ranges.name_id], activity),
        strength=np.append(of_strength[ranges.name_id], strength),
        launched=np.append(none, launched),
        by=np.append(none, by),
        call=np.append(none, text),
        calls=texts.values,
    )
    # Python's frames lie a hundred deep: if all have the same activity, those of a thread are one.
    frames = events.take(events.strength == known.FRAME)
    if len(frames) == 0 or (frames.activity != frames.activity[0]).any():
        return events
    threads, number = np.unique(frames.thread, return_inverse=True)
    group, start_ns, end_ns = intervals.group_union(
        number, len(threads), frames.start_ns, frames.end_ns
    )
    united = replace(
        frames.take(np.zeros(len(group), np.int64)),
        thread=threads[group],
        start_ns=start_ns,
        end_ns=end_ns,
    )
    return join_tables((events.take(events.strength != known.FRAME), united))


def events_around(
    host: HostEvents, thread: Ints, start_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return what threads did in some segments of time, cut where that changes.

    Args:
        host: Ranges and calls of threads.
        thread: Thread of each segment.
        start_ns: Start of each segment. Segments of a thread are disjoint.
        end_ns: End of each segment, later than its start.

    Returns:
        Segment, start, end, and row of the host's events, or -1 if unknown, of each piece.
    """
    row = np.arange(len(thread))
    if len(row) == 0 or len(host) == 0:
        return row, start_ns, end_ns, np.full(len(row), NONE)
    row = np.lexsort((start_ns, thread))
    start_ns, end_ns = start_ns[row], end_ns[row]
    threads, number = np.unique(thread[row], return_inverse=True)
    extents = intervals.group_extents(number, len(threads), start_ns, end_ns)
    # One line on which the times of different threads do not meet.
    line = intervals.Packing.of(*extents)
    start, end = line.place(number, start_ns), line.place(number, end_ns)
    events = np.flatnonzero(np.isin(host.thread, threads))
    group = np.searchsorted(threads, host.thread[events])
    low, high = (
        line.place(group, np.clip(time_ns[events], extents[0][group], extents[1][group]))
        for time_ns in (host.start_ns, host.end_ns)
    )
    near = intervals.mask_overlapping(low, high, (start, end))
    events, low, high = events[near], low[near], high[near]
    piece, begin, stop = intervals.split_at(start, end, np.append(low, high))
    # The strongest event around a time, of equals the innermost: the deepest.
    length_ns = host.end_ns[events] - host.start_ns[events]
    weakest_first = np.lexsort((host.start_ns[events], -length_ns, host.strength[events]))
    strongest = Innermost.of(low, high, invert_permutation(weakest_first)).around(begin, stop)
    return (
        row[piece],
        begin - start[piece] + start_ns[piece],
        stop - start[piece] + start_ns[piece],
        np.append(events, NONE)[strongest],
    )


def host_ranges_of(
    profile: model.Profile,
    idle: Mapping[int, intervals.Intervals],
    threads: Ints,
    steps: Mapping[int, Steps],
    shortest_ns: int,
) -> model.Ranges:
    """Return the ranges of some threads that touch idle time, without steps.

    A trace of XLA records modules and instructions on a device's own thread, in the device's time:
    the host does not do them. They are named ``ON_DEVICE``, and others of such threads left out.

    Args:
        profile: The profile as read.
        idle: When a device of each process was idle.
        threads: Threads that launch, and main threads.
        steps: Steps of each process.
        shortest_ns: Minimum length of a range; shorter gaps are not attributed.
    """
    since, until = (np.concatenate(c) for c in zip(*idle.values(), strict=True))
    logs = [
        log.lasting(max(GRAIN_NS, shortest_ns), threads, since, until, None)
        for log in (profile.all_ranges, profile.system_calls)
        if log is not None
    ]
    first = np.cumsum([0, *(len(log.names) for log in logs)]).tolist()
    logs = [replace(log, name_id=log.name_id + at) for log, at in zip(logs, first, strict=False)]
    ranges = replace(join_tables(logs), names=tuple(name for log in logs for name in log.names))
    ranges = ranges.take(_in_idle_time(ranges, np.arange(len(ranges)), idle))
    devices = [t.thread for t in profile.threads if t.name.startswith(model.DEVICE_THREAD)]
    on_device = find_positions(np.sort(np.array(devices, np.int64)), ranges.thread) != NONE
    # Names as conventions take them, without those of steps.
    step_names = {name for table in steps.values() for name in table.names}
    used, row = np.unique(ranges.name_id, return_inverse=True)
    names = Numbering[str]()
    texts = [range_names.bare_name(ranges.names[name]) for name in used.tolist()]
    name_id = np.array([NONE if t in step_names else names.number(t) for t in texts], np.int64)
    of_xla = np.array([_XLA.match(text) is not None for text in texts], bool)
    keep = (name_id[row] != NONE) & (~on_device | of_xla[row])
    name_id = np.where(on_device, len(names), name_id[row])
    every = (*names.values, ON_DEVICE) if on_device.any() else names.values
    return replace(ranges, name_id=name_id, names=every).take(keep)


def main_thread(process: int, threads: Iterable[model.Thread]) -> int:
    """Return the main thread of a process: its first one, or else one named as Python's is."""
    first = (process << 24) + model.get_pid(process)
    names = {thread.thread: thread.name for thread in threads if thread.thread >> 24 == process}
    python = sorted(thread for thread, name in names.items() if _PYTHON.match(name))
    return python[0] if python and first not in names else first


def names_around(ranges: model.Ranges, thread: int, time_ns: int) -> tuple[str, ...]:
    """Return the names of a thread's ranges around an instant, outermost first."""
    rows = np.flatnonzero(
        (ranges.thread == thread) & (ranges.start_ns <= time_ns) & (time_ns <= ranges.end_ns)
    )
    length_ns = ranges.end_ns[rows] - ranges.start_ns[rows]
    order = np.lexsort((rows, ranges.start_ns[rows], -length_ns))
    return tuple(ranges.names[name] for name in ranges.name_id[rows[order]].tolist())
