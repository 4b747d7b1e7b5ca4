"""Work of the GPUs in an nsys export: kernels, CUDA graphs, copies, memsets; waits and memory."""

from __future__ import annotations

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
    correlations,
    impossible_times,
    possible,
    process_of,
    untimed_work,
)
from bubbleviz.sources.activities_builder import ActivitiesBuilder
from bubbleviz.sources.nsys.calls import ExportedCalls, calls_named, graph_launches, ids_of
from bubbleviz.sources.nsys.export import GRAPH, KERNEL, Export
from bubbleviz.sources.nsys.queries import tables_read
from bubbleviz.sources.nsys.scan import Scan

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
