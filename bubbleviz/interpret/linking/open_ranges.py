"""Open ranges: those around calls, or at an instant, of a thread or of its whole process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.interpret.linking.links import LinkRule, Links
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.containment import Innermost
from bubbleviz.model.grouping import rows_by_value
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.profile import CallLog, Calls, Ranges, process_of
from bubbleviz.model.values import frozen


class OpenRanges:
    """Ranges that are open around calls, or at an instant; push/pop before start/end ones."""

    def __init__(self, ranges: Ranges, rows: Ints, shared: Ints) -> None:
        start_end = ranges.start_end[rows]
        free = np.sort(np.concatenate((rows[start_end], shared)))
        self._layers = [
            (layer, Innermost.of(ranges.start_ns[layer], ranges.end_ns[layer]))
            for layer in (rows[~start_end], free)
            if len(layer)
        ]

    def around(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return the row of the innermost range around each [start, end]; -1 none."""
        if not self._layers:
            return np.full(len(start_ns), NONE, np.int64)
        first, *others = self._layers
        best = _row_around(first, start_ns, end_ns)
        for layer in others:
            left = np.flatnonzero(best == NONE)
            if len(left):
                best[left] = _row_around(layer, start_ns[left], end_ns[left])
        return best

    def all_around(self, start_ns: Ints, end_ns: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield (query, row) pairs of every range around each [start, end]."""
        for rows, index in self._layers:
            for query, at in index.all_around(start_ns, end_ns):
                yield query, rows[at]


def _row_around(layer: tuple[Ints, Innermost], start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the row of a layer's innermost range around each [start, end]; -1 none."""
    rows, index = layer
    at = index.around(start_ns, end_ns)
    return np.where(at >= 0, rows[at], NONE)


class ThreadRanges:
    """The ranges of each thread, with start/end ranges that cover its whole process."""

    def __init__(self, ranges: Ranges, rows: Ints) -> None:
        self._ranges, self._rows = ranges, rows
        some = ranges.take(rows)
        wide = some.start_end & (some.end_thread != NONE) & (some.end_thread != some.thread)
        self._on_thread = dict(rows_by_value(np.where(wide, NONE, some.thread)))
        self._on_process = dict(rows_by_value(np.where(wide, process_of(some.thread), NONE)))
        self._on_thread.pop(NONE, None)
        self._on_process.pop(NONE, None)
        self._open: dict[int, OpenRanges] = {}

    def of(self, thread: int) -> OpenRanges:
        """Return the ranges for the calls of a thread."""
        if thread not in self._open:
            none = np.empty(0, np.int64)
            rows = self._rows[self._on_thread.get(thread, none)]
            shared = self._rows[self._on_process.get(thread >> 24, none)]
            self._open[thread] = OpenRanges(self._ranges, rows, shared)
        return self._open[thread]

    def around(self, calls: Calls) -> Ints:
        """Return the row of the innermost range around each call by its own thread; -1 none.

        Where a push/pop range holds the call, no start/end range can take it.
        """
        threads = calls.thread
        # Calls of a thread mostly follow each other.
        if len(calls) and threads.min() == threads.max():
            return self.of(int(threads[0])).around(calls.start_ns, calls.end_ns)
        best = np.full(len(calls), NONE, np.int64)
        for thread, at in rows_by_value(threads):
            best[at] = self.of(thread).around(calls.start_ns[at], calls.end_ns[at])
        return best


@frozen
class EnclosingRanges(Table):
    """The compute ranges around the launch of activities: one row a pair."""

    activity: Ints
    range: Ints


def enclosing_ranges(
    rows: Ints, links: Links, calls: CallLog, ranges: Ranges, phase: Ints
) -> EnclosingRanges:
    """Return all compute ranges around the launch of some activities, whatever lies between.

    Args:
        rows: the activities.
        links: of all activities.
        calls: the profile's calls.
        ranges: the ranges of operations.
        phase: phase of each range.
    """
    rows = rows[links.call[rows] >= 0]
    launches = links.calls_of(rows, calls)
    crossed = np.flatnonzero(links.rule[rows] == LinkRule.CROSS_THREAD)
    pairs = [(rows[crossed], links.range[rows[crossed]].astype(np.int64))]
    compute = ThreadRanges(ranges, np.flatnonzero(among(phase, COMPUTE)))
    for thread, at in rows_by_value(launches.thread):
        around = compute.of(thread).all_around(launches.start_ns[at], launches.end_ns[at])
        pairs.extend((rows[at[query]], of_range) for query, of_range in around)
    activity, of_range = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return EnclosingRanges(activity, of_range)
