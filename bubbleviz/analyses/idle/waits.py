"""Waits: what streams and hosts are proved to have waited for, as events of CUDA tell.

A stream does one thing after another: an event that is recorded on it completes when the work
before has ended, and the work behind a wait begins when the event has completed::

    host           record E(1)   launch P   wait for E   launch W   record E(2)
    stream 20   ├───────── K ─────────┤ E(1)      ├── L ──┤ E(2)
    stream 7    ├ P ┤ wait for E            ├── W ──┤
    held                 ├────────────┤               from when W should have begun, until K ended

The order is the order of the calls. It is unknown for calls at the same time, and for work whose
call was not recorded. Nothing is concluded from these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.analyses.idle.gaps import LATENCY_NS
from bubbleviz.conventions import host_activities
from bubbleviz.conventions.kinds import Kinds, match_any
from bubbleviz.model import intervals, limitations
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import find_distinct, find_first_rows, group_rows, lookup_values
from bubbleviz.model.profile import UNCORRELATED, Activities, Calls, Profile, process_of
from bubbleviz.model.synchronisation import EventRecords, Synchronisation, Waits

#: Earlier than any time in a profile: the time of completion is unknown.
NEVER = -(1 << 62)
#: Maximum number of events in a row that each follow a wait for the one before.
_DEEPEST = 32
#: Maximum time by which work may start before its event completed. Work that starts earlier did not
#: wait for the event, because clocks agree better than that.
SLACK_NS = 1_000
#: Kinds of work that streams and hosts wait for.
COMPUTE, COMMUNICATION, COPY = range(3)
#: Display names of these kinds, and the activities that idle time is attributed to.
KIND_NAMES = ("compute", "communication", "copy")
BLOCKED = (
    host_activities.BLOCKED_BY_COMPUTE,
    host_activities.BLOCKED_BY_COMMUNICATION,
    host_activities.BLOCKED_BY_COPIES,
)


@dataclass(frozen=True, eq=False, repr=False)
class HeldWork(Table):
    """Work that waited for an event, in order of its rows.

    Attributes:
        work: Row of the activities: the work that waited.
        start_ns: Time from which the work waited: it was launched, and the work before it on its
            stream had ended.
        end_ns: Time when the event completed, or when the work began if that is earlier.
        by: Row of the activities: the work after which the event was recorded.
        kind: Kind of that work, such as :data:`COMPUTE`.
    """

    work: Ints
    start_ns: Ints
    end_ns: Ints
    by: Ints
    kind: Ints


@dataclass(frozen=True)
class Waiting:
    """What a profile proves of waiting.

    Attributes:
        held: Work of streams that waited.
        hosts: Process and correlation id of each call in which a host waited, sorted by them, and
            the row of the activity that the call waited for last.
        streams: Stream of each activity, or -1 if unknown. Empty if nothing is proved.
        asked: Number of waits of streams for events.
        unrecorded: Number of these waits for which no record of the event is known.
    """

    held: HeldWork = field(default_factory=HeldWork.make_empty)
    hosts: tuple[Ints, ...] = ()
    streams: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    asked: int = 0
    unrecorded: int = 0


def kinds_of(activities: Activities, rows: Ints, kinds: Kinds) -> Ints:
    """Return the kinds of work of some activities.

    Args:
        activities: Kernels and copies.
        rows: Rows of the activities.
        kinds: Names of communication kernels.
    """
    communication = np.append(match_any(activities.names, kinds.communication), False)
    communicates, copies = communication[activities.name_id[rows]], rows >= activities.kernels
    kind = np.select((copies, communicates), (COPY, COMMUNICATION), COMPUTE)
    return np.asarray(kind, np.int64)


def synchronisation_of(
    profile: Profile,
) -> tuple[Synchronisation | None, tuple[limitations.Limitation, ...]]:
    """Return the synchronization events of a profile, or None if there are none, and what is lost.

    Events without a process belong to the only process that ran work, if there is only one.
    """
    if profile.synchronisation is None or not profile.launches_known:
        return None, ()
    found, lost = profile.synchronisation()
    processes = find_distinct(profile.activities.ranks[:, 0])
    if found is None or len(processes) != 1:
        return found, lost
    records, waits = found.records, found.waits
    records = replace(records, process=np.where(records.process < 0, processes, records.process))
    waits = replace(waits, process=np.where(waits.process < 0, processes, waits.process))
    return replace(found, records=records, waits=waits), lost


def made_by(records: EventRecords, calls: Calls) -> Bools:
    """Return a mask of the calls that made one of the records."""
    ids = calls.correlation_id.astype(np.int64)
    keys = records.process, records.correlation_id
    found = lookup_values(keys, np.zeros(len(records), np.int64), (process_of(calls.thread), ids))
    return np.asarray((found != NONE) & (ids < UNCORRELATED), bool)


def _made(records: EventRecords, calls: Calls) -> tuple[EventRecords, Ints]:
    """Return the records whose call is known, and the start of the first such call."""
    count, ids = len(records), calls.correlation_id.astype(np.int64)
    process = np.append(records.process, process_of(calls.thread))
    key = group_rows(process, np.append(records.correlation_id, ids)).of_row
    least = find_first_rows(key[count:], calls.start_ns)
    first = lookup_values((key[count:][least],), least, (key[:count],))
    rows = np.flatnonzero(first != NONE)
    return records.take(rows), calls.start_ns[first[rows]]


class StreamOrder:
    """The work of streams, in order of (stream, start).

    Attributes:
        work: Row of the activities.
        stream: Number of its stream, ascending.
        time_ns: Start of its launching call, ascending within a stream. Work with an unknown call
            has the time of the work before it.
        known: Whether its call is known.

    Args:
        stream: Number of the stream of each activity, or -1 if unknown.
        start_ns: Start of each activity on the device.
        launched_ns: Start of the launching call of each activity.
        known: Whether that call is known.
    """

    def __init__(self, stream: Ints, start_ns: Ints, launched_ns: Ints, known: Bools) -> None:
        work = np.flatnonzero(stream != NONE)
        self.work = work = work[np.lexsort((start_ns[work], stream[work]))]
        self.stream, self.known = stream[work], known[work]
        time_ns = np.where(self.known, launched_ns[work], NEVER)
        self.time_ns = time_ns[latest_so_far(self.stream, time_ns)]

    def before(self, stream: Ints, time_ns: Ints, *, or_at: bool = False) -> Ints:
        """Return the place of the last work that each stream got before a time, or -1."""
        return intervals.find_last_before(self.stream, self.time_ns, stream, time_ns, or_at=or_at)

    def after(self, stream: Ints, time_ns: Ints) -> Ints:
        """Return the place of the first work that each stream got after a time, or -1."""
        last = self.before(stream, time_ns, or_at=True)
        at = np.where(last == NONE, np.searchsorted(self.stream, stream), last + 1)
        return np.where(np.append(self.stream, NONE)[at] == stream, at, NONE)

    def trusted(self, at: Ints) -> Bools:
        """Return a mask of the places that are -1, or whose work has a known call."""
        return np.append(self.known, True)[at]

    def last_work(self, stream: Ints, time_ns: Ints) -> Ints:
        """Return the last work that each stream got before a time, or -1 if none or unknown."""
        at = self.before(stream, time_ns)
        return np.where(self.trusted(at), np.append(self.work, NONE)[at], NONE)


def latest_so_far(run: Ints, value: Ints) -> Ints:
    """Return for each row the row of its run that has the highest value so far.

    If several rows have it, the first one wins. Rows of a run are adjacent::

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


