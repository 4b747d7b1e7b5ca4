"""An open export of Nsight Systems: what an analysis needs of it, and its profile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import cache
from threading import local

import numpy as np

from bubbleviz.conventions.globs import binds_of, fitting
from bubbleviz.conventions.kinds import GRAPH_LAUNCHES, KERNEL_LAUNCHES
from bubbleviz.errors import EXPORT_AGAIN, NothingToAnalyseError, ProfileError, SchemaError
from bubbleviz.model.columns import Ints
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import (
    Contents,
    NameCount,
    Profile,
    Ranges,
    TableCount,
    impossible_times,
)
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen
from bubbleviz.native.library import NamedRows
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.in_memory import no_calls, no_ranges
from bubbleviz.sources.nsys.direct_reader import DirectReader, opened_directly
from bubbleviz.sources.nsys.export import (
    GRAPH,
    KERNEL,
    KINDS,
    NVTX,
    RUNTIME,
    Export,
    Scan,
    Selection,
    check_schema,
    null_among_ranges,
    scan_of,
)
from bubbleviz.sources.nsys.gpu_work import (
    ExportedCalls,
    activities_of,
    ids_of,
    kernel_stretches,
    processes_of,
    read_memory,
    read_synchronisation,
)
from bubbleviz.sources.nsys.nccl_payloads import read_payloads
from bubbleviz.sources.nsys.queries import NSYS, query, tables, views_of
from bubbleviz.sources.nsys.ranges import (
    SAMPLED_ROWS,
    LongRanges,
    NameFilter,
    has_ranges,
    name_filter,
    read_ranges,
    sample_names,
)
from bubbleviz.sources.nsys.target import (
    devices_of,
    overheads_of,
    source_of,
    target_limitations,
    threads_of,
)
from bubbleviz.sources.sqlite.database import Database, integers_of, opened_database, texts_of
from bubbleviz.sources.sqlite.queries import Binds, Query
from bubbleviz.timing import note_way, step

# SQLite exports: opened read-only, their schema checked, their columns read by SQLite.
#
# Where the compiled part is there and the file is plain, it decodes the pages of the large tables
# (:mod:`bubbleviz.sources.nsys.direct_reader`); SQLite, which is slower, is the reference.


#: What queries call the number of a row; a column of this name would stand for it.
_ROW_NUMBER = "_rowid_"


@contextmanager
def opened(path: str) -> Iterator[Export]:
    """Open an export read-only.

    Raises:
        ProfileError: it is being written, damaged, or no SQLite file.
    """
    with opened_database(path, NSYS) as database:
        stored = _stored_columns(database, path)
        schema: dict[str, set[str]] = {}
        for table, _, _, _, column, _, _, hidden in stored:
            schema.setdefault(str(table), set()).update(() if hidden else (str(column),))
        columns = {table: frozenset(names) for table, names in schema.items()}
        check_schema(path, columns, "an SQLite database")
        views = views_of(columns)
        database.create_views(
            [f"CREATE TEMP VIEW {name} AS\n{view.text}" for name, view in views.items()]
        )
        with ExitStack() as opened_files, opened_directly(path, stored, views) as direct:
            yield Export(columns, views, SqliteOrigin(path, database, direct, opened_files))


def _stored_columns(database: Database, path: str) -> list[tuple[object, ...]]:
    """Return how the file stores the columns of tables that queries read, as schema.sql does.

    Raises:
        ProfileError: the file is damaged; or a view or a virtual table stands for one: such may
            give rows without end; or one hides its row numbers, by which it is read.
    """
    rows = database.rows(query("schema"), {"names": json.dumps(sorted(tables()))})
    for relation, root_page, _, _, column, *_ in rows:
        if not root_page:
            raise ProfileError(
                f"{path}: {relation} is a view or a virtual table, which no export of "
                f"nsys has; {EXPORT_AGAIN}"
            )
        if str(column).lower() == _ROW_NUMBER:
            raise ProfileError(
                f"{path}: {relation} has a column named {_ROW_NUMBER}, which no export "
                f"of nsys has; {EXPORT_AGAIN}"
            )
    return [row for row in rows if row[4] is not None]


class SqliteOrigin:
    """An :class:`~bubbleviz.sources.nsys.export.Origin`: each thread opens the file for itself.

    Args:
        path: of the file.
        database: the file as this thread has opened it.
        direct: reads the largest tables faster; the reason why it cannot, where it cannot.
        opened_files: closes the file for other threads.
    """

    def __init__(
        self,
        path: str,
        database: Database,
        direct: DirectReader | str,
        opened_files: ExitStack,
    ) -> None:
        self.path = path
        self.most_rows = database.most_rows
        self.direct = direct if isinstance(direct, DirectReader) else None
        self._reason = "" if self.direct else str(direct)
        self._views, self._opened_files, self._of_thread = database.views, opened_files, local()
        self._of_thread.database = database

    @property
    def database(self) -> Database:
        """The file as this thread has opened it."""
        if not hasattr(self._of_thread, "database"):
            self._of_thread.database = Database(self.path, NSYS, self._views)
            self._opened_files.callback(self._of_thread.database.close)
        database: Database = self._of_thread.database
        return database

    def account(self) -> str:
        """Return what reads the large tables, as far as is known, and why where that is SQLite."""
        return self.direct.account() if self.direct else f"SQLite ({self._reason})"

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self.database.count(table)

    def rows(self, query: Query, binds: Binds) -> list[tuple[object, ...]]:
        """Return the rows of a query."""
        return self.database.rows(query, binds)

    def columns(self, query: Query, binds: Binds, rows: int) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows)."""
        first, last = int(binds.get("first") or 0), int(binds.get("last") or 0)
        columns = self.direct.columns(query.name, first, last) if self.direct else None
        if columns is None and query.name == "calls/all" and last - first < rows:
            columns = self._calls_of_thread(binds, last - first + 1)
        if columns is None:
            columns = self.database.columns(query, binds, *((rows,) if rows else ()))
        return columns

    def _calls_of_thread(self, binds: Binds, rows: int) -> Ints | None:
        """Return the columns of calls/all.sql if all are of one thread, which is read faster."""
        threads = self.database.columns(query("calls/threads"), binds)[0].tolist()
        if len(threads) != 2 or threads[0] != threads[1]:
            return None
        of_thread = {**binds, "thread": threads[0]}
        columns = self.database.columns(query("calls/of_thread"), of_thread, rows)
        return np.insert(columns, 2, threads[0], axis=0) if columns.shape[1] == rows else None

    def named(self, query: Query, selection: Selection, first: int, last: int) -> NamedRows:
        """Return the selected rows among those of some numbers: integers, and a text each.

        Raises:
            ProfileError: a range to be named lacks a number, or has text in its place.
        """
        rows = self.direct.named(query.name, selection, first, last) if self.direct else None
        if rows is not None:
            return rows
        binds = {**_parameters(selection), "first": first, "last": last}
        batch = self.database.batch(query, {name: binds[name] for name in query.parameters})
        nothing = NamedRows(np.empty((len(query.columns) - 1, 0), np.int64), ())
        if batch is None:
            return nothing
        *numbers, text = batch.columns
        texts = texts_of(text)
        needed = query.name == "ranges/named"
        if needed and any(column.null_count for column in numbers):
            raise null_among_ranges(self.path)
        if needed and {type(value) for value in texts} - {str, type(None)}:
            raise self._text_among_ranges()
        try:
            values = integers_of(numbers)
        except ValueError as error:
            # What is looked at beside the ranges of some names may lack those that are damaged.
            if not needed:
                return nothing
            raise self._text_among_ranges() from error
        return NamedRows(values, tuple(None if t is None else str(t) for t in texts))

    def _text_among_ranges(self) -> ProfileError:
        return ProfileError(
            f"{self.path}: {NVTX} holds text where a number belongs, so it is damaged or "
            f"was edited; {EXPORT_AGAIN}"
        )


