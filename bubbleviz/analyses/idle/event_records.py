"""Event records: which record of an event each wait is for, and when that completed.

::

    host        record E(1)   wait for E   record E(2)     the wait is for the record before it
    stream 20   ├── K1 ──┤ E(1)      ├── K2 ──┤ E(2)
    stream 7                  ├─ W ─┤                      W may begin when K1 has ended
"""

from __future__ import annotations

import numpy as np

from bubbleviz.analyses.idle.stream_order import StreamOrder, latest_so_far
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.preceding import last_before
from bubbleviz.model.synchronisation import EventRecords, Waits
from bubbleviz.model.values import frozen

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
