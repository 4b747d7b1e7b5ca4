"""Finds stream and host waits that are proved by CUDA events.

A stream runs its work in order. An event that is recorded on a stream completes when all earlier
work on the stream has ended. Work after a wait for the event starts once the event has completed::

    host           record E(1)   launch P   wait for E   launch W   record E(2)
    stream 20   ├───────── K ─────────┤ E(1)      ├── L ──┤ E(2)
    stream 7    ├ P ┤ wait for E            ├── W ──┤
    delay                ├────────────┤               from when W could have started until K ended

Work on a stream is ordered by the host's calls. The order is unknown for calls at the same time and
for work whose call was not recorded. Neither case proves a wait.

:func:`find_waiting` matches each wait with the record of its event. The waits between two
consecutive activities (kernels or copies) of a stream form a *run*. Based on the completion time of
each event, the function determines which work each run delayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from bubbleviz.analyses.idle.gaps import LATENCY_NS
from bubbleviz.conventions import host_activities
from bubbleviz.conventions.kinds import Kinds, match_any
from bubbleviz.model import intervals, limitations
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import find_distinct, find_first_rows, group_rows, lookup_values
from bubbleviz.model.profile import UNCORRELATED, Activities, Calls, Profile, process_of
from bubbleviz.model.synchronization import EventRecords, Synchronization, Waits

#: Time earlier than any time in a profile, used for unknown completion times.
NEVER = -(1 << 62)
#: Time later than any time in a profile, used for events whose completion is unknown.
FOREVER = 1 << 62
#: Maximum length of a chain in which each event is recorded after a wait for the previous event.
_MAX_DEPTH = 32
#: Maximum time in ns by which work may start before the awaited event completes. Clock errors are
#: smaller than this, so work that starts even earlier did not wait for the event.
SLACK_NS = 1_000
#: Kinds of work that a stream or a host can wait for.
COMPUTE, COMMUNICATION, COPY = range(3)
#: Display name of each kind of work, and the activity to which its idle time is attributed.
KIND_NAMES = ("compute", "communication", "copy")
BLOCKED = (
    host_activities.BLOCKED_BY_COMPUTE,
    host_activities.BLOCKED_BY_COMMUNICATION,
    host_activities.BLOCKED_BY_COPIES,
)


@dataclass(frozen=True, eq=False, repr=False)
class DelayedWork(Table):
    """Kernels and copies that waited for an event, one per row, sorted by ``work``.

    Attributes:
        work: Row of the activity (kernel or copy) that waited.
        start_ns: Start time of the wait: the activity had been launched, and the previous work on
            its stream had ended.
        end_ns: Time at which the event completed or the activity started, whichever is earlier.
        by: Row of the activity whose end completed the event.
        kind: Kind of the activity in ``by``, such as :data:`COMPUTE`.
    """

    work: Ints
    start_ns: Ints
    end_ns: Ints
    by: Ints
    kind: Ints


@dataclass(frozen=True, eq=False, repr=False)
class EventTimes(Table):
    """When the events completed that work waited for, one activity per row, sorted by ``work``.

    Attributes:
        work: Row of the first activity that the stream ran after one or more waits.
        completed_ns: Time at which the last awaited event completed, or :data:`FOREVER` if the
            completion of any of them is unknown.
    """

    work: Ints
    completed_ns: Ints


@dataclass(frozen=True)
class Waiting:
    """The waits that a profile proves.

    Attributes:
        delayed_work: Kernels and copies that waited for an event.
        hosts: Columns (process, correlation id, activity), with one row per call in which a host
            waited. The activity is the awaited kernel or copy that ended last. Rows are sorted by
            process and correlation id. The tuple is empty if there are no synchronization events.
        streams: Stream of each activity, or -1 if unknown. Empty if there are no synchronization
            events.
        events: When the events completed that work waited for.
        n_waits: Number of times that a stream waited for an event.
        n_unrecorded: Number of stream waits whose event record is unknown.
    """

    delayed_work: DelayedWork = field(default_factory=DelayedWork.make_empty)
    hosts: tuple[Ints, ...] = ()
    streams: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    events: EventTimes = field(default_factory=EventTimes.make_empty)
    n_waits: int = 0
    n_unrecorded: int = 0


def classify_work(activities: Activities, rows: Ints, kinds: Kinds) -> Ints:
    """Return the kind of each activity: :data:`COMPUTE`, :data:`COMMUNICATION` or :data:`COPY`.

    Args:
        activities: All kernels in the profile, followed by all copies.
        rows: Rows of the activities to classify.
        kinds: Name patterns that identify communication kernels.
    """
    communication = np.append(match_any(activities.names, kinds.communication), False)
    communicates, copies = communication[activities.name_id[rows]], rows >= activities.kernels
    kind = np.select((copies, communicates), (COPY, COMMUNICATION), COMPUTE)
    return np.asarray(kind, np.int64)


def read_synchronization(
    profile: Profile,
) -> tuple[Synchronization | None, tuple[limitations.Limitation, ...]]:
    """Read the synchronization events in a profile, and limitations about lost events.

    The result contains None instead of events if there are none, or if the profile records no
    launches. If exactly one process ran work, events whose process is unknown are assigned to that
    process.
    """
    if profile.synchronization is None or not profile.launches_known:
        return None, ()
    synchronization, losses = profile.synchronization()
    processes = find_distinct(profile.activities.ranks[:, 0])
    if synchronization is None or len(processes) != 1:
        return synchronization, losses
    records, waits = synchronization.records, synchronization.waits
    records = replace(records, process=np.where(records.process < 0, processes, records.process))
    waits = replace(waits, process=np.where(waits.process < 0, processes, waits.process))
    return replace(synchronization, records=records, waits=waits), losses


def mask_recording_calls(records: EventRecords, calls: Calls) -> Bools:
    """Return a mask of the calls that recorded an event.

    A call recorded an event if ``records`` contains its process and correlation id.
    """
    ids = calls.correlation_id.astype(np.int64)
    keys = records.process, records.correlation_id
    record = lookup_values(keys, np.zeros(len(records), np.int64), (process_of(calls.thread), ids))
    return np.asarray((record != NONE) & (ids < UNCORRELATED), bool)


def _locate_records(records: EventRecords, calls: Calls) -> tuple[EventRecords, Ints]:
    """Look up the call that made each event record. Return the records and the calls' start times.

    A record and a call match if their process and correlation id are equal. If several calls match
    a record, the call that starts first is used. Records that match no call are left out. The order
    of the remaining records is preserved.

    Args:
        records: Event records.
        calls: Calls, in any order.

    Returns:
        records: The records with a known call.
        called_ns: Start time of the call that made each of the returned records.
    """
    n_records, ids = len(records), calls.correlation_id.astype(np.int64)
    process = np.append(records.process, process_of(calls.thread))
    key = group_rows(process, np.append(records.correlation_id, ids)).of_row
    record_key, call_key = key[:n_records], key[n_records:]
    earliest = find_first_rows(call_key, calls.start_ns)
    call = lookup_values((call_key[earliest],), earliest, (record_key,))
    rows = np.flatnonzero(call != NONE)
    return records.take(rows), calls.start_ns[call[rows]]


class StreamOrder:
    """The work on each stream, in the order in which the host launched it.

    Activities are sorted by stream, then by their start on the device.

    Activities whose stream is unknown are left out.

    Attributes:
        work: Row of each activity.
        stream: Stream of each activity in ``work``, ascending.
        time_ns: Start of the launching call of each activity in ``work``. If the call is unknown or
            started before an earlier launch on the stream, the latest earlier launch time is used
            instead. Therefore, times never decrease within a stream. :data:`NEVER` if there is
            none.
        has_call: Mask of the activities in ``work`` whose launching call is known.

    Args:
        stream: Stream of each activity, or -1 if unknown.
        start_ns: Start time of each activity on the device.
        launched_ns: Start time of each activity's launching call, which is undefined if the call is
            unknown.
        has_call: Mask of the activities whose launching call is known.
    """

    def __init__(self, stream: Ints, start_ns: Ints, launched_ns: Ints, has_call: Bools) -> None:
        work = np.flatnonzero(stream != NONE)
        self.work = work = work[np.lexsort((start_ns[work], stream[work]))]
        self.stream, self.has_call = stream[work], has_call[work]
        time_ns = np.where(self.has_call, launched_ns[work], NEVER)
        self.time_ns = time_ns[find_latest_so_far(self.stream, time_ns)]

    def find_before(self, stream: Ints, time_ns: Ints, *, or_at: bool = False) -> Ints:
        """Return, for each query, the index of the last work launched on a stream before a time.

        The result is an index into ``work``, or -1 if there is no such work.

        Args:
            stream: Stream of each query.
            time_ns: Time of each query.
            or_at: Whether to include work launched exactly at the time.
        """
        return intervals.find_last_before(self.stream, self.time_ns, stream, time_ns, or_at=or_at)

    def find_after(self, stream: Ints, time_ns: Ints) -> Ints:
        """Return, for each query, the index of the first work launched on a stream after a time.

        The result is an index into ``work``, or -1 if there is no such work. Work launched exactly
        at the time is not included.
        """
        last = self.find_before(stream, time_ns, or_at=True)
        index = np.where(last == NONE, np.searchsorted(self.stream, stream), last + 1)
        return np.where(np.append(self.stream, NONE)[index] == stream, index, NONE)

    def mask_trusted(self, index: Ints) -> Bools:
        """Return a mask of the indices that are -1 or whose work has a known launching call."""
        return np.append(self.has_call, True)[index]

    def find_last_work(self, stream: Ints, time_ns: Ints) -> Ints:
        """Return, for each query, the row of the last activity launched on a stream before a time.

        The result is -1 if there is no such activity, or if its launching call is unknown.
        """
        index = self.find_before(stream, time_ns)
        return np.where(self.mask_trusted(index), np.append(self.work, NONE)[index], NONE)


def find_latest_so_far(run: Ints, value: Ints) -> Ints:
    """Return, for each row, the row with the largest value so far in the same run.

    The rows of a run are adjacent. If several rows have the largest value, the first one wins::

        run      0 0 0 1 1
        value    5 7 6 2 2
        result   0 1 1 3 3
    """
    count = len(value)
    if count == 0:
        return np.empty(0, np.int64)
    ascending = np.lexsort((-np.arange(count), value))
    rank = np.empty(count, np.int64)
    rank[ascending] = np.arange(count)
    offset = np.cumsum(np.append(False, run[1:] != run[:-1])) * count
    latest: Ints = ascending[np.maximum.accumulate(rank + offset) - offset]
    return latest


def _match_records(records: EventRecords, called_ns: Ints, waits: Waits) -> Ints:
    """Match each wait with the record of the event that it waits for.

    The record is the last one that the same process made before the wait for the same event.

    - Events are the same if their pairing numbers are equal. If the wait or all records lack
      pairing numbers, the event ids are compared instead.
    - A record on the wait's device takes precedence over records on other devices, because whether
      devices share event numbers is not documented.

    Args:
        records: Event records.
        called_ns: Time at which the host made each record.
        waits: Stream waits and host waits.

    Returns:
        The row of the record that each wait matches, or -1 if there is none. Host waits for a
        stream or device match no record.
    """
    record = np.full(len(waits), NONE, np.int64)
    has_no_pairing = (waits.pairing == NONE) | (records.pairing == NONE).all()
    for name, applies in (("pairing", ~has_no_pairing), ("event", has_no_pairing)):
        has_id = getattr(records, name) != NONE
        candidates = np.flatnonzero(has_id & (records.process != NONE))
        for by_device in (True, False):
            recorded_event, awaited_event = _number_events(
                records, waits, name, by_device=by_device
            )
            is_open = applies & (waits.event != NONE) & (waits.process != NONE) & (record == NONE)
            rows = np.flatnonzero(is_open)
            last = intervals.find_last_before(
                recorded_event[candidates],
                called_ns[candidates],
                awaited_event[rows],
                waits.start_ns[rows],
            )
            record[rows] = np.append(candidates, NONE)[last]
    return record


def _number_events(
    records: EventRecords, waits: Waits, name: str, *, by_device: bool
) -> tuple[Ints, Ints]:
    """Assign an integer id to each event, so that a record and a wait of the same event match.

    Args:
        records: Event records.
        waits: Stream waits and host waits.
        name: Column that identifies an event in its process: ``pairing`` or ``event``.
        by_device: Whether equal ids on different devices are different events.

    Returns:
        recorded_event: Event id of each record.
        awaited_event: Event id of each wait.
    """
    columns = (
        (records.process, waits.process),
        (getattr(records, name), getattr(waits, name)),
        (by_device * records.device, by_device * waits.device),
    )
    number = group_rows(*map(np.concatenate, columns)).of_row
    return number[: len(records)], number[len(records) :]


def _find_launch_ends(call: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return, for each activity, the time when all activities of its launch have ended.

    A launch can run several activities. For example, a CUDA graph runs many kernels on several
    streams.

    Args:
        call: Launching call of each activity, or -1 if unknown. An activity whose call is unknown
            is treated as a separate launch.
        end_ns: End time of each activity.

    Returns:
        launch_end_ns: For each activity, the latest end of any activity in the same launch.
        last_activity: For each activity, the row of the activity in its launch that ended last. On
            ties, the smallest row wins.
    """
    row, known_calls = np.arange(len(call)), call[call != NONE]
    if len(find_distinct(known_calls)) == len(known_calls):
        return end_ns, row
    order = np.lexsort((-row, end_ns, call))
    is_last = np.append(call[order][1:] != call[order][:-1], True)[: len(order)]
    launch = np.cumsum(np.append(0, is_last[:-1]))[: len(order)]
    last_activity = np.empty(len(call), np.int64)
    last_activity[order] = order[is_last][launch]
    last_activity = np.where(call == NONE, row, last_activity)
    return end_ns[last_activity], last_activity