def _record_of_each(records: EventRecords, called_ns: Ints, waits: Waits) -> Ints:
    """Return the record that each wait is for, or -1 if there is none or it is unknown.

    It is the record that shares the wait's number. If these numbers are not recorded, it is the
    last record of the event in the process before the wait. A record of the wait's own device is
    preferred, because it is not documented whether several devices number events together.

    Args:
        records: Records of events, each with a process.
        called_ns: Time when the host made each record.
        waits: Waits of streams and hosts.
    """
    found = np.full(len(waits), NONE, np.int64)
    unpaired = (waits.pairing == NONE) | (records.pairing == NONE).all()
    for name, open_to in (("pairing", ~unpaired), ("event", unpaired)):
        ids = getattr(records, name), getattr(waits, name)
        named = np.flatnonzero((ids[0] != NONE) & (records.process != NONE))
        for on_device in (1, 0):
            columns = (
                (records.process, waits.process),
                ids,
                (on_device * records.device, on_device * waits.device),
            )
            numbers = group_rows(*map(np.concatenate, columns)).of_row
            wanted = open_to & (waits.event != NONE) & (waits.process != NONE) & (found == NONE)
            wanted = np.flatnonzero(wanted)
            last = intervals.find_last_before(
                numbers[named],
                called_ns[named],
                numbers[len(records) :][wanted],
                waits.start_ns[wanted],
            )
            found[wanted] = np.append(named, NONE)[last]
    return found


