"""Reads the GPU work in an nsys export: kernels, CUDA graphs, copies and memsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

#: Name ids for CUDA graphs and managed memory migrations, which have no names in the export.
_WHOLE_GRAPH, _MIGRATION = -2, -3


def _read_graphs(export: Export) -> Ints:
    """Read the executions of CUDA graphs that were traced as a whole.

    Returns:
        Array of shape (6, executions). The first axis contains the same columns as for kernels.
    """
    graphs = export.query_columns("gpu_work/graphs")
    return np.vstack((graphs, np.full(graphs.shape[1], _WHOLE_GRAPH)))


@dataclass(frozen=True)
class GpuWork:
    """The GPU work in an export.

    Attributes:
        activities: Kernels and graphs, followed by copies and memsets.
        group: Sort key used for each activity, in the order of the export. None if the
            activities still have the order of the export.
        streams: Stream of each activity, or -1 if unknown. If the streams are damaged, the value is
            the error to raise when they are needed.
        limitations: Limitations that concern missing GPU work, such as launches without recorded
            kernels.
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
    """Read the GPU work in an export. If the streams are damaged, the work is read without streams.

    Args:
        export: The open export.
        call_names: Names of the CUDA calls that launch GPU work (``WORK_CALLS``), keyed by id in
            ``StringIds``.

    Raises:
        ProfileError: The export is damaged.
    """
    try:
        return _read_gpu_work(export, call_names, has_streams=True)
    except ProfileError as error:
        work = _read_gpu_work(export, call_names, has_streams=False)
        return replace(work, streams=error)


def _read_gpu_work(export: Export, call_names: Mapping[int, str], *, has_streams: bool) -> GpuWork:
    """Read the GPU work in an export, with or without streams; see :func:`read_gpu_work`.

    Work whose process is unknown is assigned to the process that made calls, if there is exactly
    one such process.
    """
    graphs, copies, memsets = _read_graphs(export), _read_copies(export), _read_memsets(export)
    max_kernels = _count_kernel_row_numbers(export)
    builder = _make_builder(export, max_kernels, (graphs, copies, memsets))
    recorded = {
        "kernels": max_kernels > 0,
        "copies": copies.size > 0,
        "memsets": memsets.size > 0,
    }
    doubtful = _find_doubtful_names(call_names, recorded)
    called = export.start_filter_called_names(doubtful) if doubtful else None
    try:
        _add_all_kernels(export, builder, max_kernels, has_streams=has_streams)
        if has_streams:
            graphs = _add_streams(export, "gpu_work/graph_streams", graphs)
            copies = _add_streams(export, "gpu_work/copy_streams", copies)
            memsets = _add_streams(export, "gpu_work/memset_streams", memsets)
        builder.add_kernels(graphs)
        builder.add_copies(copies)
        builder.add_copies(memsets)
    except ValueError as error:
        raise ProfileError(
            f"{export.path}: the file is damaged or was edited ({error}); {EXPORT_AGAIN}"
        ) from error
    orphans = builder.count_without_process()
    processes = ExportedCalls(export, {}).find_processes() if orphans else ()

    def get_names(ids: Ints) -> tuple[str, ...]:
        texts = {_WHOLE_GRAPH: "CUDA graph, traced as a whole", NONE: "<string NULL>"}
        texts |= {_MIGRATION: profile.PAGE_MIGRATION} | export.query_texts(ids)
        return tuple(texts.get(i, f"<string {i}>") for i in ids.tolist())

    activities = builder.build(get_names, processes)
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


def _count_kernel_row_numbers(export: Export) -> int:
    """Count the row numbers from the first to the last kernel, including gaps.

    The result is 0 if there are no kernels, or if the query for kernels cannot run.
    """
    first, last = export.find_bounds("gpu_work/kernel_bounds")
    return last - first + 1 if export.has("gpu_work/kernels") else 0