class _Runs(NamedTuple):
    """Stream waits for events, grouped into runs, and sorted by stream and time.

    A run contains the waits of a stream between two consecutive activities.

    Attributes:
        record: For each wait, the row of the record that its event matches.
        stream: For each wait, the stream that is waiting.
        start_ns: Start time of the call that made each wait.
        anchor: Index in :class:`StreamOrder` of the last work before each wait, or -1 if there is
            none.
        run: Run number of each wait, ascending.
    """

    record: Ints
    stream: Ints
    start_ns: Ints
    anchor: Ints
    run: Ints


def _find_runs(
    order: StreamOrder, waits: Waits, stream: Ints, record: Ints, is_stream_wait: Bools
) -> _Runs:
    """Group the stream waits that occur between the same two activities.

    Such a group is called a run. The activity before it is called the anchor of the run. A wait is
    left out if:

    - its stream or record is unknown,
    - the launching call of the anchor is unknown, or
    - the host made the wait at the exact time of a launch on the same stream.

    Args:
        order: Work of each stream, in launch order.
        waits: Stream waits and host waits.
        stream: Stream of each wait, or -1 if unknown.
        record: Row of the event record that each wait matches, or -1 if there is none.
        is_stream_wait: Mask of the waits in which a stream waits for an event.
    """
    rows = np.flatnonzero(is_stream_wait & (stream != NONE) & (record != NONE))
    rows = rows[np.lexsort((waits.start_ns[rows], stream[rows]))]
    anchor, anchor_or_same_time = (
        order.find_before(stream[rows], waits.start_ns[rows], or_at=or_at)
        for or_at in (False, True)
    )
    is_certain = order.mask_trusted(anchor) & (anchor == anchor_or_same_time)
    rows, anchor = rows[is_certain], anchor[is_certain]
    run = group_rows(stream[rows], anchor).of_row
    return _Runs(record[rows], stream[rows], waits.start_ns[rows], anchor, run)


