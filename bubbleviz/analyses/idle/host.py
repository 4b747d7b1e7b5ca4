"""Host activities: what host threads were doing at every instant, based on their ranges and calls.

If several ranges and calls contain an instant, the one with the highest strength wins. On ties, the
innermost one wins::

    range       ├─data loading (3)──────────────┤
    call            ├─cudaMemcpy (2)─┤            ├─cudaMalloc (2)─┤
    segment     ├───────────────────────────────────────────────────────┤
    result      ├─data loading──────────────────┤.├─cudaMalloc─────┤....    . unknown
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.analyses.idle.python_functions import Frames, name_function, select_named
from bubbleviz.analyses.idle.waits import mask_recording_calls
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
from bubbleviz.model.synchronization import EventRecords
from bubbleviz.sources.in_memory import make_no_calls

if TYPE_CHECKING:
    import numpy.typing as npt

#: Minimum length in ns of the calls and ranges that are used. Shorter calls and ranges are treated
#: as part of the surrounding range.
GRAIN_NS = 1_000
#: Approximate maximum number of calls in gaps. If there are more, only the longest calls are kept.
_MAX_CALLS = 1 << 20
#: Name given to ranges that XLA records on a device's thread.
ON_DEVICE = "a module runs on the device"
#: Matches XLA's range names for work on a device.
_XLA = re.compile(r"(?:XlaModule|Thunk):#")


def collect_gap_calls(
    profile: model.Profile,
    launching: Ints,
    idle: Mapping[int, intervals.Intervals],
    records: EventRecords,
) -> tuple[model.Calls, model.Calls, int]:
    """Collect the calls that launched the work after a gap, and the long calls during gaps.

    A call is long if it lasts at least ``GRAIN_NS``. If there are more than ``_MAX_CALLS`` long
    calls, this minimum length is doubled until they fit.

    Args:
        profile: The profile, including its calls.
        launching: Rows of calls that launched the work after gaps, distinct and ascending.
        idle: Idle time of the devices, keyed by process.
        records: Event records in the profile.

    Returns:
        calls: The collected calls, sorted by row.
        recording_calls: Calls that recorded a CUDA event.
        shortest_ns: The minimum length of a long call after any doubling.
    """
    kept_blocks, record_blocks = [make_no_calls().calls], [make_no_calls().calls]
    count, shortest_ns = 0, GRAIN_NS
    for block in profile.calls.blocks():
        if len(records):
            record_blocks.append(block.take(mask_recording_calls(records, block)))
        rows = np.flatnonzero(block.end_ns - block.start_ns >= shortest_ns)
        is_in_gap = _mask_in_idle_time(block, rows, idle)
        kept_blocks.append(block.take(is_in_gap | (find_positions(launching, block.row) != NONE)))
        count += len(kept_blocks[-1])
        while count > _MAX_CALLS + len(launching):
            shortest_ns *= 2
            calls = join_tables(kept_blocks)
            is_long = calls.end_ns - calls.start_ns >= shortest_ns
            kept_blocks = [calls.take(is_long | (find_positions(launching, calls.row) != NONE))]
            count = len(kept_blocks[0])
    calls = join_tables(kept_blocks)
    return calls.take(np.argsort(calls.row, kind="stable")), join_tables(record_blocks), shortest_ns


def _mask_in_idle_time(
    table: model.Calls | model.Ranges, rows: Ints, idle: Mapping[int, intervals.Intervals]
) -> Bools:
    """Return a mask of the calls or ranges during which a device of the same process was idle.

    Args:
        table: Calls or ranges.
        rows: Rows to test. The mask is False for all other rows.
        idle: Idle time of the devices, keyed by process.
    """
    is_inside, process = np.zeros(len(table), bool), model.process_of(table.thread[rows])
    for number in idle.keys() & set(find_distinct(process).tolist()):
        process_rows = rows[process == number]
        is_inside[process_rows] = intervals.mask_overlapping(
            table.start_ns[process_rows], table.end_ns[process_rows], idle[number]
        )
    return is_inside


@dataclass(frozen=True, eq=False, repr=False)
class HostEvents(Table):
    """Ranges, then calls, on launching threads and main threads, each with an activity.

    Attributes:
        thread: Thread of the range or call.
        start_ns: Start time of the range or call.
        end_ns: End time of the range or call.
        activity: Id of the host activity. Calls that launched work have -1 until
            :meth:`select_for_rank` fills in their activity.
        strength: Precedence of the event. The highest wins if events overlap; see
            :mod:`bubbleviz.conventions.host_activities`.
        launched: Row of the device activity that the call launched, or -1 if there is none.
        by: Row of the last device activity that the call waited for, or -1 if none is known.
        call: Index in ``calls`` of the call's name, or -1 if ``by`` is -1.
        calls: Distinct names of the calls whose awaited activity is known.
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

    def select_for_rank(
        self, activities: model.Activities, rank: int, threads: Ints, numbers: Numbering[str]
    ) -> HostEvents:
        """Select the events of the given threads, and fill in the activities of launching calls.

        The activity depends on what the call launched:

        - a copy on the idle rank: ``transfer``
        - a kernel on the idle rank: ``launch``
        - work on any other rank: ``other device``

        Args:
            activities: All kernels in the profile, followed by all copies.
            rank: The idle rank.
            threads: Threads whose events are selected.
            numbers: Maps activity names to integer ids. A new name gets the next free id.
        """
        elsewhere, transfer, launch = map(
            numbers.number, (known.OTHER_DEVICE, known.TRANSFER, known.LAUNCH)
        )
        events = self.take(np.isin(self.thread, threads))
        activity = np.where(events.launched >= activities.kernels, transfer, launch)
        activity = np.where(activities.rank[events.launched] == rank, activity, elsewhere)
        activity = np.where(events.launched == NONE, events.activity, activity)
        return replace(events, activity=activity)