@cache
def _patterns(globs: Sequence[str]) -> Binds:
    return binds_of(globs) if globs else {}


def _parameters(selection: Selection) -> Mapping[str, int | str | None]:
    """Return a selection as parameters of queries."""
    return {
        **dict(zip(KINDS, selection.kinds, strict=True)),
        **_patterns(selection.globs),
        "text_ids": json.dumps(selection.text_ids),
        "some_strings": bool(selection.text_ids),
        "threads": json.dumps(selection.threads),
        "shortest": selection.shortest_ns,
        "since": selection.since_ns,
        "until": selection.until_ns,
    }


#: The remedy where a table is absent or empty.
_RECORD_AGAIN = {
    KERNEL: "no CUDA kernels were recorded; profile again with: nsys profile -t cuda,nvtx "
    "(and --cuda-graph-trace=node where CUDA graphs are used)",
    RUNTIME: "no CUDA API calls were recorded, so kernels cannot be linked to ranges; "
    "profile again with: nsys profile -t cuda,nvtx",
    NVTX: "no NVTX ranges were recorded; profile again with: nsys profile -t cuda,nvtx, "
    "with ranges switched on in the training framework",
}
#: Words of warnings of nsys: plain ones, numbers of versions, CUPTI's error codes.
_PLAIN_WORD = re.compile(r"\(?(?:[A-Za-z'-]{1,16}|[0-9][0-9.]{0,7}|CUPTI_[A-Z_]{1,60})\)?[.,:?]?")
#: Longer texts are no warning of nsys about CUDA.
_LONGEST_WARNING = 300
#: The queries without which there is no analysis.
_NEEDED = ("gpu_work/kernels", "calls/all", "ranges/named")
#: What the tables that are counted hold.
_COUNTED = {
    "kernels": KERNEL,
    "CUDA API calls": RUNTIME,
    "NVTX rows": NVTX,
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUDA graphs traced as a whole": GRAPH,
}