def _make_builder(
    export: Export, max_kernels: int, other_work: Iterable[Ints]
) -> ActivitiesBuilder:
    """Return a builder with enough capacity for all GPU work in an export.

    The capacity for kernels does not exceed the number of rows that a table in the export can have.

    Args:
        export: The open export.
        max_kernels: Upper bound on the number of kernels.
        other_work: Columns of the graphs, copies and memsets, each of shape (columns, rows).
    """
    n_others = sum(work.shape[1] for work in other_work)
    return ActivitiesBuilder(min(max_kernels, export.count_max_rows()) + n_others)


def _read_copies(export: Export) -> Ints:
    """Read the copies as an array of shape (6, copies), with the same columns as for kernels.

    The name id is ``_MIGRATION`` for migrations of managed memory, and -1 for other copies.
    """
    copies = export.query_columns("gpu_work/copies")
    is_migration = np.isin(copies[5], KINDS_OF_MIGRATION)
    copies[5] = np.where(is_migration, _MIGRATION, NONE)
    # A migration has no launching call. Its correlation id in the export is 0, but a call may have
    # the same id.
    copies[4, is_migration] = NONE
    return copies


def _read_memsets(export: Export) -> Ints:
    """Read the memsets as an array of shape (6, memsets), with the same columns as for kernels.

    All name ids are -1, because memsets have no names.
    """
    memsets = export.query_columns("gpu_work/memsets")
    return np.vstack((memsets, np.full(memsets.shape[1], NONE)))


def _add_all_kernels(
    export: Export, builder: ActivitiesBuilder, max_kernels: int, *, has_streams: bool
) -> None:
    """Add all kernels in an export to a builder, and check that all of them could be read.

    If fewer kernels were read than there are row numbers, either the row numbers have gaps or some
    rows are unreadable. Counting the table's rows reveals which is the case.

    Args:
        export: The open export.
        builder: Builder to add the kernels to.
        max_kernels: Number of row numbers from the first to the last kernel.
        has_streams: Whether to read the kernels' streams.

    Raises:
        ProfileError: Some kernels cannot be read.
        ValueError: A device number is out of range.
    """
    n_kernels = 0
    query = "gpu_work/kernels_and_streams" if has_streams else "gpu_work/kernels"
    for _, block in export.stream(query):
        n_kernels += block.shape[1]
        builder.add_kernels(block)
    if n_kernels == max_kernels:
        return
    # SQLite silently stops at a page with damaged row numbers. Rows may also have been deleted from
    # an edited table, so compare with the number of rows.
    counts = export.query_rows("gpu_work/kernel_count")
    if n_kernels < max_kernels and n_kernels < sum(export.to_integer(row[1]) for row in counts):
        raise ProfileError(
            f"{export.path}: only {n_kernels:,} of its kernels can be read, so the file is "
            f"damaged; {EXPORT_AGAIN}"
        )


def _add_streams(export: Export, query: str, work: Ints) -> Ints:
    """Append a stream column to the columns of graphs, copies or memsets.

    The columns are returned unchanged if there are no rows, or if the export lacks streams.

    Args:
        export: The open export.
        query: Name of the query that returns the start, end and stream of the same rows.
        work: Columns to which the stream column is appended, shape (columns, rows).

    Raises:
        ProfileError: The export is damaged.
    """
    if work.shape[1] == 0 or not export.has(query):
        return work
    return np.vstack((work, export.query_columns(query)[2]))


def find_processes(export: Export) -> tuple[int, ...]:
    """Return the known processes that ran kernels or graphs, in ascending order."""
    kernels = (block for _, block in export.stream("gpu_work/kernels"))
    processes_of_blocks = (
        find_distinct(process_of(block[3])) for block in chain(kernels, [_read_graphs(export)])
    )
    return tuple(
        sorted({p for processes in processes_of_blocks for p in processes.tolist()} - {NONE})
    )


