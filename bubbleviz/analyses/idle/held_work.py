"""Held work: kernels and copies whose streams waited for an event, and syncs of hosts.

::

    stream 20   ├───────── K ─────────┤ record E
    stream 7    ├ P ┤ wait for E            ├── W ──┤
    host           launch W
    held                 ├────────────┤               from when W should have begun, until K ended
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bubbleviz.analyses.idle.gaps import LATENCY_NS
from bubbleviz.analyses.idle.stream_order import StreamOrder, latest_so_far, line_of, stream_numbers
from bubbleviz.model.collectives import EventRecords, Synchronisation, Waits
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import distinct, found_in, groups_of, looked_up
from bubbleviz.model.intervals import last_before
from bubbleviz.model.profile import UNCORRELATED, Activities, Calls, process_of
from bubbleviz.model.values import frozen

# Event records: which record of an event each wait is for, and when that completed.
#
# ::
#
#     host        record E(1)   wait for E   record E(2)     the wait is for the record before it
#     stream 20   ├── K1 ──┤ E(1)      ├── K2 ──┤ E(2)
#     stream 7                  ├─ W ─┤                      W may begin when K1 has ended


#: Before any time that occurs: nothing is known of when it completed.
NEVER = -(1 << 62)
#: An event may follow a wait for another one, so many in a row.
_DEEPEST = 32


def record_of_each(records: EventRecords, called_ns: Ints, waits: Waits) -> Ints:
    """Return the record that each wait is for; -1 unknown, or none.

    The record that shares the wait's number counts; where these numbers are not recorded, the last
    one of its event in the process, of its own device if there is one, as it is not documented
    whether several devices number events together. A record after the wait does not count.

    Args:
        records: of events, each with a process.
        called_ns: when the host made each.
        waits: of streams and hosts.
    """
    found = np.full(len(waits), NONE, np.int64)
    events = (records.event, waits.event)
    pairings = (records.pairing, waits.pairing)
    devices = (records.device, waits.device)
    processes = (records.process, waits.process)
    anywhere = tuple(np.zeros(len(device), np.int64) for device in devices)
    unpaired = (waits.pairing == NONE) | (records.pairing == NONE).all()
    for ids, places, open_to in (
        (pairings, devices, ~unpaired),
        (pairings, anywhere, ~unpaired),
        (events, devices, unpaired),
        (events, anywhere, unpaired),
    ):
        columns = (processes, ids, places)
        numbers = groups_of(*(np.concatenate(column) for column in columns)).of_row
        named = np.flatnonzero((ids[0] != NONE) & (records.process != NONE))
        wanted = open_to & (waits.event != NONE) & (waits.process != NONE) & (found == NONE)
        wanted = np.flatnonzero(wanted)
        last = last_before(
            numbers[named],
            called_ns[named],
            numbers[len(records) :][wanted],
            waits.start_ns[wanted],
        )
        found[wanted] = np.append(named, NONE)[last]
    return found


@frozen
class Completions(Table):
    """When the events of records completed.

    Attributes:
        time_ns: the end of the work that an event stands behind; :data:`NEVER` unknown.
        by: row of that work among the activities; -1 unknown.
    """

    time_ns: Ints
    by: Ints


@frozen
class StreamWaitRuns:
    """The waits of streams for events, those between the same two pieces of work in a run.

    Attributes:
        record: that each wait is for; by stream and time.
        stream: number of its stream.
        start_ns: when the host asked for it.
        anchor: place of the last work before it, in the order of streams; -1 none.
        run: number of its run.
    """

    record: Ints
    stream: Ints
    start_ns: Ints
    anchor: Ints
    run: Ints

    @staticmethod
    def of(order: StreamOrder, stream: Ints, start_ns: Ints, record: Ints) -> StreamWaitRuns:
        """Return the runs of waits; those of which it is unknown what lies before are left out."""
        rows = np.flatnonzero((stream != NONE) & (record != NONE))
        rows = rows[np.lexsort((start_ns[rows], stream[rows]))]
        stream, start_ns, record = stream[rows], start_ns[rows], record[rows]
        anchor = order.before(stream, start_ns)
        keep = order.trusted(anchor) & ~order.at_one_time(stream, start_ns)
        stream, start_ns, record, anchor = (
            column[keep] for column in (stream, start_ns, record, anchor)
        )
        return StreamWaitRuns(record, stream, start_ns, anchor, groups_of(stream, anchor).of_row)


def completions_of(
    records: EventRecords,
    stream: Ints,
    called_ns: Ints,
    order: StreamOrder,
    done_ns: Ints,
    closing: Ints,
    runs: StreamWaitRuns,
) -> Completions:
    """Return when events completed: with the work before them, and with the waits behind that.

    Args:
        records: of events.
        stream: number of the stream of each; -1 unknown.
        called_ns: when the host made it.
        order: of the work of streams.
        done_ns: when what the launch of each activity launched has ended.
        closing: row of the activity that ended last of these.
        runs: of waits of streams.
    """
    at = np.full(len(records), NONE, np.int64)
    known = np.flatnonzero(stream != NONE)
    at[known] = order.before(stream[known], called_ns[known])
    certain = (stream != NONE) & order.trusted(at)
    work = np.append(order.work, NONE)[at]
    behind_work = certain & (at != NONE)
    time_ns = np.where(behind_work, np.append(done_ns, NEVER)[work], NEVER)
    time_ns = np.where(behind_work, np.maximum(time_ns, records.completed_ns), time_ns)
    by = np.where(behind_work, np.append(closing, NONE)[work], NONE)
    last = np.full(len(records), NONE, np.int64)
    last[known] = last_before(runs.stream, runs.start_ns, stream[known], called_ns[known])
    # A wait before that work is over when the work begins.
    held = np.flatnonzero(certain & (last != NONE) & (np.append(runs.anchor, NONE)[last] == at))
    for _ in range(_DEEPEST):
        latest = runs.record[latest_so_far(runs.run, time_ns[runs.record])[last[held]]]
        later = time_ns[latest] > time_ns[held]
        if not later.any():
            break
        time_ns[held[later]], by[held[later]] = time_ns[latest[later]], by[latest[later]]
    return Completions(time_ns, by)


def same_launch(call: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return when all that the launch of each activity launched has ended, and what ended last.

    A CUDA graph is one launch of many kernels, on several streams.

    Args:
        call: row of the launching call; -1 unknown.
        end_ns: of each activity.
    """
    row, launching = np.arange(len(call)), call[call != NONE]
    if len(distinct(launching)) == len(launching):
        return end_ns, row
    order = np.lexsort((-row, end_ns, call))
    last = np.append(call[order][1:] != call[order][:-1], True)[: len(order)]
    closing = np.empty(len(call), np.int64)
    group = np.cumsum(np.append(0, last[:-1]))[: len(order)]
    closing[order] = order[last][group]
    closing = np.where(call == NONE, row, closing)
    return end_ns[closing], closing


