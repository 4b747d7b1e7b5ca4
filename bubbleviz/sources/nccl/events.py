"""NCCL's events as columns: one row a communication operation of a rank, as a file tells of it."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.intervals import Packing, difference, measure_within, union

if TYPE_CHECKING:
    from collections.abc import Sequence

#: No time: event files write 0 for it, and relative times begin near 0.
UNKNOWN = int(np.iinfo(np.int64).min)
#: Microseconds beyond this (116 days) are no time since a profiler began, and no operation lasts.
_MOST_US = 1e13
LONGEST_NS = 10**16
#: As much fits into a column; differences of times do up to half of it.
_MOST, _MOST_NS = (1 << 63) - 1, 1 << 62

#: What a step of a transfer over the network does, in the order in which it does so. A send waits
#: for room in its buffer, for the GPU to fill it, for the peer's word that it may send, for the
#: network to have sent; a receive for room, for the data, for the flush to the GPU, for the GPU to
#: have taken it (NCCL, ``src/transport/net.cc``; states of ``plugins/profiler/example``).
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
#: In these the data moves; in these the peer is waited for.
_MOVES = np.array([name in {"SendWait", "RecvFlushWait"} for name in STATES])
_PEER = np.array([name in {"SendPeerWait", "RecvWait"} for name in STATES])


class OperationKind(IntEnum):
    """What a row stands for."""

    COLLECTIVE = 0
    POINT_TO_POINT = 1
    #: A call of NCCL's interface of which no operation was recorded.
    CALL = 2
    #: A collective by copy engines.
    COPY_ENGINE = 3
    #: What a proxy thread sent to, or received from, one peer for one operation.
    PROXY = 4
    #: A kernel of a profile.
    KERNEL = 5


@dataclass(frozen=True)
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
        channels: over which it runs.
        payload: bytes, where they are told and not counted as elements.
        host_start_ns: when NCCL took it up.
        host_end_ns: when NCCL was done with it; without network that is when it was launched.
        kernel_start_ns: when the host saw its kernel begin.
        kernel_end_ns: when the host saw its kernel end.
        gpu_start_ns: first start over its channels.
        gpu_end_ns: last end over its channels.
        proxy_start_ns: first event of its proxy thread.
        proxy_end_ns: last event of it.
        steps: of its transfers over the network.
        state_ns: shape (rows, states): what all steps spent in each of ``STATES``, summed.
        peer_wait_ns: in which some step waits for the peer and none moves data.
        transfer_ns: in which some step moves data.
        names: names of operations, datatypes, algorithms and protocols.
        communicators: NCCL's hashes of them.
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
    communicators: tuple[int, ...] = field(metadata={"shared": True})


@dataclass(frozen=True)
class Bridges(Table):
    """Where a GPU's clock and a host's were read for one event: one row a kernel on a channel.

    Attributes:
        row: the operation.
        gpu_ns: start on the GPU's clock.
        host_ns: when the host saw it, later by what its thread slept.
    """

    row: Ints
    gpu_ns: Ints
    host_ns: Ints


@dataclass(frozen=True)
class EventFile:
    """What an event file holds.

    Attributes:
        path: as given.
        format: name of its format.
        events: operations.
        bridges: between clocks.
        seen: how many events each category has.
        unreadable: objects that are no event.
        unfinished: events that began and did not end.
        unbegun: events that ended and did not begin.
        repeated: operations that the file holds a second time.
        strange: events of categories that are not known.
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


def time_of(microseconds: float | None) -> int:
    """Return a time in nanoseconds; 0 is none, as NCCL writes it."""
    if microseconds is None or not 0 < microseconds < _MOST_US:
        return UNKNOWN
    return round(microseconds * 1000)


def number_of(value: int | None) -> int:
    """Return a count or rank that a column holds; -1 where it is none."""
    return value if value is not None and 0 <= value <= _MOST else NONE


def clock_of(value: int | None) -> int:
    """Return a time of a GPU's clock; 0 is none."""
    return value if value is not None and 0 < value <= _MOST_NS else UNKNOWN


#: Times of a row that begin something, and those that end it.
_FIRST = ("kernel_start_ns", "gpu_start_ns", "proxy_start_ns")
_LAST = ("kernel_end_ns", "gpu_end_ns", "proxy_end_ns")
_NUMBERS = (
    *("kind", "pid", "name", "communicator", "rank", "peer", "root", "sequence", "count"),
    *("datatype", "algorithm", "protocol", "channels", "payload"),
)
_TIMES = ("host_start_ns", "host_end_ns", *_FIRST, *_LAST)