def unrecorded(export: Export, table: str) -> NothingToAnalyseError:
    """Return the error of an export in which a table of kernels, calls or ranges is empty."""
    if table != NVTX and (reason := _traced_without_kernels(export)):
        return NothingToAnalyseError(f"{export.path}: {reason}")
    return NothingToAnalyseError(f"{export.path}: {_RECORD_AGAIN[table]}")


def _traced_without_kernels(export: Export) -> str:
    """Return why CUDA was traced and no kernel recorded; "" where it was not, or there are some."""
    if any(export.origin.count(table) for table in (KERNEL, GRAPH) if table in export.schema):
        return ""
    calls = export.origin.count(RUNTIME) if RUNTIME in export.schema else 0
    rows = export.rows("target/diagnostics") if export.has("target/diagnostics") else []
    warnings = list(dict.fromkeys(str(text) for (text,) in rows if _is_of_cuda(str(text))))[:3]
    if not calls and not warnings:
        return ""
    called = f", but {counted(calls, 'CUDA API call')}" if calls else ""
    reported = f" (nsys reported: {' '.join(warnings)})" if warnings else ""
    version = ", of a version that supports the driver" if "driver" in reported else ""
    return (
        f"no CUDA kernels were recorded{called}{reported}; profile a part of the run that launches "
        "some with: nsys profile -t cuda,nvtx (and --cuda-graph-trace=node where CUDA graphs are "
        f"used){version}"
    )


def _is_of_cuda(text: str) -> bool:
    """Tell whether a text is a warning about CUDA in nsys' own words.

    Others may repeat what the recorded program printed.
    """
    words = text.split() if len(text) <= _LONGEST_WARNING else []
    named = any(word.startswith(("CUDA", "CUPTI")) for word in words[:4])
    return named and all(_PLAIN_WORD.fullmatch(word) for word in words)


def check_recorded(export: Export) -> None:
    """Check that every table is there which an analysis needs, with its columns.

    Raises:
        NothingToAnalyseError: a table is absent.
        SchemaError: a table lacks a column.
    """
    for table in _RECORD_AGAIN:
        if table not in export.schema and not (table == KERNEL and GRAPH in export.schema):
            raise unrecorded(export, table)
    for name in _needed(export):
        export.require(name)


def _needed(export: Export) -> list[str]:
    """Return the queries that this export must answer.

    Where there are CUDA graphs traced as a whole, there need not be a table of kernels.
    """
    graphs_alone = KERNEL not in export.schema and GRAPH in export.schema
    return [name for name in _NEEDED if not (graphs_alone and name == "gpu_work/kernels")]


def check_ranges(export: Export) -> None:
    """Check that there are ranges, and that they can be read by name.

    Raises:
        NothingToAnalyseError: there is no range of any name.
        SchemaError: a table or a column that names ranges is missing.
    """
    export.require("ranges/any")
    if not has_ranges(export):
        raise unrecorded(export, NVTX)
    lacking = export.lacks("ranges/named")
    if lacking:
        raise SchemaError(
            f"{export.path}: the export lacks {', '.join(lacking)}, and no range is named "
            f"without; {EXPORT_AGAIN}"
        )