def _find_completions(
    order: StreamOrder,
    records: EventRecords,
    stream: Ints,
    called_ns: Ints,
    launch_ends: tuple[Ints, Ints],
    runs: _Runs,
) -> tuple[Ints, Ints]:
    """Return the time at which each event completed, and the work that completed it.

    An event completes at the latest of these times:

    - the end of the last launch before the event on the same stream,
    - the completion time in the profile, and
    - the completion of other events that the stream waited for between this launch and the event.

    The last rule is applied along chains of up to ``_MAX_DEPTH`` events.

    Args:
        order: Work of each stream, in launch order.
        records: Event records.
        stream: Stream of each record, or -1 if unknown.
        called_ns: Time at which the host made each record.
        launch_ends: Results of :func:`_find_launch_ends`.
        runs: Stream waits, grouped into runs.

    Returns:
        completed_ns: Completion time of each event, or :data:`NEVER` if unknown.
        completed_by: Row of the activity that completed each event, or -1 if unknown.
    """
    launch_end_ns, last_activity = launch_ends
    index = order.find_before(stream, called_ns)
    is_certain = (stream != NONE) & order.mask_trusted(index)
    has_work = is_certain & (index != NONE)
    work = np.append(order.work, NONE)[index]
    completed_ns = np.maximum(np.append(launch_end_ns, NEVER)[work], records.completed_ns)
    completed_ns = np.where(has_work, completed_ns, NEVER)
    completed_by = np.where(has_work, np.append(last_activity, NONE)[work], NONE)
    wait = intervals.find_last_before(runs.stream, runs.start_ns, stream, called_ns)
    is_after_wait = is_certain & (wait != NONE) & (np.append(runs.anchor, NONE)[wait] == index)
    rows = np.flatnonzero(is_after_wait)
    _propagate_completions(completed_ns, completed_by, runs, rows, wait[rows])
    return completed_ns, completed_by


