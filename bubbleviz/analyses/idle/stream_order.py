"""Stream order: what came before what on each stream, in the order in which hosts asked for it.

A stream does one thing after another: an event that is recorded on it completes when the work
before has ended, and the work behind a wait begins when the event has completed::

    stream 20   ├──── K ────┤ record E
    stream 7    ├─ P ─┤ wait for E   ├── W ──┤

The order is that of the calls. Of calls at one time it is not known, nor is it of work whose call
was not recorded: nothing is concluded from these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.collectives import EventRecords, Synchronisation, Waits
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of, looked_up
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Activities, Profile
from bubbleviz.model.values import frozen


def line_of(streams: int, extent_ns: tuple[int, int]) -> intervals.Packing:
    """Return a line on which the times of streams, all within an extent, do not meet."""
    low_ns, high_ns = (np.full(streams, time_ns, np.int64) for time_ns in extent_ns)
    return intervals.Packing.of(low_ns, high_ns)


@frozen
class StreamOrder:
    """The work of streams, stream by stream in the order in which it began.

    Attributes:
        work: row of the activities.
        stream: number of the stream of each, ascending.
        place: when its launching call began, on a line on which the times of different streams do
            not meet; ascending. Work whose call is unknown has the place of the work before.
        known: whether its call is known.
        line: puts times of streams on that line.
    """

    work: Ints
    stream: Ints
    place: Ints
    known: Bools
    line: intervals.Packing

    @staticmethod
    def of(
        stream: Ints, start_ns: Ints, launched_ns: Ints, known: Bools, line: intervals.Packing
    ) -> StreamOrder:
        """Return the order of work.

        Args:
            stream: number of the stream of each activity; -1 unknown.
            start_ns: when it began on the device.
            launched_ns: when its launching call began.
            known: whether that is known.
            line: on which the times of streams do not meet; none that is asked for lies outside.
        """
        work = np.flatnonzero(stream != NONE)
        work = work[np.lexsort((start_ns[work], stream[work]))]
        stream, known = stream[work], known[work]
        time_ns = np.where(known, launched_ns[work], line.origin_ns[stream])
        # Streams follow each other on the line, so that the latest so far is one of the stream.
        place = np.maximum.accumulate(line.place(stream, time_ns)) if len(work) else time_ns
        return StreamOrder(work, stream, place, known, line)

    def before(self, stream: Ints, time_ns: Ints) -> Ints:
        """Return where the last work is that streams were given before some times; -1 none."""
        at = np.searchsorted(self.place, self.line.place(stream, time_ns)) - 1
        return np.where(np.append(self.stream, NONE)[at] == stream, at, NONE)

    def after(self, stream: Ints, time_ns: Ints) -> Ints:
        """Return where the first work is that streams were given after some times; -1 none."""
        at = np.searchsorted(self.place, self.line.place(stream, time_ns), side="right")
        return np.where(np.append(self.stream, NONE)[at] == stream, at, NONE)

    def at_one_time(self, stream: Ints, time_ns: Ints) -> Bools:
        """Tell at which times streams were given work, too."""
        place = self.line.place(stream, time_ns)
        low, high = (np.searchsorted(self.place, place, side=side) for side in ("left", "right"))
        return np.asarray(low < high, bool)

    def trusted(self, at: Ints) -> Bools:
        """Tell which of some places hold work whose call is known, or nothing (-1)."""
        return np.append(self.known, True)[at]


def latest_so_far(run: Ints, value: Ints) -> Ints:
    """Return for each row which row of its run has the highest value up to it.

    Of equal ones it is the first. Rows of a run follow each other::

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


def stream_numbers(*streams: tuple[Ints, Ints]) -> tuple[Ints, ...]:
    """Return the numbers of streams in several tables of (rank, stream); -1 where either is."""
    ranks, numbers = (np.concatenate(column) for column in zip(*streams, strict=True))
    number = groups_of(ranks, numbers).of_row
    number = np.where((ranks == NONE) | (numbers == NONE), NONE, number)
    return tuple(np.split(number, np.cumsum([len(table[0]) for table in streams])[:-1]))


# Stream numbers: what a profile holds of waiting, beside the work that is analysed.


def synchronisation_of(
    profile: Profile,
) -> tuple[Synchronisation | None, tuple[Limitation, ...]]:
    """Return what a profile holds of waiting, None where that is nothing, and what is lost.

    What names no process is that of the only one that ran work.
    """
    if profile.synchronisation is None or not profile.launches_known:
        return None, ()
    found, lost = profile.synchronisation()
    processes = distinct(profile.activities.ranks[:, 0])
    if found is None or len(processes) != 1:
        return found, lost
    records, waits = found.records, found.waits
    return replace(
        found,
        records=replace(records, process=_filled(records, int(processes[0]))),
        waits=replace(waits, process=_filled(waits, int(processes[0]))),
    ), lost


def _filled(table: EventRecords | Waits, process: int) -> Ints:
    return np.where(table.process < 0, process, table.process)


def with_streams_of(
    work: Activities, found: Synchronisation, recorded: Activities
) -> Synchronisation:
    """Return the same, with the streams of the work that is analysed.

    Args:
        work: rows of the recorded work, in any order.
        found: with the streams of the recorded work.
        recorded: all of it.
    """
    keys, wanted = _keys(recorded), _keys(work)
    if all(map(np.array_equal, keys, wanted)):
        return found
    # Two pieces of work that agree in all of it have one launch, and most times one stream.
    return replace(found, streams=looked_up(keys, found.streams, wanted))


def _keys(work: Activities) -> tuple[Ints, ...]:
    """Return columns that tell pieces of work apart."""
    process, device = work.ranks[work.rank].T
    return work.start_ns, work.end_ns, work.correlation_id.astype(np.int64), process, device


# Waits of the report: what streams and hosts are proved to have waited for.


#: The name of work that has none.
COPY = "copy or memset"


@frozen
class ProvedWait:
    """What a stream of a device, or a host while it was idle, waited for, by all of its waits.

    Attributes:
        waiting: who: ``stream 7``, or ``host, cudaStreamSynchronize``.
        stream: of the work that was waited for; with its device where that is another.
        work: its name.
        kind: what it is: ``compute``, ``communication`` or ``copy``.
        waits: how many.
        blocked_ns: how long the stream's next work, launched, waited for it; of hosts, while the
            device was idle. Several streams may wait at a time.
        without_compute_ns: the part in which the device computed nothing.
        idle_ns: the device's idle time that is attributed to it.
    """

    waiting: str
    stream: str
    work: str
    kind: str
    waits: int
    blocked_ns: int
    without_compute_ns: int
    idle_ns: int


def order_of(wait: ProvedWait) -> tuple[object, ...]:
    """Return by what waits are sorted: the most time without compute first."""
    names = wait.waiting, wait.stream, wait.work
    return (-wait.without_compute_ns, -wait.blocked_ns, *names)


@frozen
class Awaited:
    """How much of a device's exposed time is proved to have held up launched work.

    Attributes:
        communication_ns: exposed communication while a stream waited for a communication kernel.
        copy_ns: exposed copies while a stream waited for a copy or memset.
    """

    communication_ns: int
    copy_ns: int
