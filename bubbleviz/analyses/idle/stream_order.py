"""Stream order: what came before what on each stream, in the order in which hosts asked for it.

A stream does one thing after another: an event that is recorded on it completes when the work
before has ended, and the work behind a wait begins when the event has completed::

    stream 20   ├──── K ────┤ record E
    stream 7    ├─ P ─┤ wait for E   ├── W ──┤

The order is that of the calls. Of calls at one time it is not known, nor is it of work whose call
was not recorded: nothing is concluded from these.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
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
