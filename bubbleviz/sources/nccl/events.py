"""Tables of NCCL's events: one row per communication operation of a rank.

:class:`NcclEventBuilder` collects the rows while a file is read, in the order of the file, and then
converts them to columns.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from bubbleviz.model.collectives import Group
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import group_rows, list_rows_by_value
from bubbleviz.model.intervals import Packing, difference, group_extents, measure_within, union
from bubbleviz.model.limitations import DAMAGED_SHARE
from bubbleviz.model.numbering import Numbering

#: Sentinel for unknown times. It is not 0 because times are relative and start near 0.
UNKNOWN = int(np.iinfo(np.int64).min)
#: Upper bound (exclusive) of durations and times since the profiler started (116 days).
MAX_DURATION_NS = 10**16

#: States of a step of a network transfer, in order. A send waits for a free buffer, for the GPU to
#: fill it, for the peer to be ready, and for the network to send it. A receive waits for a free
#: buffer, for the data, for the flush to the GPU, and for the GPU to consume it (NCCL,
#: ``src/transport/net.cc``; states of ``plugins/profiler/example``).
STATES = (
    "SendBufferWait",
    "SendGpuWait",
    "SendPeerWait",
    "SendWait",
    "RecvBufferWait",
    "RecvWait",
    "RecvFlushWait",
    "RecvGpuWait",
)


#: Progress of an operation in PyTorch's flight recorder: queued by the host, started by the GPU,
#: completed.
PROGRESS = ("scheduled", "started", "completed")


class OperationKind(IntEnum):
    """Kind of a row."""

    COLLECTIVE = 0
    POINT_TO_POINT = 1
    #: A call of NCCL's API for which no operation was recorded.
    CALL = 2
    #: A collective by copy engines.
    COPY_ENGINE = 3
    #: Transfers of a proxy thread to or from one peer, for one operation.
    PROXY = 4
    #: A kernel of a profile.
    KERNEL = 5


@dataclass(frozen=True, eq=False, repr=False)
class NcclEvents(Table):
    """Communication operations as recorded.

    Unknown identifiers and counts are -1; unknown times are ``UNKNOWN``. Host times are in ns since
    the profiler of the process started. GPU times are in ns of the GPU's own clock
    (``globaltimer``), which differs between GPUs.

    Attributes:
        kind: Kind of row, an :class:`OperationKind`.
        pid: Process id.
        name: Index in ``names``.
        communicator: Index in ``communicators``.
        rank: Rank in the communicator.
        peer: Rank that it sends to or receives from.
        root: Root rank of a rooted collective.
        sequence: Index among the operations with this name in the communicator.
        count: Number of elements.
        datatype: Index in ``names``.
        algorithm: Index in ``names``.
        protocol: Index in ``names``.
        channels: Number of channels.
        payload: Number of bytes, if bytes are recorded instead of elements.
        progress: Index in ``PROGRESS``.
        host_start_ns: Time at which NCCL started to handle it.
        host_end_ns: Time at which NCCL had handled it. Without a network this is its launch.
        kernel_start_ns: Time at which the host saw its kernel start.
        kernel_end_ns: Time at which the host saw its kernel end.
        gpu_start_ns: First start on any of its channels.
        gpu_end_ns: Last end on any of its channels.
        proxy_start_ns: First event of its proxy thread.
        proxy_end_ns: Last event of its proxy thread.
        steps: Number of steps of its network transfers.
        state_ns: Time in each of ``STATES``, summed over all steps; shape (rows, states).
        peer_wait_ns: Time in which at least one step waits for the peer and no step moves data.
        transfer_ns: Time in which at least one step moves data.
        names: Names of operations, datatypes, algorithms and protocols.
        communicators: NCCL's hashes of the communicators, or PyTorch's process groups.
    """

    kind: Ints
    pid: Ints
    name: Ints
    communicator: Ints
    rank: Ints
    peer: Ints
    root: Ints
    sequence: Ints
    count: Ints
    datatype: Ints
    algorithm: Ints
    protocol: Ints
    channels: Ints
    payload: Ints
    progress: Ints
    host_start_ns: Ints
    host_end_ns: Ints
    kernel_start_ns: Ints
    kernel_end_ns: Ints
    gpu_start_ns: Ints
    gpu_end_ns: Ints
    proxy_start_ns: Ints
    proxy_end_ns: Ints
    steps: Ints
    state_ns: npt.NDArray[np.int64]
    peer_wait_ns: Ints
    transfer_ns: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    communicators: tuple[int | Group, ...] = field(metadata={"shared": True})


@dataclass(frozen=True, eq=False, repr=False)
class Bridges(Table):
    """Kernel starts timed on the clocks of both the GPU and the host: one row per channel.

    Attributes:
        row: Row of the operation.
        gpu_ns: Start of the kernel on the GPU's clock.
        host_ns: Time at which the host saw the kernel start, which is later by up to one sleep of
            its polling thread.
    """

    row: Ints
    gpu_ns: Ints
    host_ns: Ints


@dataclass(frozen=True)
class EventFile:
    """Contents of an event file.

    Attributes:
        path: Path of the file.
        format: Name of its format.
        events: The operations.
        bridges: Events timed on the clocks of both the GPU and the host.
        category_counts: Pairs of event category and number of events, sorted by category.
        unreadable: Number of objects that are not events.
        n_without_end: Number of events without an end.
        n_without_begin: Number of events without a begin.
        n_duplicates: Number of duplicate operations that were dropped.
        n_unknown: Number of events of unknown categories.
        n_clock_conflicts: Number of operations whose GPU times contradict their other times.
        rank: Rank of the process in the run if the file is a flight recorder dump, else -1.
        rolled_over: Whether the flight recorder had overwritten its first operations.
        is_packed_damaged: Whether the gzip data of the file is truncated or damaged.
    """

    path: str
    format: str
    events: NcclEvents
    bridges: Bridges
    category_counts: tuple[tuple[str, int], ...]
    unreadable: int
    n_without_end: int
    n_without_begin: int
    n_duplicates: int
    n_unknown: int
    n_clock_conflicts: int
    rank: int = NONE
    rolled_over: bool = False
    is_packed_damaged: bool = False

    @property
    def is_damaged(self) -> bool:
        """Whether enough events are missing to make sums over the events too small.

        A job that was killed cuts its last object into at most two pieces, which loses one event.
        """
        n_events = sum(count for _, count in self.category_counts) + self.unreadable
        return self.is_packed_damaged or (
            self.unreadable > 2 and self.unreadable >= DAMAGED_SHARE * n_events
        )


#: Maximum deviation between GPU and host clocks. The polling thread sleeps for milliseconds, and
#: clocks drift by milliseconds in hours.
_MAX_DEVIATION_NS = 1_000_000_000
#: Minimum number of bridges per GPU; with fewer it is unclear which of them is damaged.
_MIN_BRIDGES = 3


def find_clock_conflicts(events: NcclEvents, bridges: Bridges) -> tuple[Bools, Bools]:
    """Find operations whose GPU times contradict their other times.

    The host sees each kernel start slightly later than the GPU does. This delay is nearly constant
    per GPU, so a start is wrong if its delay is far from the median. An end is wrong if the start
    is wrong, or if the kernel lasts longer than the recorded host times span. GPUs with fewer than
    three bridges are not checked for wrong starts.

    Args:
        events: Operations of a file.
        bridges: Kernel starts on the clocks of both the GPU and the host.

    Returns:
        is_start_wrong: Mask of the operations with a wrong GPU start time.
        is_end_wrong: Mask of the operations with a wrong GPU end time.
    """
    is_start_wrong = np.zeros(len(events), bool)
    gpus = group_rows(events.pid, events.communicator, events.rank).of_row[bridges.row]
    delay_ns = bridges.host_ns - bridges.gpu_ns
    for _, bridge_rows in list_rows_by_value(gpus):
        if len(bridge_rows) >= _MIN_BRIDGES:
            median_ns = np.sort(delay_ns[bridge_rows])[(len(bridge_rows) - 1) // 2]
            deviates = np.abs(delay_ns[bridge_rows] - median_ns) > _MAX_DEVIATION_NS
            is_start_wrong[bridges.row[bridge_rows[deviates]]] = True
    has_both = (events.gpu_start_ns != UNKNOWN) & (events.gpu_end_ns != UNKNOWN)
    length_ns = np.where(
        has_both, events.gpu_end_ns - np.where(has_both, events.gpu_start_ns, 0), 0
    )
    times = np.concatenate([getattr(events, name) for name in _TIMES if "gpu" not in name])
    recorded = times[times != UNKNOWN]
    recorded_ns = int(np.ptp(recorded)) if len(recorded) else 0
    return is_start_wrong, is_start_wrong | (length_ns > recorded_ns + _MAX_DEVIATION_NS)


#: Largest number that fits in a column, and largest GPU time, chosen so that differences fit too.
_MAX_NUMBER, _MAX_CLOCK_NS = (1 << 63) - 1, 1 << 62
#: Masks of ``STATES``: data is moving, and waiting for the peer.
_IS_MOVING = np.array([name in {"SendWait", "RecvFlushWait"} for name in STATES])
_IS_WAITING = np.array([name in {"SendPeerWait", "RecvWait"} for name in STATES])

#: Columns that contain times, columns that contain identifiers and counts, and defaults of both.
_TIMES = tuple(name for name in NcclEvents.column_names() if name.endswith(("start_ns", "end_ns")))
_NUMBERS = NcclEvents.column_names()[: NcclEvents.column_names().index(_TIMES[0])]
_NONE = dict.fromkeys(_NUMBERS, NONE) | dict.fromkeys(_TIMES, UNKNOWN)


def parse_time(microseconds: float | None) -> int:
    """Convert a host time to nanoseconds. None, 0 and impossible times become ``UNKNOWN``."""
    if microseconds is None or not 0 < microseconds < MAX_DURATION_NS / 1000:
        return UNKNOWN
    return round(microseconds * 1000)


def parse_number(value: int | None) -> int:
    """Return a count or rank, or -1 if it is None, negative or too large."""
    return value if value is not None and 0 <= value <= _MAX_NUMBER else NONE


def parse_gpu_time(value: int | None) -> int:
    """Return a time of a GPU's clock. None, 0 and impossible times become ``UNKNOWN``."""
    return value if value is not None and 0 < value <= _MAX_CLOCK_NS else UNKNOWN


