"""CUDA API calls of an nsys export, read block by block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np

from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.profile import Calls, correlations, possible
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.gpu_work import Export
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.scan import ROWS, BulkAnswers, Scan, Stretch
from bubbleviz.timing import step

#: The version behind the name of a call: cudaMalloc_v3020, cudaLaunchKernelExC_v11060_ptsz.
_VERSION = re.compile(r"_v[0-9]{4,}(?=_|$)")
#: The correlation id in calls/all.sql of a call without one.
_WITHOUT_ID = -(1 << 40)
#: A call that lasts longer from 0 on began later: CUPTI writes 0 for a time that it lacks.
_LONGEST_FROM_0_NS = 1_000_000_000


class _CallStretch(Stretch):
    """A stretch of calls, mostly all of one thread."""

    def from_database(self, database: BulkAnswers) -> Ints:
        """Return the columns of calls/all.sql, which runs only where there are several threads."""
        ends = {"first": self.first, "last": self.last}
        threads = database.columns(query("calls/threads"), ends)[0].tolist()
        if self.length <= ROWS and len(threads) == 2 and threads[0] == threads[1]:
            binds = {**ends, "thread": threads[0]}
            columns = database.columns(query("calls/of_thread"), binds, self.length)
            if columns.shape[1] == self.length:
                return np.insert(columns, 2, threads[0], axis=0)
        return super().from_database(database)


@frozen
class ExportedCalls:
    """A :class:`~bubbleviz.model.profile.CallLog`; it can be read while the export is open.

    Attributes:
        export: the open export.
        scan: reads its large tables.
        launch_ids: string ids of the names of calls that launch kernels.
        graph_ids: string ids of the names of calls that launch CUDA graphs.
    """

    export: Export
    scan: Scan
    launch_ids: tuple[int, ...]
    graph_ids: tuple[int, ...]

    def stretches(self) -> tuple[Stretch, ...]:
        """Return the stretches that make up the table."""
        stretches = self.scan.stretches("calls/all", *self.export.bounds("calls/bounds"))
        return tuple(_CallStretch(s.query, s.first, s.last) for s in stretches)

    def blocks(self) -> Iterator[Calls]:
        """Yield all that can have launched something, in the order of the export.

        Raises:
            ProfileError: the export is damaged.
        """
        stretches = self.stretches()
        blocks = self.scan.columns(stretches)
        for stretch in stretches:
            with step("read calls") as rows:
                columns = next(blocks)
                rows.count = columns.shape[1]
            yield _calls(self._rows(stretch, columns.shape[1]), columns)

    def _rows(self, stretch: Stretch, count: int) -> Ints:
        """Return the numbers of the rows of a stretch."""
        if count == stretch.length:
            return np.arange(stretch.first, stretch.last + 1)
        binds = {"first": stretch.first, "last": stretch.last}
        numbers: Ints = self.export.columns("calls/row_numbers", binds)[0]
        return numbers

    def at(self, rows: Ints) -> Calls:
        """Return the calls of some rows (distinct, ascending).

        Raises:
            ProfileError: the export is damaged.
        """
        if len(rows) == 0:
            return _calls(rows, np.empty((len(query("calls/at").columns), 0), np.int64))
        binds = {"rows": json.dumps(rows.tolist())}
        return _calls(rows, self.export.columns("calls/at", binds))

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the names of the calls of some rows (distinct, ascending), "" where unknown.

        The version of the API behind a name is left out.
        """
        if not self.export.has("calls/names"):
            return ("",) * len(rows)
        binds = {"rows": json.dumps(rows.tolist())}
        names = {row: str(name) for row, name in self.export.rows("calls/names", binds)}
        return tuple(_VERSION.sub("", names.get(row, "")) for row in rows.tolist())

    def kernel_launches(self, rows: Ints) -> Ints:
        """Return those of some rows (distinct, ascending) whose call launches a kernel."""
        return self._named(rows, self.launch_ids)

    def graph_launches(self, rows: Ints) -> Ints:
        """Return those of some rows (distinct, ascending) whose call launches a CUDA graph."""
        return self._named(rows, self.graph_ids)

    def _named(self, rows: Ints, name_ids: tuple[int, ...]) -> Ints:
        """Return those of some rows whose call has one of some names."""
        if not (len(rows) and name_ids and self.export.has("calls/named_among")):
            return np.empty(0, np.int64)
        binds = {"rows": json.dumps(rows.tolist()), "name_ids": json.dumps(name_ids)}
        named: Ints = self.export.columns("calls/named_among", binds)[0]
        return named

    def containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""
        if not self.export.has("calls/containing"):
            return np.empty(0, np.int64)
        numbers: Ints = self.export.columns("calls/containing", {"letters": letters})[0]
        return numbers

    def failed(self, rows: Ints) -> Bools:
        """Tell which calls of some rows (distinct, ascending) returned an error."""
        if not self.export.has("calls/failed"):
            return np.zeros(len(rows), bool)
        binds = {"rows": json.dumps(rows.tolist())}
        return np.isin(rows, self.export.columns("calls/failed", binds)[0])


def _calls(row: Ints, columns: Ints) -> Calls:
    start_ns, end_ns, thread, correlation_id = columns
    keep = correlation_id != _WITHOUT_ID
    inside = possible(start_ns, end_ns)
    untimed = (start_ns == 0) & ((end_ns == 0) | (end_ns > _LONGEST_FROM_0_NS))
    if untimed.any():
        inside = ~untimed if inside is None else inside & ~untimed
    impossible = 0 if inside is None else int((keep & ~inside).sum())
    if inside is not None:
        keep &= inside
    calls = Calls(row, start_ns, end_ns, thread, correlations(correlation_id), impossible)
    return calls if keep.all() else calls.take(keep)
