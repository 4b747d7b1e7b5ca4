"""NVTX ranges of an nsys export: those whose names conventions may understand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache

import numpy as np

from bubbleviz.conventions.globs import binds_of, fitting
from bubbleviz.conventions.launching_calls import WORK_CALLS
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.profile import Ranges, possible
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.direct_reader import ABSENT
from bubbleviz.sources.nsys.gpu_work import Export
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.scan import BulkAnswers, Readers, Scan, Stretch
from bubbleviz.sources.sqlite.queries import Binds

#: Rows of the NVTX table in one stretch.
RANGE_ROWS = 1 << 18
#: Codes of NVTX_EVENTS.eventType where the export holds no ENUM_NSYS_EVENT_TYPE.
_EVENT_TYPES = {
    "NvtxPushPopRange": 59,
    "NvtxStartEndRange": 60,
    "NvtxtPushPopRange": 70,
    "NvtxtStartEndRange": 71,
}
#: The parameters of queries for the four of them.
_KINDS = ("push_pop", "start_end", "nvtxt_push_pop", "nvtxt_start_end")
#: How the names of calls begin that have work on a device; nsys records none of HIP.
_CALLS = tuple(start for start in WORK_CALLS if start.startswith("cu"))
#: A sample is about so many rows, in about so many pieces.
SAMPLED_ROWS = 1 << 14
_SAMPLES = 64


def event_types(export: Export) -> Mapping[str, int]:
    """Return the codes of the four kinds of ranges, as parameters of queries."""
    codes = dict(_EVENT_TYPES)
    if export.has("ranges/event_types"):
        for name, code in export.rows("ranges/event_types"):
            codes[str(name)] = export.number(code)
    return {
        "push_pop": codes["NvtxPushPopRange"],
        "start_end": codes["NvtxStartEndRange"],
        "nvtxt_push_pop": codes["NvtxtPushPopRange"],
        "nvtxt_start_end": codes["NvtxtStartEndRange"],
    }


def kinds_in(binds: Binds) -> tuple[int, ...]:
    """Return the codes of the four kinds of ranges among the parameters of a query."""
    return tuple(int(binds[kind] or 0) for kind in _KINDS)


def sample_names(
    export: Export, globs: Sequence[str], most: int = SAMPLED_ROWS
) -> Mapping[str, int]:
    """Return how often names occur in a sample of the ranges, spread over the capture.

    Args:
        export: the file.
        globs: prefilters of the names.
        most: about so many rows are read.
    """
    counts: Counter[str] = Counter()
    if not export.has("ranges/sample"):
        return counts
    binds = event_types(export)
    first, last = export.bounds("ranges/bounds")
    whole = last - first < most
    of_piece = most if whole else most // _SAMPLES
    step = most if whole else (last - first) // _SAMPLES
    pieces = [
        {**binds, "first": at, "last": min(at + of_piece - 1, last)}
        for at in range(first, last + 1, step)
    ]
    for rows in export.catalogue.rows_of_each(query("ranges/sample"), pieces):
        counts.update(str(name) for (name,) in rows if name is not None)
    fits = fitting(globs, counts)
    return {name: counts[name] for name, fit in zip(counts, fits, strict=True) if fit}


@frozen
class NameFilter:
    """Names to read: by patterns, and as registered strings, by id.

    Attributes:
        globs: prefilters of the names of ranges.
        strings: registered strings that pass one.
        call_names: registered names of ``WORK_CALLS``.
    """

    globs: tuple[str, ...]
    strings: Mapping[int, str]
    call_names: Mapping[int, str]


def name_filter(export: Export, globs: Sequence[str]) -> NameFilter:
    """Return the names to read; ``StringIds``, maybe as long as the NVTX table, is read once."""
    texts = _matching_strings(export, (*globs, *(f"{start}*" for start in _CALLS)))
    calls = {i: text for i, text in texts.items() if text.startswith(_CALLS)}
    fits = fitting(globs, calls.values())
    others = {i for i, fit in zip(calls, fits, strict=True) if not fit}
    strings = {i: text for i, text in texts.items() if i not in others}
    return NameFilter(tuple(globs), strings, calls)


def _matching_strings(export: Export, globs: tuple[str, ...]) -> Mapping[int, str]:
    """Return the registered strings that fit a pattern, by id."""
    strings = export.direct.strings(globs) if export.direct else None
    if strings is not None:
        return strings
    matching = export.rows("strings/matching", binds_of(globs))
    return {export.number(row[0]): str(row[1]) for row in matching}


@frozen
class _NamedStretch(Stretch):
    """A stretch of ranges, of which those of some names are read."""

    names: NameFilter = field(default_factory=lambda: NameFilter((), {}, {}))

    def rows(self, readers: Readers) -> list[tuple[object, ...]]:
        """Return the rows of ranges/named.sql."""
        rows = None
        if readers.direct:
            rows = readers.direct.named(
                self.query,
                self.names.globs,
                kinds_in(dict(self.binds)),
                tuple(sorted(self.names.strings)),
                (self.first, self.last),
            )
        if rows is None:
            return super().rows(readers)
        *numbers, text_id = rows.values.tolist()
        numbers[1] = [None if end == ABSENT else end for end in numbers[1]]
        return list(zip(*numbers, rows.texts, text_id, strict=True))

    def _binds(self) -> Binds:
        # What patterns are to SQLite is worked out only where it reads.
        return {**super()._binds(), **_pattern_binds(self.names.globs)}


@cache
def _pattern_binds(globs: tuple[str, ...]) -> Binds:
    return binds_of(globs)


def read_ranges(
    export: Export, scan: Scan, names: NameFilter, last_ns: Callable[[], int]
) -> tuple[Ranges, int]:
    """Return the ranges of some names, and the number of those with impossible times.

    Args:
        export: the open export.
        scan: reads its large tables.
        names: of the ranges to read.
        last_ns: gives the latest time elsewhere in the capture; called if a range is open then.

    Raises:
        ProfileError: the file is damaged, or holds text where a number belongs.
    """
    types = event_types(export)
    strings: Binds = {
        "text_ids": json.dumps(sorted(names.strings)),
        "some_strings": bool(names.strings),
    }
    binds: Binds = {**types, **strings}
    bounds = export.bounds("ranges/bounds")
    # Each stretch looks up the wanted strings anew, so that stretches are long.
    stretches = [
        _NamedStretch(s.query, s.first, s.last, s.binds, names)
        for s in scan.stretches("ranges/named", *bounds, RANGE_ROWS, binds)
    ]
    numbers: dict[str, int] = {}
    blocks = [_block(export, rows, names.strings, numbers) for rows in scan.rows(stretches)]
    start_ns, end_ns, kind, thread, end_thread, open_ended, name_id = np.concatenate(
        blocks or [np.empty((7, 0), np.int64)], axis=1
    )
    cut = open_ended.astype(bool)
    keep = possible(start_ns, np.where(cut, start_ns, end_ns))
    if cut.any():
        sane = slice(None) if keep is None else keep
        times = np.concatenate((start_ns[sane], end_ns[sane]))
        end_ns[cut] = int(times.max(initial=last_ns()))
    ranges = Ranges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        end_thread=end_thread,
        start_end=np.isin(kind, [types["start_end"], types["nvtxt_start_end"]]),
        cut=cut,
        name_id=name_id,
        names=tuple(numbers),
    )
    return (ranges, 0) if keep is None else (ranges.take(keep), int((~keep).sum()))


def null_among_ranges(path: str) -> ProfileError:
    """Return the error of an export whose ranges lack a number that each must have."""
    return ProfileError(
        f"{path}: NVTX_EVENTS holds NULL (no value) where a number belongs, so it is "
        f"damaged or was edited; {EXPORT_AGAIN}"
    )


def _block(
    export: Export,
    rows: Sequence[tuple[object, ...]],
    strings: Mapping[int, str],
    numbers: dict[str, int],
) -> Ints:
    """Return rows of ranges/named.sql as columns: in place of text, open end and name's number.

    Args:
        export: the open export.
        rows: as the query gives them.
        strings: registered strings, by id.
        numbers: of the names so far; new ones are added.

    Raises:
        ProfileError: there is text or NULL where a number belongs.
    """
    if not rows:
        return np.empty((7, 0), np.int64)
    # Only rows that passed the patterns come here, in which texts and open ends are no numbers.
    start, end, kind, thread, end_thread, text, text_id = zip(*rows, strict=True)
    types = {type(value) for column in (start, kind, thread, end_thread) for value in column}
    types |= {type(value) for value in end if value is not None}
    if type(None) in types:
        raise null_among_ranges(export.path)
    if types - {int} or {type(value) for value in text} - {str, type(None)}:
        raise ProfileError(
            f"{export.path}: NVTX_EVENTS holds text where a number belongs, so it is damaged or "
            f"was edited; {EXPORT_AGAIN}"
        )
    texts = (
        str(strings[export.number(i)] if t is None else t)
        for t, i in zip(text, text_id, strict=True)
    )
    name_id = [numbers.setdefault(t, len(numbers)) for t in texts]
    open_ended = [e is None for e in end]
    ends = [NONE if e is None else e for e in end]
    return np.array((start, ends, kind, thread, end_thread, open_ended, name_id), np.int64)


# Long ranges and system calls of an nsys export, of whatever name, for the idle time they span.


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
