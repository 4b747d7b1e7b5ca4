"""Writes planted exports of nsys as traces of PyTorch's profiler: the same run, another door."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

Events = list[dict[str, Any]]
#: In microseconds, as ``baseTimeNanoseconds`` goes with them.
_US = 1000


def _event(cat: str, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    common = {"ph": "X", "cat": cat, "name": name, "ts": start / _US, "dur": (end - start) / _US}
    return {**common, **more}


def traces_of(export: Path, folder: Path) -> list[Path]:
    """Write a gzipped trace for each process of a planted export; return the files."""
    with closing(sqlite3.connect(export)) as connection:
        rows = connection.execute
        strings = dict(rows("SELECT id, value FROM StringIds"))
        host = rows("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'").fetchone()[
            0
        ]
        utc = rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
        events: dict[int, Events] = {}
        for start, end, thread, text, text_id in rows(
            "SELECT start, end, globalTid, text, textId FROM NVTX_EVENTS WHERE eventType = 59"
        ):
            name = strings[text_id] if text is None else text
            own = {"pid": thread >> 24 & 0xFFFFFF, "tid": thread & 0xFFFFFF}
            events.setdefault(thread >> 24, []).append(
                _event("user_annotation", name, start, end, **own)
            )
        for start, end, thread, correlation, name_id in rows(
            "SELECT start, end, globalTid, correlationId, nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
        ):
            events.setdefault(thread >> 24, []).append(
                _event(
                    "cuda_runtime",
                    strings[name_id],
                    start,
                    end,
                    pid=thread >> 24 & 0xFFFFFF,
                    tid=thread & 0xFFFFFF,
                    args={"correlation": correlation, "cbid": 211},
                )
            )
        for start, end, process, device, stream, correlation, name_id in rows(
            "SELECT start, end, globalPid, deviceId, streamId, correlationId, demangledName "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL"
        ):
            args = {"device": device, "stream": stream, "correlation": correlation}
            events.setdefault(process >> 24, []).append(
                _event("kernel", strings[name_id], start, end, pid=device, tid=stream, args=args)
            )
        for name, thread in rows(
            "SELECT s.value, t.globalTid FROM ThreadNames t JOIN StringIds s ON s.id = t.nameId"
        ):
            own = {"pid": thread >> 24 & 0xFFFFFF, "tid": thread & 0xFFFFFF}
            told = {"name": f"thread {own['tid']} ({name})"}
            events.setdefault(thread >> 24, []).append(
                {"ph": "M", "name": "thread_name", "ts": 0, "args": told, **own}
            )
    files = []
    for process, own_events in sorted(events.items()):
        document = {
            "schemaVersion": 1,
            "host_name": host,
            "traceEvents": own_events,
            "baseTimeNanoseconds": utc,
        }
        file = folder / f"{export.stem}.{process & 0xFFFFFF}.pt.trace.json.gz"
        file.write_bytes(gzip.compress(json.dumps(document, indent=1).encode(), mtime=0))
        files.append(file)
    return files


def with_world(traces: list[Path], world: object) -> list[Path]:
    """Return the traces with the numbers of their ranks in a world of that size."""
    for rank, trace in enumerate(traces):
        document = json.loads(gzip.decompress(trace.read_bytes()))
        document["distributedInfo"] = {"rank": rank, "world_size": world, "backend": "nccl"}
        trace.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return traces
