"""Reads the host, clock, GPUs, threads and profiler overheads from an nsys export."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz.model import profile
from bubbleviz.model.columns import NONE
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.sources.nsys.export import Export
from bubbleviz.sources.nsys.queries import table_of

#: What is missing if an optional query cannot run or returns no rows, keyed by query.
_LIMITATION_OF_QUERY = {
    "target/threads": "thread names, which distinguish loaders and watchdogs from backward threads",
    "target/host": "the hostname (the file counts as a separate host unless you pass --same-clock)",
    "target/session": "the session start, which is needed to put profiles on one clock",
}
#: Matches a word in an nsys warning: a plain word, a count, a version, or a CUPTI error code.
_PLAIN_WORD = re.compile(r"\(?(?:[A-Za-z'-]{1,16}|[0-9][0-9.]{0,11}|CUPTI_[A-Z_]{1,60})\)?[.,:?]?")
#: Maximum length of an nsys warning, in characters, and number of words that name its subject.
_MAX_WARNING, _MAX_SUBJECT_WORDS = 300, 4
#: Prefixes of words that name the subject of a warning about events that analyses need.
_SUBJECTS = ("CUDA", "CUPTI", "NVTX", "GPU", "NCCL")
#: Start of warnings that no events were collected. Other messages report missing tables.
_NOTHING_COLLECTED = "No "
#: Matches messages that count events which hardware tracing recorded without their times.
_DROPPED = re.compile(r"Number of ([\w ]+ events) dropped: [0-9.]+")
#: Queries for warnings of all processes, and without helper processes.
_DIAGNOSTICS, _RELEVANT_DIAGNOSTICS = "target/diagnostics", "target/relevant_diagnostics"
#: Next step if hardware tracing lost kernels.
TRACE_BY_SOFTWARE = "trace CUDA by software, with: nsys profile -t cuda-sw,nvtx"
_GPUS, _CUDA_DEVICES = "target/gpus", "target/cuda_devices"


def read_source(export: Export) -> profile.Source:
    """Return an export's host, nsys version, schema version and session start.

    If the export contains no hostname, the file name identifies the host.
    """
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
    """Return the value if it is an integer, otherwise None."""
    return value if isinstance(value, int) else None


def read_threads(export: Export) -> tuple[profile.Thread, ...]:
    """Return the threads that have names, sorted by global thread id and name.

    A thread with several names is returned once per name.
    """
    rows = export.query_rows_if_possible("target/threads")
    thread_names = [
        (export.to_integer(thread), number) for thread, number in rows if isinstance(number, int)
    ]
    texts = export.query_texts(np.array(sorted({number for _, number in thread_names}), np.int64))
    threads = {(thread, texts[number]) for thread, number in thread_names if number in texts}
    return tuple(profile.Thread(thread, name) for thread, name in sorted(threads))


def read_devices(export: Export) -> tuple[profile.Device, ...]:
    """Return the GPUs with their CUDA device numbers.

    If the export lists the CUDA devices of each process (``TARGET_INFO_CUDA_DEVICE``), the result
    has one entry per process and device. Each entry contains the device number that the process
    uses.

    Otherwise, the result has one entry per GPU. A GPU's device number is its number in the CUDA
    driver (``cuDevice``), which may differ from ``id``. If no GPU has a ``cuDevice``, as in reports
    from 2020 that a newer nsys exported, ``id`` is used.
    """
    gpus = _read_gpus(export)
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
    return tuple(by_process) or tuple(gpus.values())


def read_hidden_gpus(export: Export) -> tuple[profile.Device, ...]:
    """Return the GPUs of the host that no process can use, in the order of their numbers.

    The result is empty if the export does not list the CUDA devices of each process, or lists a
    CUDA device without its GPU.
    """
    gpus = _read_gpus(export)
    rows = export.query_rows_if_possible(_CUDA_DEVICES)
    used = {export.to_integer(gpu_id) for _, _, gpu_id, _ in rows}
    if not used or not used <= gpus.keys():
        return ()
    return tuple(gpu for gpu_id, gpu in gpus.items() if gpu_id not in used)


def _read_gpus(export: Export) -> dict[int, profile.Device]:
    """Return the GPUs that CUDA can use, keyed by ``id``, in the order of their device numbers.

    A GPU's device number is its number in the CUDA driver, or ``id`` if no GPU has such a number.
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
    # If only some of the GPUs have a device number, CUDA does not use the remaining GPUs.
    cuda_gpus = (item for item in gpus.items() if item[1].device_id != NONE)
    return dict(sorted(cuda_gpus, key=lambda item: item[1].device_id))


def _parse_uuid(text: str) -> str | None:
    """Return a UUID, or None if it is missing or consists of zeros."""
    return text if text.strip("0-") else None


