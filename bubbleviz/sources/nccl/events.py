"""Tables of communication operations that NCCL recorded, one row per operation and rank.

:class:`NcclEventBuilder` collects the rows in file order while a file is read, and then converts
the rows to columns.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
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

#: Value of an unknown time. 0 is not used because times are relative and start near 0.
UNKNOWN = int(np.iinfo(np.int64).min)
#: Exclusive upper bound on durations and on times since the profiler started (116 days).
MAX_DURATION_NS = 10**16

#: States that a step of a network transfer goes through, in order.
#: A send waits for a free buffer, the GPU to fill it, a ready peer, and the end of the transfer.
#: A receive waits for a free buffer, the data, the flush to the GPU, and the GPU to consume it.
#: See ``src/transport/net.cc`` of NCCL, and the states in ``plugins/profiler/example``.
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


#: Collectives that have a root. Their members may finish at different times.
ROOTED_OPERATIONS = frozenset(("Broadcast", "Bcast", "Reduce", "Gather", "Scatter"))
#: Progress of an operation in PyTorch's flight recorder: queued by the host, started, or completed.
PROGRESS = ("scheduled", "started", "completed")


class OperationKind(IntEnum):
    """The kind of a row in :class:`NcclEvents`."""

    COLLECTIVE = 0
    POINT_TO_POINT = 1
    #: A call to NCCL's API for which no operation was recorded.
    CALL = 2
    #: A collective that is executed by copy engines.
    COPY_ENGINE = 3
    #: A proxy thread's transfers to or from one peer for one operation.
    PROXY = 4
    #: A communication kernel in a profile.
    KERNEL = 5


@dataclass(frozen=True, eq=False, repr=False)
class NcclEvents(Table):
    """Recorded communication operations, one row per operation and rank.

    Unknown identifiers and counts are -1, and unknown times are ``UNKNOWN``. Host times are in ns
    since the profiler of the process started. GPU times are in ns on the GPU's own clock
    (``globaltimer``), which differs between GPUs.

    Attributes:
        kind: Kind of the row, a value of :class:`OperationKind`.
        pid: Process id.
        name: The operation's name, such as ``AllReduce``, as an index into ``names``.
        communicator: The communicator, as an index into ``communicators``.
        rank: Rank of the caller in the communicator.
        peer: Rank that the operation sends to or receives from.
        root: Root rank, for collectives that have a root.
        sequence: Position among the communicator's operations with the same name.
        count: Number of elements.
        datatype: The data type, as an index into ``names``.
        algorithm: The algorithm, as an index into ``names``.
        protocol: The protocol, as an index into ``names``.
        channels: Number of channels.
        payload: Number of bytes, if the number of bytes was recorded instead of the number of
            elements.
        progress: The operation's progress, as an index into ``PROGRESS``.
        duration_ns: Duration of the operation's kernel, if it was recorded without exact times.
        is_host_duration: 1 if ``duration_ns`` was measured on the host, otherwise 0 or -1.
        host_start_ns: Time at which NCCL started to process the operation.
        host_end_ns: Time at which NCCL finished processing the operation. Without a network, an
            operation is finished as soon as it has been launched.
        kernel_start_ns: Time at which the host saw the operation's kernel start.
        kernel_end_ns: Time at which the host saw the operation's kernel end.
        gpu_start_ns: Earliest kernel start on any channel, on the GPU's clock.
        gpu_end_ns: Latest kernel end on any channel, on the GPU's clock.
        proxy_start_ns: Start of the first proxy thread event for the operation.
        proxy_end_ns: End of the last proxy thread event for the operation.
        steps: Number of steps in the operation's network transfers.
        state_ns: Time spent in each of ``STATES``, summed over all steps, shape (rows, states).
        peer_wait_ns: Time for which at least one step waits for the peer and no step moves data.
        transfer_ns: Time for which at least one step moves data.
        names: Names of operations, data types, algorithms and protocols.
        communicators: NCCL's communicator hashes, or PyTorch's process groups.
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
    duration_ns: Ints
    is_host_duration: Ints
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
    """Kernel starts that were timed on both the GPU's clock and the host's clock.

    The table has one row for each channel of a kernel.

    Attributes:
        row: Row of the operation in the event table.
        gpu_ns: Kernel start time on the GPU's clock.
        host_ns: Time on the host's clock at which the host saw the kernel start. Because the host
            polls, this time is late by up to one sleep of the polling thread.
    """

    row: Ints
    gpu_ns: Ints
    host_ns: Ints


