"""A recorded profile: the tables that readers return for every input format.

Threads and processes are coded as in nsys. ``thread`` is a ``globalTid``, which is ``(host id <<
48) + (pid << 24) + tid``. ``process`` is ``globalTid >> 24``, which combines the host id and the
pid. Times are in nanoseconds on the profile's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.collectives import Collectives
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, to_slice
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import expand_ranges, find_run_starts, list_rows_by_value
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.model.payloads import Payloads
from bubbleviz.model.synchronization import Synchronization

PID_MASK = 0xFFFFFF


def process_of(thread: Ints) -> Ints:
    """Return the process of each thread. Threads and processes are coded as in nsys."""
    return thread >> 24


def get_pid(process: int) -> int:
    """Return the operating-system process id (pid) of a coded process."""
    return process & PID_MASK


def get_tid(thread: int) -> int:
    """Return the operating-system thread id (tid) of a coded thread."""
    return thread & PID_MASK


def is_main(thread: int) -> bool:
    """Return whether a thread is its process's main thread, so that tid equals pid."""
    return get_tid(thread) == get_pid(thread >> 24)


#: Row kind names, for messages about rows that were left out.
KERNELS = "kernels"
KERNELS_AND_COPIES = "kernels and copies"
#: Name given to threads that represent a device rather than a host thread.
DEVICE_THREAD = "XLA on device"
#: Name for copies of managed-memory pages, which the driver makes without any launching call.
PAGE_MIGRATION = "page migration"
#: Correlation id of work that was not launched by any call: the largest 32-bit number.
UNCORRELATED = (1 << 32) - 1
#: Exclusive limit of valid times in ns (36 years). CUPTI sometimes writes larger times.
IMPOSSIBLE_NS = 1 << 60


def mask_possible(start_ns: Ints, end_ns: Ints) -> Bools | None:
    """Return a mask of the rows whose times are possible, or None if all times are possible.

    Times are possible if ``-IMPOSSIBLE_NS < start <= end < IMPOSSIBLE_NS``.
    """
    is_ordered = end_ns >= start_ns
    is_all_possible = len(start_ns) == 0 or (
        start_ns.min() > -IMPOSSIBLE_NS and end_ns.max() < IMPOSSIBLE_NS and is_ordered.all()
    )
    if is_all_possible:
        return None
    return np.asarray(is_ordered & (start_ns > -IMPOSSIBLE_NS) & (end_ns < IMPOSSIBLE_NS), bool)


#: Exclusive limit of valid UTC times in ns (year 2116).
#: Sums and differences of two times below this limit fit in 64 bits.
_MAX_UTC_NS = 1 << 62


def validate_utc(utc_ns: int | None) -> int | None:
    """Return the UTC time unchanged, or None if its absolute value is ``_MAX_UTC_NS`` or more."""
    return None if utc_ns is None or abs(utc_ns) >= _MAX_UTC_NS else utc_ns


def report_impossible_times(path: str, left_out: Mapping[str, int]) -> tuple[Limitation, ...]:
    """Return one limitation for each kind of row left out because of invalid times.

    Args:
        path: Path of the profile.
        left_out: Number of rows left out, keyed by kind such as ``KERNELS``. Kinds with 0 rows
            are skipped.
    """
    reason = "they have no start, end before they start, or are years away from the rest"
    kinds = dict.fromkeys((KERNELS, KERNELS_AND_COPIES), LimitationKind.KERNELS_IMPOSSIBLE)
    how = "with impossible times"
    return _make_limitations(path, left_out, how, reason, kinds, LimitationKind.COSTS)