class Columns:
    """Rows as they are read, that become columns."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.strange = self.unbegun = self.unfinished = 0
        self._names: dict[str, int] = {}
        self._communicators: dict[int, int] = {}
        self._columns: dict[str, list[int]] = {name: [] for name in (*_NUMBERS, *_TIMES)}
        self._steps: list[int] = []
        # Of these there are many.
        self._states = tuple(array("q") for _ in range(4))
        self._bridges = tuple(array("q") for _ in range(3))

    def __len__(self) -> int:
        return len(self._steps)

    def name(self, text: str | None) -> int:
        """Return the number of a name; -1 for none."""
        return NONE if not text else self._names.setdefault(text, len(self._names))

    def communicator(self, value: int | None) -> int:
        """Return the number of a communicator; -1 for none."""
        if value is None:
            return NONE
        # It has 64 bits; older versions print it signed.
        return self._communicators.setdefault(value & ((1 << 64) - 1), len(self._communicators))

    def add(self, **values: int) -> int:
        """Add an operation and return its row; what is not given is none."""
        for name in _NUMBERS:
            self._columns[name].append(values.get(name, NONE))
        for name in _TIMES:
            self._columns[name].append(values.get(name, UNKNOWN))
        self._steps.append(0)
        return len(self._steps) - 1

    def put(self, row: int, name: str, value: int) -> None:
        """Set a column of a row."""
        self._columns[name][row] = value

    def step(self, row: int) -> None:
        """Count a step of a transfer over the network."""
        self._steps[row] += 1

    def widen(self, row: int, what: str, start_ns: int, end_ns: int) -> None:
        """Take a start and an end of a row's kernel, GPU or proxy; either may be unknown."""
        first, last = self._columns[f"{what}_start_ns"], self._columns[f"{what}_end_ns"]
        if start_ns != UNKNOWN and (first[row] == UNKNOWN or start_ns < first[row]):
            first[row] = start_ns
        last[row] = max(last[row], end_ns)

    def state(self, row: int, state: int, start_ns: int, end_ns: int) -> None:
        """Take a step's time in one of ``STATES``."""
        if UNKNOWN != start_ns <= end_ns:
            for column, value in zip(self._states, (row, state, start_ns, end_ns), strict=True):
                column.append(value)

    def bridge(self, row: int, gpu_ns: int, host_ns: int) -> None:
        """Take one instant on two clocks."""
        if UNKNOWN not in (gpu_ns, host_ns):
            for column, value in zip(self._bridges, (row, gpu_ns, host_ns), strict=True):
                column.append(value)

    def done(self, path: str, format_name: str, unreadable: int) -> EventFile:
        """Return what the file holds, once all of it was read."""
        rows = len(self)
        states = _columns_of(self._states)
        wait_ns, transfer_ns = _shares(rows, states)
        state_ns = np.zeros((rows, len(STATES)), np.int64)
        np.add.at(state_ns, (states[0], states[1]), states[3] - states[2])
        events = NcclEvents(
            **{name: np.array(column, np.int64) for name, column in self._columns.items()},
            steps=np.array(self._steps, np.int64),
            state_ns=state_ns,
            peer_wait_ns=wait_ns,
            transfer_ns=transfer_ns,
            names=tuple(self._names),
            communicators=tuple(self._communicators),
        )
        keep = _first_of_each(events)
        kept = np.cumsum(keep) - 1
        row, gpu_ns, host_ns = _columns_of(self._bridges)
        told = keep[row]
        return EventFile(
            path=path,
            format=format_name,
            events=events.take(keep),
            bridges=Bridges(kept[row[told]], gpu_ns[told], host_ns[told]),
            seen=tuple(sorted(self.seen.items())),
            unreadable=unreadable,
            unfinished=self.unfinished,
            unbegun=self.unbegun,
            repeated=int((~keep).sum()),
            strange=self.strange,
        )


def _columns_of(columns: Sequence[array[int]]) -> list[Ints]:
    return [np.array(column, np.int64) for column in columns]


def _shares(rows: int, states: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return of each row how long some step waits for the peer alone, and how long some moves."""
    row, state, start_ns, end_ns = states
    zero = np.zeros(rows, np.int64)
    if len(row) == 0:
        return zero, zero.copy()
    used, group = np.unique(row, return_inverse=True)
    low_ns = np.full(len(used), np.iinfo(np.int64).max)
    high_ns = np.full(len(used), UNKNOWN)
    np.minimum.at(low_ns, group, start_ns)
    np.maximum.at(high_ns, group, end_ns)
    packing = Packing.of(low_ns, high_ns)
    start, end = packing.place(group, start_ns), packing.place(group, end_ns)
    moving = union(start[_MOVES[state]], end[_MOVES[state]])
    waiting = difference(union(start[_PEER[state]], end[_PEER[state]]), moving)
    windows = packing.offset_ns[:-1], packing.offset_ns[1:] - 1
    wait_ns, transfer_ns = zero, zero.copy()
    wait_ns[used] = measure_within(waiting, *windows)
    transfer_ns[used] = measure_within(moving, *windows)
    return wait_ns, transfer_ns


def _first_of_each(events: NcclEvents) -> npt.NDArray[np.bool_]:
    """Tell which rows are not there before: each communicator's end prints what is left, anew."""
    keep = np.ones(len(events), bool)
    timed = np.flatnonzero(events.host_start_ns != UNKNOWN)
    if len(timed):
        columns = [getattr(events, name)[timed] for name in (*_NUMBERS, *_TIMES)]
        _, first = np.unique(np.stack(columns), axis=1, return_index=True)
        keep[timed] = False
        keep[timed[first]] = True
    return keep