def _propagate_completions(
    completed_ns: Ints, completed_by: Ints, runs: _Runs, events: Ints, wait: Ints
) -> None:
    """Delay events that were recorded directly after a wait, until the awaited events complete.

    Delays are passed on along chains of up to ``_MAX_DEPTH`` events.

    Args:
        completed_ns: Completion time of each event, changed in place.
        completed_by: Row of the activity that completed each event, changed in place.
        runs: Stream waits, grouped into runs.
        events: Rows of the events that may be delayed. Their stream waits before the event is
            recorded, and runs no work in between.
        wait: For each row in ``events``, the index in ``runs`` of the last wait before the event.
    """
    for _ in range(_MAX_DEPTH):
        latest_wait = find_latest_so_far(runs.run, completed_ns[runs.record])
        awaited = runs.record[latest_wait[wait]]
        is_later = completed_ns[awaited] > completed_ns[events]
        if not is_later.any():
            break
        completed_ns[events[is_later]] = completed_ns[awaited[is_later]]
        completed_by[events[is_later]] = completed_by[awaited[is_later]]


def _find_delayed_work(
    order: StreamOrder,
    runs: _Runs,
    completed_ns: Ints,
    launch_end_ns: Ints,
    activities: Activities,
    call: Codes,
    launched_ns: Ints,
    returned_ns: Callable[[Ints], Ints],
) -> tuple[Ints, Ints, Ints, Ints]:
    """Find the work that each run of waits delayed, and the length of the delay.

    The delayed work is the first work launched on the stream after the run. The delayed work begins
    to wait once it has been launched and the previous work has ended. The wait ends when the last
    event of the run completes, or when the work starts if that is earlier.

    A run is left out if:

    - the launching call of the delayed work or the completion time of the last event is unknown,
    - the wait has no duration, or
    - the work started more than ``SLACK_NS`` before the last event completed.

    Args:
        order: Work of each stream, in launch order.
        runs: Stream waits, grouped into runs.
        completed_ns: Completion time of each recorded event, or :data:`NEVER`.
        launch_end_ns: The first result of :func:`_find_launch_ends`.
        activities: Kernels and copies.
        call: Launching call of each activity, or -1 if unknown.
        launched_ns: Start time of the launching call of each activity.
        returned_ns: Function that returns the end of each call, given distinct, ascending rows.

    Returns:
        One entry per run, sorted by ``work``:

        record: Record row of the event that completed last.
        work: Row of the delayed activity.
        start_ns: Time at which the delayed activity started to wait.
        end_ns: Time at which the delayed activity's wait ended.
    """
    run_end = np.flatnonzero(np.append(runs.run[1:] != runs.run[:-1], True)[: len(runs.run)])
    record = runs.record[find_latest_so_far(runs.run, completed_ns[runs.record])[run_end]]
    index = order.find_after(runs.stream[run_end], runs.start_ns[run_end])
    anchor = runs.anchor[run_end]
    is_certain = (index == anchor + 1) | (anchor == NONE)
    is_certain &= (index != NONE) & order.mask_trusted(index) & (completed_ns[record] != NEVER)
    record, index, anchor = record[is_certain], index[is_certain], anchor[is_certain]
    work = order.work[index]
    ready_ns = find_ready_times(work, call, launched_ns, returned_ns)
    previous = np.where(anchor == NONE, NONE, np.append(order.work, NONE)[anchor])
    start_ns = np.maximum(ready_ns, np.append(launch_end_ns, NEVER)[previous])
    end_ns = np.minimum(completed_ns[record], activities.start_ns[work])
    has_waited = end_ns > start_ns
    has_waited &= completed_ns[record] <= activities.start_ns[work] + SLACK_NS
    rows = np.flatnonzero(has_waited)
    rows = rows[np.argsort(work[rows], kind="stable")]
    return record[rows], work[rows], start_ns[rows], end_ns[rows]