class NcclEventBuilder:
    """Collects operations row by row and converts them to columns.

    Attributes:
        columns: Identifiers, counts and times, by column name.
        steps: Number of steps of the network transfers, per row.
        category_counts: Number of events per category.
        n_unknown: Number of events of unknown categories.
        n_without_begin: Number of events without a begin.
        n_without_end: Number of events without an end.
    """

    def __init__(self) -> None:
        self.category_counts: Counter[str] = Counter()
        self.n_unknown = self.n_without_begin = self.n_without_end = 0
        self._names, self._communicators = Numbering[str](), Numbering[int | Group]()
        self.columns: dict[str, list[int]] = {name: [] for name in _NONE}
        self.steps: list[int] = []
        # Flat arrays, because there are many: (row, state, start, end) and (row, GPU, host).
        self._states, self._bridges = array("q"), array("q")

    def number_name(self, text: str | None) -> int:
        """Return the index of a name, or -1 for None and ""."""
        return self._names.number(text) if text else NONE

    def number_communicator(self, value: int | Group | None) -> int:
        """Return the index of a communicator, or -1 for None."""
        if value is None:
            return NONE
        if isinstance(value, Group):
            return self._communicators.number(value)
        # The hash has 64 bits; older versions print it as a signed number.
        return self._communicators.number(value & ((1 << 64) - 1))

    def add(self, **values: int) -> int:
        """Add an operation and return its row. Columns that are not passed are unknown."""
        for name, value in (_NONE | values).items():
            self.columns[name].append(value)
        self.steps.append(0)
        return len(self.steps) - 1

    def extend_times(self, row: int, prefix: str, start_ns: int, end_ns: int) -> None:
        """Extend the start and end times of a row to include an event.

        Args:
            row: Row of the operation.
            prefix: Prefix of the two columns: "kernel", "gpu" or "proxy".
            start_ns: Start of the event, or ``UNKNOWN``.
            end_ns: End of the event, or ``UNKNOWN``.
        """
        first, last = self.columns[f"{prefix}_start_ns"], self.columns[f"{prefix}_end_ns"]
        if start_ns != UNKNOWN and (first[row] == UNKNOWN or start_ns < first[row]):
            first[row] = start_ns
        last[row] = max(last[row], end_ns)

    def add_state(self, row: int, state: int, start_ns: int, end_ns: int) -> None:
        """Add the time that a step of an operation spent in one of ``STATES``.

        Nothing is added if the start or the end is unknown, or the end is before the start.
        """
        if UNKNOWN != start_ns <= end_ns:
            self._states.extend((row, state, start_ns, end_ns))

    def add_bridge(self, row: int, gpu_ns: int, host_ns: int) -> None:
        """Add a kernel start timed on the clocks of the GPU and the host, if both are known."""
        if UNKNOWN not in (gpu_ns, host_ns):
            self._bridges.extend((row, gpu_ns, host_ns))

    def build_event_file(self, path: str, format_name: str, unreadable: int) -> EventFile:
        """Build the contents of a file after all events were added.

        GPU times that contradict other times become unknown. Of several operations that are equal
        in all identifiers, counts and times, only the first is kept; operations without a host
        start are all kept.

        Args:
            path: Path of the file.
            format_name: Name of its format.
            unreadable: Number of objects that are not events.
        """
        n_rows = len(self.steps)
        states = np.array(self._states, np.int64).reshape(-1, 4).T
        wait_ns, transfer_ns = _measure_wait_and_transfer(n_rows, states)
        state_ns = np.zeros((n_rows, len(STATES)), np.int64)
        np.add.at(state_ns, (states[0], states[1]), states[3] - states[2])
        events = NcclEvents(
            **{name: np.array(column, np.int64) for name, column in self.columns.items()},
            steps=np.array(self.steps, np.int64),
            state_ns=state_ns,
            peer_wait_ns=wait_ns,
            transfer_ns=transfer_ns,
            names=self._names.values,
            communicators=self._communicators.values,
        )
        bridges = Bridges(*np.array(self._bridges, np.int64).reshape(-1, 3).T.copy())
        is_start_wrong, is_end_wrong = find_clock_conflicts(events, bridges)
        events = replace(
            events,
            gpu_start_ns=np.where(is_start_wrong, UNKNOWN, events.gpu_start_ns),
            gpu_end_ns=np.where(is_end_wrong, UNKNOWN, events.gpu_end_ns),
        )
        keep = _mask_distinct(events)
        new_row = np.cumsum(keep) - 1
        bridges = bridges.take(keep[bridges.row] & ~is_start_wrong[bridges.row])
        return EventFile(
            path=path,
            format=format_name,
            events=events.take(keep),
            bridges=replace(bridges, row=new_row[bridges.row]),
            category_counts=tuple(sorted(self.category_counts.items())),
            unreadable=unreadable,
            n_without_end=self.n_without_end,
            n_without_begin=self.n_without_begin,
            n_duplicates=int((~keep).sum()),
            n_unknown=self.n_unknown,
            n_clock_conflicts=int((keep & is_end_wrong).sum()),
        )


