"""NCCL's events as columns: one row a communication operation of a rank, as a file records it.

Rows are put into columns while the events of a file are read.
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

#: No time: event files write 0 for it, and relative times begin near 0.
UNKNOWN = int(np.iinfo(np.int64).min)
#: No operation, and no time since a profiler began, is as long (116 days).
LONGEST_NS = 10**16

#: States of a step of a transfer over the network, in their order. A send waits for room in its
#: buffer, for the GPU to fill it, for the peer to be ready, for the network to have sent; a receive
#: for room, for the data, for the flush to the GPU, for the GPU to have taken it (NCCL,
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


#: How far an operation came, as PyTorch's flight recorder has it: queued by the host, begun by the
#: GPU, done.
PROGRESS = ("scheduled", "started", "completed")


class OperationKind(IntEnum):
    """The kind of a row."""

    COLLECTIVE = 0
    POINT_TO_POINT = 1
    #: A call of NCCL's interface of which no operation was recorded.
    CALL = 2
    #: A collective by copy engines.
    COPY_ENGINE = 3
    #: Transfers of a proxy thread to or from one peer, for one operation.
    PROXY = 4
    #: A kernel of a profile.
    KERNEL = 5


@dataclass(frozen=True, eq=False, repr=False)
class NcclEvents(Table):
    """Communication operations as recorded; -1 is "none" in identifiers, ``UNKNOWN`` in times.

    Host times are nanoseconds since the profiler of the process began, GPU times those of the
    GPU's own clock (``globaltimer``), of which each GPU has one.

    Attributes:
        kind: code of :class:`OperationKind`.
        pid: the process.
        name: row of ``names``.
        communicator: row of ``communicators``.
        rank: in the communicator.
        peer: rank that it sends to or receives from.
        root: rank that it starts from or ends at.
        sequence: number among the communicator's operations of this name.
        count: elements.
        datatype: row of ``names``.
        algorithm: row of ``names``.
        protocol: row of ``names``.
        channels: how many it runs over.
        payload: bytes, where these are recorded instead of elements.
        progress: place in ``PROGRESS``.
        host_start_ns: when NCCL began to handle it.
        host_end_ns: when NCCL had handled it; without network that is when it was launched.
        kernel_start_ns: when the host saw its kernel begin.
        kernel_end_ns: when the host saw its kernel end.
        gpu_start_ns: first start over its channels.
        gpu_end_ns: last end over its channels.
        proxy_start_ns: first event of its proxy thread.
        proxy_end_ns: last event of it.
        steps: of its transfers over the network.
        state_ns: time in each of ``STATES``, summed over all steps; shape (rows, states).
        peer_wait_ns: time in which some step waits for the peer and none moves data.
        transfer_ns: time in which some step moves data.
        names: names of operations, datatypes, algorithms and protocols.
        communicators: NCCL's hashes of them, or PyTorch's groups.
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
    """Instants on both a GPU's clock and a host's: one row per kernel on a channel.

    Attributes:
        row: the operation.
        gpu_ns: start on the GPU's clock.
        host_ns: when the host saw it, later by the time that its thread slept.
    """

    row: Ints
    gpu_ns: Ints
    host_ns: Ints


@dataclass(frozen=True)
class EventFile:
    """The contents of an event file.

    Attributes:
        path: as given.
        format: name of its format.
        events: operations.
        bridges: between clocks.
        seen: how many events each category has.
        unreadable: objects that are not events.
        unfinished: events that began and did not end.
        unbegun: events that ended and did not begin.
        repeated: operations that the file holds a second time.
        strange: events of unknown categories.
        strange_clocks: operations with times of a GPU that its other times contradict.
        rank: in the run, of the process whose flight recorder it is; -1 for other formats.
        rolled_over: whether that recorder had dropped its first operations.
        is_packed_damaged: Whether its gzip data ends early or is damaged.
    """

    path: str
    format: str
    events: NcclEvents
    bridges: Bridges
    seen: tuple[tuple[str, int], ...]
    unreadable: int
    unfinished: int
    unbegun: int
    repeated: int
    strange: int
    strange_clocks: int
    rank: int = NONE
    rolled_over: bool = False
    is_packed_damaged: bool = False

    @property
    def is_damaged(self) -> bool:
        """Whether so many events are missing that sums over them are too small.

        A job that was killed cuts its last object into two pieces at most, which loses one event.
        """
        n_events = sum(count for _, count in self.seen) + self.unreadable
        return self.is_packed_damaged or (
            self.unreadable > 2 and self.unreadable >= DAMAGED_SHARE * n_events
        )