def is_stream_wait(waits: Waits) -> Bools:
    """Tell which waits are those of streams for events."""
    return np.asarray((waits.stream != NONE) & (waits.event != NONE), bool)


# Record times: when hosts made the records of events.


class RecordTimes:
    """When the host made records of events, as blocks of calls pass by."""

    def __init__(self, records: EventRecords) -> None:
        """Take the records."""
        self._processes = distinct(records.process)
        key = self._keys(records.process, records.correlation_id)
        self._wanted, self._of_record = np.unique(key, return_inverse=True)
        self._called_ns = np.full(len(self._wanted), np.iinfo(np.int64).max)

    def _keys(self, process: Ints, ids: Ints) -> Ints:
        """Return a number for each process and correlation id; -1 for those without."""
        at = found_in(self._processes, process)
        known = (at != NONE) & (process != NONE) & (ids >= 0) & (ids < UNCORRELATED)
        return np.where(known, at << 32 | ids, NONE)

    def add(self, calls: Calls) -> None:
        """Take a block of calls; of several with one id the first counts."""
        if len(self._wanted) == 0:
            return
        ids = calls.correlation_id.astype(np.int64)
        at = found_in(self._wanted, self._keys(process_of(calls.thread), ids))
        rows = np.flatnonzero(at != NONE)
        rows = rows[self._wanted[at[rows]] != NONE]
        np.minimum.at(self._called_ns, at[rows], calls.start_ns[rows])

    def called_ns(self) -> tuple[Ints, Ints]:
        """Return the rows of the records whose call was found, and when it began."""
        called_ns = self._called_ns[self._of_record]
        rows = np.flatnonzero(called_ns != np.iinfo(np.int64).max)
        return rows, called_ns[rows]