@dataclass(frozen=True)
class EventFile:
    """The contents of an event file.

    Attributes:
        path: Path to the file.
        format: Name of the file's format.
        events: Communication operations.
        bridges: Kernel starts that were timed on both the GPU's clock and the host's clock.
        category_counts: (event category, number of events) pairs, sorted by category.
        unreadable: Number of objects in the file that are not events.
        n_without_end: Number of events whose end is missing.
        n_without_begin: Number of events whose start is missing.
        n_duplicates: Number of duplicate operations that were dropped.
        n_unknown: Number of events in unknown categories.
        n_clock_conflicts: Number of operations whose GPU times contradict their other times.
        rank: Rank of the process in the run for flight recorder dumps, otherwise -1.
        rolled_over: Whether the flight recorder had already overwritten its oldest operations.
        is_packed_damaged: Whether the gzip data of the file is truncated or damaged.
        host: Hostname, or "" if the file does not contain it.
        sizes: Number of ranks, keyed by communicator, if the file contains it.
        n_dropped: Number of operations that the recorder counted but did not write.
        n_host_timed: Number of durations that were measured on the host.
        counts_drops: Whether the recorder counts the operations that it did not write.
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
    host: str = ""
    sizes: Mapping[int | Group, int] = field(default_factory=dict)
    n_dropped: int = 0
    n_host_timed: int = 0
    counts_drops: bool = False

    @property
    def is_damaged(self) -> bool:
        """Whether too many events are missing for sums over events to be reliable.

        A file is damaged if its gzip data is damaged, or if more than two objects, and at least
        ``DAMAGED_SHARE`` of all objects, are unreadable. Two are allowed because a killed job
        truncates the last object, which leaves at most two unreadable fragments.
        """
        n_events = sum(count for _, count in self.category_counts) + self.unreadable
        return self.is_packed_damaged or (
            self.unreadable > 2 and self.unreadable >= DAMAGED_SHARE * n_events
        )


#: Maximum plausible deviation between the GPU's clock and the host's clock, in ns. The polling
#: thread sleeps for milliseconds, and clocks drift by only milliseconds in hours.
_MAX_DEVIATION_NS = 1_000_000_000
#: Minimum number of bridges per GPU. With fewer bridges, a wrong bridge cannot be identified.
_MIN_BRIDGES = 3


def find_clock_conflicts(events: NcclEvents, bridges: Bridges) -> tuple[Bools, Bools]:
    """Find operations whose GPU times contradict other recorded times.

    The host time of a kernel start minus its GPU time is nearly constant for each GPU (process,
    communicator and rank). A start is wrong if this difference deviates by more than
    ``_MAX_DEVIATION_NS`` from the GPU's lower median. GPUs with fewer than ``_MIN_BRIDGES`` bridges
    are not checked for wrong starts.

    An end is wrong if the start is wrong. An end is also wrong if the kernel seems to last longer
    than the span of all host times in the file plus ``_MAX_DEVIATION_NS``.

    Args:
        events: Operations in a file.
        bridges: Kernel starts that were timed on both the GPU's clock and the host's clock.

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


#: Largest number that fits in a column, and largest GPU time whose differences fit as well.
_MAX_NUMBER, _MAX_CLOCK_NS = (1 << 63) - 1, 1 << 62
#: Masks over ``STATES``: states in which data is moving, and states that wait for the peer.
_IS_MOVING = np.array([name in {"SendWait", "RecvFlushWait"} for name in STATES])
_IS_WAITING = np.array([name in {"SendPeerWait", "RecvWait"} for name in STATES])

#: Names of the time columns, and names of the columns for identifiers and counts. ``_NONE``
#: contains each column's value for "unknown".
_TIMES = tuple(name for name in NcclEvents.column_names() if name.endswith(("start_ns", "end_ns")))
_NUMBERS = NcclEvents.column_names()[: NcclEvents.column_names().index(_TIMES[0])]
_NONE = dict.fromkeys(_NUMBERS, NONE) | dict.fromkeys(_TIMES, UNKNOWN)


def parse_time(microseconds: float | None) -> int:
    """Convert a host time in us to ns. None, 0 and invalid times become ``UNKNOWN``."""
    if microseconds is None or not 0 < microseconds < MAX_DURATION_NS / 1000:
        return UNKNOWN
    return round(microseconds * 1000)


def parse_number(value: int | None) -> int:
    """Return a count or rank unchanged, or -1 if it is None, negative or too large."""
    return value if value is not None and 0 <= value <= _MAX_NUMBER else NONE


def parse_gpu_time(value: int | None) -> int:
    """Return a time on a GPU's clock unchanged, or ``UNKNOWN`` for None, 0 and invalid times."""
    return value if value is not None and 0 < value <= _MAX_CLOCK_NS else UNKNOWN


