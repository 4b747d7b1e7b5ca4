"""Writes rows as small profiles in the layout of an nsys SQLite export.

Times are arbitrary small integers. Process and thread ids are plain numbers that are packed into
the global ids of the export.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

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

#: Columns of each table. They are integers unless marked as text. An exclamation mark means NOT
#: NULL.
_ACTIVITY = "start! end! deviceId! contextId! streamId! correlationId globalPid"
_TABLES = {
    "StringIds": "id! value:TEXT!",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY} demangledName! shortName! graphNodeId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} bytes! copyKind! srcKind dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value! bytes!",
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId "
        "domainId"
    ),
    "ThreadNames": "nameId! priority globalTid",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!",
    "ENUM_NSYS_EVENT_TYPE": "id! name:TEXT label:TEXT",
}


@dataclass(frozen=True)
class K:
    """A kernel. A ``correlation`` of None is written as NULL."""

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
    """A CUDA API call. A ``correlation`` of None is written as NULL."""

    start: int
    end: int
    correlation: int | None
    tid: int = 1
    pid: int = 1
    name: str = "cudaLaunchKernel"


@dataclass(frozen=True)
class R:
    """An NVTX range. ``end`` is None if it is open, and ``end_tid`` is the thread that ends it.

    ``registered`` stores the name in ``StringIds``, like a registered string of NVTX.
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
    """A copy or a fill.

    ``memory`` contains the ids of the memory kinds that it reads and writes.
    """

    start: int
    end: int
    correlation: int | None
    pid: int = 1
    device: int = 0
    stream: int = 7
    kind: int = 1
    size: int = 8
    memory: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class T:
    """The name of a thread."""

    tid: int
    name: str
    pid: int = 1


def pack_global_id(pid: int, tid: int = 0) -> int:
    """Pack a global id as nsys does: host << 48 | process << 24 | thread."""
    return HOST_ID << 48 | pid << 24 | tid


@dataclass
class _Strings:
    """Assigns ids to strings in order of first use."""

    ids: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids))


def write_profile(
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
    """Write a profile that contains the rows in the given order, and return its path.

    Args:
        folder: Directory of the profile.
        kernels: Rows of the kernel table.
        calls: Rows of the runtime table.
        ranges: Rows of the NVTX table.
        copies: Rows of the memcpy table.
        fills: Rows of the memset table.
        threads: Rows of the table of thread names.
        hostname: Name of the recorded host, or None to omit it.
        utc_epoch_ns: Start of the session, or None to omit it.
        without: Tables to drop after everything has been written.
        name: Name of the file.
    """
    path = folder / name
    path.unlink(missing_ok=True)
    text = _Strings()
    rows: dict[str, list[tuple[object, ...]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (*_list_activity_columns(k), text(k.name), text(k.name.split("(")[0]), k.graph_node)
            for k in kernels
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (c.start, c.end, 0, pack_global_id(c.pid, c.tid), c.correlation, text(c.name), 0, None)
            for c in calls
        ],
        "NVTX_EVENTS": [
            (
                r.start,
                r.end,
                r.kind,
                row,
                None,
                None,
                None if r.registered else r.name,
                pack_global_id(r.pid, r.tid),
                None if r.end_tid is None else pack_global_id(r.pid, r.end_tid),
                text(r.name) if r.registered and r.name is not None else None,
                r.domain,
            )
            for row, r in enumerate(ranges)
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            (*_list_activity_columns(m), m.size, m.kind, *m.memory) for m in copies
        ],
        "CUPTI_ACTIVITY_KIND_MEMSET": [(*_list_activity_columns(m), 0, 8) for m in fills],
        "ThreadNames": [(text(t.name), 20, pack_global_id(t.pid, t.tid)) for t in threads],
        "TARGET_INFO_SYSTEM_ENV": [(HOST_ID << 48, "Local", "Hostname", 1, hostname)],
        "TARGET_INFO_SESSION_START_TIME": [(utc_epoch_ns, "", "")],
        "ENUM_NSYS_EVENT_TYPE": [(n, label, label) for n, label in _EVENT_TYPES.items()],
        "StringIds": [(number, value) for value, number in text.ids.items()],
    }
    if hostname is None:
        rows["TARGET_INFO_SYSTEM_ENV"] = []
    if utc_epoch_ns is None:
        rows["TARGET_INFO_SESSION_START_TIME"] = []
    with closing(sqlite3.connect(path)) as db:
        # The file is not needed after the test, so it does not have to be protected against
        # crashes.
        db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        for table in [table for table in _TABLES if table not in without]:
            db.execute(f"CREATE TABLE {table} ({_declare_columns(_TABLES[table])})")
            slots = ",".join("?" * len(_TABLES[table].split()))
            db.executemany(f"INSERT INTO {table} VALUES ({slots})", rows[table])
        db.commit()
    return path


@dataclass
class ExportRows:
    """Rows of an export, added launch by launch.

    Attributes:
        pid: Process id for the next rows. The process's thread has the same id.
    """

    pid: int = 1
    kernels: list[K] = field(default_factory=list)
    calls: list[C] = field(default_factory=list)
    ranges: list[R] = field(default_factory=list)

    def launch(
        self, called: int, start: int, end: int, name: str = "gemm", *, took: int = 1, **fields: int
    ) -> None:
        """Add a kernel, and the call that launches it.

        Args:
            called: Start of the launching call.
            start: Start of the kernel.
            end: End of the kernel.
            name: Name of the kernel.
            took: Duration of the launching call.
            fields: Additional fields of the kernel.
        """
        number = len(self.calls) + 1
        self.calls.append(C(called, called + took, number, tid=self.pid, pid=self.pid))
        self.kernels.append(K(start, end, number, name, pid=self.pid, **fields))

    def add_range(self, start: int, end: int, name: str, *, registered: bool = False) -> None:
        """Add a range on the launching thread."""
        self.ranges.append(R(start, end, name, tid=self.pid, pid=self.pid, registered=registered))

    def write(self, folder: Path, **options: Any) -> Path:
        """Write the profile of these rows; see :func:`write_profile`."""
        return write_profile(folder, self.kernels, self.calls, self.ranges, **options)


def _list_activity_columns(row: K | M) -> tuple[object, ...]:
    """Return the values of the columns that the kernel, copy and fill tables share."""
    device_columns = (row.device, 1, row.stream)
    return (row.start, row.end, *device_columns, row.correlation, pack_global_id(row.pid))


@cache
def _declare_columns(columns: str) -> str:
    """Return the SQL column definitions for an entry of ``_TABLES``."""
    declared = []
    for word in columns.split():
        name, _, kind = word.rstrip("!").partition(":")
        key = " PRIMARY KEY" if word == "id!" else ""
        needed = " NOT NULL" if word.endswith("!") else ""
        declared.append(f"{name} {kind or 'INTEGER'}{needed}{key}")
    return ", ".join(declared)
