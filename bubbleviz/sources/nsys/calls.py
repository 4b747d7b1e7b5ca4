"""Reads the CUDA API calls in an nsys export, block by block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.model import profile
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.profile import Calls, process_of
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.queries import NAME_OF_CALL, NOTHING
from bubbleviz.timing import time_step

#: Matches the version in a call name, such as ``_v11060`` in ``cudaLaunchKernelExC_v11060_ptsz``.
_VERSION = re.compile(r"_v[0-9]{4,}(?=_|$)")
#: LIMIT for queries that must return all calls. SQLite's -1 for "no limit" fails in DuckDB.
_MAX_CALLS = 1 << 60
#: Maximum duration in ns of a call that starts at time 0.
#: For a longer call, the start time 0 means missing, because CUPTI writes 0 for a missing time.
_MAX_LENGTH_FROM_0_NS = 1_000_000_000


def find_calls(
    export: Export,
    call_names: Mapping[int, str],
    beginnings: tuple[str, ...],
    max_calls: int = _MAX_CALLS,
) -> Ints:
    """Find the calls whose names start with one of the given prefixes.

    Calls without a correlation id are included, with the id ``NOTHING``.

    Args:
        export: The open export.
        call_names: Call names, keyed by id in ``StringIds``.
        beginnings: Prefixes of call names.
        max_calls: Maximum number of calls to return.

    Returns:
        Array of shape (3, calls), sorted by row number. The first axis contains the row number, the
        thread and the correlation id.
    """
    ids = sorted(i for i, name in call_names.items() if name.startswith(beginnings))
    if not ids:
        return np.empty((3, 0), np.int64)
    return export.query_columns("calls/named", {"name_ids": json.dumps(ids), "most": max_calls})


@dataclass(frozen=True)
class ExportedCalls:
    """A :class:`~bubbleviz.model.profile.CallLog` that reads from an open export.

    Attributes:
        export: The export, which must stay open.
        call_names: Names of the calls that launch GPU work, keyed by id in ``StringIds``.
    """

    export: Export
    call_names: Mapping[int, str]

    def blocks(self) -> Iterator[Calls]:
        """Yield blocks of the calls that may have launched GPU work, in export order.

        Raises:
            ProfileError: The export is damaged.
        """
        blocks = self.export.stream_converted("calls/all", self.convert_block)
        while True:
            with time_step("read calls") as rows:
                numbers, calls = next(blocks, (range(0), None))
                rows.count = len(numbers)
            if calls is None:
                return
            yield calls

    def convert_block(self, numbers: range, columns: Ints) -> Calls:
        """Convert one part of the result of ``calls/all.sql`` to calls.

        If the part has fewer rows than ``numbers`` covers, the row numbers have gaps. In that case,
        the row numbers are read from the export.

        Args:
            numbers: Range of row numbers that the part covers.
            columns: The query's columns for this part, shape (4, rows).
        """
        if columns.shape[1] == len(numbers):
            return _make_calls(np.arange(numbers.start, numbers.stop), columns)
        # The row numbers of this part have gaps, so they must be read.
        binds = {"first": numbers[0], "last": numbers[-1]}
        return _make_calls(self.export.query_columns("calls/row_numbers", binds)[0], columns)

    def _iter_timed(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the threads and end times of the calls that may have launched GPU work, in blocks.

        A call with invalid times contributes a thread but no end time.
        """
        for _, block in self.export.stream("calls/all"):
            start_ns, end_ns, thread, _ = block[:, block[3] != NOTHING]
            is_possible = profile.mask_possible(start_ns, end_ns)
            yield thread, end_ns if is_possible is None else end_ns[is_possible]

    def find_latest_end_ns(self) -> int:
        """Return the latest end time, in ns, of any call that may have launched GPU work.

        Calls with invalid times are ignored. The result is 0 if no call has valid times.
        """
        return max((int(end_ns.max(initial=0)) for _, end_ns in self._iter_timed()), default=0)

    def find_processes(self) -> Sequence[int]:
        """Return the processes whose calls may have launched GPU work, in ascending order."""
        return sorted(
            {p for t, _ in self._iter_timed() for p in find_distinct(process_of(t)).tolist()}
        )

    def at(self, rows: Ints) -> Calls:
        """Return the calls in the given rows.

        Args:
            rows: Row numbers, distinct and ascending.

        Raises:
            ProfileError: The export is damaged.
        """
        return _make_calls(rows, self._read_columns(rows)[:4])

    def _read_columns(self, rows: Ints) -> Ints:
        """Return the columns of ``calls/at.sql`` for the given rows, shape (6, rows).

        The name is -1 if it is unknown, and the error code is 0 if there was no error.

        Args:
            rows: Row numbers, distinct and ascending.
        """
        if len(rows) == 0:
            return np.empty((6, 0), np.int64)
        return self.export.read_rows("calls/at", rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the call name in each row, or "" if unknown.

        Version suffixes such as ``_v3020`` are removed.

        Args:
            rows: Row numbers, distinct and ascending.
        """
        name_id = self._read_columns(rows)[NAME_OF_CALL]
        texts = self.export.query_texts(find_distinct(name_id))
        names = {number: _VERSION.sub("", text) for number, text in texts.items()}
        return tuple(names.get(number, "") for number in name_id.tolist())

    def select_by_prefix(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of the given rows whose call name starts with one of the prefixes.

        Args:
            rows: Row numbers, distinct and ascending.
            beginnings: Prefixes of call names. Only names in ``call_names`` are considered.
        """
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        return rows[np.isin(self._read_columns(rows)[NAME_OF_CALL], ids)]

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the row numbers of calls whose name has one of the prefixes, in ascending order.

        Only names in ``call_names`` are considered. Calls without a correlation id are left out,
        because they do not launch work.
        """
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        # An export may list names that no call uses. Searching for them would read all calls.
        called = {*self.export.filter_called_names(ids)} if ids else set()
        names = {i: self.call_names[i] for i in ids if i in called}
        row, _, correlation_id = find_calls(self.export, names, beginnings)
        launching: Ints = row[correlation_id != NOTHING]
        return launching

    def find_containing(self, letters: str) -> Ints:
        """Return the row numbers of calls whose name contains a text, in ascending order.

        Calls without a correlation id are left out, because they do not launch work.
        """
        names = self.export.find_strings((f"*{letters}*",))
        row, _, correlation_id = find_calls(self.export, names, ("",))
        launching: Ints = row[correlation_id != NOTHING]
        return launching

    def mask_failed(self, rows: Ints) -> Bools:
        """Return a mask of the rows in which the call returned an error.

        Args:
            rows: Row numbers, distinct and ascending.
        """
        return np.asarray(self._read_columns(rows)[5] != 0, bool)


def _make_calls(row: Ints, columns: Ints) -> Calls:
    """Build a table of the calls that have a correlation id and valid times.

    Calls that have a correlation id but invalid times are left out and counted in ``impossible``.
    Times are invalid in these cases:

    - :func:`~bubbleviz.model.profile.mask_possible` rejects them.
    - The call starts at 0, which CUPTI writes for a missing time, and ends at 0 or lasts more than
      a second.

    Args:
        row: Row numbers of the calls.
        columns: Array of shape (4, calls). The first axis contains the start, the end, the thread
            and the correlation id.

    Returns:
        The calls, in the given order.
    """
    start_ns, end_ns, thread, correlation_id = columns
    keep = correlation_id != NOTHING
    is_possible = profile.mask_possible(start_ns, end_ns)
    if not start_ns.all():
        untimed = (start_ns == 0) & ((end_ns == 0) | (end_ns > _MAX_LENGTH_FROM_0_NS))
        is_possible = ~untimed if is_possible is None else is_possible & ~untimed
    impossible = 0 if is_possible is None else int((keep & ~is_possible).sum())
    if is_possible is not None:
        keep &= is_possible
    ids = profile.to_correlation_ids(correlation_id)
    calls = Calls(row, start_ns, end_ns, thread, ids, impossible)
    return calls if keep.all() else calls.take(keep)
