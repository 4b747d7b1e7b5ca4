"""Converts synthetic nsys exports to profiles in the formats of ROCm's tools."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import Process

_FOLDER = Path(__file__).parent
_ROCPD = (_FOLDER / "rocpd_tables.sql").read_text()
_RPD = (_FOLDER / "rpd_tables.sql").read_text()
#: Secret text for columns whose content must not appear in any output.
SECRET = "hunter2-AWS-TOKEN"
#: (category of ranges, function of nested ranges, function of other ranges) by ROCm release.
MARKERS = {
    "7": ("MARKER_CORE_RANGE_API", "roctxThreadRangeA", "roctxProcessRangeA"),
    "6.4": ("MARKER_CORE_API", "roctxRangePushA", "roctxRangeStartA"),
}
#: Number of CPU agents per node. Their numbers precede those of the GPUs.
_CPUS = 2


class _Strings:
    """Strings of one process. The ids differ between processes."""

    def __init__(self, first: int) -> None:
        self.ids: dict[str, int] = {}
        self.first = first

    def id(self, text: str) -> int:
        return self.ids.setdefault(text, self.first + len(self.ids))


@dataclass
class _Events:
    """Events of one process, numbered from 1."""

    rows: list[tuple[int, int, int, int, int, str]] = field(default_factory=list)

    def id(self, category: int, stack: int, correlation: int, text: str = "{}") -> int:
        number = len(self.rows) + 1
        self.rows.append((number, category, stack, stack, correlation, text))
        return number


def write_rocpd(
    path: Path,
    processes: Sequence[Process],
    *,
    release: str = "7",
    link: str = "stack_id",
    suffixed: bool = True,
    machine: str = "",
) -> Path:
    """Write a file of rocprofv3, or a merged file if there are several processes.

    Args:
        path: Output file.
        processes: Processes in the file.
        release: Release of ROCm, a key of ``MARKERS``.
        link: Column of the events table that links a call with its work.
        suffixed: Whether table names end with the GUID of the process. If not, only rows contain
            it.
        machine: Id of the machine, or "" to derive it from the host name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for number, process in enumerate(processes):
            guid = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{process.host}.{process.pid}.{number}"))
            suffix = f"_{guid.replace('-', '_')}" if suffixed else ""
            if suffixed or number == 0:
                ddl = _ROCPD.replace("{{guid}}", guid).replace("{{suffix}}", suffix)
                db.executescript(ddl if suffixed else ddl.replace(" PRIMARY KEY AUTOINCREMENT", ""))
            writer = _RocpdWriter(db, guid, suffix, release, link, machine)
            writer.write(process, number)
        if suffixed:
            _add_views(db)
        db.commit()
    return path


def _add_views(db: sqlite3.Connection) -> None:
    """Add the views without a GUID in their names. They combine the tables of all processes."""
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    bases = {name[:-37] for name in tables if name.startswith("rocpd_")}
    for base in sorted(bases):
        parts = [f'SELECT * FROM "{t}"' for t in tables if t[:-37] == base]
        db.execute(f'CREATE VIEW "{base}" AS {" UNION ALL ".join(parts)}')