#: Work that began so much before its event completed did not wait for it: clocks agree that well.
SLACK_NS = 1_000


@frozen
class HeldWork(Table):
    """Work that waited for an event, in order of its rows.

    Attributes:
        work: row of the activities.
        start_ns: when it should have begun: launched, and the work before it on its stream done.
        end_ns: when the event completed; no later than the work began.
        by: row of the activity whose end the event recorded.
    """

    work: Ints
    start_ns: Ints
    end_ns: Ints
    by: Ints


@frozen
class HostWaits(Table):
    """Calls in which a host waited, in order of process and correlation id.

    Attributes:
        process: of the call.
        correlation_id: of the call.
        by: row of the activity that it waited for last.
    """

    process: Ints
    correlation_id: Ints
    by: Ints


@frozen
class Waiting:
    """What a profile proves of waiting.

    Attributes:
        held: work of streams that waited.
        host: waits of hosts.
        streams: the stream of each activity; -1 unknown. Empty where nothing is proved.
        asked: how many waits of streams for events there are.
        unrecorded: for how many of them no record of the event is known.
    """

    held: HeldWork
    host: HostWaits
    streams: Ints
    asked: int = 0
    unrecorded: int = 0


def nothing_proved() -> Waiting:
    """Return that of a profile that says nothing of waiting."""
    none = np.empty(0, np.int64)
    return Waiting(HeldWork(*(none.copy() for _ in range(4))), HostWaits(none, none, none), none)


@frozen
class Launched:
    """The work of a profile, with the calls that launched it.

    Attributes:
        activities: kernels and copies.
        call: row of the launching call of each; -1 unknown.
        launched_ns: when that began; means nothing where there is none.
        returned_ns: gives the ends of the calls of some rows (distinct, ascending).
    """

    activities: Activities
    call: Codes
    launched_ns: Ints
    returned_ns: Callable[[Ints], Ints]


def waiting_of(found: Synchronisation, records: RecordTimes, work: Launched) -> Waiting:
    """Return what a profile proves of waiting.

    Args:
        found: what it holds; its streams are those of the work's activities.
        records: when the host made the records of events, all calls having passed.
        work: kernels and copies.
    """
    activities, waits = work.activities, found.waits
    rows, called_ns = records.called_ns()
    made = found.records.take(rows)
    rank_of = _Ranks(activities.ranks)
    places = (
        (activities.rank.astype(np.int64), found.streams),
        (rank_of(made.process, made.device), made.stream),
        (rank_of(waits.process, waits.device), waits.stream),
    )
    stream, record_stream, wait_stream = stream_numbers(*places)
    known = work.call != NONE
    if not known.any():
        return nothing_proved()
    streams = 1 + max(int(n.max(initial=NONE)) for n in (stream, record_stream, wait_stream))
    extent_ns = _extent(work.launched_ns[known])
    order = StreamOrder.of(
        stream, activities.start_ns, work.launched_ns, known, line_of(streams, extent_ns)
    )
    record = record_of_each(made, called_ns, waits)
    # Before the first launch and after the last all times are alike.
    called_ns, waited_ns = (np.clip(t, *extent_ns) for t in (called_ns, waits.start_ns))
    own = is_stream_wait(waits)
    runs = StreamWaitRuns.of(order, np.where(own, wait_stream, NONE), waited_ns, record)
    done_ns, closing = same_launch(work.call.astype(np.int64), activities.end_ns)
    completed = completions_of(made, record_stream, called_ns, order, done_ns, closing, runs)
    held = _held(order, runs, completed, done_ns, work)
    by = np.append(completed.by, NONE)[record]
    # A host that waits for no event waits for a stream, or for all of a device.
    of_stream = np.flatnonzero((waits.event == NONE) & (wait_stream != NONE))
    by[of_stream] = _last_work(order, closing, wait_stream[of_stream], waited_ns[of_stream])
    of_device = np.flatnonzero((waits.event == NONE) & (waits.stream == NONE))
    by[of_device] = _last_of_device(
        order, closing, done_ns, (places[0][0], stream), places[2][0][of_device],
        waited_ns[of_device],
    )  # fmt: skip
    host = _host_waits(waits, np.where(own, NONE, by))
    unrecorded = int((record[own] == NONE).sum())
    return Waiting(held, host, found.streams, int(own.sum()), unrecorded)