def _same_launch(call: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return when all work of the same launch as each activity had ended, and which ended last.

    A CUDA graph is one launch of many kernels, on several streams.

    Args:
        call: Row of the launching call of each activity, or -1 if unknown.
        end_ns: End of each activity.
    """
    row, launching = np.arange(len(call)), call[call != NONE]
    if len(find_distinct(launching)) == len(launching):
        return end_ns, row
    order = np.lexsort((-row, end_ns, call))
    last = np.append(call[order][1:] != call[order][:-1], True)[: len(order)]
    closing = np.empty(len(call), np.int64)
    group = np.cumsum(np.append(0, last[:-1]))[: len(order)]
    closing[order] = order[last][group]
    closing = np.where(call == NONE, row, closing)
    return end_ns[closing], closing


def _completions(
    order: StreamOrder,
    made: EventRecords,
    stream: Ints,
    called_ns: Ints,
    launched_with: tuple[Ints, Ints],
    runs: tuple[Ints, ...],
) -> tuple[Ints, Ints]:
    """Return when each event completed, and the work that completed it.

    An event completes with the work before it, or with the waits after that work: a wait before the
    work is over when the work begins. Unknown times are :data:`NEVER`, unknown work is -1.
    """
    record, run_stream, start_ns, anchor, run = runs
    done_ns, closing = launched_with
    at = order.before(stream, called_ns)
    certain = (stream != NONE) & order.trusted(at)
    behind_work = certain & (at != NONE)
    work = np.append(order.work, NONE)[at]
    completed_ns = np.maximum(np.append(done_ns, NEVER)[work], made.completed_ns)
    completed_ns = np.where(behind_work, completed_ns, NEVER)
    completed_by = np.where(behind_work, np.append(closing, NONE)[work], NONE)
    last = intervals.find_last_before(run_stream, start_ns, stream, called_ns)
    held = np.flatnonzero(certain & (last != NONE) & (np.append(anchor, NONE)[last] == at))
    for _ in range(_DEEPEST):
        latest = record[latest_so_far(run, completed_ns[record])[last[held]]]
        later = completed_ns[latest] > completed_ns[held]
        if not later.any():
            break
        completed_ns[held[later]] = completed_ns[latest[later]]
        completed_by[held[later]] = completed_by[latest[later]]
    return completed_ns, completed_by


def _held(
    order: StreamOrder,
    runs: tuple[Ints, ...],
    completed_ns: Ints,
    done_ns: Ints,
    activities: Activities,
    call: Codes,
    launched_ns: Ints,
    returned_ns: Callable[[Ints], Ints],
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the record that the work after each run of waits waited for last.

    The work must be the next one after the run's anchor, and its launch must be known.

    Returns:
        The record, the work, and the start and end of its wait.
    """
    record, stream, start_ns, anchor, run = runs
    last = np.flatnonzero(np.append(run[1:] != run[:-1], True)[: len(run)])
    latest = record[latest_so_far(run, completed_ns[record])[last]]
    behind, anchor = order.after(stream[last], start_ns[last]), anchor[last]
    keep = (behind == anchor + 1) | (anchor == NONE)
    keep &= (behind != NONE) & order.trusted(behind) & (completed_ns[latest] != NEVER)
    latest, behind, anchor = latest[keep], behind[keep], anchor[keep]
    work = order.work[behind]
    called = call[work].astype(np.int64)
    distinct_calls = find_distinct(called)
    call_end_ns = returned_ns(distinct_calls)[np.searchsorted(distinct_calls, called)]
    due_ns = np.maximum(call_end_ns, launched_ns[work] + LATENCY_NS)
    before = np.where(anchor == NONE, NONE, np.append(order.work, NONE)[anchor])
    since_ns = np.maximum(due_ns, np.append(done_ns, NEVER)[before])
    until_ns = np.minimum(completed_ns[latest], activities.start_ns[work])
    real = until_ns > since_ns
    real &= completed_ns[latest] <= activities.start_ns[work] + SLACK_NS
    rows = np.flatnonzero(real)
    rows = rows[np.argsort(work[rows], kind="stable")]
    return latest[rows], work[rows], since_ns[rows], until_ns[rows]


def waiting_of(
    found: Synchronisation,
    calls: Calls,
    activities: Activities,
    streams: Ints,
    call: Codes,
    launched_ns: Ints,
    returned_ns: Callable[[Ints], Ints],
    kinds: Kinds,
) -> Waiting:
    """Return the waits that a profile proves.

    Args:
        found: Synchronization events of the profile.
        calls: Calls that made the records of events.
        activities: Kernels and copies.
        streams: Stream of each activity, or -1 if unknown.
        call: Row of the launching call of each activity, or -1 if unknown.
        launched_ns: Start of that call, undefined if the call is unknown.
        returned_ns: Function that returns the ends of calls, given distinct, ascending rows.
        kinds: Names of communication kernels.
    """
    waits, waited_ns = found.waits, found.waits.start_ns
    made, called_ns = _made(found.records, calls)
    # Streams are numbered across ranks; -1 where either is unknown.
    places = activities.ranks[:, 0], activities.ranks[:, 1]
    rank = activities.rank.astype(np.int64)
    made_rank, wait_rank = (
        lookup_values(places, np.arange(len(activities.ranks)), (table.process, table.device))
        for table in (made, waits)
    )
    ranks = np.concatenate((rank, made_rank, wait_rank))
    numbers = np.concatenate((streams, made.stream, waits.stream))
    number = group_rows(ranks, numbers).of_row
    number = np.where((ranks == NONE) | (numbers == NONE), NONE, number)
    stream, made_stream, wait_stream = np.split(number, np.cumsum((len(rank), len(made))))
    order = StreamOrder(stream, activities.start_ns, launched_ns, call != NONE)
    record = _record_of_each(made, called_ns, waits)
    of_streams = np.asarray((waits.stream != NONE) & (waits.event != NONE), bool)

    # Waits of a stream between the same two pieces of work are a run. The anchor is the place of
    # the last work before it; those of which it is unknown, or at the time of which they are, are
    # left out.
    rows = np.flatnonzero(of_streams & (wait_stream != NONE) & (record != NONE))
    rows = rows[np.lexsort((waited_ns[rows], wait_stream[rows]))]
    anchor, last = (
        order.before(wait_stream[rows], waited_ns[rows], or_at=or_at) for or_at in (False, True)
    )
    keep = order.trusted(anchor) & (anchor == last)
    rows, anchor = rows[keep], anchor[keep]
    run = group_rows(wait_stream[rows], anchor).of_row
    done_ns, closing = _same_launch(call.astype(np.int64), activities.end_ns)

    runs = record[rows], wait_stream[rows], waited_ns[rows], anchor, run
    completed_ns, completed_by = _completions(
        order, made, made_stream, called_ns, (done_ns, closing), runs
    )
    latest, held_work, since_ns, until_ns = _held(
        order, runs, completed_ns, done_ns, activities, call, launched_ns, returned_ns
    )

    # A host that waits for no event waits for a stream, or for all of a device.
    awaited = np.append(completed_by, NONE)[record]
    awaited[of_streams] = NONE
    on_host = np.flatnonzero(waits.event == NONE)
    ended_ns = np.full(len(waits), NEVER)
    # Streams are few: a loop over them, each for all times.
    for one, first in zip(*np.unique(stream[stream != NONE], return_index=True), strict=True):
        of_rank = wait_rank[on_host] == rank[stream != NONE][first]
        rows = on_host[of_rank & ((waits.stream[on_host] == NONE) | (wait_stream[on_host] == one))]
        work = np.append(closing, NONE)[order.last_work(np.full(len(rows), one), waited_ns[rows])]
        end_ns = np.where(work == NONE, NEVER, done_ns[work])
        later = end_ns > ended_ns[rows]
        awaited[rows[later]], ended_ns[rows[later]] = work[later], end_ns[later]
    told = (awaited != NONE) & (waits.correlation_id != NONE) & (waits.process != NONE)
    rows = np.flatnonzero(told)
    rows = rows[np.lexsort((waits.correlation_id[rows], waits.process[rows]))]
    by = completed_by[latest]
    return Waiting(
        held=HeldWork(held_work, since_ns, until_ns, by, kinds_of(activities, by, kinds)),
        hosts=(waits.process[rows], waits.correlation_id[rows], awaited[rows]),
        streams=streams,
        asked=int(of_streams.sum()),
        unrecorded=int((record[of_streams] == NONE).sum()),
    )
