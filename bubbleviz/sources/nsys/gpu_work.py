"""Work of the GPUs in an nsys export: kernels, CUDA graphs, copies, memsets; waits and memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from bubbleviz.conventions.kinds import COPIES, GRAPH_LAUNCHES, KERNEL_LAUNCHES, MEMSETS
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model import profile
from bubbleviz.model.collectives import EventRecords, Synchronisation, Waits
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, marked
from bubbleviz.model.copies import Copies, Direction, Memory
from bubbleviz.model.grouping import distinct, in_groups, places_in
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.memory_sizes import MemoryEvents
from bubbleviz.model.profile import Activities, Calls, process_of
from bubbleviz.sources.in_memory import ActivitiesBuilder, has_times
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.queries import NAME_OF_CALL, table_of
from bubbleviz.timing import step

# CUDA API calls of an nsys export, read block by block.


#: The version behind the name of a call: cudaMalloc_v3020, cudaLaunchKernelExC_v11060_ptsz.
_VERSION = re.compile(r"_v[0-9]{4,}(?=_|$)")
#: What stands in a query for a correlation id, or for the start of a wait, where there is none.
_NOTHING = -(1 << 40)
#: More calls than any export has. DuckDB knows no negative number of rows, which is all in SQLite.
_EVERY_CALL = 1 << 60
#: A call that lasts longer from 0 on began later: CUPTI writes 0 for a time that it lacks.
_LONGEST_FROM_0_NS = 1_000_000_000


def _calls_named(
    export: Export,
    call_names: Mapping[int, str],
    beginnings: tuple[str, ...],
    most: int = _EVERY_CALL,
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
    return export.columns("calls/named", {"name_ids": json.dumps(ids), "most": most})


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
        blocks = self.export.made_stream("calls/all", self.block)
        while True:
            with step("read calls") as rows:
                numbers, calls = next(blocks, (range(0), None))
                rows.count = len(numbers)
            if calls is None:
                return
            yield calls

    def block(self, numbers: range, columns: Ints) -> Calls:
        """Return the calls of some columns of calls/all.sql, and of the numbers of their rows."""
        if columns.shape[1] == len(numbers):
            return _calls(np.arange(numbers.start, numbers.stop), columns)
        # Where numbers are left out there may be very many of them.
        binds = {"first": numbers[0], "last": numbers[-1]}
        return _calls(self.export.columns("calls/row_numbers", binds)[0], columns)

    def _timed(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield thread and end of calls that can have launched something, with any time."""
        for _, block in self.export.stream("calls/all"):
            start_ns, end_ns, thread, _ = block[:, block[3] != _NOTHING]
            inside = profile.possible(start_ns, end_ns)
            yield thread, end_ns if inside is None else end_ns[inside]

    def latest_end_ns(self) -> int:
        """Return when the last call that can have launched something returned; at least 0."""
        return max((int(end_ns.max(initial=0)) for _, end_ns in self._timed()), default=0)

    def processes(self) -> Sequence[int]:
        """Return the processes that made calls, in order."""
        return sorted({p for t, _ in self._timed() for p in distinct(process_of(t)).tolist()})

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
        return self.export.read_rows("calls/at", rows)

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the names of the calls of some rows (distinct, ascending), "" where unknown.

        The version of the API behind a name is left out.
        """
        name_id = self._columns_at(rows)[NAME_OF_CALL]
        texts = self.export.texts(distinct(name_id))
        names = {number: _VERSION.sub("", text) for number, text in texts.items()}
        return tuple(names.get(number, "") for number in name_id.tolist())

    def beginning(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of some rows (distinct, ascending) whose call's name begins in some way."""
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        return rows[np.isin(self._columns_at(rows)[NAME_OF_CALL], ids)]

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of the calls whose names begin in some way, ascending."""
        ids = [i for i, name in self.call_names.items() if name.startswith(beginnings)]
        # Exports register names that no call has, and to find none takes a look at all calls.
        called = {*self.export.names_of_calls(ids)} if ids else set()
        names = {i: self.call_names[i] for i in ids if i in called}
        row, _, correlation_id = _calls_named(self.export, names, beginnings)
        launching: Ints = row[correlation_id != _NOTHING]
        return launching

    def containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""
        names = self.export.matching_strings((f"*{letters}*",))
        row, _, correlation_id = _calls_named(self.export, names, ("",))
        found: Ints = row[correlation_id != _NOTHING]
        return found

    def failed(self, rows: Ints) -> Bools:
        """Tell which calls of some rows (distinct, ascending) returned an error."""
        return np.asarray(self._columns_at(rows)[5] != 0, bool)


def _calls(row: Ints, columns: Ints) -> Calls:
    start_ns, end_ns, thread, correlation_id = columns
    keep = correlation_id != _NOTHING
    inside = profile.possible(start_ns, end_ns)
    if not start_ns.all():
        untimed = (start_ns == 0) & ((end_ns == 0) | (end_ns > _LONGEST_FROM_0_NS))
        inside = ~untimed if inside is None else inside & ~untimed
    impossible = 0 if inside is None else int((keep & ~inside).sum())
    if inside is not None:
        keep &= inside
    ids = profile.correlations(correlation_id)
    calls = Calls(row, start_ns, end_ns, thread, ids, impossible)
    return calls if keep.all() else calls.take(keep)


#: The name ids of a CUDA graph, which has no name, and of pages of managed memory that move.
_WHOLE_GRAPH, _MIGRATION = -2, -3
#: Kinds of copies by which the driver moves pages (CUDA_MEMCPY_KIND_UVM_HTOD, _DTOH, _DTOD).
_KINDS_OF_MIGRATION = (11, 12, 13)


def _graph_columns(export: Export) -> Ints:
    """Return the CUDA graphs that were traced as a whole, with the columns of kernels."""
    graphs = export.columns("gpu_work/graphs")
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
        export: the open export.
        call_names: those in ``StringIds`` that begin as ``WORK_CALLS`` do, by id.

    Raises:
        ProfileError: The export is damaged.
    """
    try:
        return _read_gpu_work(export, call_names, has_streams=True)
    except ProfileError as error:
        work = _read_gpu_work(export, call_names, has_streams=False)
        return replace(work, streams=error)


