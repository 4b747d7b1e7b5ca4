"""CUDA API calls of an nsys export, read block by block."""

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

#: The version behind the name of a call: cudaMalloc_v3020, cudaLaunchKernelExC_v11060_ptsz.
_VERSION = re.compile(r"_v[0-9]{4,}(?=_|$)")
#: More calls than any export has. DuckDB knows no negative number of rows, which is all in SQLite.
_MAX_CALLS = 1 << 60
#: A call that lasts longer from 0 on began later: CUPTI writes 0 for a time that it lacks.
_MAX_LENGTH_FROM_0_NS = 1_000_000_000


def find_calls(
    export: Export,
    call_names: Mapping[int, str],
    beginnings: tuple[str, ...],
    most: int = _MAX_CALLS,
) -> Ints:
    """Return row, thread and correlation id of calls whose names begin in some ways, in order.

    Args:
        export: the open export.
        call_names: names of calls, by their ids.
        beginnings: of names.
        most: Maximum number of calls.
    """
    ids = sorted(i for i, name in call_names.items() if name.startswith(beginnings))
    if not ids:
        return np.empty((3, 0), np.int64)
    return export.query_columns("calls/named", {"name_ids": json.dumps(ids), "most": most})


@dataclass(frozen=True)
class ExportedCalls:
    """A :class:`~bubbleviz.model.profile.CallLog`; it can be read while the export is open.

    Attributes:
        export: the open export.
        call_names: names of calls that have work on a device, by their string ids.
    """

    export: Export
    call_names: Mapping[int, str]

    def blocks(self) -> Iterator[Calls]:
        """Yield all that can have launched something, in the order of the export.

        Raises:
            ProfileError: the export is damaged.
        """
        blocks = self.export.stream_converted("calls/all", self._convert_block)
        while True:
            with time_step("read calls") as rows:
                numbers, calls = next(blocks, (range(0), None))
                rows.count = len(numbers)
            if calls is None:
                return
            yield calls

    def _convert_block(self, numbers: range, columns: Ints) -> Calls:
        """Return the calls of some columns of calls/all.sql, and of the numbers of their rows."""
        if columns.shape[1] == len(numbers):
            return _make_calls(np.arange(numbers.start, numbers.stop), columns)
        # Where numbers are left out there may be very many of them.
        binds = {"first": numbers[0], "last": numbers[-1]}
        return _make_calls(self.export.query_columns("calls/row_numbers", binds)[0], columns)

    def _iter_timed(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield thread and end of calls that can have launched something, with any time."""
        for _, block in self.export.stream("calls/all"):
            start_ns, end_ns, thread, _ = block[:, block[3] != NOTHING]
            inside = profile.mask_possible(start_ns, end_ns)
            yield thread, end_ns if inside is None else end_ns[inside]

    def find_latest_end_ns(self) -> int:
        """Return when the last call that can have launched something returned; at least 0."""
        return max((int(end_ns.max(initial=0)) for _, end_ns in self._iter_timed()), default=0)

    def find_processes(self) -> Sequence[int]:
        """Return the processes that made calls, in order."""
        return sorted(
            {p for t, _ in self._iter_timed() for p in find_distinct(process_of(t)).tolist()}
        )

    def at(self, rows: Ints) -> Calls:
        """Return the calls of some rows (distinct, ascending).

        Raises:
            ProfileError: the export is damaged.
        """
        return _make_calls(rows, self._read_columns(rows)[:4])

    def _read_columns(self, rows: Ints) -> Ints:
        """Return the columns of calls/at.sql, in which a name may be -1 and no error is 0."""
        if len(rows) == 0:
            return np.empty((6, 0), np.int64)
        return self.export.read_rows("calls/at", rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the names of the calls of some rows (distinct, ascending), "" where unknown.

        The version of the API behind a name is left out.
        """
        name_id = self._read_columns(rows)[NAME_OF_CALL]
        texts = self.export.query_texts(find_distinct(name_id))
        names = {number: _VERSION.sub("", text) for number, text in texts.items()}
        return tuple(names.get(number, "") for number in name_id.tolist())

    def select_by_prefix(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of some rows (distinct, ascending) whose call's name begins in some way."""
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        return rows[np.isin(self._read_columns(rows)[NAME_OF_CALL], ids)]

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of the calls whose names begin in some way, ascending."""
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        # Exports register names that no call has, and to find none takes a look at all calls.
        called = {*self.export.filter_called_names(ids)} if ids else set()
        names = {i: self.call_names[i] for i in ids if i in called}
        row, _, correlation_id = find_calls(self.export, names, beginnings)
        launching: Ints = row[correlation_id != NOTHING]
        return launching

    def find_containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""
        names = self.export.find_strings((f"*{letters}*",))
        row, _, correlation_id = find_calls(self.export, names, ("",))
        found: Ints = row[correlation_id != NOTHING]
        return found

    def mask_failed(self, rows: Ints) -> Bools:
        """Tell which calls of some rows (distinct, ascending) returned an error."""
        return np.asarray(self._read_columns(rows)[5] != 0, bool)


def _make_calls(row: Ints, columns: Ints) -> Calls:
    start_ns, end_ns, thread, correlation_id = columns
    keep = correlation_id != NOTHING
    inside = profile.mask_possible(start_ns, end_ns)
    if not start_ns.all():
        untimed = (start_ns == 0) & ((end_ns == 0) | (end_ns > _MAX_LENGTH_FROM_0_NS))
        inside = ~untimed if inside is None else inside & ~untimed
    impossible = 0 if inside is None else int((keep & ~inside).sum())
    if inside is not None:
        keep &= inside
    ids = profile.to_correlation_ids(correlation_id)
    calls = Calls(row, start_ns, end_ns, thread, ids, impossible)
    return calls if keep.all() else calls.take(keep)
