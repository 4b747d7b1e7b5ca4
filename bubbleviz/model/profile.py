"""A profile as it was recorded: the tables that every input format yields.

Identifiers are those of nsys: ``thread`` is a ``globalTid`` ((host id << 48) + (pid << 24) +
tid), ``process`` is ``globalTid >> 24`` or ``globalPid >> 24`` (host id and pid together).
Times are the profile's own nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.collectives import Collectives
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, stretch_of
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import expanded, heads, rows_by_value
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.memory_events import MemoryEvents
from bubbleviz.model.payloads import Payloads
from bubbleviz.model.synchronisation import Synchronisation

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


#: Rows of the kernels of a profile, among the kinds of rows that can be left out.
KERNELS = "kernels"
KERNELS_AND_COPIES = "kernels and copies"
#: How threads are named that stand for a device and are none of a host's.
DEVICE_THREAD = "XLA on device"
#: How copies are named by which the driver moves pages of managed memory; no call launches them.
PAGE_MIGRATION = "page migration"
#: The correlation id of what no call launched; ids have 32 bits.
UNCORRELATED = (1 << 32) - 1
#: Times beyond this (36 years) are no times; CUPTI is known to write such rows.
IMPOSSIBLE_NS = 1 << 60


def possible(start_ns: Ints, end_ns: Ints) -> Bools | None:
    """Tell which rows have times that can be: in order, and of this age; None where all have."""
    ordered = end_ns >= start_ns
    inside = len(start_ns) == 0 or (
        start_ns.min() > -IMPOSSIBLE_NS and end_ns.max() < IMPOSSIBLE_NS and ordered.all()
    )
    if inside:
        return None
    return np.asarray(ordered & (start_ns > -IMPOSSIBLE_NS) & (end_ns < IMPOSSIBLE_NS), bool)


#: UTC times from the year 2116 on are damaged. Those before can be added to the times of work, and
#: subtracted from each other, without exceeding 64 bits.
_MAX_UTC_NS = 1 << 62


def possible_utc(utc_ns: int | None) -> int | None:
    """Return a UTC time in ns, or None if it is unknown or cannot be a time of a recording."""
    return None if utc_ns is None or abs(utc_ns) >= _MAX_UTC_NS else utc_ns


def impossible_times(path: str, left_out: Mapping[str, int]) -> tuple[Limitation, ...]:
    """Return the limitations for rows of some kinds that were left out for their times, if any."""
    reason = "they have no start, end before they start, or are years away"
    kinds = dict.fromkeys((KERNELS, KERNELS_AND_COPIES), LimitationKind.KERNELS_IMPOSSIBLE)
    how = "with impossible times"
    return _left_out(path, left_out, how, reason, kinds, LimitationKind.COSTS)


def _left_out(
    path: str,
    counts: Mapping[str, int],
    how: str,
    reason: str,
    kinds: Mapping[str, LimitationKind],
    otherwise: LimitationKind,
) -> tuple[Limitation, ...]:
    return tuple(
        Limitation(
            f"{what} {how}",
            f"{path}: {reason}; they are left out",
            count,
            kinds.get(what, otherwise),
        )
        for what, count in counts.items()
        if count
    )


def untimed_work(path: str, left_out: Mapping[str, int]) -> tuple[Limitation, ...]:
    """Return the limitations for work of some kinds that has no timestamps, if any."""
    reason = "start and end are 0, which stands for times that could not be collected"
    kinds = {KERNELS: LimitationKind.KERNELS_LEFT_OUT}
    return _left_out(path, left_out, "without timestamps", reason, kinds, LimitationKind.OTHER)


def outside_limitation(
    what: str, path: str, count: int, kind: LimitationKind = LimitationKind.OTHER
) -> Limitation:
    """Return the limitation for rows of some kind that lie outside the capture."""
    reason = f"{path}: they start or end far from everything else; left out"
    return Limitation(f"{what} outside the capture", reason, count, kind)


def correlations(ids: Ints) -> npt.NDArray[np.uint32]:
    """Return correlation ids in 32 bits; what is none becomes ``UNCORRELATED``."""
    # Without a sign what is below 0 is above all ids.
    return np.minimum(ids.view(np.uint64), np.uint64(UNCORRELATED)).astype(np.uint32)


@dataclass(frozen=True, eq=False, repr=False)
class Activities(Table):
    """What ran on devices: kernels (CUPTI_ACTIVITY_KIND_KERNEL), then copies and memsets.

    In the order of the export (CUPTI_ACTIVITY_KIND_MEMCPY, _MEMSET for the latter); rank by rank,
    where a format records them in turns.

    Attributes:
        start_ns: start on the device.
        end_ns: end on the device.
        rank: row of ``ranks``.
        correlation_id: pairs with its launching call within the process.
        name_id: row of ``names``; -1 for copies and memsets, but for page migrations and those that
            only a user can know to be communication.
        kernels: how many of the rows are kernels.
        names: distinct demangled names.
        ranks: distinct (process, device), in order; a device's number is the process's own.
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
        """Return some of the rows, the kernels among them still first."""
        return replace(self.take(rows), kernels=int(rows[: self.kernels].sum()))

    def _runs(self) -> tuple[Ints, Ints, Codes]:
        """Return where runs of rows of one rank begin and end, and that rank.

        Those of a rank mostly follow each other::

            rank     0 0 0 1 1 0 0 1
            runs     ├───┤ ├─┤ ├─┤ │
        """
        begin = heads(self.rank)
        return begin, np.append(begin, len(self))[1:], self.rank[begin]

    def rows_by_rank(self) -> Callable[[int], Codes]:
        """Return what gives the rows of a rank, ascending."""
        begin, end, owner = self._runs()

        def rows(rank: int) -> Codes:
            own = owner == rank
            low, high = begin[own], end[own]
            if len(low) == 1:
                return np.arange(low[0], high[0], dtype=np.int32)
            return expanded(low, high)[1].astype(np.int32)

        return rows

    def rows_by_stream(self, streams: Codes) -> Iterator[Codes]:
        """Yield the rows of each stream of each rank, ascending.

        Streams are handled one after the other to save memory.

        Args:
            streams: Stream of each row within its rank, or -1 if unknown.
        """
        rows_of_rank = self.rows_by_rank()
        for rank in range(len(self.ranks)):
            rows = rows_of_rank(rank)
            for stream, positions in rows_by_value(streams[stretch_of(rows)]):
                if stream != NONE:
                    yield rows[positions]

    def counts_by_rank(self) -> Ints:
        """Return how many rows each rank has."""
        begin, end, owner = self._runs()
        return group_sum(owner, len(self.ranks), end - begin)