def _mask_distinct(events: NcclEvents) -> Bools:
    """Return a mask of the operations, without the duplicates of earlier operations.

    When a communicator ends, NCCL prints all remaining events again. Operations that are equal in
    all columns of ``_NONE`` are duplicates, unless their host start is unknown.
    """
    is_distinct = np.ones(len(events), bool)
    timed = np.flatnonzero(events.host_start_ns != UNKNOWN)
    groups = group_rows(*(getattr(events, name)[timed] for name in _NONE))
    is_distinct[timed] = groups.first[groups.of_row] == np.arange(len(timed))
    return is_distinct


def _measure_wait_and_transfer(n_rows: int, states: Ints) -> tuple[Ints, Ints]:
    """Measure, per row, the time of waiting for the peer and the time of moving data.

    ::

        step 0      ├── peer ──┤├ moves ┤
        step 1           ├── peer ──┤├ moves ┤
        waits       ├──────────┤
        transfers               ├────────────┤

    Args:
        n_rows: Number of rows.
        states: Row, state, start and end of each recorded state, shape (4, states).

    Returns:
        wait_ns: Time in which at least one step waits for the peer and no step moves data.
        transfer_ns: Time in which at least one step moves data.
    """
    row, state, start_ns, end_ns = states
    rows_with_states, group = np.unique(row, return_inverse=True)
    packing = Packing.of(*group_extents(group, len(rows_with_states), start_ns, end_ns))
    start, end = packing.place(group, start_ns), packing.place(group, end_ns)
    moving = union(start[_IS_MOVING[state]], end[_IS_MOVING[state]])
    waiting = difference(union(start[_IS_WAITING[state]], end[_IS_WAITING[state]]), moving)
    windows = packing.offset_ns[:-1], packing.offset_ns[1:] - 1
    return (
        _spread(measure_within(waiting, *windows), rows_with_states, n_rows),
        _spread(measure_within(moving, *windows), rows_with_states, n_rows),
    )


def _spread(values: Ints, rows: Ints, n_rows: int) -> Ints:
    """Return a column of ``n_rows`` that contains values in the given rows, and 0 in others."""
    column = np.zeros(n_rows, np.int64)
    column[rows] = values
    return column
