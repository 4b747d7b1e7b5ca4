"""Writes small profiles in the layout of an nsys SQLite export: rows in, path out.

Times are whatever small integers a test likes; process and thread ids are plain numbers, and the
builder packs them into the global ids of the export.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HOST_ID = 1
PUSH_POP = 59
START_END = 60

_EVENT_TYPES = {
    34: "NvtxMark",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    70: "NvtxtPushPopRange",
    71: "NvtxtStartEndRange",
    75: "NvtxDomainCreate",
}

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
  shortName INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
  nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL,
  name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
"""


@dataclass(frozen=True)
class K:
    """A kernel; ``correlation`` None writes NULL."""

    start: int
    end: int
    correlation: int | None
    name: str = "gemm"
    pid: int = 1
    device: int = 0
    stream: int = 7
    graph_node: int | None = None


@dataclass(frozen=True)
class C:
    """An API call."""

    start: int
    end: int
    correlation: int | None
    tid: int = 1
    pid: int = 1
    name: str = "cudaLaunchKernel"


@dataclass(frozen=True)
class R:
    """A range; ``end`` None is a range still open, ``end_tid`` where a start/end range ends.

    ``registered`` stores the name in ``StringIds``, as NVTX registered strings are.
    """

    start: int
    end: int | None
    name: str | None
    tid: int = 1
    pid: int = 1
    kind: int = PUSH_POP
    end_tid: int | None = None
    registered: bool = False
    domain: int = 0


@dataclass(frozen=True)
class M:
    """A copy or a fill."""

    start: int
    end: int
    correlation: int | None
    pid: int = 1
    device: int = 0
    stream: int = 7
    kind: int = 1


@dataclass(frozen=True)
class T:
    """The name of a thread."""

    tid: int
    name: str
    pid: int = 1


def global_id(pid: int, tid: int = 0) -> int:
    """Pack a global id as nsys does: host << 48 | process << 24 | thread."""
    return HOST_ID << 48 | pid << 24 | tid


@dataclass
class _Strings:
    """Ids of strings, in order of first use."""

    ids: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))


def profile(
    folder: Path,
    kernels: list[K] | tuple[K, ...] = (),
    calls: list[C] | tuple[C, ...] = (),
    ranges: list[R] | tuple[R, ...] = (),
    *,
    copies: list[M] | tuple[M, ...] = (),
    fills: list[M] | tuple[M, ...] = (),
    threads: list[T] | tuple[T, ...] = (),
    hostname: str | None = "host",
    utc_epoch_ns: int | None = 1_700_000_000_000_000_000,
    without: tuple[str, ...] = (),
    name: str = "profile.sqlite",
) -> Path:
    """Write a profile of these rows, in this order, and return its path.

    Args:
        folder: where to write it.
        kernels: rows of the kernel table.
        calls: rows of the runtime table.
        ranges: rows of the NVTX table.
        copies: rows of the memcpy table.
        fills: rows of the memset table.
        threads: rows of the table of thread names.
        hostname: of the recorded host; None leaves it out.
        utc_epoch_ns: start of the session; None leaves it out.
        without: tables to drop again at the end.
        name: of the file.
    """
    path = folder / name
    path.unlink(missing_ok=True)
    text = _Strings()
    with closing(sqlite3.connect(path)) as db:
        # Nothing is kept after a test: a crash may cost the file.
        db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        db.executescript(_SCHEMA)
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,1,?,?,?,?,?,?)",
            [
                (
                    *(k.start, k.end, k.device, k.stream, k.correlation, global_id(k.pid)),
                    *(text(k.name), text(k.name.split("(")[0]), k.graph_node),
                )
                for k in kernels
            ],
        )
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,0,?,?,?,0,NULL)",
            [(c.start, c.end, global_id(c.pid, c.tid), c.correlation, text(c.name)) for c in calls],
        )
        db.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,NULL,NULL,?,?,?,?,?)",
            [
                (
                    *(r.start, r.end, r.kind, row, None if r.registered else r.name),
                    global_id(r.pid, r.tid),
                    None if r.end_tid is None else global_id(r.pid, r.end_tid),
                    text(r.name) if r.registered and r.name is not None else None,
                    r.domain,
                )
                for row, r in enumerate(ranges)
            ],
        )
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,1,?,?,?,8,?)",
            [
                (m.start, m.end, m.device, m.stream, m.correlation, global_id(m.pid), m.kind)
                for m in copies
            ],
        )
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?,?,?,1,?,?,?,0,8)",
            [(m.start, m.end, m.device, m.stream, m.correlation, global_id(m.pid)) for m in fills],
        )
        db.executemany(
            "INSERT INTO ThreadNames VALUES (?,20,?)",
            [(text(t.name), global_id(t.pid, t.tid)) for t in threads],
        )
        if hostname is not None:
            db.execute(
                "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?,'Local','Hostname',1,?)",
                (HOST_ID << 48, hostname),
            )
        if utc_epoch_ns is not None:
            db.execute(
                "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?,'','')", (utc_epoch_ns,)
            )
        db.executemany(
            "INSERT INTO ENUM_NSYS_EVENT_TYPE VALUES (?,?,?)",
            [(number, label, label) for number, label in _EVENT_TYPES.items()],
        )
        db.executemany(
            "INSERT INTO StringIds VALUES (?,?)",
            [(number, value) for value, number in text.ids.items()],
        )
        for table in without:
            db.execute(f'DROP TABLE "{table}"')
        db.commit()
    return path


def edited(path: Path, *statements: str, source: Path | None = None) -> Path:
    """Return a profile after these statements: a copy of a source, or a planted one itself."""
    if source is not None:
        path.write_bytes(source.read_bytes())
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path