#: Noun, name prefixes of the launching calls, and verb for launching, keyed by kind of GPU work.
#: The kinds are also query names.
_WORK_KINDS = {
    "kernels": (profile.KERNELS, KERNEL_LAUNCHES, "launch"),
    "graphs": ("CUDA graphs traced as a whole", (), ""),
    "copies": ("copies", COPIES, "make"),
    "memsets": ("memsets", MEMSETS, "make"),
}


def _find_doubtful_names(call_names: Mapping[int, str], recorded: Mapping[str, bool]) -> list[int]:
    """Return the name ids of calls whose GPU work may have been lost during recording.

    A name qualifies if calls with this name launch graphs, or launch a kind of work that was not
    recorded at all. The export may list names that no call uses, so the caller must check which
    names occur.

    Args:
        call_names: Names of the calls that launch GPU work, keyed by id.
        recorded: Whether any work of a given kind was recorded, keyed by kind, such as "kernels".
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
    """Yield limitations for GPU work that cannot be read or was not recorded.

    There is at most one limitation per kind of work:

    - The table lacks columns.
    - Calls launched this kind of work, but the table is missing or empty. Graphs are exempt from
      this check.

    Args:
        export: The open export.
        call_names: Names of the calls that launch GPU work, keyed by id.
        recorded: Whether any work of a given kind was recorded, keyed by kind, such as "kernels".
        kinds: Kinds of work to check, as keys of ``_WORK_KINDS``.
    """
    for kind in kinds:
        noun, beginnings, make = _WORK_KINDS[kind]
        table, query = table_of(f"gpu_work/{kind}"), f"gpu_work/{kind}"
        costs = LimitationKind.COSTS if kind in ("kernels", "graphs") else LimitationKind.OTHER
        if table in export.schema and not export.has(query):
            missing = ", ".join(export.find_missing(query))
            reason = f"{export.path} lacks {missing}, so they cannot be read"
            yield Limitation(noun, reason, kind=costs)
        elif not recorded.get(kind, not beginnings) and (
            find_calls(export, call_names, beginnings, 1).size
        ):
            reason = f"{export.path} contains calls that {make} {noun}, but no {noun} in {table}"
            yield Limitation(noun, reason, kind=costs)


def _report_lost_process(
    export: Export, count: int, processes: Sequence[int]
) -> tuple[Limitation, ...]:
    """Return a limitation for kernels whose process is unknown, or () if there are no such kernels.

    Correlation ids are unique only within a process. If several processes made calls, a kernel
    whose process is unknown cannot be linked to a call.

    Args:
        export: The open export.
        count: Number of kernels whose process is unknown.
        processes: Processes that made calls.
    """
    if not count:
        return ()
    outcome = "these kernels cannot be linked to calls"
    if len(processes) == 1:
        outcome = "these kernels are assigned to the only process that made CUDA calls"
    missing = ", ".join(export.find_missing("gpu_work/kernels")) or "the process of some kernels"
    reason = f"{export.path} lacks {missing}, so {outcome}"
    return (Limitation("the process of kernels", reason, count, LimitationKind.COSTS),)


def _report_lost_graphs(
    export: Export, activities: Activities, call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return a limitation that counts graph launches by processes that have no recorded kernel.

    The result is () if there are no such launches. Launches without a thread or a correlation id
    are ignored. For processes that have recorded kernels, graph launches without work are counted
    later, when calls are linked.
    """
    _, thread, ids = find_calls(export, call_names, GRAPH_LAUNCHES)
    process = process_of(thread[(thread != NONE) & (ids != NOTHING)])
    if len(process) == 0:
        return ()
    has_kernels = make_mask(len(activities.ranks), activities.rank[: activities.kernels])
    n_lost = int((~np.isin(process, activities.ranks[has_kernels, 0])).sum())
    reason = (
        f"{export.path}: to record the kernels of CUDA graphs, profile again with: "
        "nsys profile -t cuda,nvtx --cuda-graph-trace=node"
    )
    subject = "CUDA graph launches without recorded work"
    return (Limitation(subject, reason, n_lost, LimitationKind.COSTS),) if n_lost else ()
