"""What ran on the GPUs of an nsys export: its kernels, whole CUDA graphs, copies and fills."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import Ints
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import Activities, correlations, impossible_times
from bubbleviz.sources.nsys.export import GRAPH, Export, number
from bubbleviz.sources.nsys.gathering import Gathering
from bubbleviz.sources.nsys.queries import query
from bubbleviz.sources.nsys.scan import Scan, Stretch

#: The queries for kernels, and what stands in for it.
KERNEL_QUERIES = ("kernels", "kernels_without_process")
#: How the names of calls begin that copies and fills come from.
_COPYING = {"copies": ("cudaMemcpy", "cuMemcpy"), "fills": ("cudaMemset", "cuMemset")}
#: How the names of calls begin that launch CUDA graphs.
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
#: All of these.
TELLING_CALLS = (*_GRAPH_LAUNCHES, *(start for starts in _COPYING.values() for start in starts))
#: What graphs.sql gives as the name of a CUDA graph, which has none.
_WHOLE_GRAPH = -2


def kernel_stretches(export: Export, scan: Scan) -> tuple[Stretch, ...]:
    """Return the stretches that make up the table of kernels; none if it cannot be read."""
    if export.lacks(*KERNEL_QUERIES):
        return ()
    chosen = export.choose(*KERNEL_QUERIES).name
    return scan.stretches(chosen, *export.bounds("kernel_rows"))


def activities_of(
    export: Export, scan: Scan, call_names: Mapping[int, str]
) -> tuple[Activities, tuple[Limitation, ...]]:
    """Return what ran on the GPUs, and what is not known of it.

    Args:
        export: the open export.
        scan: reads its large tables.
        call_names: those in ``StringIds`` that begin as ``TELLING_CALLS`` do, by id.

    Raises:
        ProfileError: the export is damaged.
    """
    stretches = kernel_stretches(export, scan)
    graphs = [export.columns(query("nsys/graphs"))] if export.has("graphs") else []
    copies = {w: export.columns(query(f"nsys/{w}")) for w in _COPYING if export.has(w)}
    beside = sum(table.shape[1] for table in (*graphs, *copies.values()))
    most = sum(stretch.length for stretch in stretches)
    gathering = Gathering(min(most, scan.database.most_rows) + beside)
    try:
        for block in scan.columns(stretches):
            gathering.kernels(block)
        for table in graphs:
            gathering.kernels(table)
        for table in copies.values():
            gathering.copies(table)
    except ValueError as error:
        raise ProfileError(
            f"{export.path}: is damaged or was edited ({error}); {EXPORT_AGAIN}"
        ) from error
    lacking = gathering.without_process()
    processes = _calling_processes(export) if lacking else ()
    activities = gathering.done(lambda ids: _names(export, ids), processes)
    return activities, (
        *_lost_graphs(export),
        *_lost_process(export, lacking, processes),
        *_unrecorded_graphs(export, activities, call_names),
        *_lost_copies(export, {w for w, t in copies.items() if t.shape[1]}, call_names),
        *impossible_times(export.path, gathering.impossible),
    )


def _names(export: Export, ids: Ints) -> tuple[str, ...]:
    """Return the text of each string id; a made-up one where the export has none."""
    known: dict[int, str] = {_WHOLE_GRAPH: "CUDA graph, traced as a whole"}
    if export.has("strings"):
        rows = export.rows(query("nsys/strings"), {"ids": json.dumps(ids.tolist())})
        known |= {number(export, row[0]): str(row[1]) for row in rows}
    return tuple(known.get(i, f"<string {i}>") for i in ids.tolist())


def _calling_processes(export: Export) -> tuple[int, ...]:
    rows = export.rows(query("nsys/calling_processes"))
    return tuple(number(export, row[0]) for row in rows)


def _lost_graphs(export: Export) -> tuple[Limitation, ...]:
    if GRAPH not in export.schema or export.has("graphs"):
        return ()
    lacking = ", ".join(export.lacks("graphs"))
    return (Limitation("CUDA graphs traced as a whole", f"{export.path} lacks {lacking}"),)


def _lost_process(export: Export, count: int, processes: Sequence[int]) -> tuple[Limitation, ...]:
    """Return a limitation where kernels do not say of which process they are.

    Correlation ids are unique within a process only, so with several nothing can be linked.
    """
    if not count:
        return ()
    one = len(processes) == 1
    what = "they are taken for the only one that made calls" if one else "they stay unlinked"
    lacking = ", ".join(export.lacks("kernels")) or "it for some"
    reason = f"{export.path} lacks {lacking}; {what}"
    return (Limitation("the process of kernels", reason, count),)


def _lost_copies(
    export: Export, recorded: Collection[str], call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return limitations where copies or fills cannot be read, or were made and none is there."""
    lost = []
    for what, beginnings in _COPYING.items():
        chosen = query(f"nsys/{what}")
        table = next(iter(chosen.requires))
        if table in export.schema and not export.has(what):
            lacking = ", ".join(export.lacks(what))
            lost.append(Limitation(f"memory {what}", f"{export.path} lacks {lacking}"))
        ids = _ids(call_names, beginnings)
        if what in recorded or not ids or not export.has("call_named"):
            continue
        if export.rows(query("nsys/call_named"), {"name_ids": json.dumps(ids)}):
            reason = f"{export.path} holds calls that make some, but none in {table}"
            lost.append(Limitation(f"memory {what}", reason))
    return tuple(lost)


def _unrecorded_graphs(
    export: Export, activities: Activities, call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return a limitation where CUDA graphs were launched whose work was not recorded."""
    ids = _ids(call_names, _GRAPH_LAUNCHES)
    if not ids or not export.has("graph_launches"):
        return ()
    launches = export.columns(query("nsys/graph_launches"), {"name_ids": json.dumps(ids)})
    process, correlation_id = launches[0], correlations(launches[1])
    lost = 0
    for own in np.unique(process).tolist():
        ranks = np.flatnonzero(activities.ranks[:, 0] == own)
        ran = activities.correlation_id[np.isin(activities.rank, ranks)]
        lost += int((~np.isin(correlation_id[process == own], ran)).sum())
    reason = f"{export.path}: record what graphs run with nsys profile --cuda-graph-trace=node"
    what = "CUDA graph launches without recorded work"
    return (Limitation(what, reason, lost),) if lost else ()


def _ids(call_names: Mapping[int, str], beginnings: tuple[str, ...]) -> list[int]:
    return sorted(i for i, name in call_names.items() if name.startswith(beginnings))
