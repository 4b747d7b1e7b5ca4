"""Work of the GPUs in an nsys export: its kernels, whole CUDA graphs, copies and memsets."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np

from bubbleviz.conventions.launching_calls import (
    COPIES,
    GRAPH_LAUNCHES,
    KERNEL_LAUNCHES,
    MEMSETS,
)
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import (
    KERNELS,
    PAGE_MIGRATION,
    Activities,
    correlations,
    impossible_times,
    process_of,
    untimed_work,
)
from bubbleviz.sources.activities_builder import ActivitiesBuilder
from bubbleviz.sources.nsys.export import GRAPH, KERNEL, Export
from bubbleviz.sources.nsys.queries import tables_read
from bubbleviz.sources.nsys.scan import Scan, Stretch

#: How the names of calls begin that copies and memsets come from.
_COPYING = {"copies": COPIES, "memsets": MEMSETS}
#: The name id in gpu_work/graphs.sql of a CUDA graph, which has no name.
_WHOLE_GRAPH = -2
#: The name id in gpu_work/copies.sql of pages of managed memory that move.
_MIGRATION = -3
#: A process (40 bits) and a device make one integer.
_DEVICE_BITS = 22


def kernel_stretches(export: Export, scan: Scan) -> tuple[Stretch, ...]:
    """Return the stretches that make up the table of kernels; none if it cannot be read."""
    if not export.has("gpu_work/kernels"):
        return ()
    return scan.stretches("gpu_work/kernels", *export.bounds("gpu_work/kernel_bounds"))


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
    graphs = [graph_columns(export)]
    copies = {w: export.columns(f"gpu_work/{w}") for w in _COPYING if export.has(f"gpu_work/{w}")}
    beside = sum(table.shape[1] for table in (*graphs, *copies.values()))
    most = sum(stretch.length for stretch in stretches)
    builder = ActivitiesBuilder(min(most, scan.database.most_rows) + beside)
    try:
        kernels = 0
        for block in scan.columns(stretches):
            kernels += block.shape[1]
            builder.add_kernels(block)
        _refuse_lost_rows(export, kernels, most)
        for block in graphs:
            builder.add_kernels(block)
        for table in copies.values():
            builder.add_copies(table)
    except ValueError as error:
        raise ProfileError(
            f"{export.path}: is damaged or was edited ({error}); {EXPORT_AGAIN}"
        ) from error
    orphans = builder.without_process()
    processes = _calling_processes(export) if orphans else ()
    activities = builder.activities(lambda ids: _names(export, ids), processes)
    return activities, (
        *_lost_kernels(export, call_names, recorded=bool(stretches)),
        *_lost_graphs(export),
        *_lost_process(export, orphans, processes),
        *_unrecorded_graphs(export, activities, call_names),
        *_lost_copies(export, {w for w, t in copies.items() if t.shape[1]}, call_names),
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


def graph_columns(export: Export) -> Ints:
    """Return the CUDA graphs that were traced as a whole, with the columns of kernels."""
    if not export.has("gpu_work/graphs"):
        return np.empty((6, 0), np.int64)
    return export.columns("gpu_work/graphs")


def processes_of(export: Export, scan: Scan) -> tuple[int, ...]:
    """Return the processes that ran kernels or graphs."""
    processes: set[int] = set()
    blocks = scan.columns(kernel_stretches(export, scan))
    for block in chain(blocks, [graph_columns(export)]):
        processes.update(distinct(process_of(block[3])).tolist())
    return tuple(sorted(processes - {NONE}))


def _names(export: Export, ids: Ints) -> tuple[str, ...]:
    """Return the text of each string id; a made-up one where the export has none."""
    rows = export.rows("strings/by_id", {"ids": json.dumps(ids.tolist())})
    known = {_WHOLE_GRAPH: "CUDA graph, traced as a whole", NONE: "<string NULL>"}
    known[_MIGRATION] = PAGE_MIGRATION
    known |= {export.number(row[0]): str(row[1]) for row in rows}
    return tuple(known.get(i, f"<string {i}>") for i in ids.tolist())


def _calling_processes(export: Export) -> tuple[int, ...]:
    return tuple(export.number(row[0]) for row in export.rows("calls/processes"))


def _lost_kernels(
    export: Export, call_names: Mapping[int, str], *, recorded: bool
) -> tuple[Limitation, ...]:
    """Return a limitation where kernels cannot be read, or were launched and not recorded."""
    reason = ""
    if KERNEL in export.schema and not export.has("gpu_work/kernels"):
        reason = f"{export.path} lacks {', '.join(export.lacks('gpu_work/kernels'))}"
    elif not recorded and _has_calls(export, ids_of(call_names, KERNEL_LAUNCHES)):
        reason = f"{export.path} holds calls that launch some, but none in {KERNEL}"
    return (Limitation(KERNELS, reason, kind=LimitationKind.COSTS),) if reason else ()


def _has_calls(export: Export, ids: Sequence[int]) -> bool:
    """Tell whether any call has one of some names."""
    if not ids or not export.has("calls/any_named"):
        return False
    return bool(export.rows("calls/any_named", {"name_ids": json.dumps(ids)}))


def _lost_graphs(export: Export) -> tuple[Limitation, ...]:
    if GRAPH not in export.schema or export.has("gpu_work/graphs"):
        return ()
    lacking = ", ".join(export.lacks("gpu_work/graphs"))
    return (
        Limitation(
            "CUDA graphs traced as a whole",
            f"{export.path} lacks {lacking}",
            kind=LimitationKind.COSTS,
        ),
    )


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
    export: Export, recorded: Collection[str], call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return limitations where copies or memsets cannot be read, or were made and not recorded."""
    lost = []
    for what, beginnings in _COPYING.items():
        (table,) = tables_read(f"gpu_work/{what}")
        if table in export.schema and not export.has(f"gpu_work/{what}"):
            lacking = ", ".join(export.lacks(f"gpu_work/{what}"))
            lost.append(Limitation(what, f"{export.path} lacks {lacking}"))
        if what not in recorded and _has_calls(export, ids_of(call_names, beginnings)):
            reason = f"{export.path} holds calls that make some, but none in {table}"
            lost.append(Limitation(what, reason))
    return tuple(lost)


def _unrecorded_graphs(
    export: Export, activities: Activities, call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return a limitation where CUDA graphs were launched whose work was not recorded."""
    ids = ids_of(call_names, GRAPH_LAUNCHES)
    if not ids or not export.has("calls/graph_launches"):
        return ()
    launches = export.columns("calls/graph_launches", {"name_ids": json.dumps(ids)})
    process, correlation_id = launches[0], correlations(launches[1])
    lost = 0
    for pid in distinct(process).tolist():
        ranks = np.flatnonzero(activities.ranks[:, 0] == pid)
        recorded = activities.correlation_id[np.isin(activities.rank, ranks)]
        lost += int((~np.isin(correlation_id[process == pid], recorded)).sum())
    reason = f"{export.path}: record what graphs run with nsys profile --cuda-graph-trace=node"
    what = "CUDA graph launches without recorded work"
    return (Limitation(what, reason, lost, LimitationKind.COSTS),) if lost else ()


def ids_of(call_names: Mapping[int, str], beginnings: tuple[str, ...]) -> list[int]:
    """Return the ids, ascending, of those names of calls that begin in one of some ways."""
    return sorted(i for i, name in call_names.items() if name.startswith(beginnings))
