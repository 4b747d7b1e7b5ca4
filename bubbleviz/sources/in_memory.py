"""Calls and ranges in memory, of formats without tables that can be queried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.kinds import GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools, Codes, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.profile import PID_MASK, Calls, Ranges

#: Calls that are yielded at a time.
_BLOCK = 1 << 16


@dataclass(frozen=True)
class InMemoryCalls:
    """A :class:`~bubbleviz.model.profile.CallLog` of calls in memory.

    Attributes:
        calls: all of them; ``row`` counts from 0.
        name_id: row of ``texts`` of each call.
        texts: distinct names.
    """

    calls: Calls
    name_id: Codes
    texts: tuple[str, ...]

    def blocks(self) -> Iterator[Calls]:
        """Yield all calls, in order."""
        for at in range(0, len(self.calls), _BLOCK):
            yield self.calls.take(slice(at, at + _BLOCK))

    def at(self, rows: Ints) -> Calls:
        """Return the calls of some rows (distinct, ascending)."""
        return self.calls.take(rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the name of each call of some rows (distinct, ascending)."""
        return tuple(self.texts[name] for name in self.name_id[rows].tolist())

    def kernel_launches(self, rows: Ints) -> Ints:
        """Return those of some rows (distinct, ascending) whose call launches a kernel."""
        return self._beginning(rows, KERNEL_LAUNCHES)

    def graph_launches(self, rows: Ints) -> Ints:
        """Return those of some rows (distinct, ascending) whose call launches a CUDA graph."""
        return self._beginning(rows, GRAPH_LAUNCHES)

    def _beginning(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of some rows whose call's name begins in one of some ways."""
        if len(rows) == 0:
            return rows
        fits = np.array([text.startswith(beginnings) for text in self.texts], bool)
        fitting: Ints = rows[fits[self.name_id[rows]]]
        return fitting

    def containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""
        fits = np.array([letters in text for text in self.texts], bool)
        return np.flatnonzero(fits[self.name_id])

    def failed(self, rows: Ints) -> Bools:
        """Tell which calls of some rows returned an error, which these formats do not record."""
        return np.zeros(len(rows), bool)


@dataclass(frozen=True)
class InMemoryRanges:
    """A :class:`~bubbleviz.model.profile.RangeLog` of ranges in memory."""

    ranges: Ranges

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the ranges of some threads that last so long, and touch any of some times."""
        ranges, times = self.ranges, intervals.union(since_ns, until_ns)
        keep = (ranges.end_ns - ranges.start_ns >= shortest_ns) & np.isin(ranges.thread, threads)
        rows = np.flatnonzero(keep)
        before = np.searchsorted(times[1], ranges.start_ns[rows], side="right")
        touching = before < np.searchsorted(times[0], ranges.end_ns[rows])
        return ranges.take(rows[touching])


def no_calls() -> InMemoryCalls:
    """Return an empty log of calls."""
    row, start_ns, end_ns, thread = (np.empty(0, np.int64) for _ in range(4))
    calls = Calls(row, start_ns, end_ns, thread, np.empty(0, np.uint32))
    return InMemoryCalls(calls, np.empty(0, np.int32), ())


def no_ranges() -> Ranges:
    """Return an empty table of ranges."""
    start_ns, end_ns, thread, end_thread, name_id = (np.empty(0, np.int64) for _ in range(5))
    start_end, cut = np.empty(0, bool), np.empty(0, bool)
    return Ranges(start_ns, end_ns, thread, end_thread, start_end, cut, name_id, ())


def thread_numbers(pid: Ints, tid: Ints) -> Ints:
    """Return threads as nsys numbers them: (pid << 24) + tid.

    Some formats number a thread with more than 24 bits (the address of a pthread); such threads get
    the numbers that the others of their process leave free, from the top down.

    Args:
        pid: process of each row; at most 24 bits.
        tid: thread of each row, as the format numbers it.
    """
    threads_seen, of_row = np.unique(np.stack((pid, tid)), axis=1, return_inverse=True)
    number = threads_seen[1].copy()
    wide = (number < 0) | (number > PID_MASK)
    for process in distinct(threads_seen[0][wide]).tolist():
        rows = np.flatnonzero(wide & (threads_seen[0] == process))
        taken = threads_seen[1][(threads_seen[0] == process) & ~wide]
        free = PID_MASK - np.arange(len(rows) + len(taken))
        number[rows] = free[~np.isin(free, taken)][: len(rows)]
    threads: Ints = ((threads_seen[0] << 24) + number)[of_row.reshape(-1)]
    return threads
