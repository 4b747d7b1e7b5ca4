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
_LOSSES = {
    "target/threads": "thread names, which separate loaders and watchdogs from backward threads",
    "target/host": "the hostname; the file stands for a host of its own, --same-clock joins files",
    "target/session": "the start of the session, which puts profiles on one clock",
}
_GPUS, _CUDA_DEVICES = "target/gpus", "target/cuda_devices"


def source_of(export: Export) -> profile.Source:
    """Return where the profile comes from, and when its session began."""
    rows = export.rows_if_any("target/metadata")
    versions = {row[0]: row[1] for row in rows}
    hostname = export.value("target/host")
    nsys, schema = versions.get("EXPORT_PRODUCT_VERSION"), versions.get("EXPORT_SCHEMA_VERSION")
    return profile.Source(
        path=export.path,
        host=str(hostname) if hostname else Path(export.path).name,
        host_known=bool(hostname),
        format="nsys",
        nsys_version=None if nsys is None else str(nsys),
        schema_version=None if schema is None else str(schema),
        session_utc_ns=profile.validate_utc(_whole(export.value("target/session"))),
        session_clock_ns=_whole(export.value("target/session_clock")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def threads_of(export: Export) -> tuple[profile.Thread, ...]:
    """Return the names of threads."""
    rows = export.rows_if_any("target/threads")
    named = [(export.number(thread), number) for thread, number in rows if isinstance(number, int)]
    texts = export.texts(np.array(sorted({number for _, number in named}), np.int64))
    threads = {(thread, texts[number]) for thread, number in named if number in texts}
    return tuple(profile.Thread(thread, name) for thread, name in sorted(threads))


def devices_of(export: Export) -> tuple[profile.Device, ...]:
    """Return the GPUs by the numbers that processes give them.

    ``TARGET_INFO_CUDA_DEVICE`` gives each process's number of a GPU; without it, the CUDA driver's
    own number (``cuDevice``) is taken, which may differ from ``id``. Where none has one (reports of
    2020 that a newer nsys exported), ``id`` is that number.
    """
    rows = export.rows_if_any(_GPUS)
    gpus = {
        export.number(gpu): profile.Device(
            None, export.number(device), str(name), _uuid(str(uuid)), str(pci) or None
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
    for pid, device, gpu_id, uuid in export.rows_if_any(_CUDA_DEVICES):
        gpu = gpus.get(export.number(gpu_id), unknown)
        by_process.append(
            replace(
                gpu,
                pid=export.number(pid),
                device_id=export.number(device),
                uuid=_uuid(str(uuid)) or gpu.uuid,
            )
        )
    return tuple(by_process) or by_number


def _uuid(text: str) -> str | None:
    """Return a UUID; None where nsys did not know it."""
    return text if text.strip("0-") else None


def overheads_of(export: Export) -> tuple[profile.Overheads, tuple[Limitation, ...]]:
    """Return when the profiler paused processes, and what of it was left out."""
    start_ns, end_ns, thread = export.columns("target/overheads")
    overheads = profile.Overheads(profile.process_of(thread), start_ns, end_ns)
    # CUPTI writes 0 for a time that it lacks. Times below 0 are those before the session's start.
    is_timed = start_ns != 0
    is_possible = profile.mask_possible(start_ns, end_ns)
    keep = is_timed if is_possible is None else is_timed & is_possible
    left_out = {"overheads of the profiler": int((~keep).sum())}
    return overheads.take(keep), profile.report_impossible_times(export.path, left_out)


def target_limitations(export: Export) -> tuple[Limitation, ...]:
    """Return the losses by the absence of optional tables, columns and rows."""
    losses = []

    def lose(what: str, name: str, *, empty: bool, column: str = "") -> None:
        lacking = export.lacks(name)
        if name == "target/threads":
            lacking += export.lacks("strings/by_id")
        # Without unique ids beside them, those of the GPUs stand for them.
        if lacking and not (name == _CUDA_DEVICES and export.has(name)):
            losses.append((what, f"lacks {', '.join(lacking)}"))
        elif empty:
            losses.append((what, f"has none in {table_of(name)}{column}"))

    for name, what in _LOSSES.items():
        lose(what, name, empty=name != "target/threads" and export.value(name) is None)
    lose("GPU models", _GPUS, empty=export.value(_GPUS) is None)
    rows = export.rows_if_any(_CUDA_DEVICES)
    unknown = all(row[2] == NONE for row in rows)
    lose("GPU ids", _CUDA_DEVICES, empty=unknown, column=".gpuId" if rows else "")
    return tuple(Limitation(what, f"{export.path} {reason}") for what, reason in losses)