def collect_host_events(
    ranges: model.Ranges,
    calls: model.Calls,
    call: Codes,
    profile: model.Profile,
    idle: Mapping[int, intervals.Intervals],
    lookup: known.ActivityList,
    numbers: Numbering[str],
    waits: tuple[Ints, ...],
) -> HostEvents:
    """Merge ranges and calls into one table, and classify each as a host activity by its name.

    Calls that launched work get no activity yet, because their activity depends on which device is
    idle. Overlapping Python frames on the same thread are merged, except those whose functions are
    named; see :mod:`.python_functions`.

    Args:
        ranges: Ranges on launching threads and main threads, excluding the ranges that mark steps.
        calls: Calls to classify, sorted by row.
        call: For each kernel or copy, the row of the API call that launched it, or -1 if unknown.
        profile: The profile, used to read the call names.
        idle: Idle time of the devices, keyed by process.
        lookup: Rules that classify ranges and calls by name.
        numbers: Maps activity names to integer ids. A new name gets the next free id.
        waits: Process, correlation id and awaited activity for each call in which a host waited;
            see :attr:`.Waiting.hosts`.
    """
    range_activity, range_strength = _classify_ranges(ranges, lookup, numbers)
    launched = _find_launched_work(calls, call)
    # Calls that launched work are assigned an activity later, in select_for_rank.
    other_calls = np.flatnonzero(launched == NONE)
    names = np.array(profile.calls.names(calls.row[other_calls]), object)
    activity, strength = np.full(len(calls), NONE), np.full(len(calls), known.KNOWN)
    activity[other_calls], strength[other_calls], is_waiting = _classify_calls(
        names, lookup, numbers
    )
    awaited, call_name, call_names = _find_awaited_work(
        calls, other_calls[is_waiting], names[is_waiting], waits
    )
    unset = make_constant(NONE, len(ranges))
    events = HostEvents(
        thread=np.append(ranges.thread, calls.thread),
        start_ns=np.append(ranges.start_ns, calls.start_ns),
        end_ns=np.append(ranges.end_ns, calls.end_ns),
        activity=np.append(range_activity, activity),
        strength=np.append(range_strength, strength),
        launched=np.append(unset, launched),
        by=np.append(unset, awaited),
        call=np.append(unset, call_name),
        calls=call_names,
    )
    named_frames = _name_frames(events, ranges, idle, numbers)
    # If two events are equally long, the later one wins, so named frames come last.
    return join_tables((_merge_frames(events), named_frames))


def _classify_ranges(
    ranges: model.Ranges, lookup: known.ActivityList, numbers: Numbering[str]
) -> tuple[Ints, Ints]:
    """Return the activity id of each range, and the activity's strength.

    Args:
        ranges: Host ranges.
        lookup: Rules that classify ranges by name.
        numbers: Maps activity names to integer ids. A new name gets the next free id.
    """
    classified = [lookup.classify_range(name) for name in ranges.names]
    activity = numbers.numbers(name for name, _ in classified)
    strength = np.array([strength for _, strength in classified], np.int64)
    return activity[ranges.name_id], strength[ranges.name_id]


