"""Work of the GPUs in an nsys export: kernels, CUDA graphs, copies, memsets; waits and memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np

from bubbleviz.conventions.kinds import COPIES, GRAPH_LAUNCHES, KERNEL_LAUNCHES, MEMSETS
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.collectives import EventRecords, Synchronisation, Waits
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.memory_sizes import MemoryEvents
from bubbleviz.model.profile import (
    KERNELS,
    PAGE_MIGRATION,
    Activities,
    Calls,
    correlations,
    impossible_times,
    possible,
    process_of,
    untimed_work,
)
from bubbleviz.model.values import frozen
from bubbleviz.sources.activities_builder import ActivitiesBuilder
from bubbleviz.sources.nsys.export import GRAPH, KERNEL, Export, Scan, Selection
from bubbleviz.sources.nsys.queries import query, tables_read
from bubbleviz.timing import step

# CUDA API calls of an nsys export, read block by block.


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


#: How the names of calls begin that copies and memsets come from.
_COPYING = {"copies": COPIES, "memsets": MEMSETS}
#: The name ids of a CUDA graph, which has no name, and of pages of managed memory that move.
_WHOLE_GRAPH, _MIGRATION = -2, -3
#: Kinds of copies by which the driver moves pages (CUDA_MEMCPY_KIND_UVM_HTOD, _DTOH, _DTOD).
_KINDS_OF_MIGRATION = (11, 12, 13)


def kernel_stretches(export: Export, scan: Scan) -> list[range]:
    """Return the stretches that make up the table of kernels; none if it cannot be read."""
    return scan.stretches("gpu_work/kernel_bounds") if export.has("gpu_work/kernels") else []


def graph_columns(export: Export) -> Ints:
    """Return the CUDA graphs that were traced as a whole, with the columns of kernels."""
    graphs = export.columns("gpu_work/graphs")
    return np.vstack((graphs, np.full(graphs.shape[1], _WHOLE_GRAPH)))


def activities_of(
    export: Export, scan: Scan, call_names: Mapping[int, str]
) -> tuple[Activities, tuple[Limitation, ...]]:
    """Return the work of the GPUs, and what is not known of it.

    Args:
        export: the open export.
        scan: reads its large tables.
        call_names: those in ``StringIds`` that begin as ``WORK_CALLS`` do, by id.

    Raises:
        ProfileError: the export is damaged.
    """
    stretches = kernel_stretches(export, scan)
    graphs = graph_columns(export)
    copies = export.columns("gpu_work/copies")
    copies[5] = np.where(np.isin(copies[5], _KINDS_OF_MIGRATION), _MIGRATION, NONE)
    beside = {"copies": copies, "memsets": export.columns("gpu_work/memsets")}
    most = sum(map(len, stretches))
    room = min(most, export.origin.most_rows) + graphs.shape[1]
    builder = ActivitiesBuilder(room + sum(table.shape[1] for table in beside.values()))
    try:
        kernels = 0
        for block in scan.columns("gpu_work/kernels", stretches):
            kernels += block.shape[1]
            builder.add_kernels(block)
        _refuse_lost_rows(export, kernels, most)
        builder.add_kernels(graphs)
        for table in beside.values():
            builder.add_copies(table)
    except ValueError as error:
        raise ProfileError(
            f"{export.path}: is damaged or was edited ({error}); {EXPORT_AGAIN}"
        ) from error
    orphans = builder.without_process()
    processes = ExportedCalls(export, scan).processes() if orphans else ()

    def names(ids: Ints) -> tuple[str, ...]:
        known = {_WHOLE_GRAPH: "CUDA graph, traced as a whole", NONE: "<string NULL>"}
        known |= {_MIGRATION: PAGE_MIGRATION} | export.texts(ids)
        return tuple(known.get(i, f"<string {i}>") for i in ids.tolist())

    activities = builder.activities(names, processes)
    return activities, (
        *_lost_kernels(export, call_names, recorded=bool(stretches)),
        *_lost_process(export, orphans, processes),
        *_unrecorded_graphs(export, activities, call_names),
        *_lost_copies(export, {w: bool(t.shape[1]) for w, t in beside.items()}, call_names),
        *untimed_work(export.path, builder.untimed),
        *impossible_times(export.path, builder.impossible),
    )


def _refuse_lost_rows(export: Export, kernels: int, most: int) -> None:
    """Raise ProfileError where the table of kernels holds more than could be read.

    SQLite ends a part of the rows without a word at a page of which the row numbers are damaged.

    Args:
        export: the open export.
        kernels: how many were read.
        most: how many there would be, if no row number were left out.
    """
    # Tables that were edited leave out some.
    if kernels < most and kernels < sum(
        export.number(row[1]) for row in export.rows("gpu_work/kernel_count")
    ):
        raise ProfileError(
            f"{export.path}: only {kernels:,} of its kernels can be read, so it is damaged; "
            f"{EXPORT_AGAIN}"
        )


def processes_of(export: Export, scan: Scan) -> tuple[int, ...]:
    """Return the processes that ran kernels or graphs."""
    processes: set[int] = set()
    kernels = scan.columns("gpu_work/kernels", kernel_stretches(export, scan))
    for block in chain(kernels, [graph_columns(export)]):
        processes.update(distinct(process_of(block[3])).tolist())
    return tuple(sorted(processes - {NONE}))


def _lost_kernels(
    export: Export, call_names: Mapping[int, str], *, recorded: bool
) -> Iterator[Limitation]:
    """Yield a limitation where kernels or graphs cannot be read, or were not recorded."""
    reason = ""
    if KERNEL in export.schema and not export.has("gpu_work/kernels"):
        reason = f"{export.path} lacks {', '.join(export.lacks('gpu_work/kernels'))}"
    elif not recorded and calls_named(export, ids_of(call_names, KERNEL_LAUNCHES), 1).size:
        reason = f"{export.path} holds calls that launch some, but none in {KERNEL}"
    if reason:
        yield Limitation(KERNELS, reason, kind=LimitationKind.COSTS)
    if GRAPH in export.schema and not export.has("gpu_work/graphs"):
        reason = f"{export.path} lacks {', '.join(export.lacks('gpu_work/graphs'))}"
        yield Limitation("CUDA graphs traced as a whole", reason, kind=LimitationKind.COSTS)


def _lost_process(export: Export, count: int, processes: Sequence[int]) -> tuple[Limitation, ...]:
    """Return a limitation where kernels do not say of which process they are.

    Correlation ids are unique within a process only, so with several nothing can be linked.
    """
    if not count:
        return ()
    outcome = (
        "they are taken for the only one that made calls"
        if len(processes) == 1
        else "they stay unlinked"
    )
    lacking = ", ".join(export.lacks("gpu_work/kernels")) or "it for some"
    reason = f"{export.path} lacks {lacking}; {outcome}"
    return (Limitation("the process of kernels", reason, count, LimitationKind.COSTS),)


def _lost_copies(
    export: Export, recorded: Mapping[str, bool], call_names: Mapping[int, str]
) -> Iterator[Limitation]:
    """Yield limitations where copies or memsets cannot be read, or were made and not recorded."""
    for what, beginnings in _COPYING.items():
        (table,) = tables_read(f"gpu_work/{what}")
        if table in export.schema and not export.has(f"gpu_work/{what}"):
            lacking = ", ".join(export.lacks(f"gpu_work/{what}"))
            yield Limitation(what, f"{export.path} lacks {lacking}")
        if not recorded[what] and calls_named(export, ids_of(call_names, beginnings), 1).size:
            reason = f"{export.path} holds calls that make some, but none in {table}"
            yield Limitation(what, reason)


def _unrecorded_graphs(
    export: Export, activities: Activities, call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return a limitation where CUDA graphs were launched whose work was not recorded."""
    process, ids = graph_launches(export, ids_of(call_names, GRAPH_LAUNCHES))
    correlation_id = correlations(ids)
    lost = 0
    for pid in distinct(process).tolist():
        ranks = np.flatnonzero(activities.ranks[:, 0] == pid)
        recorded = activities.correlation_id[np.isin(activities.rank, ranks)]
        lost += int((~np.isin(correlation_id[process == pid], recorded)).sum())
    reason = f"{export.path}: record what graphs run with nsys profile --cuda-graph-trace=node"
    what = "CUDA graph launches without recorded work"
    return (Limitation(what, reason, lost, LimitationKind.COSTS),) if lost else ()


