"""Converts synthetic nsys exports to databases of Ascend's profilers.

The tables are those in ``docs/en/user_guide/profile_data_file_references_db.md`` of Ascend/msprof,
and in ``torch_npu/profiler/analysis/prof_common_func/_constant.py`` of Ascend/pytorch.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import Process

#: Secret text in the environment, which must not appear in any output.
SECRET = "hunter2-AWS-TOKEN"
#: UTC time of time 0 of a process.
BEGIN_NS = 1_736_410_000_000_000_000
#: Time from an operator to the launch of its work by another thread.
QUEUE_NS = 20_000
#: Name of a communicator whose ranks are unknown.
GROUP = "10.0.0.1%eth0_60000_0_1708156014257149"
#: Thread that launches work if it is queued, relative to the process id.
_CONSUMER = 900
_OPERATOR, _QUEUE, _PYTHON = 50001, 50002, 50003
_TABLES = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, "
    "globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER, "
    "streamId INTEGER, taskId INTEGER, modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockDim INTEGER, "
    "mixBlockDim INTEGER, taskType INTEGER, opType INTEGER",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, "
    "groupName INTEGER, opId INTEGER PRIMARY KEY, relay INTEGER, retry INTEGER, "
    "dataType INTEGER, algType INTEGER, count NUMERIC, opType INTEGER, deviceId INTEGER",
    "MEMCPY_INFO": "globalTaskId NUMERIC, size NUMERIC, memcpyOperation NUMERIC",
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, "
    "connectionId INTEGER PRIMARY KEY, name INTEGER",
    "PYTORCH_API": "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, "
    "name INTEGER, sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, "
    "inputShapes INTEGER, callchainId INTEGER, type INTEGER",
    "CONNECTION_IDS": "id INTEGER, connectionId INTEGER",
    "MSTX_EVENTS": "startNs INTEGER, endNs INTEGER, eventType INTEGER, rangeId INTEGER, "
    "category INTEGER, message INTEGER, globalTid INTEGER, endGlobalTid INTEGER, "
    "domainId INTEGER, connectionId INTEGER",
    "GC_RECORD": "startNs INTEGER, endNs INTEGER, globalTid INTEGER",
    "NPU_INFO": "id INTEGER, name TEXT",
    "HOST_INFO": "hostUid TEXT, hostName TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "META_DATA": "name TEXT, value TEXT",
}
#: Tables that are written even if they have no rows.
_ALWAYS_WRITTEN = {"STRING_IDS", "TASK", "PYTORCH_API", "CONNECTION_IDS"}


@dataclass
class AscendWriter:
    """Writer of a database.

    Attributes:
        path: Output file.
        rank: Rank in the run, or -1 if unknown.
        is_queued: Whether another thread launches the work of operators.
        has_devices: Whether communication operations contain their device and type.
        groups: Ranks of each communicator, keyed by its name.
    """

    path: Path
    rank: int = -1
    is_queued: bool = False
    has_devices: bool = True
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    _strings: dict[str, int] = field(default_factory=dict)
    _rows: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)

    def write(self, process: Process) -> Path:
        """Write the database of a process. Kernels of NCCL become operations of HCCL."""
        devices = sorted({row[2] for row in (*process.kernels, *process.copies)})
        self._add("HOST_INFO", (f"machine-of-{process.host}", process.host))
        self._add("META_DATA", ("SCHEMA_VERSION", "1.1.0"))
        self._add("META_DATA", ("ENV_VARIABLES", f'{{"KEY": "{SECRET}"}}'))
        self._add_groups()
        for device in devices:
            self._add("NPU_INFO", (device, "Ascend910B"))
        self._add("RANK_DEVICE_MAP", (self.rank, devices[0] if len(devices) == 1 else -1))
        self._add_host(process)
        self._add_work(process)
        for text, number in self._strings.items():
            self._add("STRING_IDS", (number, text))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        with closing(sqlite3.connect(self.path)) as db:
            db.execute("PRAGMA synchronous = OFF")
            for table, current_columns in _TABLES.items():
                columns = current_columns
                if not self.has_devices:
                    columns = columns.replace(", opType INTEGER, deviceId INTEGER", "")
                if table in self._rows or table in _ALWAYS_WRITTEN:
                    db.execute(f"CREATE TABLE {table} ({columns})")
                    self._insert(db, table)
            db.commit()
        return self.path

    def _insert(self, db: sqlite3.Connection, table: str) -> None:
        rows = self._rows.get(table)
        if not rows:
            return
        if table == "COMMUNICATION_OP" and not self.has_devices:
            rows = [row[:-2] for row in rows]
        marks = ", ".join("?" * len(rows[0]))
        db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _add(self, table: str, *rows: tuple[object, ...]) -> None:
        self._rows.setdefault(table, []).extend(rows)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _add_groups(self) -> None:
        """Add the ranks of the communicators that contain the process."""
        groups = {
            name: {
                "group_name": "default_group",
                "group_rank": ranks.index(self.rank),
                "global_ranks": ranks,
            }
            for name, ranks in self.groups.items()
            if self.rank in ranks
        }
        if groups:
            self._add("META_DATA", ("parallel_group_info", json.dumps(groups)))

    def _find_group(self) -> str:
        """Return the first communicator that contains the process."""
        return next((n for n, ranks in self.groups.items() if self.rank in ranks), GROUP)

    def _add_host(self, process: Process) -> None:
        """Add calls and ranges. Push/pop ranges are annotations, and other ranges use mstx."""

        def thread(tid: int) -> int:
            return process.pid << 32 | tid

        consumer = thread(process.pid + _CONSUMER)
        for start, end, tid, correlation, name in process.calls:
            times = start + BEGIN_NS, end + BEGIN_NS
            launching = thread(tid)
            if self.is_queued:
                operator = (*map(str, times), thread(tid), correlation, self._string("aten::op"))
                self._add("PYTORCH_API", (*operator, *[None] * 5, _OPERATOR))
                self._add("CONNECTION_IDS", (correlation, correlation))
                times, launching = (times[0] + QUEUE_NS, times[1] + QUEUE_NS), consumer
                dequeue = (*map(str, times), consumer, None, self._string("Dequeue@aclnnAdd"))
                self._add("PYTORCH_API", (*dequeue, *[None] * 5, _QUEUE))
            called = self._string(name.replace("hipLaunchKernel", "launch"))
            self._add("CANN_API", (*times, 10000, launching, correlation, called))
        for start, end, tid, text, nests in process.ranges:
            times, name_id = (start + BEGIN_NS, end + BEGIN_NS), self._string(text)
            if nests:
                row = (*map(str, times), thread(tid), None, name_id, *[None] * 5, _OPERATOR)
                self._add("PYTORCH_API", row)
            else:
                row = (*times, 2, 1, 0, name_id, thread(tid), thread(tid), 0, None)
                self._add("MSTX_EVENTS", row)

    def _add_work(self, process: Process) -> None:
        """Add kernels and copies. Each task has its own global number."""
        number = 0
        for start, end, device, correlation, stream, name in process.kernels:
            number += 1
            task = self._task(process, number, start, end, device, correlation, stream)
            if name.startswith("nccl"):
                # The tasks of an operation are on several streams, and are no compute tasks.
                operation = "hcom_send_" if "SendRecv" in name else "hcom_allReduce_"
                times = start + BEGIN_NS, end + BEGIN_NS
                ids = self._string(f"{operation}_428_{number}_1"), self._string(operation)
                row = (ids[0], *times, correlation, self._string(self._find_group()), number)
                self._add("COMMUNICATION_OP", (*row, 0, 0, 4, 0, 1024, ids[1], device))
                self._add("TASK", self._task(process, -number, start, start + 1, device, 0, 99))
                continue
            self._add("TASK", task)
            self._add("COMPUTE_TASK_INFO", (self._string(name), number, 8, 0, 0, 0))
        for start, end, device, correlation, stream in (*process.copies, *process.fills):
            number += 1
            self._add("TASK", self._task(process, number, start, end, device, correlation, stream))
            self._add("MEMCPY_INFO", (number, 64, 1))

    def _task(
        self, process: Process, number: int, start: int, end: int, device: int, *ids: int
    ) -> tuple[object, ...]:
        connection, stream = ids
        times = start + BEGIN_NS, end + BEGIN_NS
        return (*times, device, connection, number, process.pid, 0, 0, stream, number, 0)


def write_ascend(folder: Path, processes: Iterable[Process], **fields: object) -> list[Path]:
    """Write one database per process under the names that torch_npu gives them."""
    return [
        AscendWriter(folder / f"ascend_pytorch_profiler_{rank}.db", rank, **fields).write(process)  # type: ignore[arg-type]
        for rank, process in enumerate(processes)
    ]
