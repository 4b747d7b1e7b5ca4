"""Trace events as columns: thread, start, end and name of each."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import Numbering
from bubbleviz.sources.in_memory import thread_numbers
from bubbleviz.sources.trace_events.events import ExactTraceEvent, TraceEvent

#: A thread as an event names it: process and thread.
ThreadName: TypeAlias = tuple[int | str | None, int | str | None]

#: Processes and threads that a trace names by text, or by longer numbers, get numbers from here.
_NAMED_PID, _NAMED_TID = 0xF00000, 1 << 48
_PIDS = 1 << 24
#: Anything longer than this, in microseconds, is not a time.
_LONGEST_US = 1 << 53
#: Stands for a value that is not a time; :func:`bubbleviz.model.profile.possible` is false for it.
_NO_TIME_NS = -(1 << 61)


def columns_of(
    events: Sequence[TraceEvent | ExactTraceEvent],
    threads: Numbering[ThreadName],
    names: Numbering[str],
) -> Ints:
    """Return thread, start, end and name of events, shape (4, events).

    Args:
        events: to be read.
        threads: numbers their threads; extended.
        names: numbers their names; extended.

    Returns:
        Number of the thread, start_ns, end_ns, number of the name.
    """
    start_ns = times_ns([event.ts for event in events])
    return np.stack(
        (
            threads.numbers((event.pid, event.tid) for event in events),
            start_ns,
            start_ns + times_ns([event.dur for event in events]),
            names.numbers(event.name for event in events),
        )
    )


def global_threads(threads: Numbering[ThreadName]) -> Ints:
    """Return the threads, by number, as nsys numbers them (``globalTid`` of host 0).

    A process that the trace names by text, or by more than 24 bits, gets a number of its own.
    """
    pids, tids = Numbering[str](), Numbering[str]()
    pairs = [
        (_whole(pid, _PIDS, pids, _NAMED_PID), _whole(tid, _NAMED_TID, tids, _NAMED_TID))
        for pid, tid in threads.values
    ]
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    return thread_numbers(columns[:, 0], columns[:, 1])


def _whole(number: int | str | None, below: int, names: Numbering[str], first: int) -> int:
    """Return a number as it is, or one from ``first`` on for a text or a number too large."""
    if isinstance(number, int) and 0 <= number < below:
        return number
    return first + names.number(str(number)) % _PIDS


def times_ns(times_us: Sequence[float | Decimal | None]) -> Ints:
    """Return times, given in microseconds, rounded to nanoseconds; None is 0."""
    if any(isinstance(us, Decimal) for us in times_us):
        return np.array([_exact_ns(us) for us in times_us], np.int64)
    us = np.array(times_us, float)
    us[~(np.abs(us) < _LONGEST_US)] = np.nan
    whole_us = np.floor(us)
    # Only the fraction is exact when it is multiplied.
    rounded_ns = np.where(np.isnan(us), 0, whole_us).astype(np.int64) * 1000
    rounded_ns += np.rint(np.where(np.isnan(us), 0, us - whole_us) * 1000).astype(np.int64)
    given = np.array([t is not None for t in times_us], bool)
    rounded_ns[given & np.isnan(us)] = _NO_TIME_NS
    return rounded_ns


def _exact_ns(us: float | Decimal | None) -> int:
    """Return a time in whole nanoseconds; None is 0."""
    if us is None:
        return 0
    exact_us = Decimal(us)
    # NaN, which may be written as a text, cannot be compared; abs() would round, and so overflow.
    if not exact_us.is_finite() or exact_us.copy_abs() >= _LONGEST_US:
        return _NO_TIME_NS
    return round(exact_us * 1000)