# Synchronisation: recorded events, waits, and the streams of work.


_WAITS, _RECORDS = "synchronisation/waits", "synchronisation/event_records"
#: The start in synchronisation/waits.sql of a wait without one.
_WITHOUT_START = -(1 << 40)


def read_synchronisation(
    export: Export, scan: Scan
) -> tuple[Synchronisation | None, tuple[Limitation, ...]]:
    """Return what an export holds of waiting, None where that is nothing, and what is lost.

    Raises:
        ProfileError: the export is damaged.
    """
    waits = export.columns(_WAITS)
    waits = waits[:, waits[6] != _WITHOUT_START]
    queries = (_WAITS, _RECORDS) if waits.shape[1] else (_WAITS,)
    losses = tuple(
        Limitation("what streams waited for", f"{export.path} lacks {', '.join(lacking)}")
        for name in queries
        for lacking in (export.lacks(name),)
        if next(iter(tables_read(name))) in export.schema and not export.has(name)
    )
    if not waits.shape[1]:
        return None, losses
    records = export.columns(_RECORDS)
    for table in (waits, records):
        table[0] = np.where(table[0] == NONE, NONE, process_of(table[0]))
    streams = _streams(export, scan)
    return Synchronisation(EventRecords(*records), Waits(*waits), streams), losses


