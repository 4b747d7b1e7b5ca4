"""Work of the GPUs in an nsys export: kernels, CUDA graphs, copies and memsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from bubbleviz.conventions.kinds import COPIES, GRAPH_LAUNCHES, KERNEL_LAUNCHES, MEMSETS
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model import profile
from bubbleviz.model.columns import NONE, Codes, Ints, make_mask
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, process_of
from bubbleviz.sources.activities import ActivitiesBuilder
from bubbleviz.sources.nsys.calls import ExportedCalls, find_calls
from bubbleviz.sources.nsys.copies import KINDS_OF_MIGRATION
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.queries import NOTHING, table_of

#: The name ids of a CUDA graph, which has no name, and of pages of managed memory that move.
_WHOLE_GRAPH, _MIGRATION = -2, -3


def _read_graphs(export: Export) -> Ints:
    """Return the CUDA graphs that were traced as a whole, with the columns of kernels."""
    graphs = export.query_columns("gpu_work/graphs")
    return np.vstack((graphs, np.full(graphs.shape[1], _WHOLE_GRAPH)))


@dataclass(frozen=True)
class GpuWork:
    """The work of the GPUs in an export.

    Attributes:
        activities: The work.
        group: Groups by which the rows of the export were put in order, or None if they were not.
        streams: Stream of each activity, -1 if unknown, or the error if streams are damaged.
        limitations: What is not known of the work.
    """

    activities: Activities
    group: Codes | None
    streams: Codes | ProfileError
    limitations: tuple[Limitation, ...]

    def read_streams(self) -> Codes:
        """Return the stream of each activity, or -1 if unknown.

        Raises:
            ProfileError: The streams are damaged.
        """
        if isinstance(self.streams, ProfileError):
            raise self.streams
        return self.streams


def read_gpu_work(export: Export, call_names: Mapping[int, str]) -> GpuWork:
    """Read the work of the GPUs. If streams are damaged, it is read without them.

    Args:
        export: The open export.
        call_names: Names of the CUDA calls that launch work (``WORK_CALLS``), keyed by their id
            in ``StringIds``.

    Raises:
        ProfileError: The export is damaged.
    """
    try:
        return _read_gpu_work(export, call_names, has_streams=True)
    except ProfileError as error:
        work = _read_gpu_work(export, call_names, has_streams=False)
        return replace(work, streams=error)


def _read_gpu_work(export: Export, call_names: Mapping[int, str], *, has_streams: bool) -> GpuWork:
    graphs = _read_graphs(export)
    copies = export.query_columns("gpu_work/copies")
    is_migration = np.isin(copies[5], KINDS_OF_MIGRATION)
    copies[5] = np.where(is_migration, _MIGRATION, NONE)
    # No call launches a migration; its correlation id is 0, which may be that of a call.
    copies[4, is_migration] = NONE
    memsets = export.query_columns("gpu_work/memsets")
    memsets = np.vstack((memsets, np.full(memsets.shape[1], NONE)))
    copies_and_memsets = {"copies": copies, "memsets": memsets}
    query = "gpu_work/kernels_and_streams" if has_streams else "gpu_work/kernels"
    first, last = export.find_bounds("gpu_work/kernel_bounds")
    most = last - first + 1 if export.has("gpu_work/kernels") else 0
    room = min(most, export.count_max_rows()) + graphs.shape[1]
    builder = ActivitiesBuilder(room + sum(table.shape[1] for table in copies_and_memsets.values()))
    recorded = {"kernels": most > 0, **{what: t.size > 0 for what, t in copies_and_memsets.items()}}
    doubtful = _find_doubtful_names(call_names, recorded)
    called = export.start_filter_called_names(doubtful) if doubtful else None
    try:
        kernels = 0
        for _, block in export.stream(query):
            kernels += block.shape[1]
            builder.add_kernels(block)
        # SQLite ends a part of the rows without a word at a page whose row numbers are damaged;
        # tables that were edited leave out some.
        if kernels < most and kernels < sum(
            export.to_integer(row[1]) for row in export.query_rows("gpu_work/kernel_count")
        ):
            raise ProfileError(
                f"{export.path}: only {kernels:,} of its kernels can be read, so it is damaged; "
                f"{EXPORT_AGAIN}"
            )
        if has_streams:
            graphs = _add_streams(export, "gpu_work/graph_streams", graphs)
            copies = _add_streams(export, "gpu_work/copy_streams", copies)
            memsets = _add_streams(export, "gpu_work/memset_streams", memsets)
        builder.add_kernels(graphs)
        builder.add_copies(copies)
        builder.add_copies(memsets)
    except ValueError as error:
        raise ProfileError(
            f"{export.path}: is damaged or was edited ({error}); {EXPORT_AGAIN}"
        ) from error
    orphans = builder.count_without_process()
    processes = ExportedCalls(export, {}).find_processes() if orphans else ()

    def names(ids: Ints) -> tuple[str, ...]:
        known = {_WHOLE_GRAPH: "CUDA graph, traced as a whole", NONE: "<string NULL>"}
        known |= {_MIGRATION: profile.PAGE_MIGRATION} | export.query_texts(ids)
        return tuple(known.get(i, f"<string {i}>") for i in ids.tolist())

    activities = builder.build(names, processes)
    if called is not None:
        absent = {*doubtful} - {*called.result()}
        call_names = {i: name for i, name in call_names.items() if i not in absent}
    return GpuWork(
        activities=activities,
        group=builder.group,
        streams=builder.streams,
        limitations=(
            *_iter_lost_work(export, call_names, recorded, ("kernels", "graphs")),
            *_report_lost_process(export, orphans, processes),
            *_report_lost_graphs(export, activities, call_names),
            *_iter_lost_work(export, call_names, recorded, ("copies", "memsets")),
            *profile.report_untimed_work(export.path, builder.untimed),
            *profile.report_impossible_times(export.path, builder.impossible),
        ),
    )


def _add_streams(export: Export, query: str, work: Ints) -> Ints:
    """Return columns of work with the stream as the last column.

    Args:
        export: The open export.
        query: Name of the query for the start, end and stream of the work, in the same order.
        work: The columns, shape (columns, rows).

    Raises:
        ProfileError: The export is damaged.
    """
    if work.shape[1] == 0 or not export.has(query):
        return work
    return np.vstack((work, export.query_columns(query)[2]))


def find_processes(export: Export) -> tuple[int, ...]:
    """Return the processes that ran kernels or graphs."""
    kernels = (block for _, block in export.stream("gpu_work/kernels"))
    found = (
        find_distinct(process_of(block[3])) for block in chain(kernels, [_read_graphs(export)])
    )
    return tuple(sorted({p for processes in found for p in processes.tolist()} - {NONE}))


#: By query: what the work is, how the names of calls begin that it comes from, how these make it.
_WORK_KINDS = {
    "kernels": (profile.KERNELS, KERNEL_LAUNCHES, "launch"),
    "graphs": ("CUDA graphs traced as a whole", (), ""),
    "copies": ("copies", COPIES, "make"),
    "memsets": ("memsets", MEMSETS, "make"),
}


def _find_doubtful_names(call_names: Mapping[int, str], recorded: Mapping[str, bool]) -> list[int]:
    """Return which names are of calls whose work was not recorded, or is that of graphs.

    Exports register names that no call has. To find none of them takes a look at all calls.
    """
    beginnings = [
        start for what in recorded if not recorded[what] for start in _WORK_KINDS[what][1]
    ]
    beginnings += GRAPH_LAUNCHES
    return [i for i, name in call_names.items() if name.startswith(tuple(beginnings))]


def _iter_lost_work(
    export: Export,
    call_names: Mapping[int, str],
    recorded: Mapping[str, bool],
    kinds: Sequence[str],
) -> Iterator[Limitation]:
    """Yield limitations where work cannot be read, or calls had some that was not recorded."""
    for kind in kinds:
        what, beginnings, make = _WORK_KINDS[kind]
        table, query = table_of(f"gpu_work/{kind}"), f"gpu_work/{kind}"
        costs = LimitationKind.COSTS if kind in ("kernels", "graphs") else LimitationKind.OTHER
        if table in export.schema and not export.has(query):
            lacking = ", ".join(export.find_missing(query))
            yield Limitation(what, f"{export.path} lacks {lacking}", kind=costs)
        elif not recorded.get(kind, not beginnings) and (
            find_calls(export, call_names, beginnings, 1).size
        ):
            reason = f"{export.path} contains calls that {make} some, but none in {table}"
            yield Limitation(what, reason, kind=costs)


def _report_lost_process(
    export: Export, count: int, processes: Sequence[int]
) -> tuple[Limitation, ...]:
    """Return a limitation where kernels do not say of which process they are.

    Correlation ids are unique within a process only, so with several nothing can be linked.
    """
    if not count:
        return ()
    outcome = "they stay unlinked"
    if len(processes) == 1:
        outcome = "they are assigned to the only process with CUDA calls"
    lacking = ", ".join(export.find_missing("gpu_work/kernels")) or "it for some"
    reason = f"{export.path} lacks {lacking}; {outcome}"
    return (Limitation("the process of kernels", reason, count, LimitationKind.COSTS),)


def _report_lost_graphs(
    export: Export, activities: Activities, call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return a limitation if processes launched CUDA graphs, but no kernel was recorded of them.

    Graph launches of a process that has kernels are counted as lost work when calls are linked.
    """
    _, thread, ids = find_calls(export, call_names, GRAPH_LAUNCHES)
    process = process_of(thread[(thread != NONE) & (ids != NOTHING)])
    if len(process) == 0:
        return ()
    has_kernels = make_mask(len(activities.ranks), activities.rank[: activities.kernels])
    lost = int((~np.isin(process, activities.ranks[has_kernels, 0])).sum())
    reason = f"{export.path}: record graphs' work with nsys profile --cuda-graph-trace=node"
    what = "CUDA graph launches without recorded work"
    return (Limitation(what, reason, lost, LimitationKind.COSTS),) if lost else ()
