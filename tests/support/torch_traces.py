"""Converts synthetic nsys exports to PyTorch profiler traces."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.processes import read_processes

Events = list[dict[str, Any]]
#: Nanoseconds per time unit of traces, which is the microsecond.
_US = 1000
#: CUPTI's value for "no stream" and "no event".
_NONE = (1 << 32) - 1
#: Kind of wait, keyed by (names a stream, names an event).
_SYNC_KINDS = {
    (True, True): "Stream Wait Event",
    (False, True): "Event Sync",
    (True, False): "Stream Sync",
    (False, False): "Context Sync",
}


def _make_event(cat: str, name: str, start: int, end: int, **fields: Any) -> dict[str, Any]:
    common = {"ph": "X", "cat": cat, "name": name, "ts": start / _US, "dur": (end - start) / _US}
    return {**common, **fields}


def _read_synchronization(
    connection: sqlite3.Connection, *, records: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (process, event) for each wait and each event record of an export."""
    rows = connection.execute
    recorded = {}
    for device, stream, correlation, process, event, pairing in rows(
        "SELECT deviceId, streamId, correlationId, globalPid, eventId, eventSyncId "
        "FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT"
    ):
        recorded[process, device, pairing] = stream, correlation
        args = {"event_id": event, "stream": stream, "correlation": correlation}
        event_fields: dict[str, Any] = {
            "pid": device,
            "tid": stream,
            "args": {**args, "device": device},
        }
        if records:
            # Versions that do not record device times write 0 instead.
            yield process, {**_make_event("cuda_event", "cudaEvent", 0, 1, **event_fields), "ts": 0}
    for start, end, device, stream, correlation, process, event, pairing in rows(
        "SELECT start, end, deviceId, streamId, correlationId, globalPid, eventId, eventSyncId "
        "FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    ):
        of_stream, of_event = ((n != _NONE) for n in (stream, event))
        kind = _SYNC_KINDS[of_stream, of_event]
        # Kineto looks up an event in the context of the wait.
        record_ids = (-1, -1) if records else recorded.get((process, device, pairing), (-1, -1))
        arguments = {
            "wait_on_stream": record_ids[0],
            "wait_on_cuda_event_record_corr_id": record_ids[1],
            "wait_on_cuda_event_id": event,
        }
        waiting_stream = stream if of_stream else -1
        args = {
            "cuda_sync_kind": kind,
            "stream": waiting_stream,
            "correlation": correlation,
            "device": device,
        }
        args |= arguments if of_event else {}
        yield (
            process,
            _make_event("cuda_sync", kind, start, end, pid=device, tid=waiting_stream, args=args),
        )


def write_traces(
    export: Path, folder: Path, *, records: bool = True, modules: bool = False
) -> list[Path]:
    """Write one gzipped trace per process in a synthetic export, and return the files.

    Args:
        export: Export of nsys.
        folder: Directory of the traces.
        records: Whether to write event records. If False, each wait contains the ids of its record
            instead.
        modules: Whether ranges named like modules are written as Python functions.
    """
    with closing(sqlite3.connect(export)) as connection:
        rows = connection.execute
        ((utc,),) = rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
        events: dict[int, Events] = defaultdict(list)
        host = ""
        for process in read_processes(export, hip=False):
            host, pid, process_events = process.host, process.pid, events[process.pid]
            for start, end, tid, name, nests in process.ranges:
                if nests:
                    category = _get_category(name, modules=modules)
                    process_events.append(_make_event(category, name, start, end, pid=pid, tid=tid))
            for start, end, tid, correlation, name in process.calls:
                arguments = {"correlation": correlation, "cbid": 211}
                process_events.append(
                    _make_event("cuda_runtime", name, start, end, pid=pid, tid=tid, args=arguments)
                )
            for start, end, device, correlation, stream, name in process.kernels:
                arguments = {"device": device, "stream": stream, "correlation": correlation}
                process_events.append(
                    _make_event("kernel", name, start, end, pid=device, tid=stream, args=arguments)
                )
            for tid, name in process.threads:
                args = {"name": f"thread {tid} ({name})"}
                process_events.append(
                    {
                        "ph": "M",
                        "name": "thread_name",
                        "ts": 0,
                        "pid": pid,
                        "tid": tid,
                        "args": args,
                    }
                )
        if rows("SELECT 1 FROM sqlite_master WHERE name LIKE '%_SYNCHRONIZATION'").fetchone():
            for number, event in _read_synchronization(connection, records=records):
                events[number >> 24 & 0xFFFFFF].append(event)
    files = []
    for pid, own_events in sorted(events.items()):
        document = {
            "schemaVersion": 1,
            "host_name": host,
            "traceEvents": own_events,
            "baseTimeNanoseconds": utc,
        }
        file = folder / f"{export.stem}.{pid}.pt.trace.json.gz"
        file.write_bytes(gzip.compress(json.dumps(document, indent=1).encode(), mtime=0))
        files.append(file)
    return files


def _get_category(name: str, *, modules: bool) -> str:
    return "python_function" if modules and name.startswith("nn.Module") else "user_annotation"


def set_world_size(traces: list[Path], world: object) -> list[Path]:
    """Add rank numbers and the world size to traces, and return them."""
    for rank, trace in enumerate(traces):
        document = json.loads(gzip.decompress(trace.read_bytes()))
        document["distributedInfo"] = {"rank": rank, "world_size": world, "backend": "nccl"}
        trace.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return traces
