"""Work of the GPUs in an nsys export: its kernels, whole CUDA graphs, copies and memsets."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np

from bubbleviz.conventions.launching_calls import COPIES, GRAPH_LAUNCHES, KERNEL_LAUNCHES, MEMSETS
from bubbleviz.errors import EXPORT_AGAIN, ProfileError, SchemaError
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
from bubbleviz.model.values import frozen
from bubbleviz.sources.activities_builder import ActivitiesBuilder
from bubbleviz.sources.nsys.direct_reader import opened_directly, stored_tables
from bubbleviz.sources.nsys.queries import NSYS, QUERIES, query, tables, tables_read, views_of
from bubbleviz.sources.nsys.scan import BulkAnswers, BulkReader, Scan, SmallAnswers, Stretch
from bubbleviz.sources.sqlite.catalogue import Catalogue, opened_catalogue
from bubbleviz.sources.sqlite.database import opened_database
from bubbleviz.sources.sqlite.pages import check_finished, check_pages
from bubbleviz.sources.sqlite.queries import Binds, Query, Schema, lacking

# Exports: tables of nsys, in an SQLite file or a directory, of which it is known what is there.
#
# Tables and columns are probed before a query runs, and views make the schemas of all years one.


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
#: What queries call the number of a row; a column of this name would stand for it.
_ROW_NUMBER = "_rowid_"
#: What SQLite keeps in any column, as Python reads it.
_KINDS = {type(None): "no value", str: "text", float: "a fraction"}


@frozen
class Export:
    """An open export of nsys.

    Attributes:
        schema: the columns of each table.
        views: the variant of each view that queries read here.
        catalogue: answers small queries.
        database: reads large tables.
        direct: reads them faster; None where it cannot.
        indirect: why it cannot.
    """

    schema: Schema
    views: Mapping[str, Query]
    catalogue: SmallAnswers
    database: BulkAnswers
    direct: BulkReader | None = None
    indirect: str = ""

    def reader(self) -> str:
        """Return what reads the large tables, as far as is known, and why where that is SQLite."""
        return self.direct.account() if self.direct else f"SQLite ({self.indirect})"

    @property
    def path(self) -> str:
        """Path as given."""
        return self.database.path

    def has(self, name: str) -> bool:
        """Tell whether the export holds what a query needs."""
        return QUERIES.has(name, self.schema, self.views)

    def lacks(self, name: str) -> tuple[str, ...]:
        """Return which tables and columns of today's exports, that a query reads, are missing.

        The query may run all the same, through another variant of a view.
        """
        return lacking(tables_read(name), self.schema)

    def require(self, name: str) -> None:
        """Check that a query can run.

        Raises:
            SchemaError: it cannot; the message names what the export lacks.
        """
        if not self.has(name):
            raise SchemaError(
                f"{self.path}: the export lacks {', '.join(self.lacks(name))}, which "
                f"sql/nsys/{name}.sql needs; {EXPORT_AGAIN}"
            )

    def rows(self, name: str, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a small query.

        Raises:
            ProfileError: the file is damaged.
        """
        return self.catalogue.rows(query(name), binds)

    def value(self, name: str) -> object:
        """Return the single value of a small query; None where the export does not hold it."""
        rows = self.rows(name) if self.has(name) else []
        return rows[0][0] if rows else None

    def columns(self, name: str, binds: Binds | None = None) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        Raises:
            ProfileError: the file is damaged, or holds something else than integers.
        """
        return self.database.columns(query(name), binds)

    def bounds(self, name: str) -> tuple[int, int]:
        """Return the first and the last row number that a query gives; (0, -1) of no rows."""
        rows = self.rows(name)
        return (self.number(rows[0][0]), self.number(rows[0][1])) if rows else (0, -1)

    def number(self, value: object) -> int:
        """Return a value that must be a number; SQLite keeps text in any column.

        Raises:
            ProfileError: it is none.
        """
        if not isinstance(value, int):
            raise ProfileError(
                f"{self.path}: holds {_KINDS.get(type(value), 'a value')} where a whole number "
                f"belongs, so it is damaged or was edited; {EXPORT_AGAIN}"
            )
        return value


@contextmanager
def opened(path: str) -> Iterator[Export]:
    """Open an export read-only.

    Raises:
        ProfileError: it is being written, damaged, or no SQLite file.
    """
    check_finished(path, NSYS)
    check_pages(path, NSYS)
    with opened_catalogue(path, NSYS) as catalogue:
        stored = _schema(catalogue)
        schema = _columns_of_tables(stored)
        check_schema(path, schema, "an SQLite database")
        views = views_of(schema)
        statements = [f"CREATE TEMP VIEW {name} AS\n{views[name].text}" for name in views]
        catalogue.create_views(statements)
        with (
            opened_database(path, statements) as database,
            opened_directly(path, stored_tables(stored), views) as (direct, indirect),
        ):
            yield Export(schema, views, catalogue, database, direct, indirect)


def _schema(catalogue: Catalogue) -> list[tuple[object, ...]]:
    """Return how the file stores the columns of tables that queries read, as schema.sql does.

    Raises:
        ProfileError: the file is damaged; or a view or a virtual table stands for one: such may
            give rows without end; or one hides its row numbers, by which it is read.
    """
    rows = catalogue.rows(query("schema"), {"names": json.dumps(sorted(tables()))})
    for relation, root_page, _, _, column, *_ in rows:
        if not root_page:
            raise ProfileError(
                f"{catalogue.path}: {relation} is a view or a virtual table, which no export of "
                f"nsys has; {EXPORT_AGAIN}"
            )
        if str(column).lower() == _ROW_NUMBER:
            raise ProfileError(
                f"{catalogue.path}: {relation} has a column named {_ROW_NUMBER}, which no export "
                f"of nsys has; {EXPORT_AGAIN}"
            )
    return [row for row in rows if row[4] is not None]


def _columns_of_tables(stored: Sequence[tuple[object, ...]]) -> Schema:
    """Return the columns of each table, of the rows of schema.sql."""
    schema: dict[str, set[str]] = {}
    for table, _, _, _, column, _, _, hidden in stored:
        columns = schema.setdefault(str(table), set())
        if not hidden:
            columns.add(str(column))
    return {table: frozenset(columns) for table, columns in schema.items()}


def check_schema(path: str, schema: Schema, what: str) -> None:
    """Raise ProfileError where the tables are not those of nsys.

    Args:
        path: of the export.
        schema: the columns of each table.
        what: kind of file that it is, in words.
    """
    if not {"StringIds", KERNEL, RUNTIME, NVTX} & set(schema):
        raise ProfileError(
            f"{path}: {what}, but no nsys export: it has none of the tables "
            f"StringIds, {KERNEL}, {RUNTIME}, {NVTX}; {EXPORT_AGAIN}"
        )


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


# Synchronisation in an nsys export: recorded events, waits, and the streams of work.
#
# Tables: CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_CUDA_EVENT.


_WAITS, _RECORDS = "synchronisation/waits", "synchronisation/event_records"
#: Work beside kernels in the order of the activities: the query for it, and for its streams.
_BESIDE = (
    ("gpu_work/graphs", "gpu_work/graph_streams"),
    ("gpu_work/copies", "gpu_work/copy_streams"),
    ("gpu_work/memsets", "gpu_work/memset_streams"),
)


def read_synchronisation(
    export: Export, scan: Scan
) -> tuple[Synchronisation | None, tuple[Limitation, ...]]:
    """Return what an export holds of waiting, None where that is nothing, and what is lost.

    Raises:
        ProfileError: the export is damaged.
    """
    waits = _columns(export, _WAITS)
    if waits is None or waits.shape[1] == 0:
        return None, tuple(_losses(export, (_WAITS,)))
    records = _columns(export, _RECORDS)
    if records is None:
        records = np.empty((7, 0), np.int64)
    for table in (waits, records):
        table[0] = np.where(table[0] == NONE, NONE, process_of(table[0]))
    return (
        Synchronisation(EventRecords(*records), Waits(*waits), _streams(export, scan)),
        tuple(_losses(export, (_WAITS, _RECORDS))),
    )


def _columns(export: Export, name: str) -> Ints | None:
    return export.columns(name) if export.has(name) else None


def _losses(export: Export, names: tuple[str, ...]) -> Iterator[Limitation]:
    """Yield a limitation for each table that is there and cannot be read."""
    for name in names:
        (table,) = tables_read(name)
        if table in export.schema and not export.has(name):
            lacking = ", ".join(export.lacks(name))
            yield Limitation("what streams waited for", f"{export.path} lacks {lacking}")


def _streams(export: Export, scan: Scan) -> Ints:
    """Return the stream of each activity of the export, in their order; -1 unknown."""
    kernels = kernel_stretches(export, scan)
    parts = []
    if export.has("gpu_work/kernel_streams"):
        stretches = [Stretch("gpu_work/kernel_streams", s.first, s.last) for s in kernels]
        parts = [_of_timed(block) for block in scan.columns(stretches)]
    elif kernels:
        parts = [np.full(_timed(block).sum(), NONE) for block in scan.columns(kernels)]
    for work, streams in _BESIDE:
        if export.has(work):
            known = export.has(streams)
            block = export.columns(streams if known else work)
            parts.append(_of_timed(block) if known else np.full(_timed(block).sum(), NONE))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _of_timed(block: Ints) -> Ints:
    """Return the third column of the rows that become activities."""
    streams: Ints = block[2][_timed(block)]
    return streams


def _timed(block: Ints) -> Bools:
    """Tell which rows become activities: those whose start and end are recorded, and can be."""
    timed: Bools = (block[0] != 0) | (block[1] != 0)
    inside = possible(block[0][timed], block[1][timed])
    if inside is not None:
        timed[timed] = inside
    return timed


# Memory in an nsys export: what was allocated on devices and freed.
#
# Table: CUDA_GPU_MEMORY_USAGE_EVENTS, of ``--cuda-memory-usage=true``.


_QUERY = "memory/usage"
#: Kinds of the host's own memory: pageable, and pinned.
_ON_HOST = (0, 1)
_FREED = 1


def read_memory(export: Export) -> MemoryEvents | None:
    """Return the memory events of an export; None where it holds none.

    The table names a process and no thread, which then stands for all of its threads.

    Raises:
        ProfileError: the export is damaged.
    """
    if not export.has(_QUERY):
        return None
    table = export.columns(_QUERY)
    table = table[:, ~np.isin(table[5], _ON_HOST)]
    if table.shape[1] == 0:
        return None
    time_ns, process, device, address, amount, _, operation = (row.copy() for row in table)
    change = np.where(operation == _FREED, -amount, amount)
    total = np.full(len(time_ns), NONE, np.int64)
    return MemoryEvents(time_ns, process, device, address, change, total)