def _find_launched_work(calls: model.Calls, call: Codes) -> Ints:
    """Return, for each call, the row of the device activity that it launched, or -1 if none.

    If a call launched several activities, the largest row is returned.

    Args:
        calls: Calls, sorted by row.
        call: For each kernel or copy, the row of the API call that launched it, or -1 if unknown.
    """
    launched = np.full(len(calls), NONE, np.int64)
    index = find_positions(calls.row, call)
    activity = np.flatnonzero(index != NONE)
    launched[index[activity]] = activity
    return launched


def _classify_calls(
    names: npt.NDArray[np.object_], lookup: known.ActivityList, numbers: Numbering[str]
) -> tuple[Ints, Ints, Bools]:
    """Classify calls as host activities by their names.

    Args:
        names: Name of each call.
        lookup: Rules that classify calls by name.
        numbers: Maps activity names to integer ids. A new name gets the next free id.

    Returns:
        activity: Id of each call's activity.
        strength: Strength of each call's activity; see :class:`HostEvents`.
        is_waiting: Mask of the calls in which the host waits.
    """
    classified = {name: lookup.classify_call(name) for name in set(names.tolist())}
    activity = numbers.numbers(classified[name][0] for name in names)
    strength = np.array([classified[name][1] for name in names], np.int64)
    is_waiting = np.array([classified[name][0] == known.WAITING for name in names], bool)
    return activity, strength, is_waiting


