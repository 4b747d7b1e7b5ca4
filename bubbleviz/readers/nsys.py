"""Nsight Systems: the SQLite file of ``nsys export --type sqlite``.

The file is opened read-only and immutable, so that nothing is ever written to it or beside it.
What a version of nsys lacks is probed, table by table and column by column, and either has
another query, or is a limitation, or is an error that names it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias, TypeVar, cast
from urllib.parse import quote

import numpy as np
import sqlalchemy
from sqlalchemy.pool import NullPool

from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.errors import NothingToAnalyseError, ProfileError, SchemaError
from bubbleviz.model import Limitation
from bubbleviz.profile import (
    Calls,
    Contents,
    Copies,
    Device,
    Kernels,
    NameCount,
    Profile,
    Ranges,
    Source,
    TableCount,
    Thread,
)
from bubbleviz.queries import Query, query
from bubbleviz.readers import EXPORT_AGAIN, Reader

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX = "NVTX_EVENTS"
_GLOB_SLOTS = 16

#: Codes of NVTX_EVENTS.eventType where the export holds no ENUM_NSYS_EVENT_TYPE.
_EVENT_TYPES = {
    "NvtxPushPopRange": 59,
    "NvtxStartEndRange": 60,
    "NvtxtPushPopRange": 70,
    "NvtxtStartEndRange": 71,
}
#: What is missing when a table is absent, and what records it.
_RECORD_AGAIN = {
    _KERNEL: "no CUDA kernels were recorded; profile again with: nsys profile -t cuda,nvtx "
    "(and --cuda-graph-trace=node where CUDA graphs are used)",
    _RUNTIME: "no CUDA API calls were recorded, so kernels cannot be linked to ranges; "
    "profile again with: nsys profile -t cuda,nvtx",
    _NVTX: "no NVTX ranges were recorded; profile again with: nsys profile -t cuda,nvtx, "
    "with ranges switched on in the training framework",
}

#: The queries that analysis cannot do without, each with what stands in for it.
_NEEDED = {
    "kernels": ("kernels",),
    "calls": ("calls",),
    "ranges": ("ranges", "ranges_same_thread", "ranges_registered_only", "ranges_text_only"),
}
_RANGE_NAMES = ("range_names", "range_names_registered_only", "range_names_text_only")
_SAMPLE_NAMES = ("sample_names", "sample_names_registered_only", "sample_names_text_only")
#: A sample is at most so many pieces of so many rows.
_SAMPLES = 64
_SAMPLE_ROWS = 1000
#: Times beyond this (36 years) are no times; CUPTI is known to write such rows.
_IMPOSSIBLE_NS = 1 << 60

Binds: TypeAlias = Mapping[str, int | str | None]
Schema: TypeAlias = Mapping[str, frozenset[str]]


_T = TypeVar("_T", Kernels, Calls, Copies, Ranges)


@dataclass(frozen=True)
class _Export:
    """An open export: runs the queries of ``sql/nsys``."""

    path: str
    connection: sqlalchemy.Connection
    schema: Schema

    def lacks(self, *names: str) -> tuple[str, ...]:
        """Return what the export lacks for the first of the queries, if it can run none."""
        if any(self.has(name) for name in names):
            return ()
        return query(f"nsys/{names[0]}").lacks(self.schema)

    def choose(self, *names: str) -> Query:
        """Return the first of the queries for which the export has everything.

        Raises:
            SchemaError: it has it for none; the message says what the first one lacks.
        """
        for name in names:
            if not query(f"nsys/{name}").lacks(self.schema):
                return query(f"nsys/{name}")
        lacking = query(f"nsys/{names[0]}").lacks(self.schema)
        raise SchemaError(
            f"{self.path}: the export lacks {', '.join(lacking)}, which sql/nsys/{names[0]}.sql "
            f"needs; {EXPORT_AGAIN}"
        )

    def has(self, name: str) -> bool:
        """Tell whether the export has everything that a query needs."""
        return not query(f"nsys/{name}").lacks(self.schema)

    @contextmanager
    def _cursor(self, chosen: Query, binds: Binds) -> Iterator[sqlite3.Cursor]:
        raw = cast(sqlite3.Cursor, self.connection.connection.cursor())
        try:
            raw.execute(chosen.text, dict(binds))
            yield raw
        except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            raise ProfileError(
                f"{self.path}: sql/{chosen.name}.sql failed ({error}); the file is damaged or "
                f"was cut short: {EXPORT_AGAIN}"
            ) from error
        finally:
            raw.close()

    def rows(self, chosen: Query, binds: Binds | None = None) -> list[tuple[object, ...]]:
        """Return the rows of a query with a small result."""
        with self._cursor(chosen, binds or {}) as cursor:
            return cursor.fetchall()

    def columns(self, chosen: Query) -> Ints:
        """Return the int64 columns of a query, shape (columns, rows).

        The cursor's rows are read by the driver's own iterator, not through SQLAlchemy's row
        objects, which cost three times as much as SQLite's decoding.
        """
        with self._cursor(chosen, {}) as cursor:
            width = len(cursor.description)
            flat = np.fromiter(chain.from_iterable(cursor), np.int64)
            return np.ascontiguousarray(flat.reshape(-1, width).T)


@contextmanager
def _opened(path: str) -> Iterator[_Export]:
    """Open an export read-only.

    Raises:
        ProfileError: it is being written, damaged, or no SQLite file.
    """
    real = str(Path(path).resolve())
    for suffix, least in (("-journal", 0), ("-wal", 1)):
        beside = Path(real + suffix)
        if beside.exists() and beside.stat().st_size >= least:
            raise ProfileError(
                f"{path}: is still being written, or its writer died ({beside.name} lies beside "
                f"it); wait for nsys to finish, or {EXPORT_AGAIN}"
            )
    _check_length(path)
    uri = f"file:{quote(os.fsencode(real))}?mode=ro&immutable=1"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        return connection

    engine = sqlalchemy.create_engine("sqlite://", creator=connect, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield _Export(path, connection, _schema(path, connection))
    except sqlalchemy.exc.DatabaseError as error:
        raise ProfileError(
            f"{path}: is damaged or was cut short ({error.orig}); {EXPORT_AGAIN}"
        ) from error
    finally:
        engine.dispose()


def _check_length(path: str) -> None:
    """Raise ProfileError where the file is shorter than its own header says."""
    with Path(path).open("rb") as file:
        head = file.read(100)
    size = Path(path).stat().st_size
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    if len(head) < 100 or page * pages > size:
        raise ProfileError(f"{path}: was cut short, {size} of {page * pages} bytes; {EXPORT_AGAIN}")


def _schema(path: str, connection: sqlalchemy.Connection) -> Schema:
    inspector = sqlalchemy.inspect(connection)
    schema = {
        table: frozenset(column["name"] for column in inspector.get_columns(table))
        for table in inspector.get_table_names()
        if not table.startswith("ENUM_") or table == "ENUM_NSYS_EVENT_TYPE"
    }
    if not {"StringIds", _KERNEL, _RUNTIME, _NVTX} & set(schema):
        raise ProfileError(
            f"{path}: an SQLite database, but no nsys export: it has none of the tables "
            f"StringIds, {_KERNEL}, {_RUNTIME}, {_NVTX}; {EXPORT_AGAIN}"
        )
    return schema


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _number(export: _Export, value: object) -> int:
    """Return a value that must be a number; SQLite keeps text in any column."""
    if not isinstance(value, int):
        raise ProfileError(
            f"{export.path}: holds {type(value).__name__} where a number belongs, so it is "
            f"damaged or was edited; {EXPORT_AGAIN}"
        )
    return value


def _possible(start_ns: Ints, end_ns: Ints) -> Bools:
    """Tell which rows have times that can be: in order, and of this age."""
    inside = (np.abs(start_ns) < _IMPOSSIBLE_NS) & (np.abs(end_ns) < _IMPOSSIBLE_NS)
    return np.asarray(inside & (end_ns >= start_ns), bool)


def _only_possible(export: _Export, what: str, table: _T) -> tuple[_T, tuple[Limitation, ...]]:
    """Return the table without rows whose times cannot be, and how many these were."""
    keep = _possible(table.start_ns, table.end_ns)
    if keep.all():
        return table, ()
    because = f"{export.path}: they end before they start, or lie years away; they are left out"
    strange = Limitation(f"{what} with impossible times", because, int((~keep).sum()))
    return table.take(keep), (strange,)


def _first(export: _Export, name: str) -> object:
    """Return the single value of a query; None where the export cannot say."""
    rows = export.rows(query(f"nsys/{name}")) if export.has(name) else []
    return rows[0][0] if rows else None


def _source(export: _Export) -> Source:
    versions: dict[object, object] = {}
    for name in ("meta_export", "meta_export_2022"):
        if export.has(name):
            versions.update({row[0]: row[1] for row in export.rows(query(f"nsys/{name}"))})
    hostname = _first(export, "host")
    nsys, schema = versions.get("EXPORT_PRODUCT_VERSION"), versions.get("EXPORT_SCHEMA_VERSION")
    return Source(
        path=export.path,
        host=str(hostname) if hostname else Path(export.path).name,
        host_known=bool(hostname),
        format="nsys",
        nsys_version=None if nsys is None else str(nsys),
        schema_version=None if schema is None else str(schema),
        session_utc_ns=_whole(_first(export, "session")),
        session_clock_ns=_whole(_first(export, "session_clock")),
    )


def _event_types(export: _Export) -> Mapping[str, int]:
    """Return the codes of the four kinds of ranges, as bind values."""
    codes = dict(_EVENT_TYPES)
    if export.has("event_types"):
        for name, code in export.rows(query("nsys/event_types")):
            codes[str(name)] = _number(export, code)
    return {
        "push_pop": codes["NvtxPushPopRange"],
        "start_end": codes["NvtxStartEndRange"],
        "nvtxt_push_pop": codes["NvtxtPushPopRange"],
        "nvtxt_start_end": codes["NvtxtStartEndRange"],
    }


def _kernels(export: _Export) -> Kernels:
    columns = export.columns(export.choose("kernels"))
    ids, name_id = np.unique(columns[5], return_inverse=True)
    texts = _strings(export, ids)
    start_ns, end_ns, device_id, process, correlation_id, _ = columns
    return Kernels(
        start_ns, end_ns, device_id, process, correlation_id, name_id.astype(np.int64), texts
    )


def _strings(export: _Export, ids: Ints) -> tuple[str, ...]:
    """Return the text of each string id; a made-up one where the export has none."""
    known: dict[int, str] = {}
    if export.has("strings"):
        binds = {"ids": json.dumps(ids.tolist())}
        rows = export.rows(query("nsys/strings"), binds)
        known = {_number(export, row[0]): str(row[1]) for row in rows}
    return tuple(known.get(i, f"<string {i}>") for i in ids.tolist())


def _copies(export: _Export) -> tuple[Copies, tuple[Limitation, ...]]:
    found, limitations = [], []
    for name in ("copies", "fills"):
        table = next(iter(query(f"nsys/{name}").requires))
        if export.has(name):
            found.append(export.columns(query(f"nsys/{name}")))
        elif table in export.schema:
            lacking = ", ".join(query(f"nsys/{name}").lacks(export.schema))
            limitations.append(Limitation(f"memory {name}", f"{export.path} lacks {lacking}"))
    columns = np.concatenate(found, axis=1) if found else np.empty((5, 0), np.int64)
    return Copies(*np.ascontiguousarray(columns)), tuple(limitations)


def _ranges(export: _Export, globs: Sequence[str], last_ns: int) -> Ranges:
    """Return the ranges whose names pass one of the prefilters.

    Args:
        export: the open export.
        globs: the prefilters; more than the query has slots for stand for all names.
        last_ns: latest time seen elsewhere in the capture.
    """
    chosen = tuple(globs) if 0 < len(globs) <= _GLOB_SLOTS else ("*",)
    types = _event_types(export)
    binds: dict[str, int | str | None] = {**types, "globs": len(chosen)}
    padded = (*chosen, *[None] * (_GLOB_SLOTS - len(chosen)))
    binds.update({f"glob_{i}": glob for i, glob in enumerate(padded, 1)})
    rows = export.rows(export.choose(*_NEEDED["ranges"]), binds)
    if any(type(value) is not int for row in rows for value in row[:1] + row[2:5]):
        raise ProfileError(
            f"{export.path}: NVTX_EVENTS holds text where a number belongs, so it is damaged or "
            f"was edited; {EXPORT_AGAIN}"
        )
    start, end, kind, thread, end_thread, text = zip(*rows, strict=True) if rows else ((),) * 6
    cut = np.array([e is None for e in end], bool)
    ends = np.array([NONE if e is None else e for e in end], np.int64)
    starts = np.array(start, np.int64)
    ends[cut] = max(int(times.max(initial=last_ns)) for times in (ends, starts))
    names: dict[str, int] = {}
    name_id = [names.setdefault(str(t), len(names)) for t in text]
    kinds = np.array(kind, np.int64)
    return Ranges(
        start_ns=starts,
        end_ns=ends,
        thread=np.array(thread, np.int64),
        end_thread=np.array(end_thread, np.int64),
        start_end=np.isin(kinds, [types["start_end"], types["nvtxt_start_end"]]),
        cut=cut,
        name_id=np.array(name_id, np.int64),
        names=tuple(names),
    )


def _threads(export: _Export) -> tuple[Thread, ...]:
    if not export.has("threads"):
        return ()
    rows = export.rows(query("nsys/threads"))
    named = {(_number(export, row[0]), str(row[1])) for row in rows}
    return tuple(Thread(thread, name) for thread, name in sorted(named))


def _devices(export: _Export) -> tuple[Device, ...]:
    if not (export.has("gpus") or export.has("gpus_without_uuid")):
        return ()
    rows = export.rows(export.choose("gpus", "gpus_without_uuid"))
    gpus = {_number(export, i): (str(name), str(uuid) or None) for i, name, uuid in rows}
    if not export.has("cuda_devices"):
        return tuple(Device(None, i, *known) for i, known in sorted(gpus.items()))
    seen = export.rows(query("nsys/cuda_devices"))
    return tuple(
        Device(_number(export, pid), _number(export, device), *gpus[_number(export, gpu)])
        for pid, device, gpu in seen
        if gpu in gpus
    )


def read(path: str, globs: Sequence[str]) -> Profile:
    """Return the profile in an nsys export.

    Args:
        path: the ``.sqlite`` file.
        globs: prefilters of the range names wanted (SQLite GLOB).

    Raises:
        ProfileError: it cannot be read; SchemaError: it lacks a column that is needed;
        NothingToAnalyseError: kernels, calls or ranges were not recorded.
    """
    with _opened(path) as export:
        for table, remedy in _RECORD_AGAIN.items():
            if table not in export.schema:
                raise NothingToAnalyseError(f"{path}: {remedy}")
        for queries in _NEEDED.values():
            export.choose(*queries)
        kernels, strange_kernels = _only_possible(export, "kernels", _kernels(export))
        if len(kernels) == 0:
            raise NothingToAnalyseError(f"{path}: {_RECORD_AGAIN[_KERNEL]}")
        calls, strange_calls = _only_possible(
            export, "CUDA API calls", Calls(*export.columns(export.choose("calls")))
        )
        if len(calls) == 0:
            raise NothingToAnalyseError(f"{path}: {_RECORD_AGAIN[_RUNTIME]}")
        copies, lacking = _copies(export)
        copies, strange_copies = _only_possible(export, "copies", copies)
        last_ns = max(int(t.end_ns.max(initial=0)) for t in (kernels, calls, copies))
        ranges, strange_ranges = _only_possible(export, "ranges", _ranges(export, globs, last_ns))
        if len(ranges) == 0:
            _refuse_without_ranges(export)
        return Profile(
            source=_source(export),
            kernels=kernels,
            copies=copies,
            calls=calls,
            ranges=ranges,
            threads=_threads(export),
            devices=_devices(export),
            limitations=(
                *_names_lost(export),
                *_facts_lost(export),
                *lacking,
                *strange_kernels,
                *strange_calls,
                *strange_copies,
                *strange_ranges,
            ),
        )


def _refuse_without_ranges(export: _Export) -> None:
    """Raise NothingToAnalyseError where there is no range of any name."""
    if not export.rows(export.choose("any_range"), _event_types(export)):
        raise NothingToAnalyseError(f"{export.path}: {_RECORD_AGAIN[_NVTX]}")
    lacking = query("nsys/ranges").lacks(export.schema)
    if lacking:
        raise SchemaError(
            f"{export.path}: the export lacks {', '.join(lacking)}, and no range is named "
            f"without; {EXPORT_AGAIN}"
        )


def _lacking(export: _Export, name: str) -> tuple[str, ...]:
    return query(f"nsys/{name}").lacks(export.schema)


def _names_lost(export: _Export) -> tuple[Limitation, ...]:
    """Return what names of ranges are lost where a column is absent."""
    lost = [lack for lack in _lacking(export, "ranges") if not lack.endswith(".endGlobalTid")]
    what = "names of ranges"
    return (Limitation(what, f"{export.path} lacks {', '.join(lost)}"),) if lost else ()


#: What is lost where an optional query cannot run.
_OPTIONAL = {
    "threads": "names of threads, which tell loaders and watchdogs from backward threads",
    "host": "the hostname; the file stands for a host of its own, --same-clock joins files",
    "session": "the start of the session, which puts profiles on one clock",
}


def _facts_lost(export: _Export) -> tuple[Limitation, ...]:
    """Return what the absence of optional tables and columns loses."""
    return tuple(
        Limitation(what, f"{export.path} lacks {', '.join(_lacking(export, name))}")
        for name, what in _OPTIONAL.items()
        if not export.has(name)
    )


def _tables(export: _Export) -> tuple[TableCount, ...]:
    counted = (
        ("kernels", _KERNEL),
        ("CUDA API calls", _RUNTIME),
        ("NVTX rows", _NVTX),
        ("copies", "CUPTI_ACTIVITY_KIND_MEMCPY"),
        ("fills", "CUPTI_ACTIVITY_KIND_MEMSET"),
        ("CUDA graphs traced as a whole", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
    )
    found = []
    for what, table in counted:
        rows = None
        if table in export.schema:
            count = sqlalchemy.select(sqlalchemy.func.count()).select_from(sqlalchemy.table(table))
            rows = export.connection.execute(count).scalar_one()
        found.append(TableCount(what, table, rows))
    return tuple(found)


def inspect(path: str, globs: Sequence[str], most: int = 20) -> Contents:
    """Return what an export holds.

    Args:
        path: the ``.sqlite`` file.
        globs: prefilters of the range names that conventions may know.
        most: how many of the most frequent range names to list.

    Raises:
        ProfileError: it cannot be read.
    """
    with _opened(path) as export:
        names: list[NameCount] = []
        candidates: list[NameCount] = []
        if not export.lacks(*_RANGE_NAMES):
            chosen = export.choose(*_RANGE_NAMES)
            rows = export.rows(chosen, {**_event_types(export), "most": most})
            names = [NameCount(str(t), _number(export, n)) for t, n in rows if t is not None]
        if not export.lacks(*_NEEDED["ranges"]):
            ranges = _ranges(export, globs, 0)
            counts = np.bincount(ranges.name_id, minlength=len(ranges.names)).tolist()
            candidates = [NameCount(*pair) for pair in zip(ranges.names, counts, strict=True)]
        processes: tuple[int, ...] = ()
        if export.has("kernels"):
            processes = tuple(np.unique(export.columns(query("nsys/kernels"))[3]).tolist())
        return Contents(
            source=_source(export),
            tables=_tables(export),
            processes=processes,
            devices=_devices(export),
            names=tuple(names),
            candidates=tuple(candidates),
            lacks=tuple(lack for first, *_ in _NEEDED.values() for lack in _lacking(export, first)),
            readable=not any(export.lacks(*names) for names in _NEEDED.values()),
        )


def sample(path: str) -> Mapping[str, int]:
    """Return how often each name occurs in a sample of the ranges, spread over the capture.

    Args:
        path: the ``.sqlite`` file.

    Raises:
        ProfileError: it cannot be read.
    """
    counts: Counter[str] = Counter()
    with _opened(path) as export:
        if export.lacks(*_SAMPLE_NAMES) or not export.has("range_rows"):
            return counts
        chosen, types = export.choose(*_SAMPLE_NAMES), _event_types(export)
        last = export.rows(query("nsys/range_rows"))
        last_row = _number(export, last[0][0]) if last else 0
        step = max(last_row // _SAMPLES, _SAMPLE_ROWS)
        for first in range(0, last_row + 1, step):
            binds = {**types, "first": first, "last": first + _SAMPLE_ROWS - 1}
            counts.update(str(row[0]) for row in export.rows(chosen, binds) if row[0] is not None)
    return counts


READER = Reader(
    name="nsys",
    suffixes=(".sqlite",),
    recognises=lambda head: head.startswith(b"SQLite format 3\0"),
    read=read,
    sample=sample,
    inspect=inspect,
)