def _make_limitations(
    path: str,
    counts: Mapping[str, int],
    qualifier: str,
    reason: str,
    kinds: Mapping[str, LimitationKind],
    default_kind: LimitationKind,
) -> tuple[Limitation, ...]:
    """Return one limitation for each kind of row left out.

    Args:
        path: Path of the profile.
        counts: Number of rows left out, keyed by kind of row. Kinds with 0 rows get no limitation.
        qualifier: Phrase that follows the kind of row, such as "without timestamps".
        reason: Reason for leaving out the rows.
        kinds: Kind of limitation, keyed by kind of row.
        default_kind: Kind of limitation for row kinds that are not in ``kinds``.
    """
    return tuple(
        Limitation(
            f"{row_kind} {qualifier}",
            f"{path}: {reason}; they are left out",
            count,
            kinds.get(row_kind, default_kind),
        )
        for row_kind, count in counts.items()
        if count
    )


def report_untimed_work(path: str, left_out: Mapping[str, int]) -> tuple[Limitation, ...]:
    """Return one limitation for each kind of work left out for lack of timestamps.

    Args:
        path: Path of the profile.
        left_out: Number of rows left out, keyed by kind such as ``KERNELS``. Kinds with 0 rows
            are skipped.
    """
    reason = "start and end are 0, so the profiler could not collect the times"
    kinds = {KERNELS: LimitationKind.KERNELS_LEFT_OUT}
    return _make_limitations(
        path, left_out, "without timestamps", reason, kinds, LimitationKind.OTHER
    )


def report_outside_capture(
    row_kind: str, path: str, count: int, kind: LimitationKind = LimitationKind.OTHER
) -> Limitation:
    """Return the limitation for rows left out because they lie outside the capture.

    Args:
        row_kind: Kind of row, such as ``KERNELS``.
        path: Path of the profile.
        count: Number of rows left out.
        kind: Kind of limitation.
    """
    reason = f"{path}: they start or end far from everything else, so they are left out"
    return Limitation(f"{row_kind} outside the capture", reason, count, kind)


def to_correlation_ids(ids: Ints) -> npt.NDArray[np.uint32]:
    """Convert correlation ids to 32 bits.

    Ids that are negative or too large become ``UNCORRELATED``.
    """
    # Viewed as unsigned integers, negative ids are larger than all valid ids.
    return np.minimum(ids.view(np.uint64), np.uint64(UNCORRELATED)).astype(np.uint32)


@dataclass(frozen=True, eq=False, repr=False)
class Activities(Table):
    """Device work: one row per kernel, then one row per copy or memset.

    nsys stores this work in CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY and _MEMSET. Kernels keep their
    order in the file, as do copies and memsets. In formats that interleave ranks, kernels are
    sorted by rank, as are copies and memsets.

    Attributes:
        start_ns: Start on the device.
        end_ns: End on the device.
        rank: Index into ``ranks``.
        correlation_id: Id shared with the launching call in the same process.
        name_id: Index into ``names``, or -1 for copies and memsets without a name. Only page
            migrations and copies that users may declare as communication have names.
        kernels: Number of kernels, which are the first rows of the table.
        names: Distinct demangled names of kernels and copies.
        ranks: Sorted distinct (process, device number) pairs, shape (ranks, 2). Each process
            numbers its devices separately.
    """

    start_ns: Ints
    end_ns: Ints
    rank: Codes
    correlation_id: npt.NDArray[np.uint32]
    name_id: Codes
    kernels: int = field(metadata={"shared": True})
    names: tuple[str, ...] = field(metadata={"shared": True})
    ranks: Ints = field(metadata={"shared": True})

    def chosen(self, rows: Bools) -> Activities:
        """Return a table of the rows selected by a mask. Kernels still precede copies."""
        return replace(self.take(rows), kernels=int(rows[: self.kernels].sum()))

    def _find_runs(self) -> tuple[Ints, Ints, Codes]:
        """Find the runs of consecutive rows that have the same rank.

        A rank's rows usually form only a few runs::

            rank     0 0 0 1 1 0 0 1
            runs     ├───┤ ├─┤ ├─┤ │

        Returns:
            start: First row of each run, ascending.
            end: Exclusive end of each run.
            owner: Rank of each run.
        """
        start = find_run_starts(self.rank)
        return start, np.append(start, len(self))[1:], self.rank[start]

    def make_rank_lookup(self) -> Callable[[int], Codes]:
        """Return a function that lists the rows of a given rank in ascending order."""
        start, end, owner = self._find_runs()

        def rows(rank: int) -> Codes:
            is_own = owner == rank
            low, high = start[is_own], end[is_own]
            if len(low) == 1:
                return np.arange(low[0], high[0], dtype=np.int32)
            return expand_ranges(low, high)[1].astype(np.int32)

        return rows

    def iter_rows_by_stream(self, streams: Codes) -> Iterator[Codes]:
        """Yield the rows on each stream of each rank, in ascending order.

        Rows whose stream is unknown are left out. The arrays are created one at a time to save
        memory.

        Args:
            streams: Stream of each row, or -1 if unknown. Each rank numbers its streams separately.
        """
        rows_of_rank = self.make_rank_lookup()
        for rank in range(len(self.ranks)):
            rows = rows_of_rank(rank)
            for stream, positions in list_rows_by_value(streams[to_slice(rows)]):
                if stream != NONE:
                    yield rows[positions]

    def count_by_rank(self) -> Ints:
        """Return the number of rows of each rank, shape (ranks,)."""
        start, end, owner = self._find_runs()
        return group_sum(owner, len(self.ranks), end - start)