def _find_awaited_work(
    calls: model.Calls, rows: Ints, names: npt.NDArray[np.object_], waits: tuple[Ints, ...]
) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Return the kernel or copy that each waiting call waited for, and the names of those calls.

    Args:
        calls: Waiting calls and other calls.
        rows: Rows of the waiting calls in ``calls``.
        names: Names of the waiting calls.
        waits: Process, correlation id and awaited activity for each call in which a host waited.

    Returns:
        awaited: For each of ``calls``, the row of the activity that it waited for, or -1 if none is
            known.
        call_name: For each of ``calls``, the index of its name in ``call_names``, or -1 if
            ``awaited`` is -1.
        call_names: Distinct names of the calls whose awaited activity is known.
    """
    awaited, call_name = np.full((2, len(calls)), NONE)
    numbers = Numbering[str]()
    if waits and len(rows):
        ids = model.process_of(calls.thread[rows]), calls.correlation_id[rows].astype(np.int64)
        awaited[rows] = lookup_values(waits[:2], waits[2], ids)
        is_known = awaited[rows] != NONE
        call_name[rows[is_known]] = numbers.numbers(names[is_known])
    return awaited, call_name, numbers.values


def _name_frames(
    events: HostEvents,
    ranges: model.Ranges,
    idle: Mapping[int, intervals.Intervals],
    numbers: Numbering[str],
) -> HostEvents:
    """Return the Python frames whose functions are named, with one activity per function.

    Args:
        events: The ranges, followed by calls.
        ranges: The ranges.
        idle: Idle time of the devices, keyed by process.
        numbers: Maps activity names to integer ids. A new name gets the next free id.
    """
    is_frame = events.activity[: len(ranges)] == numbers.number(known.PYTHON)
    rows = np.flatnonzero(is_frame & (events.strength[: len(ranges)] == known.FRAME))
    if len(rows) == 0:
        return events.take(rows)
    functions = Numbering[str]()
    name_ids, name = np.unique(ranges.name_id[rows], return_inverse=True)
    function = functions.numbers(name_function(ranges.names[name_id]) for name_id in name_ids)
    frames = Frames(
        thread=events.thread[rows],
        start_ns=events.start_ns[rows],
        end_ns=events.end_ns[rows],
        function=function[name],
        time_ns=_measure_python(events, rows, idle),
    )
    is_named = select_named(frames)
    activity = numbers.numbers(f"{known.PYTHON}: {text}" for text in functions.values)
    named = events.take(rows[is_named])
    return replace(named, activity=activity[frames.function[is_named]])


def _measure_python(
    events: HostEvents, rows: Ints, idle: Mapping[int, intervals.Intervals]
) -> Ints:
    """Return, for each frame, the idle time in which no stronger event runs on its thread.

    Args:
        events: Ranges and calls.
        rows: Rows of the frames.
        idle: Idle time of the devices, keyed by process.
    """
    time_ns = np.zeros(len(rows), np.int64)
    # Only launching and main threads have events, so the loop is short.
    for thread in find_distinct(events.thread[rows]).tolist():
        is_of_thread = events.thread[rows] == thread
        stronger = (events.thread == thread) & (events.strength > known.FRAME)
        process_idle = idle.get(thread >> 24, intervals.make_empty())
        free = intervals.difference(
            process_idle, intervals.union(events.start_ns, events.end_ns, stronger)
        )
        frames = rows[is_of_thread]
        time_ns[is_of_thread] = intervals.measure_within(
            free, events.start_ns[frames], events.end_ns[frames]
        )
    return time_ns


def _merge_frames(events: HostEvents) -> HostEvents:
    """Replace a thread's overlapping Python frames with one event, because frames nest deeply.

    Frames with different activities are not merged. The merged frames come after all other events.
    """
    frames = events.take(events.strength == known.FRAME)
    if len(frames) == 0 or (frames.activity != frames.activity[0]).any():
        return events
    threads, number = np.unique(frames.thread, return_inverse=True)
    group, start_ns, end_ns = intervals.group_union(
        number, len(threads), frames.start_ns, frames.end_ns
    )
    merged = replace(
        frames.take(np.zeros(len(group), np.int64)),
        thread=threads[group],
        start_ns=start_ns,
        end_ns=end_ns,
    )
    return join_tables((events.take(events.strength != known.FRAME), merged))


def find_events_around(
    host: HostEvents, thread: Ints, start_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut time segments at event boundaries, and find the event that best explains each piece.

    This event is the one with the highest ``strength`` among all events that contain the piece. If
    events are equally strong, the shortest one wins. If they are also equally long, the event that
    starts last wins.

    Args:
        host: Ranges and calls recorded on threads.
        thread: For each segment, the thread whose events are searched.
        start_ns: Start time of each segment. Segments of a thread are disjoint.
        end_ns: End time of each segment, later than its start.

    Returns:
        segment: Index of the segment to which each piece belongs.
        start_ns: Start time of each piece.
        end_ns: End time of each piece.
        event: For each piece, the row in ``host`` of the strongest event, or -1 if there is none.
    """
    row = np.arange(len(thread))
    if len(row) == 0 or len(host) == 0:
        return row, start_ns, end_ns, np.full(len(row), NONE)
    row = np.lexsort((start_ns, thread))
    start_ns, end_ns = start_ns[row], end_ns[row]
    threads, number = np.unique(thread[row], return_inverse=True)
    extents = intervals.group_extents(number, len(threads), start_ns, end_ns)
    # Lay out all threads on one timeline without overlaps.
    line = intervals.Packing.of(*extents)
    start, end = line.place(number, start_ns), line.place(number, end_ns)
    events, low, high = _place_events(host, threads, extents, line)
    is_near = intervals.mask_overlapping(low, high, (start, end))
    events, low, high = events[is_near], low[is_near], high[is_near]
    piece, piece_start, piece_end = intervals.split_at(start, end, np.append(low, high))
    ranking = _rank_by_strength(host, events)
    strongest = Innermost.of(low, high, ranking).around(piece_start, piece_end)
    return (
        row[piece],
        piece_start - start[piece] + start_ns[piece],
        piece_end - start[piece] + start_ns[piece],
        np.append(events, NONE)[strongest],
    )


def _place_events(
    host: HostEvents, threads: Ints, extents: tuple[Ints, Ints], line: intervals.Packing
) -> tuple[Ints, Ints, Ints]:
    """Place the events of the given threads on a common line, clipped to each thread's extent.

    Args:
        host: Ranges and calls recorded on threads.
        threads: Threads to place, in ascending order.
        extents: Start and end of each thread's section of the line, in ns.
        line: The line.

    Returns:
        event: Rows in ``host`` of the placed events, in ascending order.
        low: Position of each event's start on the line.
        high: Position of each event's end on the line.
    """
    event = np.flatnonzero(np.isin(host.thread, threads))
    group = np.searchsorted(threads, host.thread[event])
    low, high = (
        line.place(group, np.clip(time_ns[event], extents[0][group], extents[1][group]))
        for time_ns in (host.start_ns, host.end_ns)
    )
    return event, low, high