def _read_gpu_work(export: Export, call_names: Mapping[int, str], *, has_streams: bool) -> GpuWork:
    graphs = _graph_columns(export)
    copies = export.columns("gpu_work/copies")
    is_migration = np.isin(copies[5], _KINDS_OF_MIGRATION)
    copies[5] = np.where(is_migration, _MIGRATION, NONE)
    # No call launches a migration; its correlation id is 0, which may be that of a call.
    copies[4, is_migration] = NONE
    memsets = export.columns("gpu_work/memsets")
    memsets = np.vstack((memsets, np.full(memsets.shape[1], NONE)))
    beside = {"copies": copies, "memsets": memsets}
    first, last = export.bounds("gpu_work/kernel_bounds")
    most = last - first + 1 if export.has("gpu_work/kernels") else 0
    room = min(most, export.most_rows()) + graphs.shape[1]
    builder = ActivitiesBuilder(room + sum(table.shape[1] for table in beside.values()))
    recorded = {"kernels": most > 0, **{what: t.size > 0 for what, t in beside.items()}}
    doubtful = _doubtful(call_names, recorded)
    called = export.names_of_calls_begun(doubtful) if doubtful else None
    try:
        kernels = 0
        for _, block in export.stream(f"gpu_work/kernels{'_and_streams' * has_streams}"):
            kernels += block.shape[1]
            builder.add_kernels(block)
        # SQLite ends a part of the rows without a word at a page whose row numbers are damaged;
        # tables that were edited leave out some.
        if kernels < most and kernels < sum(
            export.number(row[1]) for row in export.rows("gpu_work/kernel_count")
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
    orphans = builder.without_process()
    processes = ExportedCalls(export, {}).processes() if orphans else ()

    def names(ids: Ints) -> tuple[str, ...]:
        known = {_WHOLE_GRAPH: "CUDA graph, traced as a whole", NONE: "<string NULL>"}
        known |= {_MIGRATION: profile.PAGE_MIGRATION} | export.texts(ids)
        return tuple(known.get(i, f"<string {i}>") for i in ids.tolist())

    activities = builder.activities(names, processes)
    if called is not None:
        absent = {*doubtful} - {*called.result()}
        call_names = {i: name for i, name in call_names.items() if i not in absent}
    return GpuWork(
        activities=activities,
        group=builder.group,
        streams=builder.streams,
        limitations=(
            *_lost_work(export, call_names, recorded, ("kernels", "graphs")),
            *_lost_process(export, orphans, processes),
            *_unrecorded_graphs(export, activities, call_names),
            *_lost_work(export, call_names, recorded, ("copies", "memsets")),
            *profile.untimed_work(export.path, builder.untimed),
            *profile.impossible_times(export.path, builder.impossible),
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
    return np.vstack((work, export.columns(query)[2]))


def processes_of(export: Export) -> tuple[int, ...]:
    """Return the processes that ran kernels or graphs."""
    kernels = (block for _, block in export.stream("gpu_work/kernels"))
    found = (distinct(process_of(block[3])) for block in chain(kernels, [_graph_columns(export)]))
    return tuple(sorted({p for processes in found for p in processes.tolist()} - {NONE}))


#: By query: what the work is, how the names of calls begin that it comes from, how these make it.
_WORK = {
    "kernels": (profile.KERNELS, KERNEL_LAUNCHES, "launch"),
    "graphs": ("CUDA graphs traced as a whole", (), ""),
    "copies": ("copies", COPIES, "make"),
    "memsets": ("memsets", MEMSETS, "make"),
}


def _doubtful(call_names: Mapping[int, str], recorded: Mapping[str, bool]) -> list[int]:
    """Return which names are of calls whose work was not recorded, or is that of graphs.

    Exports register names that no call has. To find none of them takes a look at all calls.
    """
    beginnings = [start for what in recorded if not recorded[what] for start in _WORK[what][1]]
    beginnings += GRAPH_LAUNCHES
    return [i for i, name in call_names.items() if name.startswith(tuple(beginnings))]


def _lost_work(
    export: Export,
    call_names: Mapping[int, str],
    recorded: Mapping[str, bool],
    kinds: Sequence[str],
) -> Iterator[Limitation]:
    """Yield limitations where work cannot be read, or calls had some that was not recorded."""
    for kind in kinds:
        what, beginnings, make = _WORK[kind]
        table, query = table_of(f"gpu_work/{kind}"), f"gpu_work/{kind}"
        costs = LimitationKind.COSTS if kind in ("kernels", "graphs") else LimitationKind.OTHER
        if table in export.schema and not export.has(query):
            lacking = ", ".join(export.lacks(query))
            yield Limitation(what, f"{export.path} lacks {lacking}", kind=costs)
        elif not recorded.get(kind, not beginnings) and (
            _calls_named(export, call_names, beginnings, 1).size
        ):
            reason = f"{export.path} holds calls that {make} some, but none in {table}"
            yield Limitation(what, reason, kind=costs)


def _lost_process(export: Export, count: int, processes: Sequence[int]) -> tuple[Limitation, ...]:
    """Return a limitation where kernels do not say of which process they are.

    Correlation ids are unique within a process only, so with several nothing can be linked.
    """
    if not count:
        return ()
    outcome = "they stay unlinked"
    if len(processes) == 1:
        outcome = "they are assigned to the only process with CUDA calls"
    lacking = ", ".join(export.lacks("gpu_work/kernels")) or "it for some"
    reason = f"{export.path} lacks {lacking}; {outcome}"
    return (Limitation("the process of kernels", reason, count, LimitationKind.COSTS),)


def _unrecorded_graphs(
    export: Export, activities: Activities, call_names: Mapping[int, str]
) -> tuple[Limitation, ...]:
    """Return a limitation if processes launched CUDA graphs, but no kernel was recorded of them.

    Graph launches of a process that has kernels are counted as lost work when calls are linked.
    """
    _, thread, ids = _calls_named(export, call_names, GRAPH_LAUNCHES)
    process = process_of(thread[(thread != NONE) & (ids != _NOTHING)])
    if len(process) == 0:
        return ()
    has_kernels = marked(len(activities.ranks), activities.rank[: activities.kernels])
    lost = int((~np.isin(process, activities.ranks[has_kernels, 0])).sum())
    reason = f"{export.path}: record graphs' work with nsys profile --cuda-graph-trace=node"
    what = "CUDA graph launches without recorded work"
    return (Limitation(what, reason, lost, LimitationKind.COSTS),) if lost else ()


# Synchronisation: recorded events, waits, and the streams of work.


_WAITS, _RECORDS = "synchronisation/waits", "synchronisation/event_records"


def read_synchronisation(
    export: Export,
) -> tuple[Synchronisation | None, tuple[Limitation, ...]]:
    """Return what an export holds of waiting, None where that is nothing, and what is lost.

    Raises:
        ProfileError: the export is damaged.
    """
    waits = export.columns(_WAITS)
    waits = waits[:, waits[6] != _NOTHING]
    queries = (_WAITS, _RECORDS) if waits.shape[1] else (_WAITS,)
    losses = tuple(
        Limitation("what streams waited for", f"{export.path} lacks {', '.join(lacking)}")
        for name in queries
        for lacking in (export.lacks(name),)
        if table_of(name) in export.schema and not export.has(name)
    )
    if not waits.shape[1]:
        return None, losses
    records = export.columns(_RECORDS)
    for table in (waits, records):
        table[0] = np.where(table[0] == NONE, NONE, process_of(table[0]))
    return Synchronisation(EventRecords(*records), Waits(*waits)), losses


# Copies: how much each moved, in which direction, and between which memory.


#: Directions by their ids in ENUM_CUDA_MEMCPY_OPER.
_DIRECTIONS = {
    **dict.fromkeys((1, 3, 11), Direction.HOST_TO_DEVICE),
    **dict.fromkeys((2, 4, 12), Direction.DEVICE_TO_HOST),
    **dict.fromkeys((5, 6, 7, 8, 13), Direction.DEVICE_TO_DEVICE),
    9: Direction.HOST_TO_HOST,
    10: Direction.PEER_TO_PEER,
}
#: Kinds of memory by their ids in ENUM_CUDA_MEM_KIND.
_MEMORY = {
    0: Memory.PAGEABLE,
    1: Memory.PINNED,
    2: Memory.DEVICE,
    3: Memory.ARRAY,
    4: Memory.MANAGED,
    5: Memory.DEVICE,
    6: Memory.MANAGED,
}
#: Largest id of either table.
_MAX_ID = 15


def read_copies(export: Export, activities: Activities, group: Codes | None) -> Copies:
    """Return what the copies of an export moved.

    Args:
        export: The open export.
        activities: Its activities.
        group: Groups by which these were put in order, or None if they were not.

    Raises:
        ProfileError: The export is damaged.
    """
    whole = export.columns("gpu_work/copies")
    n_copies = int(has_times(whole[0], whole[1]).sum())
    # Copies come after all kernels, and before all memsets.
    copies = Copies.unknown(activities.kernels + np.arange(n_copies))
    if export.has("gpu_work/copy_memory"):
        start_ns, end_ns, source, target = export.columns("gpu_work/copy_memory")
        timed = has_times(start_ns, end_ns)
        source, target = (_codes(ids[timed], _MEMORY) for ids in (source, target))
        copies = copies.changed(source=source, target=target)
    if export.has("gpu_work/copy_sizes"):
        start_ns, end_ns, size, kind = export.columns("gpu_work/copy_sizes")
        timed = has_times(start_ns, end_ns)
        size, kind = size[timed], kind[timed]
        # The driver moves pages of managed memory alone, of which the kind may be unknown.
        is_managed = np.isin(kind, _KINDS_OF_MIGRATION)
        source, target = (
            np.where(is_managed & (memory == Memory.UNKNOWN), Memory.MANAGED, memory)
            for memory in (copies.source, copies.target)
        )
        copies = copies.changed(
            size=np.maximum(size, NONE),
            direction=_codes(kind, _DIRECTIONS),
            source=source,
            target=target,
        )
    if group is None:
        return copies
    (order,) = in_groups(group, (np.arange(len(activities), dtype=np.int32),))
    return copies.reorder(places_in(order))


def _codes(ids: Ints, codes: Mapping[int, int]) -> Ints:
    """Return the code of each id, 0 for ids that have none."""
    by_id = np.array([codes.get(number, 0) for number in range(_MAX_ID + 1)], np.int64)
    return np.where((ids >= 0) & (ids <= _MAX_ID), by_id[np.clip(ids, 0, _MAX_ID)], 0)


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
