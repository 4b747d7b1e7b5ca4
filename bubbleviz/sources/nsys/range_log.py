"""Long ranges and system calls of an nsys export, of whatever name, for the idle time they span."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.profile import Ranges
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.answering import BulkAnswers
from bubbleviz.sources.nsys.direct_reader import ABSENT
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.ranges import RANGE_ROWS, event_types, kinds_in
from bubbleviz.sources.nsys.scan import Readers, Scan, Stretch
from bubbleviz.sources.sqlite.queries import Binds

_Rows = Sequence[tuple[object, ...]]


class LastingStretch(Stretch):
    """A stretch of ranges, of which those are read that last long."""

    def rows(self, readers: Readers) -> list[tuple[object, ...]]:
        """Return the rows of ranges/lasting.sql."""
        binds = dict(self.binds)
        found = None
        if readers.direct:
            found = readers.direct.lasting(
                kinds_in(binds),
                tuple(sorted(json.loads(str(binds["threads"])))),
                int(binds["shortest"] or 0),
                (int(binds["since"] or 0), int(binds["until"] or 0)),
                (self.first, self.last),
            )
        if found is None:
            return super().rows(readers)
        start_ns, end_ns, _, thread, _, text_id = found.values.tolist()
        named = zip(text_id, found.texts, strict=True)
        registered = {i for i, text in named if text is None and i != ABSENT}
        names = _strings(readers.database(), registered) if registered else {}
        texts = [
            names.get(i) if text is None else text
            for i, text in zip(text_id, found.texts, strict=True)
        ]
        return list(zip(start_ns, end_ns, thread, texts, strict=True))


def _strings(database: BulkAnswers, ids: set[int]) -> dict[int, object]:
    """Return the registered strings of some numbers."""
    rows = database.rows(query("strings/by_id"), {"ids": json.dumps(sorted(ids))})
    return {int(str(row[0])): row[1] for row in rows}


@frozen
class ExportedRanges:
    """A :class:`~bubbleviz.model.profile.RangeLog`; it can be read while the export is open."""

    export: Export
    scan: Scan

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the ranges of some threads that last so long and touch any of some times."""
        times = intervals.union(since_ns, until_ns)
        if not self.export.has("ranges/lasting") or not len(times[0]):
            return _ranges_touching(times, ())
        binds = {**event_types(self.export), **_binds(shortest_ns, threads, times)}
        bounds = self.export.bounds("ranges/bounds")
        stretches = [
            LastingStretch(s.query, s.first, s.last, s.binds)
            for s in self.scan.stretches("ranges/lasting", *bounds, RANGE_ROWS, binds)
        ]
        return _ranges_touching(times, self.scan.rows(stretches))


@frozen
class SystemCalls:
    """A :class:`~bubbleviz.model.profile.RangeLog` of calls of the operating system."""

    export: Export

    def lasting(self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints) -> Ranges:
        """Return the calls of some threads that last so long and touch any of some times."""
        times = intervals.union(since_ns, until_ns)
        if not len(times[0]):
            return _ranges_touching(times, ())
        rows = self.export.rows("calls/system", _binds(shortest_ns, threads, times))
        return _ranges_touching(times, (rows,))


def _binds(shortest_ns: int, threads: Ints, times: intervals.Intervals) -> Binds:
    return {
        "shortest": shortest_ns,
        "threads": json.dumps(threads.tolist()),
        "since": int(times[0][0]),
        "until": int(times[1][-1]),
    }


def _ranges_touching(times: intervals.Intervals, blocks: Iterable[_Rows]) -> Ranges:
    """Return the ranges that touch some times; only start, end, thread and name are known.

    Args:
        times: a set of times.
        blocks: rows of start, end, thread and name.
    """
    names: dict[str, int] = {}
    columns = [_columns(rows, times, names) for rows in blocks]
    start_ns, end_ns, thread, name_id = np.concatenate(
        [np.empty((4, 0), np.int64), *columns], axis=1
    )
    none = np.zeros(len(thread), bool)
    end_thread = np.full(len(thread), NONE, np.int64)
    return Ranges(start_ns, end_ns, thread, end_thread, none, none.copy(), name_id, tuple(names))


def _columns(rows: _Rows, times: intervals.Intervals, names: dict[str, int]) -> Ints:
    """Return rows that touch some times, as columns of start, end, thread and name's number.

    Args:
        rows: of a query; those with text in place of a number are left out.
        times: a set of times.
        names: numbers of the names so far; new ones are added.
    """
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    if {type(value) for column in columns[:3] for value in column} - {int}:
        rows = [row for row in rows if all(isinstance(value, int) for value in row[:3])]
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    numbers = np.array(columns[:3], np.int64)
    before = np.searchsorted(times[1], numbers[0], side="right")
    inside = np.flatnonzero(before < np.searchsorted(times[0], numbers[1]))
    texts = columns[3]
    name_id = [names.setdefault(str(texts[at] or ""), len(names)) for at in inside.tolist()]
    return np.stack((*numbers[:, inside], np.array(name_id, np.int64)))