#: The thread that sees kernels begin sleeps for milliseconds, and clocks drift by as much in hours.
_APART_NS = 1_000_000_000
#: Of fewer instants on both clocks nobody knows which is damaged.
_FEWEST = 3


def strange_clocks(events: NcclEvents, bridges: Bridges) -> tuple[Bools, Bools]:
    """Return which operations start and end at times of their GPU that its others contradict.

    The host sees each kernel begin a little later than its GPU does, always by about as much, for
    the two clocks run alike; and no kernel lasts longer than the host recorded.

    Args:
        events: of a file.
        bridges: instants on the clocks of GPUs and the host.
    """
    starts = np.zeros(len(events), bool)
    gpus = group_rows(events.pid, events.communicator, events.rank).of_row[bridges.row]
    late_ns = bridges.host_ns - bridges.gpu_ns
    for _, own in list_rows_by_value(gpus):
        if len(own) >= _FEWEST:
            usual_ns = np.sort(late_ns[own])[(len(own) - 1) // 2]
            starts[bridges.row[own[np.abs(late_ns[own] - usual_ns) > _APART_NS]]] = True
    both = (events.gpu_start_ns != UNKNOWN) & (events.gpu_end_ns != UNKNOWN)
    length_ns = np.where(both, events.gpu_end_ns - np.where(both, events.gpu_start_ns, 0), 0)
    times = np.concatenate([getattr(events, name) for name in _TIMES if "gpu" not in name])
    known = times[times != UNKNOWN]
    recorded_ns = int(np.ptp(known)) if len(known) else 0
    return starts, starts | (length_ns > recorded_ns + _APART_NS)


#: The greatest number that a column holds, and the greatest time: differences of times must fit.
_MOST, _MOST_NS = (1 << 63) - 1, 1 << 62
#: States in which data moves; states that wait for the peer.
_MOVES = np.array([name in {"SendWait", "RecvFlushWait"} for name in STATES])
_PEER = np.array([name in {"SendPeerWait", "RecvWait"} for name in STATES])

#: Columns of identifiers and counts, and of times.
_TIMES = tuple(name for name in NcclEvents.column_names() if name.endswith(("start_ns", "end_ns")))
_NUMBERS = NcclEvents.column_names()[: NcclEvents.column_names().index(_TIMES[0])]
_NONE = dict.fromkeys(_NUMBERS, NONE) | dict.fromkeys(_TIMES, UNKNOWN)


def time_of(microseconds: float | None) -> int:
    """Return a time in nanoseconds; 0 is none, as NCCL writes it."""
    if microseconds is None or not 0 < microseconds < LONGEST_NS / 1000:
        return UNKNOWN
    return round(microseconds * 1000)


def number_of(value: int | None) -> int:
    """Return a count or rank that a column can hold; -1 for anything else."""
    return value if value is not None and 0 <= value <= _MOST else NONE


def clock_of(value: int | None) -> int:
    """Return a time of a GPU's clock; 0 is none."""
    return value if value is not None and 0 < value <= _MOST_NS else UNKNOWN


class NcclEventBuilder:
    """Operations row by row, which become columns.

    Attributes:
        columns: identifiers, counts and times, by name.
        steps: of the transfers of each row over the network.
        seen: how many events each category has.
        strange: how many events are of unknown categories.
        unbegun: how many ended and did not begin.
        unfinished: how many began and did not end.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.strange = self.unbegun = self.unfinished = 0
        self._names, self._communicators = Numbering[str](), Numbering[int | Group]()
        self.columns: dict[str, list[int]] = {name: [] for name in _NONE}
        self.steps: list[int] = []
        # Arrays, since there are many.
        self._states, self._bridges = array("q"), array("q")

    def name(self, text: str | None) -> int:
        """Return the number of a name; -1 for none."""
        return self._names.number(text) if text else NONE

    def communicator(self, value: int | Group | None) -> int:
        """Return the number of a communicator; -1 for none."""
        if value is None:
            return NONE
        if isinstance(value, Group):
            return self._communicators.number(value)
        # It has 64 bits; older versions print it signed.
        return self._communicators.number(value & ((1 << 64) - 1))

    def add(self, **values: int) -> int:
        """Add an operation and return its row; columns that are not given are none."""
        for name, value in (_NONE | values).items():
            self.columns[name].append(value)
        self.steps.append(0)
        return len(self.steps) - 1

    def widen(self, row: int, what: str, start_ns: int, end_ns: int) -> None:
        """Widen a row's kernel, GPU or proxy times to a start and an end; either may be unknown."""
        first, last = self.columns[f"{what}_start_ns"], self.columns[f"{what}_end_ns"]
        if start_ns != UNKNOWN and (first[row] == UNKNOWN or start_ns < first[row]):
            first[row] = start_ns
        last[row] = max(last[row], end_ns)

    def add_state(self, row: int, state: int, start_ns: int, end_ns: int) -> None:
        """Add a step's time in one of ``STATES``."""
        if UNKNOWN != start_ns <= end_ns:
            self._states.extend((row, state, start_ns, end_ns))

    def add_bridge(self, row: int, gpu_ns: int, host_ns: int) -> None:
        """Add one instant on two clocks."""
        if UNKNOWN not in (gpu_ns, host_ns):
            self._bridges.extend((row, gpu_ns, host_ns))

    def event_file(self, path: str, format_name: str, unreadable: int) -> EventFile:
        """Return the contents of a file, once all of it has been read."""
        rows = len(self.steps)
        states = np.array(self._states, np.int64).reshape(-1, 4).T
        wait_ns, transfer_ns = _wait_and_transfer(rows, states)
        state_ns = np.zeros((rows, len(STATES)), np.int64)
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
        starts, ends = strange_clocks(events, bridges)
        events = replace(
            events,
            gpu_start_ns=np.where(starts, UNKNOWN, events.gpu_start_ns),
            gpu_end_ns=np.where(ends, UNKNOWN, events.gpu_end_ns),
        )
        # At each communicator's end NCCL prints all that is left, again.
        keep = np.ones(rows, bool)
        timed = np.flatnonzero(events.host_start_ns != UNKNOWN)
        alike = group_rows(*(getattr(events, name)[timed] for name in _NONE))
        keep[timed] = alike.first[alike.of_row] == np.arange(len(timed))
        new_row = np.cumsum(keep) - 1
        bridges = bridges.take(keep[bridges.row] & ~starts[bridges.row])
        return EventFile(
            path=path,
            format=format_name,
            events=events.take(keep),
            bridges=replace(bridges, row=new_row[bridges.row]),
            seen=tuple(sorted(self.seen.items())),
            unreadable=unreadable,
            unfinished=self.unfinished,
            unbegun=self.unbegun,
            repeated=int((~keep).sum()),
            strange=self.strange,
            strange_clocks=int((keep & ends).sum()),
        )


def _wait_and_transfer(rows: int, states: Ints) -> tuple[Ints, Ints]:
    """Return of each row how long some step only waits for the peer, and how long one moves data.

    ::

        step 0      ├── peer ──┤├ moves ┤
        step 1           ├── peer ──┤├ moves ┤
        waits       ├──────────┤
        transfers               ├────────────┤
    """
    row, state, start_ns, end_ns = states
    used, group = np.unique(row, return_inverse=True)
    packing = Packing.of(*group_extents(group, len(used), start_ns, end_ns))
    start, end = packing.place(group, start_ns), packing.place(group, end_ns)
    moving = union(start[_MOVES[state]], end[_MOVES[state]])
    waiting = difference(union(start[_PEER[state]], end[_PEER[state]]), moving)
    windows = packing.offset_ns[:-1], packing.offset_ns[1:] - 1
    wait_ns, transfer_ns = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    wait_ns[used] = measure_within(waiting, *windows)
    transfer_ns[used] = measure_within(moving, *windows)
    return wait_ns, transfer_ns