class _Ranks:
    """Finds the ranks of processes and devices."""

    def __init__(self, ranks: Ints) -> None:
        self._process, self._device = ranks[:, 0], ranks[:, 1]

    def __call__(self, process: Ints, device: Ints) -> Ints:
        keys = self._process, self._device
        return looked_up(keys, np.arange(len(self._process)), (process, device))


def _extent(launched_ns: Ints) -> tuple[int, int]:
    """Return times just before the first launch and just after the last."""
    return int(launched_ns.min()) - 1, int(launched_ns.max()) + 1


def _held(
    order: StreamOrder,
    runs: StreamWaitRuns,
    completed: Completions,
    done_ns: Ints,
    work: Launched,
) -> HeldWork:
    """Return the work behind runs of waits, and what it waited for last."""
    completed_ns = completed.time_ns
    last = np.flatnonzero(np.append(runs.run[1:] != runs.run[:-1], True)[: len(runs.run)])
    record = runs.record[latest_so_far(runs.run, completed_ns[runs.record])[last]]
    behind = order.after(runs.stream[last], runs.start_ns[last])
    # The work must be the next one after the run's anchor, and its launch known.
    keep = (behind == runs.anchor[last] + 1) | (runs.anchor[last] == NONE)
    keep &= (behind != NONE) & order.trusted(behind) & (completed_ns[record] != NEVER)
    record, behind, anchor = record[keep], behind[keep], runs.anchor[last][keep]
    activities, row = work.activities, order.work[behind]
    start_ns = activities.start_ns[row]
    call = work.call[row].astype(np.int64)
    called = distinct(call)
    returned_ns = work.returned_ns(called)[np.searchsorted(called, call)]
    due_ns = np.maximum(returned_ns, work.launched_ns[row] + LATENCY_NS)
    before = np.where(anchor == NONE, NONE, np.append(order.work, NONE)[anchor])
    since_ns = np.maximum(due_ns, np.append(done_ns, NEVER)[before])
    until_ns = np.minimum(completed_ns[record], start_ns)
    real = (until_ns > since_ns) & (completed_ns[record] <= start_ns + SLACK_NS)
    rows = np.flatnonzero(real)
    rows = rows[np.argsort(row[rows], kind="stable")]
    return HeldWork(row[rows], since_ns[rows], until_ns[rows], completed.by[record][rows])


def _last_work(order: StreamOrder, closing: Ints, stream: Ints, time_ns: Ints) -> Ints:
    """Return the last work that streams were given before some times; -1 unknown, or none."""
    at = order.before(stream, time_ns)
    certain = (at != NONE) & order.trusted(at)
    return np.where(certain, np.append(closing, NONE)[np.append(order.work, NONE)[at]], NONE)


def _last_of_device(
    order: StreamOrder,
    closing: Ints,
    done_ns: Ints,
    places: tuple[Ints, Ints],
    rank: Ints,
    time_ns: Ints,
) -> Ints:
    """Return which work, of that devices were given before some times, ended last; -1 none.

    Args:
        order: of the work of streams.
        closing: row of the activity that ended last of each launch.
        done_ns: when that was.
        places: rank and number of the stream of each activity.
        rank: of the devices.
        time_ns: the times.
    """
    best, ended_ns = np.full(len(rank), NONE, np.int64), np.full(len(rank), NEVER, np.int64)
    owner = np.full(int(places[1].max(initial=NONE)) + 1, NONE, np.int64)
    owner[places[1][places[1] != NONE]] = places[0][places[1] != NONE]
    # Streams are few: a loop over them, each for all times.
    for stream in np.flatnonzero(np.isin(owner, rank)).tolist():
        rows = np.flatnonzero(rank == owner[stream])
        work = _last_work(order, closing, np.full(len(rows), stream), time_ns[rows])
        end_ns = np.where(work == NONE, NEVER, done_ns[work])
        later = end_ns > ended_ns[rows]
        best[rows[later]], ended_ns[rows[later]] = work[later], end_ns[later]
    return best


def _host_waits(waits: Waits, by: Ints) -> HostWaits:
    """Return the waits of hosts whose call and whose work are known."""
    rows = np.flatnonzero((by != NONE) & (waits.correlation_id != NONE) & (waits.process != NONE))
    order = np.lexsort((waits.correlation_id[rows], waits.process[rows]))
    rows = rows[order]
    return HostWaits(waits.process[rows], waits.correlation_id[rows], by[rows])
