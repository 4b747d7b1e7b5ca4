"""Reads the processes in an nsys export, so that the run can be rewritten in other formats."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HIP = {
    "cudaLaunchKernel_v7000": "hipLaunchKernel",
    "cuLaunchKernelEx": "hipModuleLaunchKernel",
    "cudaMemcpyAsync_v3020": "hipMemcpyAsync",
    "cudaMemsetAsync_v3020": "hipMemsetAsync",
    "cuLaunchKernel": "hipExtModuleLaunchKernel",
    "cudaEventQuery_v3020": "hipEventQuery",
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchHostFunc": "hipLaunchHostFunc",
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
    "cuCtxSynchronize": "hipCtxSynchronize",
    "cudaStreamSynchronize": "hipStreamSynchronize",
    "cudaGraphLaunch": "hipGraphLaunch",
    "cudaGraphLaunch_v10000": "hipGraphLaunch",
}


@dataclass
class Process:
    """Activity of one process of an export.

    Attributes:
        host: Name of the host.
        pid: Process id.
        calls: (start, end, tid, correlation id, name) tuples.
        ranges: (start, end, tid, text, whether it is a push/pop range) tuples.
        kernels: (start, end, device, correlation id, stream, name) tuples.
        copies: (start, end, device, correlation id, stream) tuples.
        fills: (start, end, device, correlation id, stream) tuples.
        threads: (tid, name) tuples.
    """

    host: str
    pid: int
    calls: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    ranges: list[tuple[int, int, int, str, bool]] = field(default_factory=list)
    kernels: list[tuple[int, int, int, int, int, str]] = field(default_factory=list)
    copies: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    fills: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    threads: list[tuple[int, str]] = field(default_factory=list)


def read_processes(export: Path, *, hip: bool = True) -> list[Process]:
    """Return the processes in an export, by default with HIP's calls and their node's times.

    With HIP's calls, each correlation id occurs once.
    """
    processes: dict[int, Process] = {}
    with closing(sqlite3.connect(export)) as db:

        def rows(table: str, columns: str) -> list[Any]:
            there = db.execute(f"SELECT 1 FROM PRAGMA_TABLE_INFO('{table}')").fetchone()
            return db.execute(f"SELECT {columns} FROM {table}").fetchall() if there else []

        strings = dict(rows("StringIds", "id, value"))
        (host,) = (v for n, v in rows("TARGET_INFO_SYSTEM_ENV", "name, value") if n == "Hostname")
        session = "TARGET_INFO_SESSION_START_TIME"
        timed = "systemClockNs" in {
            name for _, name, *_ in db.execute(f"PRAGMA table_info({session})")
        }
        zero = (rows(session, "systemClockNs")[0][0] if timed else 1 << 40) if hip else 0

        def of(number: int) -> Process:
            pid = number >> 24 & 0xFFFFFF
            return processes.setdefault(pid, Process(host, pid))

        seen_ids = set()
        calls = rows("CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, globalTid, correlationId, nameId")
        for start, end, thread, correlation, name in sorted(calls) if hip else calls:
            if not hip or (thread >> 24, correlation) not in seen_ids:
                seen_ids.add((thread >> 24, correlation))
                called = HIP.get(strings[name], "hipOther") if hip else strings[name]
                times = start + zero, end + zero
                of(thread).calls.append((*times, thread & 0xFFFFFF, correlation, called))
        columns = "start, end, globalTid, text, textId, eventType"
        for start, end, thread, text, text_id, kind in rows("NVTX_EVENTS", columns):
            if kind in (59, 60) and end is not None:
                name = strings[text_id] if text is None else text
                row = (start + zero, end + zero, thread & 0xFFFFFF, name, kind == 59)
                of(thread).ranges.append(row)
        columns = "start, end, globalPid, deviceId, correlationId, streamId"
        for table, kind in (("KERNEL", "kernels"), ("MEMCPY", "copies"), ("MEMSET", "fills")):
            name_column = ", demangledName" if kind == "kernels" else ""
            for start, end, process, *rest in rows(
                f"CUPTI_ACTIVITY_KIND_{table}", columns + name_column
            ):
                names = [strings[number] for number in rest[3:]]
                getattr(of(process), kind).append((start + zero, end + zero, *rest[:3], *names))
        for name, thread in rows("ThreadNames", "nameId, globalTid"):
            of(thread).threads.append((thread & 0xFFFFFF, strings[name]))
    return list(processes.values())
