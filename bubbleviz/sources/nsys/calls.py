"""CUDA API calls of an nsys export, read block by block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.profile import Calls, correlations, possible, process_of
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.export import Export, Selection
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.scan import Scan
from bubbleviz.timing import step

#: The version behind the name of a call: cudaMalloc_v3020, cudaLaunchKernelExC_v11060_ptsz.
_VERSION = re.compile(r"_v[0-9]{4,}(?=_|$)")
#: The correlation id in calls/all.sql of a call without one.
_WITHOUT_ID = -(1 << 40)
#: A call that lasts longer from 0 on began later: CUPTI writes 0 for a time that it lacks.
_LONGEST_FROM_0_NS = 1_000_000_000


def matching_strings(export: Export, globs: tuple[str, ...]) -> Mapping[int, str]:
    """Return the registered strings that fit a pattern, by id.

    Raises:
        ProfileError: the export is damaged.
    """
    if not globs:
        return {}
    rows = export.origin.named(
        query("strings/matching"), Selection(globs=globs), -(1 << 63), (1 << 63) - 1
    )
    return dict(zip(rows.values[0].tolist(), map(str, rows.texts), strict=True))


def ids_of(call_names: Mapping[int, str], beginnings: tuple[str, ...]) -> list[int]:
    """Return the ids, ascending, of those names of calls that begin in one of some ways."""
    return sorted(i for i, name in call_names.items() if name.startswith(beginnings))


def calls_named(export: Export, ids: Sequence[int], most: int = -1) -> Ints:
    """Return row, thread and correlation id of calls whose names have some ids, in order.

    Args:
        export: the open export.
        ids: of registered strings.
        most: how many are looked for; -1 all.
    """
    if not ids:
        return np.empty((3, 0), np.int64)
    return export.columns("calls/named", {"name_ids": json.dumps(ids), "most": most})


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
    launch_ids: Sequence[int] = ()
    graph_ids: Sequence[int] = ()

    def begin(self) -> None:
        """Begin to read them."""
        self.scan.begin("calls/all", self.scan.stretches("calls/bounds"))

    def blocks(self) -> Iterator[Calls]:
        """Yield all that can have launched something, in the order of the export.

        Raises:
            ProfileError: the export is damaged.
        """
        stretches = self.scan.stretches("calls/bounds")
        blocks = self.scan.columns("calls/all", stretches)
        for stretch in stretches:
            with step("read calls") as rows:
                columns = next(blocks)
                rows.count = columns.shape[1]
            if rows.count == len(stretch):
                numbers = np.arange(stretch.start, stretch.stop)
            else:
                # Where numbers are left out there may be very many of them.
                binds = {"first": stretch[0], "last": stretch[-1]}
                numbers = self.export.columns("calls/row_numbers", binds)[0]
            yield _calls(numbers, columns)

    def _timed(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield thread and end of calls that can have launched something, with any time."""
        for block in self.scan.columns("calls/all", self.scan.stretches("calls/bounds")):
            start_ns, end_ns, thread, _ = block[:, block[3] != _WITHOUT_ID]
            inside = possible(start_ns, end_ns)
            yield thread, end_ns if inside is None else end_ns[inside]

    def latest_end_ns(self) -> int:
        """Return when the last call that can have launched something returned; at least 0."""
        return max((int(end_ns.max(initial=0)) for _, end_ns in self._timed()), default=0)

    def processes(self) -> tuple[int, ...]:
        """Return the processes that made calls, in order."""
        found = {p for thread, _ in self._timed() for p in distinct(process_of(thread)).tolist()}
        return tuple(sorted(found))

    def at(self, rows: Ints) -> Calls:
        """Return the calls of some rows (distinct, ascending).

        Raises:
            ProfileError: the export is damaged.
        """
        return _calls(rows, self._columns_at(rows)[:4])

    def _columns_at(self, rows: Ints) -> Ints:
        """Return the columns of calls/at.sql, in which a name may be -1 and no error is 0."""
        if len(rows) == 0:
            return np.empty((6, 0), np.int64)
        return self.export.columns("calls/at", {"rows": json.dumps(rows.tolist())})

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the names of the calls of some rows (distinct, ascending), "" where unknown.

        The version of the API behind a name is left out.
        """
        name_id = self._columns_at(rows)[4]
        texts = self.export.texts(distinct(name_id))
        names = {number: _VERSION.sub("", text) for number, text in texts.items()}
        return tuple(names.get(number, "") for number in name_id.tolist())

    def kernel_launches(self, rows: Ints) -> Ints:
        """Return those of some rows (distinct, ascending) whose call launches a kernel."""
        return rows[np.isin(self._columns_at(rows)[4], self.launch_ids)]

    def graph_launches(self, rows: Ints) -> Ints:
        """Return those of some rows (distinct, ascending) whose call launches a CUDA graph."""
        return rows[np.isin(self._columns_at(rows)[4], self.graph_ids)]

    def containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""
        ids = sorted(matching_strings(self.export, (f"*{letters}*",)))
        row, _, correlation_id = calls_named(self.export, ids)
        found: Ints = row[correlation_id != _WITHOUT_ID]
        return found

    def failed(self, rows: Ints) -> Bools:
        """Tell which calls of some rows (distinct, ascending) returned an error."""
        return np.asarray(self._columns_at(rows)[5] != 0, bool)


def graph_launches(export: Export, ids: Sequence[int]) -> tuple[Ints, Ints]:
    """Return process and correlation id of each call of some names, where both are recorded."""
    _, thread, correlation_id = calls_named(export, ids)
    known = (thread != NONE) & (correlation_id != _WITHOUT_ID)
    return process_of(thread[known]), correlation_id[known]


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
