"""Backward threads: calls whose backward was opened by another thread than the one that launches.

::

    main thread      ├─B3────────────────┤  (pushed here)
    autograd thread      call call call     (launched here)  -> B3
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bubbleviz.interpret.linking.open_ranges import OpenRanges
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import rows_by_value
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import BACKWARD
from bubbleviz.model.profile import Ranges, Thread, is_main, process_of


class OpenBackwards:
    """The backward ranges that each thread opens."""

    def __init__(self, ranges: Ranges, phase: Ints) -> None:
        backward = np.flatnonzero(among(phase, BACKWARD))
        none = np.empty(0, np.int64)
        self._open = {
            thread: OpenRanges(ranges, backward[at], none)
            for thread, at in rows_by_value(ranges.thread[backward])
        }

    def _candidates(self, thread: Ints, time_ns: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield (owner, rows, range): the innermost backward that a thread had open around others.

        ``rows`` are those calls of other threads of its process during which it had one open.
        """
        processes = dict(rows_by_value(process_of(thread)))
        for owner, opened in self._open.items():
            rows = processes.get(owner >> 24, np.empty(0, np.int64))
            rows = rows[thread[rows] != owner]
            if len(rows):
                inside = opened.around(time_ns[rows], time_ns[rows])
                yield owner, rows[inside >= 0], inside[inside >= 0]

    def only(
        self, thread: Ints, time_ns: Ints, among: Callable[[int, Ints], Bools] | None = None
    ) -> tuple[Ints, Bools]:
        """Return the backward open on just one other thread, -1 none, and where it is several.

        Args:
            thread: of each call.
            time_ns: when each began.
            among: for which of some calls (rows) a thread is eligible; None for all.
        """
        backward = np.full(len(thread), NONE, np.int64)
        count = np.zeros(len(thread), np.int64)
        for owner, rows, inside in self._candidates(thread, time_ns):
            eligible = slice(None) if among is None else among(owner, rows)
            backward[rows[eligible]] = inside[eligible]
            count[rows[eligible]] += 1
        backward[count > 1] = NONE
        return backward, count > 1


def helper_threads(threads: Sequence[Thread], patterns: Sequence[str]) -> Ints:
    """Return the threads whose names are those of threads that never run backward.

    A name that the process's main thread has too means nothing: threads inherit it.
    """
    helper = re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)
    inherited = {(t.thread >> 24, t.name) for t in threads if is_main(t.thread)}
    named = {
        t.thread
        for t in threads
        if helper.search(t.name)
        and (is_main(t.thread) or (t.thread >> 24, t.name) not in inherited)
    }
    return np.array(sorted(named), np.int64)
