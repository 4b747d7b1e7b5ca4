"""Writes planted exports of nsys as traces of PyTorch's profiler: the same run, another door."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

Events = list[dict[str, Any]]
#: In microseconds, as ``baseTimeNanoseconds`` goes with them.
_US = 1000
#: What CUPTI writes for no stream and no event.
_NONE = (1 << 32) - 1
#: By whether a wait names a stream, and an event.
_SYNC_KINDS = {
    (True, True): "Stream Wait Event",
    (False, True): "Event Sync",
    (True, False): "Stream Sync",
    (False, False): "Context Sync",
}


def _event(cat: str, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    common = {"ph": "X", "cat": cat, "name": name, "ts": start / _US, "dur": (end - start) / _US}
    return {**common, **more}


def _synchronisation(
    connection: sqlite3.Connection, *, records: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (process, event) of the waits of an export, and of its records of events."""
    rows = connection.execute
    recorded = {}
    for device, stream, correlation, process, event, pairing in rows(
        "SELECT deviceId, streamId, correlationId, globalPid, eventId, eventSyncId "
        "FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT"
    ):
        recorded[process, device, pairing] = stream, correlation
        args = {"event_id": event, "stream": stream, "correlation": correlation}
        place: dict[str, Any] = {"pid": device, "tid": stream, "args": {**args, "device": device}}
        if records:
            # Versions without times of the device write 0.
            yield process, {**_event("cuda_event", "cudaEvent", 0, 1, **place), "ts": 0}
    for start, end, device, stream, correlation, process, event, pairing in rows(
        "SELECT start, end, deviceId, streamId, correlationId, globalPid, eventId, eventSyncId "
        "FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    ):
        of_stream, of_event = ((n != _NONE) for n in (stream, event))
        kind = _SYNC_KINDS[of_stream, of_event]
        # Kineto looks events up by the context of the wait.
        known = (-1, -1) if records else recorded.get((process, device, pairing), (-1, -1))
        told = {
            "wait_on_stream": known[0],
            "wait_on_cuda_event_record_corr_id": known[1],
            "wait_on_cuda_event_id": event,
        }
        own = stream if of_stream else -1
        args = {"cuda_sync_kind": kind, "stream": own, "correlation": correlation, "device": device}
        args |= told if of_event else {}
        yield process, _event("cuda_sync", kind, start, end, pid=device, tid=own, args=args)


def traces_of(
    export: Path, folder: Path, *, records: bool = True, modules: bool = False
) -> list[Path]:
    """Write a gzipped trace for each process of a planted export; return the files.

    Args:
        export: of nsys.
        folder: where to write them.
        records: whether records of events are written, or each wait tells its own.
        modules: whether ranges named as modules are written as Python's functions.
    """
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
                _event(_category(name, modules=modules), name, start, end, **own)
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
        if rows("SELECT 1 FROM sqlite_master WHERE name LIKE '%_SYNCHRONIZATION'").fetchone():
            for process, event in _synchronisation(connection, records=records):
                events.setdefault(process >> 24, []).append(event)
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


def _category(name: str, *, modules: bool) -> str:
    return "python_function" if modules and name.startswith("nn.Module") else "user_annotation"


def with_world(traces: list[Path], world: object) -> list[Path]:
    """Return the traces with the numbers of their ranks in a world of that size."""
    for rank, trace in enumerate(traces):
        document = json.loads(gzip.decompress(trace.read_bytes()))
        document["distributedInfo"] = {"rank": rank, "world_size": world, "backend": "nccl"}
        trace.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return traces
