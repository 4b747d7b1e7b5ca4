"""The recorded machine and session of an nsys export: its host, clock, GPUs, threads, overheads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.model import profile
from bubbleviz.model.columns import NONE
from bubbleviz.model.limitations import Limitation
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.queries import table_of

#: The loss where an optional query cannot run, or gives nothing though it must.
_LIMITATION_OF_QUERY = {
    "target/threads": "thread names, which separate loaders and watchdogs from backward threads",
    "target/host": "the hostname; the file counts as a host of its own, --same-clock joins files",
    "target/session": "the start of the session, which puts profiles on one clock",
}
_GPUS, _CUDA_DEVICES = "target/gpus", "target/cuda_devices"


def read_source(export: Export) -> profile.Source:
    """Return where the profile comes from, and when its session began."""
    rows = export.query_rows_if_possible("target/metadata")
    versions = {row[0]: row[1] for row in rows}
    hostname = export.query_value("target/host")
    nsys, schema = versions.get("EXPORT_PRODUCT_VERSION"), versions.get("EXPORT_SCHEMA_VERSION")
    return profile.Source(
        path=export.path,
        host=str(hostname) if hostname else Path(export.path).name,
        host_known=bool(hostname),
        format="nsys",
        nsys_version=None if nsys is None else str(nsys),
        schema_version=None if schema is None else str(schema),
        session_utc_ns=profile.validate_utc(_to_int(export.query_value("target/session"))),
        session_clock_ns=_to_int(export.query_value("target/session_clock")),
    )


def _to_int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def read_threads(export: Export) -> tuple[profile.Thread, ...]:
    """Return the names of threads."""
    rows = export.query_rows_if_possible("target/threads")
    named = [
        (export.to_integer(thread), number) for thread, number in rows if isinstance(number, int)
    ]
    texts = export.query_texts(np.array(sorted({number for _, number in named}), np.int64))
    threads = {(thread, texts[number]) for thread, number in named if number in texts}
    return tuple(profile.Thread(thread, name) for thread, name in sorted(threads))


def read_devices(export: Export) -> tuple[profile.Device, ...]:
    """Return the GPUs by the numbers that processes give them.

    ``TARGET_INFO_CUDA_DEVICE`` gives each process's number of a GPU; without it, the CUDA driver's
    own number (``cuDevice``) is taken, which may differ from ``id``. Where none has one (reports of
    2020 that a newer nsys exported), ``id`` is that number.
    """
    rows = export.query_rows_if_possible(_GPUS)
    gpus = {
        export.to_integer(gpu): profile.Device(
            None, export.to_integer(device), str(name), _parse_uuid(str(uuid)), str(pci) or None
        )
        for gpu, device, name, uuid, pci in rows
    }
    if all(gpu.device_id == NONE for gpu in gpus.values()):
        gpus = {number: replace(gpu, device_id=number) for number, gpu in gpus.items()}
    # A GPU without a number beside others that have one is none of CUDA's.
    numbered = (gpu for gpu in gpus.values() if gpu.device_id != NONE)
    by_number = tuple(sorted(numbered, key=lambda d: d.device_id))
    unknown = profile.Device(None, NONE, "", None)
    by_process = []
    for pid, device, gpu_id, uuid in export.query_rows_if_possible(_CUDA_DEVICES):
        gpu = gpus.get(export.to_integer(gpu_id), unknown)
        by_process.append(
            replace(
                gpu,
                pid=export.to_integer(pid),
                device_id=export.to_integer(device),
                uuid=_parse_uuid(str(uuid)) or gpu.uuid,
            )
        )
    return tuple(by_process) or by_number


def _parse_uuid(text: str) -> str | None:
    """Return a UUID; None where nsys did not know it."""
    return text if text.strip("0-") else None


def read_overheads(export: Export) -> tuple[profile.Overheads, tuple[Limitation, ...]]:
    """Return when the profiler paused processes, and what of it was left out."""
    start_ns, end_ns, thread = export.query_columns("target/overheads")
    overheads = profile.Overheads(profile.process_of(thread), start_ns, end_ns)
    # CUPTI writes 0 for a time that it lacks. Times below 0 are those before the session's start.
    is_timed = start_ns != 0
    is_possible = profile.mask_possible(start_ns, end_ns)
    keep = is_timed if is_possible is None else is_timed & is_possible
    left_out = {"overheads of the profiler": int((~keep).sum())}
    return overheads.take(keep), profile.report_impossible_times(export.path, left_out)


def find_limitations(export: Export) -> tuple[Limitation, ...]:
    """Return the losses by the absence of optional tables, columns and rows."""
    losses = []

    def lose(what: str, name: str, *, empty: bool, column: str = "") -> None:
        lacking = export.find_missing(name)
        if name == "target/threads":
            lacking += export.find_missing("strings/by_id")
        # Without unique ids beside them, those of the GPUs stand for them.
        if lacking and not (name == _CUDA_DEVICES and export.has(name)):
            losses.append((what, f"lacks {', '.join(lacking)}"))
        elif empty:
            losses.append((what, f"has none in {table_of(name)}{column}"))

    for name, what in _LIMITATION_OF_QUERY.items():
        lose(what, name, empty=name != "target/threads" and export.query_value(name) is None)
    lose("GPU models", _GPUS, empty=export.query_value(_GPUS) is None)
    rows = export.query_rows_if_possible(_CUDA_DEVICES)
    unknown = all(row[2] == NONE for row in rows)
    lose("GPU ids", _CUDA_DEVICES, empty=unknown, column=".gpuId" if rows else "")
    return tuple(Limitation(what, f"{export.path} {reason}") for what, reason in losses)