def range_limitations(export: Export, ranges: Ranges) -> tuple[Limitation, ...]:
    """Return the losses of ranges where a column is absent."""
    lacking = export.lacks("ranges/named")
    names = [lack for lack in lacking if not lack.endswith(".endGlobalTid")]
    notes = []
    if names:
        notes.append(
            Limitation(
                "names of ranges",
                f"{export.path} lacks {', '.join(names)}",
                kind=LimitationKind.RANGE_NAMES_LOST,
            )
        )
    if len(names) < len(lacking) and bool(ranges.start_end.any()):
        reason = f"{export.path} lacks {NVTX}.endGlobalTid, so their starting thread is taken"
        notes.append(Limitation("start/end ranges that another thread ended", reason))
    return tuple(notes)


def name_limitations(export: Export, kernel_names: Sequence[str]) -> tuple[Limitation, ...]:
    """Return the loss of names that are not in ``StringIds``."""
    if not any(name.startswith("<string ") for name in kernel_names):
        return ()
    reason = f"{export.path} has none for them in StringIds"
    return (
        Limitation(
            "names of kernels, and maybe of ranges", reason, kind=LimitationKind.RANGE_NAMES_LOST
        ),
    )


def table_counts(export: Export) -> tuple[TableCount, ...]:
    """Return the number of rows of the tables that an analysis reads."""
    return tuple(
        TableCount(what, table, export.origin.count(table) if table in export.schema else None)
        for what, table in _COUNTED.items()
    )


def missing_data(export: Export, tables: Sequence[TableCount]) -> tuple[tuple[str, ...], bool]:
    """Return what an export lacks, a sentence each, and whether it can be analysed all the same.

    Args:
        export: the open export.
        tables: their numbers of rows.
    """
    lacks = [lack for name in _NEEDED for lack in export.lacks(name)]
    if GRAPH in export.schema:
        lacks.extend(export.lacks("gpu_work/graphs"))
    rows = {table.table: table.rows or 0 for table in tables}
    graphs_readable = not any(lack.split(".")[0] == GRAPH for lack in lacks)
    traced = "" if rows[KERNEL] or rows[GRAPH] else _traced_without_kernels(export)
    losses = []
    if not rows[KERNEL] and not (rows[GRAPH] and graphs_readable):
        losses.append(traced or "no CUDA kernels: profile with nsys profile -t cuda,nvtx")
        if rows[GRAPH]:
            losses.append("CUDA graphs were traced as a whole: add --cuda-graph-trace=node")
    if not rows[RUNTIME]:
        losses.append("no CUDA API calls: profile with nsys profile -t cuda,nvtx")
    if not rows[NVTX]:
        losses.append(
            "no NVTX ranges: profile with nsys profile -t cuda,nvtx and switch the "
            "framework's ranges on"
        )
    readable = all(map(export.has, _needed(export))) and not losses
    columns = [lack for lack in dict.fromkeys(lacks) if "." in lack]
    columns = [column for column in columns if column.split(".")[0] in export.schema]
    if columns:
        losses.append(f"the export lacks {', '.join(columns)}, which analysis needs or misses")
    return tuple(losses), readable


#: The queries for the first and last row of the large tables.
_BOUNDS = ("gpu_work/kernel_bounds", "ranges/bounds", "calls/bounds")