def _rank_by_strength(host: HostEvents, events: Ints) -> Ints:
    """Return the rank of each event among the given events, in ascending order of precedence.

    Stronger events have higher ranks, then shorter events, then events that start later.

    Args:
        host: Ranges and calls recorded on threads.
        events: Rows in ``host``.
    """
    length_ns = host.end_ns[events] - host.start_ns[events]
    weakest_first = np.lexsort((host.start_ns[events], -length_ns, host.strength[events]))
    return invert_permutation(weakest_first)


def collect_host_ranges(
    profile: model.Profile,
    idle: Mapping[int, intervals.Intervals],
    threads: Ints,
    steps: Mapping[int, Steps],
    shortest_ns: int,
) -> model.Ranges:
    """Collect the thread ranges that overlap idle time, excluding the ranges that mark steps.

    XLA traces contain one extra thread per device. The thread's ranges for modules and instructions
    are renamed to ``ON_DEVICE``, because they run on the device instead of the host. Its other
    ranges are left out.

    Args:
        profile: The profile, as the reader returned it.
        idle: Idle time of the devices, keyed by process.
        threads: Launching threads and main threads.
        steps: Steps of the training loop, keyed by process.
        shortest_ns: Length below which gaps are not attributed. Ranges below this length or below
            ``GRAIN_NS`` are left out.
    """
    ranges = _read_ranges_in_gaps(profile, idle, threads, max(GRAIN_NS, shortest_ns))
    devices = [t.thread for t in profile.threads if t.name.startswith(model.DEVICE_THREAD)]
    is_on_device = find_positions(np.sort(np.array(devices, np.int64)), ranges.thread) != NONE
    # Convert names to the form that conventions match, and drop step names.
    step_names = {name for table in steps.values() for name in table.names}
    name_ids, row = np.unique(ranges.name_id, return_inverse=True)
    names = Numbering[str]()
    texts = [range_names.bare_name(ranges.names[name_id]) for name_id in name_ids.tolist()]
    name_id = np.array([NONE if t in step_names else names.number(t) for t in texts], np.int64)
    is_xla = np.array([_XLA.match(text) is not None for text in texts], bool)
    is_kept = (name_id[row] != NONE) & (~is_on_device | is_xla[row])
    name_id = np.where(is_on_device, len(names), name_id[row])
    all_names = (*names.values, ON_DEVICE) if is_on_device.any() else names.values
    return replace(ranges, name_id=name_id, names=all_names).take(is_kept)


def _read_ranges_in_gaps(
    profile: model.Profile,
    idle: Mapping[int, intervals.Intervals],
    threads: Ints,
    shortest_ns: int,
) -> model.Ranges:
    """Read the ranges and system calls that overlap idle time into one table.

    Args:
        profile: The profile, as the reader returned it.
        idle: Idle time of the devices, keyed by process.
        threads: Threads to read.
        shortest_ns: Minimum length of a range or system call.
    """
    first_ns, last_ns = (np.concatenate(c) for c in zip(*idle.values(), strict=True))
    logs = [
        log.lasting(shortest_ns, threads, first_ns, last_ns, None)
        for log in (profile.all_ranges, profile.system_calls)
        if log is not None
    ]
    first_name = np.cumsum([0, *(len(log.names) for log in logs)]).tolist()
    logs = [
        replace(log, name_id=log.name_id + first)
        for log, first in zip(logs, first_name, strict=False)
    ]
    ranges = replace(join_tables(logs), names=tuple(name for log in logs for name in log.names))
    return ranges.take(_mask_in_idle_time(ranges, np.arange(len(ranges)), idle))


def list_names_around(ranges: model.Ranges, thread: int, time_ns: int) -> tuple[str, ...]:
    """Return the names of a thread's ranges that contain an instant, longest first.

    A range contains the instant if start <= ``time_ns`` <= end.
    """
    rows = np.flatnonzero(
        (ranges.thread == thread) & (ranges.start_ns <= time_ns) & (time_ns <= ranges.end_ns)
    )
    length_ns = ranges.end_ns[rows] - ranges.start_ns[rows]
    order = np.lexsort((rows, ranges.start_ns[rows], -length_ns))
    return tuple(ranges.names[name] for name in ranges.name_id[rows[order]].tolist())
