"""Work of the GPUs in an nsys export: its kernels, whole CUDA graphs, copies and memsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

import numpy as np

from bubbleviz.conventions.launching_calls import (
    COPIES,
    GRAPH_LAUNCHES,
    KERNEL_LAUNCHES,
    MEMSETS,
)
from bubbleviz.errors import EXPORT_AGAIN, ProfileError
from bubbleviz.model.columns import NONE, Codes, Ints, widened
from bubbleviz.model.grouping import distinct, groups_of, places_in
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.numbering import BlockNumbering
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
        for block in chain(scan.columns(stretches), graphs):
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


class ActivitiesBuilder:
    """Merges blocks of kernels, then of copies, in as few bytes as they need.

    Args:
        room: how many there are at most; memory is used by those that come.
    """

    def __init__(self, room: int) -> None:
        self._start_ns, self._end_ns = np.empty(room, np.int64), np.empty(room, np.int64)
        self._rank: Codes = np.empty(room, np.int16)
        self._name_id: Codes = np.empty(room, np.int16)
        self._correlation_id = np.empty(room, np.uint32)
        self._places, self._names = BlockNumbering(), BlockNumbering()
        self._count = self._kernels = 0
        self.impossible = {KERNELS: 0, "copies": 0}
        self.untimed = {KERNELS: 0, "copies": 0}

    def add_kernels(self, block: Ints) -> None:
        """Add kernels: start_ns, end_ns, device, globalPid, correlation id, number of the name.

        Raises:
            ValueError: a device has a number that none can have.
        """
        self._add(block, "kernels")
        self._kernels = self._count

    def add_copies(self, block: Ints) -> None:
        """Add copies or memsets, after all kernels: columns as of these, few with a name."""
        self._add(block, "copies")

    def _add(self, block: Ints, what: str) -> None:
        block = self._with_times(block, what)
        start_ns, end_ns, device_id, global_id, correlation_id, *name = block
        process = process_of(global_id)
        if len(device_id) and not 0 <= device_id.min() <= device_id.max() < 1 << _DEVICE_BITS:
            raise ValueError("a number of a device is below 0 or above 4,194,303")
        at, self._count = self._count, self._count + len(start_ns)
        if self._count > len(self._start_ns):
            raise ValueError("a table has more rows than numbers of rows")
        rows = slice(at, self._count)
        self._start_ns[rows], self._end_ns[rows] = start_ns, end_ns
        place = self._places.numbers(process << _DEVICE_BITS | device_id)
        name_id = self._numbers_of_names(name[0], what) if name else np.full(len(place), NONE)
        self._rank, self._name_id = widened(self._rank, place), widened(self._name_id, name_id)
        self._rank[rows], self._name_id[rows] = place, name_id
        self._correlation_id[rows] = correlations(correlation_id)

    def _numbers_of_names(self, name: Ints, what: str) -> Ints:
        """Return the number of each name; -1 for copies without one."""
        numbers = np.full(len(name), NONE, np.int64)
        named = np.flatnonzero((name != NONE) | (what == KERNELS))
        numbers[named] = self._names.numbers(name[named])
        return numbers

    def _with_times(self, block: Ints, what: str) -> Ints:
        """Return the columns of a block whose times can be."""
        if not block[1].all():
            timed = (block[0] != 0) | (block[1] != 0)
            self.untimed[what] += int((~timed).sum())
            block = block[:, timed]
        keep = possible(block[0], block[1])
        if keep is not None:
            self.impossible[what] += int((~keep).sum())
            block = block[:, keep]
        return block

    def activities(
        self, names: Callable[[Ints], tuple[str, ...]], processes: Sequence[int] = ()
    ) -> Activities:
        """Return the activities.

        Args:
            names: texts of the numbers of names.
            processes: if there is just one, it is that of kernels without one.
        """
        process = self._places.values >> _DEVICE_BITS
        if len(processes) == 1:
            process = np.where(process == NONE, processes[0], process)
        device_id = self._places.values & ((1 << _DEVICE_BITS) - 1)
        groups = groups_of(process, device_id)
        rows = slice(0, self._count)
        rank, name_id = self._rank[rows], self._name_id[rows]
        _translate(rank, groups.of_row)
        order = np.argsort(self._names.values)
        # The last place is that of no name (-1).
        _translate(name_id, np.append(places_in(order), NONE))
        return Activities(
            self._start_ns[rows],
            self._end_ns[rows],
            rank,
            self._correlation_id[rows],
            name_id,
            self._kernels,
            names(self._names.values[order]),
            np.stack((process, device_id), axis=1)[groups.first],
        )

    def without_process(self) -> int:
        """Return the number of activities without a process."""
        lacking = np.flatnonzero(self._places.values >> _DEVICE_BITS == NONE)
        return int(np.isin(self._rank[: self._count], lacking).sum()) if len(lacking) else 0


def _translate(codes: Codes, to: Ints) -> None:
    """Replace codes in place; piece by piece, as memory is short."""
    for at in range(0, len(codes), 1 << 16):
        piece = slice(at, at + (1 << 16))
        codes[piece] = to[codes[piece]]