def find_ready_times(
    work: Ints, call: Codes, launched_ns: Ints, returned_ns: Callable[[Ints], Ints]
) -> Ints:
    """Return the earliest time after its launch at which the device could start each activity.

    An activity can start when its launching call ends, but no earlier than ``LATENCY_NS`` after the
    call starts.

    Args:
        work: Rows of the activities, whose launching calls must be known.
        call: Launching call of each activity in the profile, or -1 if unknown.
        launched_ns: Start time of each activity's launching call.
        returned_ns: Function that returns the end of each call, given distinct, ascending rows.
    """
    work_call = call[work].astype(np.int64)
    distinct_calls = find_distinct(work_call)
    call_end_ns = returned_ns(distinct_calls)[np.searchsorted(distinct_calls, work_call)]
    return np.maximum(call_end_ns, launched_ns[work] + LATENCY_NS)


def find_waiting(
    synchronization: Synchronization,
    calls: Calls,
    activities: Activities,
    streams: Ints,
    call: Codes,
    launched_ns: Ints,
    returned_ns: Callable[[Ints], Ints],
    kinds: Kinds,
) -> Waiting:
    """Find work that waited for events, and calls in which a host waited for known work.

    The method is described at the beginning of this module.

    Args:
        synchronization: Synchronization events in the profile.
        calls: Calls that recorded events.
        activities: Kernels and copies.
        streams: Stream of each activity, or -1 if unknown.
        call: Launching call of each activity, or -1 if unknown.
        launched_ns: Start time of the launching call, undefined if the call is unknown.
        returned_ns: Function that returns the end of each call, given distinct, ascending rows.
        kinds: Name patterns that identify communication kernels.
    """
    waits = synchronization.waits
    records, called_ns = _locate_records(synchronization.records, calls)
    rank = activities.rank.astype(np.int64)
    record_rank, wait_rank = (
        lookup_values(
            (activities.ranks[:, 0], activities.ranks[:, 1]),
            np.arange(len(activities.ranks)),
            (table.process, table.device),
        )
        for table in (records, waits)
    )
    stream, record_stream, wait_stream = _number_streams(
        (rank, record_rank, wait_rank), (streams, records.stream, waits.stream)
    )
    order = StreamOrder(stream, activities.start_ns, launched_ns, call != NONE)
    record = _match_records(records, called_ns, waits)
    is_stream_wait = np.asarray((waits.stream != NONE) & (waits.event != NONE), bool)
    runs = _find_runs(order, waits, wait_stream, record, is_stream_wait)
    launch_ends = _find_launch_ends(call.astype(np.int64), activities.end_ns)
    completed_ns, completed_by = _find_completions(
        order, records, record_stream, called_ns, launch_ends, runs
    )
    delayed_record, delayed_work, start_ns, end_ns = _find_delayed_work(
        order, runs, completed_ns, launch_ends[0], activities, call, launched_ns, returned_ns
    )
    awaited = np.append(completed_by, NONE)[record]
    awaited[is_stream_wait] = NONE
    _find_awaited_streams(awaited, order, waits, wait_rank, wait_stream, rank, launch_ends)
    by = completed_by[delayed_record]
    return Waiting(
        delayed_work=DelayedWork(
            delayed_work, start_ns, end_ns, by, classify_work(activities, by, kinds)
        ),
        hosts=_list_host_waits(waits, awaited),
        streams=streams,
        events=_find_last_events(
            order, waits, np.where(is_stream_wait, wait_stream, NONE), record, completed_ns
        ),
        n_waits=int(is_stream_wait.sum()),
        n_unrecorded=int((record[is_stream_wait] == NONE).sum()),
    )