@frozen
class NsysFile:
    """An open export; see :class:`~bubbleviz.sources.readers.OpenFile`."""

    export: Export
    scan: Scan
    # Ranges that an inspection has read, for an analysis, with those left out for their times.
    _inspected: list[tuple[NameFilter, Ranges, int]] = field(default_factory=list)

    def sample(self, globs: Sequence[str], rows: int = SAMPLED_ROWS, /) -> Mapping[str, int]:
        """Return how often names occur in a sample of the ranges, spread over the capture."""
        return sample_names(self.export, globs, rows)

    def read(self, globs: Sequence[str], *, partial: bool = False) -> Profile:
        """Return the profile.

        Args:
            globs: prefilters of the names of ranges.
            partial: read it all the same where it holds no calls, no ranges, or copies alone.

        Raises:
            ProfileError: it cannot be read.
            SchemaError: it lacks a column that is needed.
            NothingToAnalyseError: kernels, calls or ranges were not recorded.
        """
        export, scan = self.export, self.scan
        if not partial:
            check_recorded(export)
        # They serve where these names are among them, with ends that no other table tells.
        earlier = next(
            (s for s in self._inspected if set(globs) <= {*s[0].globs} and not s[1].cut.any()), None
        )
        with step("look up strings"):
            names = earlier[0] if earlier else name_filter(export, globs)
        with step("read kernels") as rows:
            activities, notes = activities_of(export, scan, names.call_names)
            rows.count = len(activities)
        if not (len(activities) if partial else activities.kernels):
            raise _without_kernels(export, notes)
        calls = self._calls(names.call_names)
        if not partial:
            if calls is None:
                raise unrecorded(export, RUNTIME)
            calls.begin()

        def last_ns() -> int:
            latest = 0 if partial or calls is None else calls.latest_end_ns()
            return max(int(activities.end_ns.max(initial=0)), latest)

        ranges, impossible = no_ranges(), 0
        if earlier:
            _, ranges, impossible = earlier
            ranges = ranges.take(np.array(fitting(globs, ranges.names), bool)[ranges.name_id])
        elif globs and export.has("ranges/named"):
            with step("read ranges") as rows:
                ranges, impossible = read_ranges(export, scan, names, last_ns)
                rows.count = len(ranges)
        if not partial:
            if not len(ranges):
                check_ranges(export)
            notes = (
                *range_limitations(export, ranges),
                *target_limitations(export),
                *name_limitations(export, activities.names),
                *notes,
            )
        overheads, left_out = overheads_of(export)
        return Profile(
            source=source_of(export),
            activities=activities,
            calls=calls or no_calls(),
            ranges=ranges,
            every_range=LongRanges(export, scan),
            overheads=overheads,
            threads=threads_of(export),
            devices=devices_of(export),
            limitations=(
                *notes,
                *left_out,
                *impossible_times(export.path, {"ranges": impossible}),
            ),
            system_calls=LongRanges(export) if export.has("calls/system") else None,
            payloads=lambda: read_payloads(export),
            payloads_described=export.has("ranges/payload_entries"),
            synchronisation=lambda: read_synchronisation(export, scan),
            memory=lambda: read_memory(export),
        )

    def _calls(self, call_names: Mapping[int, str]) -> ExportedCalls | None:
        """Return the calls, if any can have launched something."""
        if not self.export.has("calls/all") or not self.export.rows("calls/any"):
            return None
        kernels, graphs = (ids_of(call_names, n) for n in (KERNEL_LAUNCHES, GRAPH_LAUNCHES))
        return ExportedCalls(self.export, self.scan, kernels, graphs)

    def inspect(self, globs: Sequence[str]) -> Contents:
        """Return the contents of the export, ranges of these names among them.

        Raises:
            ProfileError: the file is damaged.
        """
        export = self.export
        candidates: list[NameCount] = []
        if export.has("ranges/named"):
            names = name_filter(export, globs)
            ranges, impossible = read_ranges(export, self.scan, names, lambda: 0)
            self._inspected.append((names, ranges, impossible))
            counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
            candidates = [NameCount(*pair) for pair in zip(ranges.names, counts, strict=True)]
        tables = table_counts(export)
        missing, readable = missing_data(export, tables)
        return Contents(
            source=source_of(export),
            tables=tables,
            processes=processes_of(export, self.scan),
            devices=devices_of(export),
            candidates=tuple(candidates),
            ranges=next(table.rows or 0 for table in tables if table.table == NVTX),
            missing=missing,
            readable=readable,
            reader=export.origin.account(),
        )


@contextmanager
def open_file(path: str, jobs: int = 1, watch: Watch = unwatched) -> Iterator[NsysFile]:
    """Open an SQLite export, to be read by so many threads.

    Raises:
        ProfileError: it is being written, damaged, or no export.
    """
    with opened(path) as export, scanned(export, jobs, watch) as file:
        yield file


@contextmanager
def scanned(export: Export, jobs: int, watch: Watch) -> Iterator[NsysFile]:
    """Have so many threads read an open export."""
    bounds = (export.bounds(name) for name in _BOUNDS if export.has(name))
    rows = sum(last - first + 1 for first, last in bounds)
    with scan_of(export, jobs, rows, watch) as scan:
        # The names of ranges to read are known only after a while; kernels need none.
        scan.begin("gpu_work/kernels", kernel_stretches(export, scan))
        yield NsysFile(export, scan)
        note_way(export.origin.account(), export.path)


def _without_kernels(export: Export, notes: Sequence[Limitation]) -> NothingToAnalyseError:
    """Return the error of an export without kernels, or of which each was left out."""
    left_out = [
        f"{note.count} {note.what}"
        for note in notes
        if note.kind is LimitationKind.KERNELS_LEFT_OUT
    ]
    if not left_out:
        return unrecorded(export, KERNEL)
    return NothingToAnalyseError(
        f"{export.path}: no kernel has times that can be ({', '.join(left_out)}); profile again "
        "with: nsys profile -t cuda,nvtx"
    )