def _streams(export: Export, scan: Scan) -> Ints:
    """Return the stream of each activity of the export, in their order; -1 unknown."""
    known = export.has("gpu_work/kernel_streams")
    name = "gpu_work/kernel_streams" if known else "gpu_work/kernels"
    kernels = scan.columns(name, kernel_stretches(export, scan))
    parts = [_streams_of_timed(block, known=known) for block in kernels]
    for work in ("graph", "copy", "memset"):
        whole = f"gpu_work/{'copies' if work == 'copy' else f'{work}s'}"
        if export.has(whole):
            known = export.has(f"gpu_work/{work}_streams")
            block = export.columns(f"gpu_work/{work}_streams" if known else whole)
            parts.append(_streams_of_timed(block, known=known))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _streams_of_timed(block: Ints, *, known: bool) -> Ints:
    """Return the streams of rows that become activities: with start and end, that can be.

    Args:
        block: columns of which the first two are start and end.
        known: whether the third is the stream; else each is -1.
    """
    timed: Bools = (block[0] != 0) | (block[1] != 0)
    inside = possible(block[0][timed], block[1][timed])
    if inside is not None:
        timed[timed] = inside
    return np.where(known, block[2], NONE)[timed]


# Memory: what was allocated on devices and freed (nsys profile --cuda-memory-usage=true).


#: Kinds of the host's own memory: pageable, and pinned.
_ON_HOST = (0, 1)
_FREED = 1


def read_memory(export: Export) -> MemoryEvents | None:
    """Return the memory events of an export; None where it holds none.

    The table names a process and no thread, which then stands for all of its threads.

    Raises:
        ProfileError: the export is damaged.
    """
    table = export.columns("memory/usage")
    table = table[:, ~np.isin(table[5], _ON_HOST)]
    if table.shape[1] == 0:
        return None
    time_ns, process, device, address, amount, _, operation = (row.copy() for row in table)
    change = np.where(operation == _FREED, -amount, amount)
    total = np.full(len(time_ns), NONE, np.int64)
    return MemoryEvents(time_ns, process, device, address, change, total)