@dataclass(frozen=True, eq=False, repr=False)
class Calls(Table):
    """A block of CUDA API calls, in the order of the file.

    nsys stores these calls in CUPTI_ACTIVITY_KIND_RUNTIME.

    Attributes:
        row: Row number of the call in the file.
        start_ns: Time at which the host entered the call.
        end_ns: Time at which the call returned.
        thread: Calling thread.
        correlation_id: Id shared with the launched work, unique within a process.
        impossible: Number of calls left out because of invalid times.
    """

    row: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    correlation_id: npt.NDArray[np.uint32]
    impossible: int = field(default=0, metadata={"shared": True})


@dataclass(frozen=True, eq=False, repr=False)
class Overheads(Table):
    """Intervals during which the profiler itself stopped a process.

    nsys stores these intervals in PROFILER_OVERHEAD, and CUPTI in CUPTI_ACTIVITY_KIND_OVERHEAD.

    Attributes:
        process: The process that was stopped.
        start_ns: Start of the interval.
        end_ns: End of the interval.
    """

    process: Ints
    start_ns: Ints
    end_ns: Ints


class CallLog(Protocol):
    """The CUDA API calls in a profile. They may not all fit in memory at once.

    Arguments named ``rows`` are distinct row numbers in ascending order.
    """

    def blocks(self) -> Iterator[Calls]:
        """Yield all calls that may have launched work, in blocks, in the order of the file."""

    def at(self, rows: Ints) -> Calls:
        """Return the calls in the given rows."""

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the names of the calls in the given rows, with "" for unknown names."""

    def select_by_prefix(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of the given rows whose call name starts with one of the given prefixes.

        Only names of calls that launch work on a device are supported.
        """

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of all calls whose names start with one of the prefixes, ascending.

        Only names of calls that launch work on a device are supported.
        """

    def find_containing(self, letters: str) -> Ints:
        """Return the rows of all calls whose names contain the given text, ascending."""

    def mask_failed(self, rows: Ints) -> Bools:
        """Return a mask of the given rows whose calls are known to have failed."""


@dataclass(frozen=True, eq=False, repr=False)
class Ranges(Table):
    """NVTX ranges whose names may follow a convention, one row per range, in file order.

    Attributes:
        start_ns: Time at which the range was opened.
        end_ns: Time at which the range was closed, or the end of the capture if it is ``cut``.
        thread: Thread that opened the range.
        end_thread: Thread that closed a start/end range, or -1 if it is unknown or is the thread
            that opened the range.
        start_end: Mask of start/end ranges. All other ranges are push/pop ranges, which are nested.
        cut: Mask of ranges that were still open when the capture ended.
        name_id: Index into ``names``.
        names: Distinct names of the ranges.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    end_thread: Ints
    start_end: Bools
    cut: Bools
    name_id: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})