def read_overheads(export: Export) -> tuple[profile.Overheads, tuple[Limitation, ...]]:
    """Return the intervals in which the profiler delayed processes.

    Intervals with invalid times are left out. Intervals that start at 0 are left out too, because
    CUPTI writes 0 for a missing time.

    Returns:
        overheads: The intervals with valid times.
        limitations: A limitation that counts the omitted intervals, if there are any.
    """
    start_ns, end_ns, thread = export.query_columns("target/overheads")
    overheads = profile.Overheads(profile.process_of(thread), start_ns, end_ns)
    # CUPTI writes 0 for a missing time. Negative times are valid and precede the session start.
    is_timed = start_ns != 0
    is_possible = profile.mask_possible(start_ns, end_ns)
    keep = is_timed if is_possible is None else is_timed & is_possible
    left_out = {"profiler overheads": int((~keep).sum())}
    return overheads.take(keep), profile.report_impossible_times(export.path, left_out)


def read_warnings(
    export: Export, subjects: tuple[str, ...], query: str = _DIAGNOSTICS
) -> list[str]:
    """Return the distinct warnings and errors of nsys about the given subjects, errors first.

    A warning has at most ``_MAX_WARNING`` characters. One of its first words starts with one of the
    subjects, and all of its words match ``_PLAIN_WORD``. Any other text may be output of the
    profiled program, which no message repeats.

    Args:
        export: The open export.
        subjects: Prefixes of words, such as "CUDA".
        query: Name of the query that returns the messages.
    """
    rows = export.query_rows_if_possible(query)
    texts = (" ".join(str(text).split()) for (text,) in rows)
    return list(dict.fromkeys(text for text in texts if _is_warning_about(text, subjects)))


def _is_warning_about(text: str, subjects: tuple[str, ...]) -> bool:
    words = text.split() if len(text) <= _MAX_WARNING else []
    has_subject = any(word.startswith(subjects) for word in words[:_MAX_SUBJECT_WORDS])
    return has_subject and all(_PLAIN_WORD.fullmatch(word) for word in words)


def is_traced_by_hardware(export: Export) -> bool:
    """Return whether the hardware traced CUDA, instead of software in the profiled processes."""
    queries = ("target/hardware_tracing", "target/hardware_options")
    return any(export.query_rows_if_possible(name) for name in queries)


def list_warnings(export: Export) -> tuple[str, ...]:
    """Return the warnings of nsys about missing events that analyses need, errors first.

    Warnings that no events were collected are left out, because other messages report missing
    tables. Warnings about helper processes, which use no GPU, are left out too.
    """
    has_processes = export.has(_RELEVANT_DIAGNOSTICS)
    query = _RELEVANT_DIAGNOSTICS if has_processes else _DIAGNOSTICS
    warnings = read_warnings(export, _SUBJECTS, query)
    return tuple(text for text in warnings if not text.startswith(_NOTHING_COLLECTED))


def find_warnings(export: Export) -> tuple[Limitation, ...]:
    """Return a limitation with the warnings of nsys about missing events, or () if there are none.

    The reason contains neither the file nor counts of events, so that the warnings of several files
    can be merged.
    """
    warnings = list_warnings(export)
    if not warnings:
        return ()
    dropped = [_DROPPED.sub(r"Some \1 were dropped.", text) for text in warnings]
    dropped = [text for text in dropped if text not in warnings]
    others = [text for text in warnings if not _DROPPED.match(text)]
    reason = f"nsys reported: {' '.join([*dropped, *others])}"
    if dropped and is_traced_by_hardware(export):
        reason = f"{reason.removesuffix('.')}; {TRACE_BY_SOFTWARE}"
    return (Limitation("possibly missing events", reason, kind=LimitationKind.PROFILER_WARNING),)


def find_limitations(export: Export) -> tuple[Limitation, ...]:
    """Return limitations for a missing hostname, session start, thread names or GPU details.

    Each limitation names the tables or columns that the export lacks, or the table that contains no
    value.
    """
    losses: list[Limitation] = []

    def add_limitation(
        what: str,
        name: str,
        *,
        empty: bool,
        column: str = "",
        kind: LimitationKind = LimitationKind.OTHER,
    ) -> None:
        """Add a limitation if a query lacks tables or columns, or if ``empty`` is true.

        Args:
            what: Description of what is missing, for the limitation.
            name: Name of the query.
            empty: Whether the query returned no data.
            column: Suffix for the table name in the limitation, such as ``.gpuId``.
            kind: Kind of limitation.
        """
        missing = export.find_missing(name)
        if name == "target/threads":
            missing += export.find_missing("strings/by_id")
        # If the UUIDs of CUDA devices are missing, the UUIDs of the GPUs are used.
        if missing and not (name == _CUDA_DEVICES and export.has(name)):
            reason = f"lacks {', '.join(missing)}"
        elif empty:
            reason = f"has no value in {table_of(name)}{column}"
        else:
            return
        losses.append(Limitation(what, f"{export.path} {reason}", kind=kind))

    for name, subject in _LIMITATION_OF_QUERY.items():
        add_limitation(
            subject, name, empty=name != "target/threads" and export.query_value(name) is None
        )
    has_no_model = export.query_value(_GPUS) is None
    add_limitation("GPU models", _GPUS, empty=has_no_model, kind=LimitationKind.DETAILS)
    rows = export.query_rows_if_possible(_CUDA_DEVICES)
    unknown = all(row[2] == NONE for row in rows)
    add_limitation("GPU ids", _CUDA_DEVICES, empty=unknown, column=".gpuId" if rows else "")
    return tuple(losses)