@dataclass
class _RocpdWriter:
    """Writes processes to a file in the format of rocprofv3.

    Attributes:
        db: The open file.
        guid: GUID of the process, written into each row.
        suffix: Suffix of the table names.
        release: Release of ROCm, a key of ``MARKERS``.
        link: Column of the events table that links a call with its work.
        machine: Id of the machine, or "" to derive it from the host name.
    """

    db: sqlite3.Connection
    guid: str
    suffix: str
    release: str
    link: str
    machine: str

    def insert(self, table: str, rows: Sequence[tuple[object, ...]], columns: str) -> None:
        """Insert rows into a table. Rows contain the GUID, except in the metadata table.

        Args:
            table: Name of the table, without the prefix ``rocpd_`` and the suffix.
            rows: Values of the columns.
            columns: Names of the columns, separated by commas.
        """
        names = [f'"{c.strip()}"' for c in columns.split(",")]
        with_guid = table != "metadata"
        names += ['"guid"'] if with_guid else []
        marks = ", ".join("?" * len(names))
        self.db.executemany(
            f'INSERT INTO "rocpd_{table}{self.suffix}" ({", ".join(names)}) VALUES ({marks})',
            [(*row, self.guid) if with_guid else row for row in rows],
        )

    def ids(self, number: int, other: int = 0) -> tuple[int, int]:
        """Return the (stack id, correlation id) pair of an event."""
        return (number, other) if self.link == "stack_id" else (0, number)

    def write(self, process: Process, number: int) -> None:
        """Write all tables of a process. Fills are written as kernels of the runtime.

        Args:
            process: The process.
            number: Index of the process in the file. It makes ids differ between processes.
        """
        strings, events = _Strings(1 + 3 * number), _Events()
        node, pid = 77, process.pid
        columns_of_node = "id, hash, machine_id, hostname"
        category, pushed, started = MARKERS[self.release]
        machine = self.machine or f"machine-of-{process.host}"
        self.insert("metadata", [(1 + number, "schema_version", "3")], "id, tag, value")
        self.insert("info_node", [(node, 5, machine, process.host)], columns_of_node)
        secrets = (f"train.py --key {SECRET}", json.dumps({"TOKEN": SECRET}))
        self.insert(
            "info_process",
            [(pid, node, pid, 1, 1, *secrets, json.dumps({"x": SECRET}))],
            "id, nid, pid, start, end, command, environment, extdata",
        )
        names = dict(process.threads)
        tids = sorted({row[2] for row in (*process.calls, *process.ranges)} | set(names))
        self.insert(
            "info_thread",
            [(tid, node, pid, tid, names.get(tid)) for tid in tids],
            "id, nid, pid, tid, name",
        )
        work = (*process.kernels, *process.copies, *process.fills)
        devices = range(max((int(row[2]) for row in work), default=0) + 1)
        agents = [(n, node, pid, "CPU", n, "cpu", "EPYC") for n in range(_CPUS)]
        agents += [(_CPUS + n, node, pid, "GPU", n, "gfx942", "MI300X") for n in devices]
        self.insert("info_agent", agents, "id, nid, pid, type, type_index, name, product_name")
        # Calls and ranges share one numbering, in order of their starts.
        host: list[tuple[int, int, int, str, str, str, int | None]] = [
            (s, e, t, name, "HIP_RUNTIME_API", "{}", c) for s, e, t, c, name in process.calls
        ]
        host += [
            (s, e, t, pushed if nests else started, category, json.dumps({"message": text}), None)
            for s, e, t, text, nests in process.ranges
        ]
        starts = [row[0] for row in host]
        order = sorted(range(len(host)), key=starts.__getitem__)
        stack_of, regions = {}, []
        for index, row in enumerate(order):
            start, end, tid, name, kind, text, correlation = host[row]
            stack = 11 + 2 * index
            if correlation is not None:
                stack_of[correlation] = stack
            event = events.id(strings.id(kind), *self.ids(stack), text)
            regions.append((stack, node, pid, tid, start, end, strings.id(name), event))
        self.insert("region", regions, "id, nid, pid, tid, start, end, name_id, event_id")
        symbols = _Strings(9 + number)
        fill = "__amd_rocclr_fillBufferAligned"
        kernels = [*process.kernels, *((*row, fill) for row in process.fills)]
        dispatches = []
        for index, (start, end, device, correlation, stream, name) in enumerate(kernels):
            stack = stack_of.get(correlation, 1_000_001 + 2 * index)
            event = events.id(strings.id("KERNEL_DISPATCH"), *self.ids(stack))
            dispatches.append(
                (
                    index + 1,
                    node,
                    pid,
                    None,
                    _CPUS + device,
                    symbols.id(name),
                    index,
                    1,
                    stream,
                    start,
                    end,
                    event,
                )
            )
        self.insert(
            "kernel_dispatch",
            dispatches,
            "id, nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, "
            "event_id",
        )
        self.insert(
            "info_kernel_symbol",
            [(i, node, pid, 1, f"_Z{len(n)}{n}.kd", n) for n, i in symbols.ids.items()],
            "id, nid, pid, code_object_id, kernel_name, display_name",
        )
        copies = []
        for index, (start, end, device, correlation, stream) in enumerate(process.copies):
            stack = stack_of.get(correlation, 2_000_001 + 2 * index)
            event = events.id(strings.id("MEMORY_COPY"), *self.ids(stack))
            name_id = strings.id("MEMORY_COPY_HOST_TO_DEVICE")
            copies.append(
                (index + 1, node, pid, start, end, name_id, _CPUS + device, 0, 64, stream, event)
            )
        self.insert(
            "memory_copy",
            copies,
            "id, nid, pid, start, end, name_id, dst_agent_id, src_agent_id, size, stream_id, "
            "event_id",
        )
        self.insert(
            "event",
            events.rows,
            "id, category_id, stack_id, parent_stack_id, correlation_id, extdata",
        )
        self.insert("string", [(i, t) for t, i in strings.ids.items()], "id, string")


def write_rpd(path: Path, processes: Sequence[Process]) -> Path:
    """Write a trace of rocmProfileData. The ids of consecutive processes are 2^32 apart."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(_RPD)
        db.execute("INSERT INTO rocpd_metadata VALUES (1, 'schema_version', '2')")
        for number, process in enumerate(processes):
            _write_session(db, process, number << 32)
        db.commit()
    return path


def _write_session(db: sqlite3.Connection, process: Process, offset: int) -> None:
    """Write the calls, ranges and work of a process into a trace of rocmProfileData.

    Args:
        db: The open file.
        process: The process.
        offset: Number added to all ids.
    """
    strings = _Strings(offset + 1)
    strings.id("")
    api_of = {}
    api: list[tuple[int, int, int, int, int, str, str]] = []
    ops, links = [], []
    for start, end, tid, correlation, name in process.calls:
        api_of[correlation] = offset + len(api) + 1
        api.append((offset + len(api) + 1, process.pid, tid, start, end, name, ""))
    for start, end, tid, text, _ in process.ranges:
        api.append((offset + len(api) + 1, process.pid, tid, start, end, "UserMarker", text))
    work: Iterator[tuple[int, int, int, int, int, str, str]] = iter(
        [
            *((*row, "KernelExecution") for row in process.kernels),
            *((*row, "", "CopyHostToDevice") for row in process.copies),
            *((*row, "", "FillBuffer") for row in process.fills),
        ]
    )
    for index, (start, end, device, correlation, stream, name, kind) in enumerate(work):
        number = offset + index + 1
        names = strings.id(name), strings.id(kind)
        ops.append((number, device, stream, 0, "", start, end, *names))
        if correlation in api_of:
            links.append((api_of[correlation], number))
    db.executemany(
        "INSERT INTO rocpd_api VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*row[:5], strings.id(row[5]), strings.id(row[6])) for row in api],
    )
    db.executemany("INSERT INTO rocpd_op VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", ops)
    db.executemany("INSERT INTO rocpd_api_ops (api_id, op_id) VALUES (?, ?)", links)
    db.executemany(
        "INSERT INTO rocpd_string VALUES (?, ?)", [(i, t) for t, i in strings.ids.items()]
    )
