"""Traced: what every event of a trace says (who, when, what) as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.model.texts import encodable
from bubbleviz.sources.in_memory import thread_numbers
from bubbleviz.sources.trace_events import Event, ExactEvent

#: Processes and threads that a trace names by text, or by longer numbers, get numbers from here.
_NAMED_PID, _NAMED_TID = 0xF00000, 1 << 48
_PIDS = 1 << 24
#: What is longer than this, in microseconds, is no time.
_LONGEST_US = 1 << 53
#: Stands for what is no time; :func:`bubbleviz.model.profile.possible` tells it from one.
_NO_TIME_NS = -(1 << 61)


@dataclass
class Texts:
    """Distinct texts, numbered in the order in which they come."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))

    def all(self) -> tuple[str, ...]:
        """Return the texts, by number."""
        return tuple(map(encodable, self.numbers))


@dataclass
class Owners:
    """Threads, as (process, thread), numbered in the order in which they come."""

    _numbers: dict[tuple[int | str | None, int | str | None], int] = field(default_factory=dict)

    def number(self, event: Event | ExactEvent) -> int:
        """Return the number of an event's thread."""
        return self._numbers.setdefault((event.pid, event.tid), len(self._numbers))

    def threads(self) -> Ints:
        """Return the threads, by number, as nsys numbers them (``globalTid`` of host 0).

        A process that the trace names by text, or by more than 24 bits, gets a number of its own.
        """
        pids, tids = Texts(), Texts()
        owners = [
            (_whole(pid, _PIDS, pids, _NAMED_PID), _whole(tid, _NAMED_TID, tids, _NAMED_TID))
            for pid, tid in self._numbers
        ]
        pairs = np.array(owners, np.int64).reshape(-1, 2)
        return thread_numbers(pairs[:, 0], pairs[:, 1])


def _whole(number: int | str | None, below: int, texts: Texts, first: int) -> int:
    """Return a number as it is, or what stands for one that is too large, or for a text."""
    if isinstance(number, int) and 0 <= number < below:
        return number
    return first + texts.number(str(number)) % _PIDS


def times_ns(times_us: Sequence[float | Decimal | None]) -> Ints:
    """Return times, given in microseconds, rounded to nanoseconds; None is 0."""
    if not any(isinstance(us, Decimal) for us in times_us):
        us = np.array(times_us, float)
        us[~(np.abs(us) < _LONGEST_US)] = np.nan
        whole_us = np.floor(us)
        # The part behind the point alone is exact when it is multiplied.
        found = np.where(np.isnan(us), 0, whole_us).astype(np.int64) * 1000
        found += np.rint(np.where(np.isnan(us), 0, us - whole_us) * 1000).astype(np.int64)
        strange = np.array([t is not None for t in times_us], bool) & np.isnan(us)
        found[strange] = _NO_TIME_NS
        return found
    return np.array([_exact_ns(us) for us in times_us], np.int64)


def _exact_ns(us: float | Decimal | None) -> int:
    """Return a time in whole nanoseconds; None is 0."""
    if us is None:
        return 0
    exact_us = Decimal(us)
    # NaN, which may be written as a text, cannot be compared.
    if not exact_us.is_finite() or abs(exact_us) >= _LONGEST_US:
        return _NO_TIME_NS
    return round(exact_us * 1000)


def columns_of(events: Sequence[Event | ExactEvent], owners: Owners, names: Texts) -> Ints:
    """Return who did what when; shape (4, events).

    Rows are the number of the thread, start_ns, end_ns and the number of the name.
    """
    start_ns = times_ns([event.ts for event in events])
    return np.stack(
        (
            np.array([owners.number(event) for event in events], np.int64),
            start_ns,
            start_ns + times_ns([event.dur for event in events]),
            np.array([names.number(event.name) for event in events], np.int64),
        )
    )