class RangeLog(Protocol):
    """All NVTX ranges in a profile, regardless of name. They may not all fit in memory at once."""

    def lasting(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> Ranges:
        """Return the ranges that are long enough and overlap at least one given interval.

        Args:
            shortest_ns: Minimum length of a range.
            threads: Threads whose ranges are returned.
            since_ns: Start of each interval.
            until_ns: End of each interval.
            of: Thread that each interval applies to, or None if every interval applies to all
                threads. A range that overlaps only intervals of other threads may be left out.
        """


@dataclass(frozen=True)
class Thread:
    """A named thread.

    Attributes:
        thread: Thread id, coded like the columns named ``thread``.
        name: Name of the thread.
    """

    thread: int
    name: str


@dataclass(frozen=True)
class Device:
    """A GPU, and the device number that a process uses for it.

    Attributes:
        pid: Process id, or None if all processes use this device number for the GPU.
        device_id: Device number of the GPU.
        name: Product name of the GPU.
        uuid: UUID of the GPU or of its MIG instance, or None if unknown.
        pci: PCI bus address, or None if unknown.
    """

    pid: int | None
    device_id: int
    name: str
    uuid: str | None
    pci: str | None = None


#: Device name used if only operators on the host were recorded.
HOST = "host"


@dataclass(frozen=True)
class DeclaredClock:
    """A clock declared by a table of operations.

    Attributes:
        name: Name of the clock. All rows with this name use the same clock.
        aligned: Whether times on this clock are already on the common clock.
        uncertainty_ns: Maximum error of an aligned clock, or None if unknown.
        slot_ns: Length of an iteration's time slot, or 0 if the clock runs through all iterations.
            If the clock restarts at the beginning of each iteration, iteration k begins at
            k * slot_ns, and the time between iterations is unknown.
    """

    name: str
    aligned: bool = False
    uncertainty_ns: int | None = None
    slot_ns: int = 0


@dataclass(frozen=True)
class Source:
    """The file that a profile was read from, and the host that recorded the profile.

    Attributes:
        path: Path as given by the user.
        host: Hostname, or the name of the file if the file contains no hostname.
        host_known: Whether ``host`` is a hostname.
        format: Name of the input format.
        nsys_version: Version of the exporter, or None if unknown.
        schema_version: Version of the file's schema, or None if the file has none.
        session_utc_ns: UTC time of the host at time 0 of the profile, or None if unknown.
        session_clock_ns: Reading of the host's steady clock at time 0 of the profile, or None if
            unknown.
        device: Kind of device: ``GPU``, the name of another accelerator, or :data:`HOST`.
        clock: Clock that a table declares for its times, or None for the host's clock.
        machine: Id that distinguishes machines with the same hostname, or None if unknown.
        api: Name of the API whose calls launch work.
    """

    path: str
    host: str
    host_known: bool
    format: str
    nsys_version: str | None = None
    schema_version: str | None = None
    session_utc_ns: int | None = None
    session_clock_ns: int | None = None
    device: str = "GPU"
    clock: DeclaredClock | None = None
    machine: str | None = None
    api: str = "CUDA"

    @property
    def on_host(self) -> bool:
        """Whether operators on the host represent the work of devices."""
        return self.device == HOST

    def place(self, device_id: int) -> str:
        """Return the display name of a device, such as ``GPU 0`` or ``host``."""
        return HOST if self.on_host and device_id == 0 else f"{self.device} {device_id}"


#: Function that returns the recorded synchronization (or None), and limitations found while reading
#: it.
SynchronizationReader: TypeAlias = Callable[
    [], tuple[Synchronization | None, tuple[Limitation, ...]]
]


@dataclass(frozen=True)
class Profile:
    """The tables read from one file.

    An attribute that is a callable reads its table when it is called, and works only while the file
    is open. The attribute is None if the format cannot record the table.

    Attributes:
        source: The file, and the host that recorded the profile.
        activities: Kernels, copies and memsets on the devices.
        calls: API calls made by the host.
        ranges: Ranges whose names may follow a convention.
        all_ranges: All ranges, regardless of name.
        overheads: Intervals in which the profiler stopped a process.
        threads: Threads whose names are known.
        devices: Devices that the file describes.
        limitations: Reasons why some data could not be read.
        global_rank: Global rank in the job, or None if the file does not contain it or contains
            several ranks.
        world_size: Number of ranks in the job, or None if the file does not contain it.
        system_calls: Operating system calls, as ranges, or None if they are not recorded.
        launches_known: Whether ``calls`` are calls on a host. If False, the calls represent the GPU
            work itself, and launch times are unknown.
        collectives: Collectives that communication kernels executed, or None if the format does not
            record collectives.
        payloads: Callable that returns the payloads in NCCL's ranges, and limitations for payloads
            that could not be read.
        has_payload_schema: Whether the profile describes the layout of range payloads.
        synchronization: Callable that returns the recorded synchronization (None if there is none),
            and limitations for records that could not be read.
        memory: Callable that returns the allocations and frees, or None if there are none.
        is_merged: Whether the file combines recordings of several processes, which may have begun
            at different times.
        process_labels: Process labels in a file with several recordings, keyed by process.
        streams: Callable that returns the stream of each activity, or -1 if unknown. Each device of
            a process numbers its streams separately.
        copies: Callable that returns the table of copies.
        hidden_gpus: GPUs of the host that no process in the file can use, such as GPUs that
            ``CUDA_VISIBLE_DEVICES`` hides. Their device numbers are those of the CUDA driver.
    """

    source: Source
    activities: Activities
    calls: CallLog
    ranges: Ranges
    all_ranges: RangeLog
    overheads: Overheads
    threads: tuple[Thread, ...]
    devices: tuple[Device, ...]
    limitations: tuple[Limitation, ...]
    global_rank: int | None = None
    world_size: int | None = None
    system_calls: RangeLog | None = None
    launches_known: bool = True
    collectives: Collectives | None = None
    payloads: Callable[[], tuple[Payloads, tuple[Limitation, ...]]] | None = None
    has_payload_schema: bool = False
    synchronization: SynchronizationReader | None = None
    memory: Callable[[], MemoryEvents | None] | None = None
    is_merged: bool = False
    process_labels: Mapping[int, str] = field(default_factory=dict)
    streams: Callable[[], Codes] | None = None
    copies: Callable[[], Copies] | None = None
    hidden_gpus: tuple[Device, ...] = ()

    def place(self, process: int, device_id: int) -> str:
        """Return the display name of a device, after the label of its process if there is one."""
        label, device = self.process_labels.get(process, ""), self.source.place(device_id)
        return f"{label} {device}" if label else device


@dataclass(frozen=True)
class Contents:
    """Summary of a file's contents, as shown by the command ``inspect``.

    Attributes:
        source: The file, and the host that recorded the profile.
        tables: Number of rows of each kind, such as kernels, keyed by kind. None if the file lacks
            the table.
        processes: Processes that ran kernels or CUDA graphs. For a table of operations, its rank
            numbers.
        devices: Devices that the file describes.
        candidates: Number of occurrences of each range name that a convention may match. For a
            table of operations, the number of operations in each phase.
        ranges: Number of rows that may be ranges, regardless of name.
        missing: Sentences about missing data and how to record it.
        readable: Whether the file can be analyzed although data is missing.
        reader: The reader that was used, and the reason why a faster reader was not. "" if the
            format has only one reader.
        noun: File type for messages if the file contains operations, or "" if it contains kernels.
        facts: Further facts from the file, as (name, value) pairs.
        warnings: Warnings of the profiler about events that may be missing.
    """

    source: Source
    tables: Mapping[str, int | None]
    processes: tuple[int, ...]
    devices: tuple[Device, ...]
    candidates: Mapping[str, int]
    ranges: int
    missing: tuple[str, ...]
    readable: bool
    reader: str = ""
    noun: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