@dataclass(frozen=True, eq=False, repr=False)
class Calls(Table):
    """Some CUDA API calls (CUPTI_ACTIVITY_KIND_RUNTIME), in the order of the export.

    Attributes:
        row: number of the row, in the order of the export.
        start_ns: when the host entered the call.
        end_ns: when it returned.
        thread: the calling thread.
        correlation_id: shared with what the call launched, unique within a process.
        impossible: how many rows of these were left out, for times that cannot be.
    """

    row: Ints
    start_ns: Ints
    end_ns: Ints
    thread: Ints
    correlation_id: npt.NDArray[np.uint32]
    impossible: int = field(default=0, metadata={"shared": True})


@dataclass(frozen=True, eq=False, repr=False)
class Overheads(Table):
    """When the profiler itself held a process up (PROFILER_OVERHEAD, CUPTI_ACTIVITY_KIND_OVERHEAD).

    Attributes:
        process: that was held up.
        start_ns: start.
        end_ns: end.
    """

    process: Ints
    start_ns: Ints
    end_ns: Ints


class CallLog(Protocol):
    """The CUDA API calls of a profile, too many to be held at once."""

    def blocks(self) -> Iterator[Calls]:
        """Yield all that can have launched something, in the order of the export."""

    def at(self, rows: Ints) -> Calls:
        """Return the calls of some rows (distinct, ascending)."""

    def names(self, rows: Ints) -> tuple[str, ...]:
        """Return the name of each call of some rows (distinct, ascending); "" where unknown."""

    def beginning(self, rows: Ints, beginnings: tuple[str, ...]) -> Ints:
        """Return those of some rows (distinct, ascending) whose call's name begins in some way.

        Names are those of calls that have work on a device.
        """

    def named(self, beginnings: tuple[str, ...]) -> Ints:
        """Return the rows of the calls whose names start with one of ``beginnings``, ascending.

        Only names of calls that launch work on a device are supported.
        """

    def containing(self, letters: str) -> Ints:
        """Return the rows of the calls whose name contains some letters, ascending."""

    def failed(self, rows: Ints) -> Bools:
        """Tell which calls of some rows (distinct, ascending) are known to have failed."""