def _find_last_events(
    order: StreamOrder, waits: Waits, stream: Ints, record: Ints, completed_ns: Ints
) -> EventTimes:
    """Return when the last event completed that each activity waited for.

    Args:
        order: Work of each stream, in launch order.
        waits: Stream waits and host waits.
        stream: Stream that waits, or -1 for host waits and for unknown streams.
        record: Row of the event record that each wait matches, or -1 if there is none.
        completed_ns: Completion time of each recorded event, or :data:`NEVER` if unknown.
    """
    rows = np.flatnonzero(stream != NONE)
    index = order.find_after(stream[rows], waits.start_ns[rows])
    rows, index = rows[index != NONE], index[index != NONE]
    time_ns = np.append(completed_ns, NEVER)[record[rows]]
    time_ns = np.where(time_ns == NEVER, FOREVER, time_ns)
    work = order.work[index]
    latest = find_first_rows(work, -time_ns)
    return EventTimes(work[latest], time_ns[latest])


def _number_streams(ranks: Sequence[Ints], streams: Sequence[Ints]) -> list[Ints]:
    """Number the streams of all ranks, so that streams of different ranks have different numbers.

    Args:
        ranks: Ranks of the rows of each table, or -1 if unknown.
        streams: Streams of the rows of each table, numbered per rank, or -1 if unknown.

    Returns:
        The number of each row's stream, one array per table. It is -1 if the rank or the stream is
        unknown.
    """
    all_ranks, all_streams = np.concatenate(ranks), np.concatenate(streams)
    number = group_rows(all_ranks, all_streams).of_row
    number = np.where((all_ranks == NONE) | (all_streams == NONE), NONE, number)
    return np.split(number, np.cumsum([len(rank) for rank in ranks[:-1]]))