class NcclEventBuilder:
    """Collects operations row by row, and converts the rows to columns.

    Attributes:
        columns: Identifiers, counts and times of all rows, keyed by column name.
        steps: Number of network transfer steps for each row.
        category_counts: Number of events, keyed by category.
        n_unknown: Number of events in unknown categories.
        n_without_begin: Number of events whose start is missing.
        n_without_end: Number of events whose end is missing.
    """

    def __init__(self) -> None:
        self.category_counts: Counter[str] = Counter()
        self.n_unknown = self.n_without_begin = self.n_without_end = 0
        self._names, self._communicators = Numbering[str](), Numbering[int | Group]()
        self.columns: dict[str, list[int]] = {name: [] for name in _NONE}
        self.steps: list[int] = []
        # Flat arrays of (row, state, start, end) and of (row, GPU time, host time), to save memory.
        self._states, self._bridges = array("q"), array("q")

    def number_name(self, text: str | None) -> int:
        """Return the index of a name in ``names``, or -1 for None and ""."""
        return self._names.number(text) if text else NONE

    def number_communicator(self, value: int | Group | None) -> int:
        """Return the index of a communicator in ``communicators``, or -1 for None.

        A new communicator is added. A negative hash is reinterpreted as an unsigned 64-bit number.
        """
        if value is None:
            return NONE
        if isinstance(value, Group):
            return self._communicators.number(value)
        # The hash has 64 bits. Older versions of NCCL print it as a signed number.
        return self._communicators.number(value & ((1 << 64) - 1))

    def add(self, **values: int) -> int:
        """Add an operation, and return its row. Columns that are not given are set to unknown."""
        for name, value in (_NONE | values).items():
            self.columns[name].append(value)
        self.steps.append(0)
        return len(self.steps) - 1

    def extend_times(self, row: int, prefix: str, start_ns: int, end_ns: int) -> None:
        """Extend the start and end times of an operation so that they include an event.

        Args:
            row: The operation's row.
            prefix: Prefix of the two column names: "kernel", "gpu" or "proxy".
            start_ns: Start time of the event, or ``UNKNOWN``.
            end_ns: End time of the event, or ``UNKNOWN``.
        """
        first, last = self.columns[f"{prefix}_start_ns"], self.columns[f"{prefix}_end_ns"]
        if start_ns != UNKNOWN and (first[row] == UNKNOWN or start_ns < first[row]):
            first[row] = start_ns
        last[row] = max(last[row], end_ns)

    def add_state(self, row: int, state: int, start_ns: int, end_ns: int) -> None:
        """Add a time interval that a step of an operation spent in one of ``STATES``.

        The interval is ignored if its start or end is unknown, or if its end is before its start.

        Args:
            row: The operation's row.
            state: The state, as an index into ``STATES``.
            start_ns: Start time of the interval, or ``UNKNOWN``.
            end_ns: End time of the interval, or ``UNKNOWN``.
        """
        if UNKNOWN != start_ns <= end_ns:
            self._states.extend((row, state, start_ns, end_ns))

    def add_bridge(self, row: int, gpu_ns: int, host_ns: int) -> None:
        """Add a kernel start that was timed on both clocks, unless one of the times is unknown."""
        if UNKNOWN not in (gpu_ns, host_ns):
            self._bridges.extend((row, gpu_ns, host_ns))

    def build_event_file(self, path: str, format_name: str, unreadable: int) -> EventFile:
        """Build the :class:`EventFile` after all events have been added.

        GPU times that contradict other times (see :func:`find_clock_conflicts`) become unknown.
        Duplicate operations are then dropped (see :func:`_mask_distinct`).

        Args:
            path: Path to the file.
            format_name: Name of the file's format.
            unreadable: Number of objects in the file that are not events.
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
    """Return a mask of the operations that are not duplicates of an earlier operation.

    When a communicator is destroyed, NCCL prints all remaining events again. A duplicate has the
    same identifiers, counts and times (the columns in ``_NONE``) as an earlier operation. An
    operation whose host start is unknown is never a duplicate.
    """
    is_distinct = np.ones(len(events), bool)
    timed = np.flatnonzero(events.host_start_ns != UNKNOWN)
    groups = group_rows(*(getattr(events, name)[timed] for name in _NONE))
    is_distinct[timed] = groups.first[groups.of_row] == np.arange(len(timed))
    return is_distinct


def _measure_wait_and_transfer(n_rows: int, states: Ints) -> tuple[Ints, Ints]:
    """Measure how long each operation waited for its peer and how long it moved data.

    ::

        step 0      ├── peer ──┤├ moves ┤
        step 1           ├── peer ──┤├ moves ┤
        waits       ├──────────┤
        transfers               ├────────────┤

    Args:
        n_rows: Number of rows.
        states: Row, state, start and end of each recorded state, shape (4, states).

    Returns:
        wait_ns: For each row, the time for which at least one step waits for the peer and no step
            moves data.
        transfer_ns: For each row, the time for which at least one step moves data.
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
    """Return a column with the given values in the given rows, and 0 in all other rows."""
    column = np.zeros(n_rows, np.int64)
    column[rows] = values
    return column