@dataclass(frozen=True, eq=False, repr=False)
class Ranges(Table):
    """NVTX ranges that may follow a convention, in the order of the export.

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


class RangeLog(Protocol):
    """All NVTX ranges of a profile, of any name. They may not fit in memory at once."""

    def lasting(
        self, shortest_ns: int, threads: Ints, since_ns: Ints, until_ns: Ints, of: Ints | None
    ) -> Ranges:
        """Return the ranges of a minimum length that overlap any of the given intervals.

        Args:
            shortest_ns: Minimum length of a range.
            threads: Threads whose ranges are returned.
            since_ns: Start of each interval.
            until_ns: End of each interval.
            of: Thread of each interval, or None if the intervals apply to all threads. Ranges of a
                thread that overlap only intervals of other threads may be left out.
        """


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


#: What stands for the device where only a host's own operators were recorded.
HOST = "host"


@dataclass(frozen=True)
class ToldClock:
    """A clock that a table of operations names.

    Attributes:
        name: of the clock; what has its name shares it.
        aligned: whether its times are on the report's clock already.
        uncertainty_ns: how far it is off then, at most; None where nothing bounds that.
    """

    name: str
    aligned: bool = False
    uncertainty_ns: int | None = None


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
        device: what its devices are: ``GPU``, another accelerator's name, or :data:`HOST`.
        clock: that its times are of, where that is told; None for its host's.
        machine: id of the machine, which tells two of one hostname apart; None unknown.
        api: of the calls that launch work.
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
    clock: ToldClock | None = None
    machine: str | None = None
    api: str = "CUDA"

    @property
    def on_host(self) -> bool:
        """Whether operators of the host stand for the work of devices."""
        return self.device == HOST

    def place(self, device_id: int) -> str:
        """Return a device in words: ``GPU 0``, or ``host``."""
        return HOST if self.on_host and device_id == 0 else f"{self.device} {device_id}"


#: Reads what a profile holds of waiting, and what could not be read.
SynchronisationReader: TypeAlias = Callable[
    [], tuple[Synchronisation | None, tuple[Limitation, ...]]
]


@dataclass(frozen=True)
class Profile:
    """One profile, read.

    Attributes:
        global_rank: number of the rank in the run, where the file says so and holds one rank.
        world_size: how many ranks the run has, where the file says so.
        system_calls: calls of the operating system, as ranges; None where they are not recorded.
        launches_known: whether the calls are a host's own; else they stand for the work itself,
            and say nothing of when it was launched.
        collectives: what kernels of communication carry out; None where the format never tells.
        payloads: reads what NCCL's ranges carry, and what of it could not be read, while the file
            is open; None where the format has none.
        payloads_described: whether the profile describes what ranges carry.
        synchronisation: reads what the profile holds of waiting, None where that is nothing, and
            what of it could not be read, while the file is open; None where the format has none.
        memory: reads what was allocated and freed, None where that was not recorded; None where
            the format has none.
        is_merged: Whether the file joins recordings of several processes, which may have begun at
            different times.
        process_labels: Labels of processes in a file of several recordings, keyed by process.
        streams: Callable that returns the stream of each activity, or -1 if unknown. Streams are
            numbered per device of a process. It works only while the file is open. The attribute is
            None if the format records no streams.
        copies: Callable that returns the table of copies. It works only while the file is open. The
            attribute is None if the format does not describe copies.
    """

    source: Source
    activities: Activities
    calls: CallLog
    ranges: Ranges
    every_range: RangeLog
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
    payloads_described: bool = False
    synchronisation: SynchronisationReader | None = None
    memory: Callable[[], MemoryEvents | None] | None = None
    is_merged: bool = False
    process_labels: Mapping[int, str] = field(default_factory=dict)
    streams: Callable[[], Codes] | None = None
    copies: Callable[[], Copies] | None = None

    def place(self, process: int, device_id: int) -> str:
        """Describe a device in words, with the label of its process if it has one."""
        label, place = self.process_labels.get(process, ""), self.source.place(device_id)
        return f"{label} {place}" if label else place


@dataclass(frozen=True)
class Contents:
    """What a profile holds, for a first look at an unknown file.

    Attributes:
        source: where it came from.
        tables: how many rows of each kind it holds; None where it lacks the table.
        processes: that ran kernels or CUDA graphs.
        devices: that it describes.
        candidates: the names that pass the prefilters of conventions, and how often they occur.
        ranges: how many rows can hold ranges, of any name.
        missing: what stands in the way or would add to it, with what would record it.
        readable: whether what it has is enough all the same.
        reader: what has read it, and why not what is faster; "" where there is one way only.
        noun: what it is, where it holds operations themselves.
        facts: what else it says of itself, as words and what they are of.
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
