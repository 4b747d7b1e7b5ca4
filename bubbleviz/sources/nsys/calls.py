"""CUDA API calls of an nsys export, read in blocks."""

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

#: Matches the version in the name of a call: cudaMalloc_v3020, cudaLaunchKernelExC_v11060_ptsz.
_VERSION = re.compile(r"_v[0-9]{4,}(?=_|$)")
#: Upper bound of the number of calls. DuckDB does not support -1, which means no limit in SQLite.
_MAX_CALLS = 1 << 60
#: Maximum duration of a call that starts at 0. If the call is longer, its start is missing: CUPTI
#: writes 0 for a missing time.
_MAX_LENGTH_FROM_0_NS = 1_000_000_000


def find_calls(
    export: Export,
    call_names: Mapping[int, str],
    beginnings: tuple[str, ...],
    max_calls: int = _MAX_CALLS,
) -> Ints:
    """Find the calls whose names have one of the given prefixes, in the order of rows.

    Calls without a correlation id are included, with the id ``NOTHING``.

    Args:
        export: The open export.
        call_names: Names of calls, keyed by id.
        beginnings: Prefixes of names.
        max_calls: Maximum number of calls.

    Returns:
        Row number, thread and correlation id of each call, shape (3, calls).
    """
    ids = sorted(i for i, name in call_names.items() if name.startswith(beginnings))
    if not ids:
        return np.empty((3, 0), np.int64)
    return export.query_columns("calls/named", {"name_ids": json.dumps(ids), "most": max_calls})


@dataclass(frozen=True)
class ExportedCalls:
    """A :class:`~bubbleviz.model.profile.CallLog` that can be read as long as the export is open.

    Attributes:
        export: The open export.
        call_names: Names of calls that launch work on a device, keyed by id in ``StringIds``.
    """

    export: Export
    call_names: Mapping[int, str]

    def blocks(self) -> Iterator[Calls]:
        """Yield the calls that may have launched work, in the order of the export.

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
        """Convert a part of calls/all.sql to calls.

        If the part has fewer rows than row numbers, the row numbers are read from the export.

        Args:
            numbers: Range of row numbers of the part.
            columns: Columns of the query.
        """
        if columns.shape[1] == len(numbers):
            return _make_calls(np.arange(numbers.start, numbers.stop), columns)
        # Row numbers are missing in this part, so they must be read.
        binds = {"first": numbers[0], "last": numbers[-1]}
        return _make_calls(self.export.query_columns("calls/row_numbers", binds)[0], columns)

    def _iter_timed(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield thread and end of the calls that may have launched work and have possible times.

        The threads are those of all calls, including calls with impossible times.
        """
        for _, block in self.export.stream("calls/all"):
            start_ns, end_ns, thread, _ = block[:, block[3] != NOTHING]
            is_possible = profile.mask_possible(start_ns, end_ns)
            yield thread, end_ns if is_possible is None else end_ns[is_possible]

    def find_latest_end_ns(self) -> int:
        """Return the latest end of the calls that may have launched work, or 0 without calls."""
        return max((int(end_ns.max(initial=0)) for _, end_ns in self._iter_timed()), default=0)

    def find_processes(self) -> Sequence[int]:
        """Return the processes that made calls that may have launched work, ascending."""
        return sorted(
            {p for t, _ in self._iter_timed() for p in find_distinct(process_of(t)).tolist()}
        )

    def at(self, rows: Ints) -> Calls:
        """Return the calls in the given rows (distinct, ascending).

        Raises:
            ProfileError: The export is damaged.
        """
        return _make_calls(rows, self._read_columns(rows)[:4])

    def _read_columns(self, rows: Ints) -> Ints:
        """Return the columns of calls/at.sql in the given rows (distinct, ascending).

        The name is -1 if unknown, and the error is 0 if there was none.
        """
        if len(rows) == 0:
            return np.empty((6, 0), np.int64)
        return self.export.read_rows("calls/at", rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the name of the call in each row (distinct, ascending), or "" if unknown.

        The version of the API is removed from the names.
        """
        name_id = self._read_columns(rows)[NAME_OF_CALL]
        texts = self.export.query_texts(find_distinct(name_id))
        names = {number: _VERSION.sub("", text) for number, text in texts.items()}
        return tuple(names.get(number, "") for number in name_id.tolist())

    def select_by_prefix(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return the given rows (distinct, ascending) whose call's name has one of the prefixes."""
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        return rows[np.isin(self._read_columns(rows)[NAME_OF_CALL], ids)]

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of the calls whose name has one of the prefixes, ascending.

        Calls without a correlation id, which launch no work, are left out.
        """
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        # Exports contain names that no call has. Searching for them would read all calls.
        called = {*self.export.filter_called_names(ids)} if ids else set()
        names = {i: self.call_names[i] for i in ids if i in called}
        row, _, correlation_id = find_calls(self.export, names, beginnings)
        launching: Ints = row[correlation_id != NOTHING]
        return launching

    def find_containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains a text, ascending.

        Calls without a correlation id, which launch no work, are left out.
        """
        names = self.export.find_strings((f"*{letters}*",))
        row, _, correlation_id = find_calls(self.export, names, ("",))
        launching: Ints = row[correlation_id != NOTHING]
        return launching

    def mask_failed(self, rows: Ints) -> Bools:
        """Return a mask of the rows (distinct, ascending) whose call returned an error."""
        return np.asarray(self._read_columns(rows)[5] != 0, bool)


def _make_calls(row: Ints, columns: Ints) -> Calls:
    """Return the calls that have a correlation id and possible times, in the given order.

    A call has no times if it starts at 0 and either ends at 0 or lasts more than a second. Calls
    with a correlation id that are left out are counted in ``impossible``.

    Args:
        row: Row number of each call.
        columns: Start, end, thread and correlation id of each call, shape (4, calls).
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