def _list_host_waits(waits: Waits, awaited: Ints) -> tuple[Ints, Ints, Ints]:
    """Return process, correlation id and awaited activity of each call in which a host waited.

    The calls are sorted by process and correlation id. Calls without a known process, correlation
    id or awaited activity are left out.
    """
    has_host = (awaited != NONE) & (waits.correlation_id != NONE) & (waits.process != NONE)
    rows = np.flatnonzero(has_host)
    rows = rows[np.lexsort((waits.correlation_id[rows], waits.process[rows]))]
    return waits.process[rows], waits.correlation_id[rows], awaited[rows]


def _find_awaited_streams(
    awaited: Ints,
    order: StreamOrder,
    waits: Waits,
    wait_rank: Ints,
    wait_stream: Ints,
    rank: Ints,
    launch_ends: tuple[Ints, Ints],
) -> None:
    """Fill in ``awaited`` for the calls in which a host waits for a stream or a device.

    The host waits for the last launch before the call on the stream, or on each stream of the
    device. ``awaited`` is set to the activity in those launches that ended last.

    Args:
        awaited: Row of the activity awaited in each wait, changed in place.
        order: Work of each stream, in launch order.
        waits: Stream waits and host waits.
        wait_rank: Rank of each wait, or -1 if unknown.
        wait_stream: Stream of each wait, or -1 if unknown.
        rank: Rank of each activity.
        launch_ends: Results of :func:`_find_launch_ends`.
    """
    launch_end_ns, last_activity = launch_ends
    host_waits = np.flatnonzero(waits.event == NONE)
    latest_ns = np.full(len(waits), NEVER)
    # There are few streams, and each iteration handles all waits for one stream.
    for stream, first in zip(*np.unique(order.stream, return_index=True), strict=True):
        is_of_rank = wait_rank[host_waits] == rank[order.work[first]]
        # A wait without a stream is for all streams of the device.
        is_for_stream = (waits.stream[host_waits] == NONE) | (wait_stream[host_waits] == stream)
        rows = host_waits[is_of_rank & is_for_stream]
        work = np.append(last_activity, NONE)[
            order.find_last_work(np.full(len(rows), stream), waits.start_ns[rows])
        ]
        end_ns = np.where(work == NONE, NEVER, launch_end_ns[work])
        is_later = end_ns > latest_ns[rows]
        awaited[rows[is_later]], latest_ns[rows[is_later]] = work[is_later], end_ns[is_later]
