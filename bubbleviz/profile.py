"""A profile as it was recorded: the tables that every input format yields.

Identifiers are those of nsys: ``thread`` is a ``globalTid`` ((host id << 48) + (pid << 24) +
tid), ``process`` is ``globalTid >> 24`` or ``globalPid >> 24`` (host id and pid together).
Times are the profile's own nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bubbleviz.columns import Bools, Ints, Table
from bubbleviz.model import Limitation

PID_MASK = 0xFFFFFF


def process_of(thread: Ints) -> Ints:
    """Return the process of each thread."""
    return thread >> 24


def pid_of(process: int) -> int:
    """Return the operating system's process id."""
    return process & PID_MASK


def tid_of(thread: int) -> int:
    """Return the operating system's thread id."""
    return thread & PID_MASK


def is_main(thread: int) -> bool:
    """Tell whether it is its process's first thread (Linux gives it the process id)."""
    return tid_of(thread) == pid_of(thread >> 24)


@dataclass(frozen=True)
class Kernels(Table):
    """Kernels (CUPTI_ACTIVITY_KIND_KERNEL), in the order of the export.

    Attributes:
        start_ns: start on the device.
        end_ns: end on the device.
        device_id: device number as the process sees it.
        process: process that launched it.
        correlation_id: pairs with its launching call within the process; -1 none.
        name_id: row of ``names``.
        names: distinct demangled names.
    """

    start_ns: Ints
    end_ns: Ints
    device_id: Ints
    process: Ints
    correlation_id: Ints
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class Copies(Table):
    """Copies and fills (CUPTI_ACTIVITY_KIND_MEMCPY, _MEMSET); columns as in Kernels."""

    start_ns: Ints
    end_ns: Ints
    device_id: Ints
    process: Ints
    correlation_id: Ints


@dataclass(frozen=True)
class Calls(Table):
    """CUDA API calls (CUPTI_ACTIVITY_KIND_RUNTIME), in the order of the export.

    Attributes:
        start_ns: when the host entered the call.
        end_ns: when it returned.
        thread: the calling thread.
        correlation_id: shared with what the call launched, unique within a process.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    correlation_id: Ints


@dataclass(frozen=True)
class Ranges(Table):
    """NVTX ranges that may follow a naming convention, in the order of the export.

    Attributes:
        start_ns: when it was opened.
        end_ns: when it was closed; the end of the capture where ``cut``.
        thread: thread that opened it.
        end_thread: thread that closed a start/end range; -1 unknown or the same.
        start_end: whether it is a start/end range (no stack) rather than push/pop.
        cut: whether it was still open when the capture ended.
        name_id: row of ``names``.
        names: distinct texts.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    end_thread: Ints
    start_end: Bools
    cut: Bools
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class Thread:
    """A named thread."""

    thread: int
    name: str


@dataclass(frozen=True)
class Device:
    """A GPU as one process of the profile (None: every process) numbers it."""

    pid: int | None
    device_id: int
    name: str
    uuid: str | None
    pci: str | None = None


@dataclass(frozen=True)
class Source:
    """Where a profile came from.

    Attributes:
        path: as given.
        host: hostname, or the file's name where the export holds none.
        host_known: whether ``host`` is a hostname.
        format: name of the input format.
        nsys_version: version of the exporter.
        schema_version: version of the export's schema.
        session_utc_ns: host's UTC clock at the profile's time 0.
        session_clock_ns: host's steady clock at the profile's time 0.
    """

    path: str
    host: str
    host_known: bool
    format: str
    nsys_version: str | None
    schema_version: str | None
    session_utc_ns: int | None
    session_clock_ns: int | None


@dataclass(frozen=True)
class Profile:
    """One profile, read."""

    source: Source
    kernels: Kernels
    copies: Copies
    calls: Calls
    ranges: Ranges
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    limitations: tuple[Limitation, ...]


@dataclass(frozen=True)
class TableCount:
    """How many rows a table of a profile holds; None where it is absent."""

    what: str
    table: str
    rows: int | None


@dataclass(frozen=True)
class NameCount:
    """How often a range name occurs."""

    name: str
    count: int


@dataclass(frozen=True)
class Contents:
    """What a profile holds, for a first look at an unknown file.

    Attributes:
        source: where it came from.
        tables: how many rows of each kind it holds.
        processes: that ran kernels or CUDA graphs.
        devices: that it describes.
        candidates: the names that pass the prefilters of conventions.
        lacks: tables and columns of a whole export that it does not have.
        readable: whether what it has is enough all the same.
    """

    source: Source
    tables: tuple[TableCount, ...]
    processes: tuple[int, ...]
    devices: tuple[Device, ...]
    candidates: tuple[NameCount, ...]
    lacks: tuple[str, ...]
    readable: bool
