"""Reads the NVTX ranges in an nsys export, selected by name or by duration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.globs import match_any_glob
from bubbleviz.conventions.kinds import WORK_CALLS
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_distinct, find_positions
from bubbleviz.model.intervals import Intervals
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Ranges, mask_possible
from bubbleviz.sources.in_memory import make_ranges
from bubbleviz.sources.nsys.export import Export, Named, Selection
from bubbleviz.sources.sqlite.queries import ABSENT

#: Default codes in ``NVTX_EVENTS.eventType`` for the four range kinds, in ``KINDS`` order. They are
#: used for exports without the table ``ENUM_NSYS_EVENT_TYPE``.
_EVENT_TYPES = {
    "NvtxPushPopRange": 59,
    "NvtxStartEndRange": 60,
    "NvtxtPushPopRange": 70,
    "NvtxtStartEndRange": 71,
}
#: Name prefixes of the CUDA calls that launch GPU work. nsys does not record HIP calls.
_WORK_CALL_PREFIXES = tuple(start for start in WORK_CALLS if start.startswith("cu"))
#: Approximate number of rows in a range sample, and number of pieces in the sample.
SAMPLE_ROWS = 1 << 14
_SAMPLE_PIECES = 64


def read_event_types(export: Export) -> tuple[int, ...]:
    """Return the codes for the four range kinds, in the order of ``KINDS``.

    If the export does not list a kind, its code is taken from ``_EVENT_TYPES``.
    """
    codes = dict(_EVENT_TYPES)
    for name, code in export.query_rows_if_possible("ranges/event_types"):
        codes[str(name)] = export.to_integer(code)
    return tuple(codes[name] for name in _EVENT_TYPES)


def sample_names(
    export: Export, globs: Sequence[str], max_rows: int = SAMPLE_ROWS
) -> Mapping[str, int]:
    """Count the range names in a sample of the ranges.

    The sample consists of about 64 blocks of consecutive rows, spaced evenly over the row numbers.
    If the table has at most ``max_rows`` row numbers, all of it is read.

    Args:
        export: The open export.
        globs: SQLite GLOBs. Names that do not match any GLOB are left out.
        max_rows: Approximate number of rows to read.

    Returns:
        Number of ranges in the sample, keyed by name. Empty if the export lacks tables or columns.
    """
    if not export.has("ranges/sample"):
        return {}
    first, last = export.find_bounds("ranges/bounds")
    pieces = _choose_sample_pieces(first, last, max_rows)
    blocks = []
    if pieces:
        selection = Selection(read_event_types(export), tuple(globs))
        values, *texts = export.read_named("ranges/sample", selection, pieces)
        blocks = [(values[1], *texts)]
    name_id, names = _number_names(blocks, export.query_texts)
    counts = np.bincount(name_id[name_id >= 0], minlength=len(names)).tolist()
    fits = match_any_glob(globs, names)
    return {name: count for name, count, fit in zip(names, counts, fits, strict=True) if fit}


def _choose_sample_pieces(first: int, last: int, max_rows: int) -> list[tuple[int, int]]:
    """Return the inclusive (first, last) row numbers of the pieces that form a sample.

    A table with at most ``max_rows`` row numbers is a single piece. An empty table has no pieces. A
    larger table is divided into 64 equal parts, and each piece consists of the first ``max_rows //
    64`` rows of a part.

    Args:
        first: Number of the table's first row.
        last: Number of the table's last row, or a number less than ``first`` if the table has no
            rows.
        max_rows: Approximate number of rows in the sample.
    """
    reads_all = last - first < max_rows
    piece_rows = max_rows if reads_all else max_rows // _SAMPLE_PIECES
    step = max_rows if reads_all else (last - first) // _SAMPLE_PIECES
    return [(start, min(start + piece_rows - 1, last)) for start in range(first, last + 1, step)]


def _number_names(
    blocks: Sequence[tuple[Ints, Ints, Sequence[str]]], strings: Callable[[Ints], Mapping[int, str]]
) -> tuple[Ints, tuple[str, ...]]:
    """Number the names of all rows.

    The name of a row is its text. If the row has no text, its name is its registered string.

    Args:
        blocks: Blocks of rows. A block is a tuple of three columns: each row's registered string
            id, the index of each row's text (-1 if the row has no text), and the texts.
        strings: Function that takes ids and returns the corresponding registered strings, keyed by
            id.

    Returns:
        name_id: For each row, the index of its name in ``names``, or -1 if it has no name.
        names: The distinct names.
    """
    numbering = Numbering[str]()
    parts, text_ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for text_id, number, texts in blocks:
        parts.append(np.append(numbering.numbers(texts), NONE)[number])
        text_ids.append(text_id)
    name_id = np.concatenate(parts)
    rest = np.flatnonzero(name_id == NONE)
    text_id = np.concatenate(text_ids)[rest]
    ids = find_distinct(text_id)
    text_of_id = strings(ids[ids != ABSENT])
    numbers = [numbering.number(text_of_id[i]) if i in text_of_id else NONE for i in ids.tolist()]
    name_id[rest] = np.array(numbers, np.int64)[find_positions(ids, text_id)]
    return name_id, numbering.values


@dataclass(frozen=True)
class NameFilter:
    """The range names and call names to read.

    Attributes:
        globs: SQLite GLOBs for range names.
        strings: Registered strings that match at least one of the GLOBs, keyed by id.
        call_names: Names of the calls that launch GPU work (``WORK_CALLS``), keyed by string id.
    """

    globs: tuple[str, ...]
    strings: Mapping[int, str]
    call_names: Mapping[int, str]


def make_name_filter(export: Export, globs: Sequence[str]) -> NameFilter:
    """Make a filter for range names, and look up the ids of the range and call names.

    The table ``StringIds`` may be long, so a single search looks up the range names and the call
    names.

    Args:
        export: The open export.
        globs: SQLite GLOBs for range names.
    """
    texts = export.find_strings((*globs, *(f"{start}*" for start in _WORK_CALL_PREFIXES)))
    calls = {i: text for i, text in texts.items() if text.startswith(_WORK_CALL_PREFIXES)}
    fits = match_any_glob(globs, calls.values())
    other_calls = {i for i, fit in zip(calls, fits, strict=True) if not fit}
    strings = {i: text for i, text in texts.items() if i not in other_calls}
    return NameFilter(tuple(globs), strings, calls)


def read_ranges(
    export: Export, names: NameFilter, last_ns: Callable[[], int]
) -> tuple[Ranges, int]:
    """Read the ranges whose names match a filter.

    A range that was open at the end of the capture is marked as ``cut``. The end is set to the
    latest time in the other tables or in the ranges that were read.

    Args:
        export: The open export.
        names: Filter for the names of the ranges.
        last_ns: Function that returns the latest time in the other tables, in ns. This function is
            called only if there are open ranges.

    Returns:
        ranges: The ranges with valid times.
        n_impossible: Number of ranges that were left out because of invalid times.

    Raises:
        ProfileError: The file is damaged, or contains text in place of a number.
    """
    kinds = read_event_types(export)
    columns, name_id, range_names = _read_named_columns(export, names, kinds)
    start_ns, end_ns, kind, thread, end_thread = columns
    cut = end_ns == ABSENT
    keep = mask_possible(start_ns, np.where(cut, start_ns, end_ns))
    if cut.any():
        end_ns[cut] = _find_latest_time(start_ns, end_ns, keep, last_ns())
    ranges = Ranges(
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        end_thread=end_thread,
        start_end=np.isin(kind, (kinds[1], kinds[3])),
        cut=cut,
        name_id=name_id,
        names=range_names,
    )
    return (ranges, 0) if keep is None else (ranges.take(keep), int((~keep).sum()))


def _read_named_columns(
    export: Export, names: NameFilter, kinds: tuple[int, ...]
) -> tuple[Ints, Ints, tuple[str, ...]]:
    """Read the ranges whose names match a filter, without checking their times.

    Args:
        export: The open export.
        names: Filter for the names of the ranges.
        kinds: Codes for the kinds of ranges, as returned by :func:`read_event_types`.

    Returns:
        columns: Array of shape (5, ranges). The first axis contains the start, the end, the kind,
            the starting thread and the ending thread. The end of an open range is ``ABSENT``.
        name_id: For each range, the index of its name in ``range_names``.
        range_names: Distinct names of the ranges.
    """
    selection = Selection(kinds, names.globs, tuple(sorted(names.strings)))
    blocks = [*export.stream_named("ranges/named", selection)]
    # All rows in the blocks match a GLOB or a registered string, so every row has a name.
    texts = [(values[5], *of_rows) for values, *of_rows in blocks]
    name_id, range_names = _number_names(texts, lambda _: names.strings)
    columns = np.concatenate([np.empty((6, 0), np.int64), *(block[0] for block in blocks)], axis=1)
    return columns[:5], name_id, range_names


def _find_latest_time(start_ns: Ints, end_ns: Ints, keep: Bools | None, min_ns: int) -> int:
    """Return the latest start or end time of any range, or ``min_ns`` if that is later.

    Args:
        start_ns: Start times of the ranges.
        end_ns: End times of the ranges.
        keep: Mask of the ranges to consider, or None to consider all ranges.
        min_ns: Lower bound on the result.
    """
    rows = slice(None) if keep is None else keep
    times_ns = np.concatenate((start_ns[rows], end_ns[rows]))
    return int(times_ns.max(initial=min_ns))


@dataclass(frozen=True)
class LongRanges:
    """A :class:`~bubbleviz.model.profile.RangeLog` that reads from an open export.

    Attributes:
        export: The export, which must stay open.
        of_system: Whether to read operating system calls instead of NVTX ranges.
    """

    export: Export
    of_system: bool = False

    def lasting(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> Ranges:
        """Return the ranges on the given threads that are long enough and overlap an interval.

        Only the start, end, thread and name of each range are read.

        Args:
            shortest_ns: Minimum duration of a range.
            threads: Threads whose ranges are returned.
            since_ns: Interval start times.
            until_ns: Interval end times.
            of: Thread of each interval, or None if all intervals apply to all threads. The argument
                is only a hint that saves reading. A range that overlaps only another thread's
                interval may still be returned.
        """
        times = intervals.union(since_ns, until_ns)
        columns, named_blocks = [np.empty((3, 0), np.int64)], []
        for values, number, texts in self._read_blocks(
            shortest_ns, threads, since_ns, until_ns, of
        ):
            rows = _find_overlapping(values[0], values[1], times)
            columns.append(values[[0, 1, 3]][:, rows])
            named_blocks.append((values[5, rows], number[rows], texts))
        start_ns, end_ns, thread = np.concatenate(columns, axis=1)
        name_id, names = _number_names(named_blocks, self.export.query_texts)
        return make_ranges(start_ns, end_ns, thread, *_order_names(name_id, names))

    def _read_blocks(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> Iterable[Named]:
        """Yield blocks of the rows that :meth:`lasting` needs.

        The arguments are the same as for :meth:`lasting`. The blocks may include rows that do not
        overlap any interval. There are no blocks if all intervals are empty, or if the export lacks
        tables or columns.
        """
        name = "calls/system" if self.of_system else "ranges/lasting"
        if not (since_ns < until_ns).any() or not self.export.has(name):
            return ()
        selection = self._select(shortest_ns, find_distinct(threads), since_ns, until_ns, of)
        if self.of_system:
            return [self.export.read_named(name, selection)]
        return self.export.stream_named(name, selection)

    def _select(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> Selection:
        """Return the criteria for the rows that :meth:`lasting` reads.

        The arguments are the same as for :meth:`lasting`. Overlapping intervals on the same thread
        are merged. ``threads`` must be distinct and ascending.
        """
        group = np.zeros_like(since_ns) if of is None else find_positions(threads, of)
        n_groups = 1 if of is None else len(threads)
        owner, starts, ends = intervals.group_union(group, n_groups, since_ns, until_ns)
        offsets = np.searchsorted(owner, np.arange(n_groups + 1))
        # If the intervals apply to all threads, every thread gets the same bounds.
        bounds = np.resize(np.column_stack((offsets[:-1], offsets[1:])), 2 * len(threads))
        return Selection(
            read_event_types(self.export),
            threads=tuple(threads.tolist()),
            shortest_ns=shortest_ns,
            since_ns=tuple(starts.tolist()),
            until_ns=tuple(ends.tolist()),
            bounds=tuple(bounds.tolist()),
        )


def _find_overlapping(start_ns: Ints, end_ns: Ints, times: Intervals) -> Ints:
    """Return the rows of the ranges that overlap at least one interval, in ascending order.

    A range that only touches an interval does not overlap it.

    Args:
        start_ns: Start times of the ranges.
        end_ns: End times of the ranges.
        times: Start and end times of the intervals, disjoint and ascending.
    """
    # Find the first interval that ends after the range starts. Some interval overlaps the range if
    # and only if this interval starts before the range ends.
    first_interval = np.searchsorted(times[1], start_ns, side="right")
    return np.flatnonzero(first_interval < np.searchsorted(times[0], end_ns))


def _order_names(name_id: Ints, names: Sequence[str]) -> tuple[Ints, tuple[str, ...]]:
    """Renumber names in order of first appearance and drop unused names.

    Rows that were read and later left out do not influence the new numbers.

    Args:
        name_id: For each row, the index of its name in ``names``, or -1 if it has no name.
        names: All names.

    Returns:
        name_id: For each row, the index of its name among the returned names.
        names: The names in use. Rows that had no name get the name "".
    """
    used_ids, first_row = np.unique(name_id, return_index=True)
    used_ids, ordered = used_ids[np.argsort(first_row)], Numbering[str]()
    # The last entry is for rows without a name (-1).
    new_id = np.empty(len(names) + 1, np.int64)
    new_id[used_ids] = ordered.numbers(map((*names, "").__getitem__, used_ids.tolist()))
    return new_id[name_id], ordered.values
