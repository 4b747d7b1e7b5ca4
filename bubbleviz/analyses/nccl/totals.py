"""Totals: communication by communicator, operation and peer; bytes, time, bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bubbleviz.analyses.nccl.communications import (
    Communications,
    Communicator,
    RecordingClock,
    bus_factor,
    byte_factor,
    communicator_text,
)
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Limitation
from bubbleviz.sources.nccl.events import UNKNOWN

Floats = npt.NDArray[np.float64]

#: The terms of the report; below the table and in the JSON.
DEFINITIONS = (
    "n: ranks of the communicator, from NCCL's ranges or PyTorch's groups, else the highest rank "
    "seen plus one",
    "bytes: elements times their size, as one rank hands in or takes them (an AllGather's: of one "
    "rank's part)",
    "waiting: from a rank's own start to the start of the operation's last member; where no other "
    "member is known, while a step of its proxy thread waits for the peer (SendPeerWait, RecvWait) "
    "and none moves data (SendWait, RecvFlushWait)",
    "moving: the rest of the operation's time",
    "GB/s: 10^9 bytes a second; alg: bytes over time, all ranks' parts together; bus: times "
    "2(n-1)/n (AllReduce), (n-1)/n (AllGather, ReduceScatter, AlltoAll, Gather, Scatter) or 1, as "
    "in nccl-tests; moving: bus, over the time in which data moves",
)


@dataclass(frozen=True)
class FileRead:
    """A file that was read.

    Attributes:
        path: as given.
        format: ``nsys``, or the name of a format of event files.
        operations: communication operations that it recorded.
        events: how many events each category has; empty for profiles.
    """

    path: str
    format: str
    operations: int
    events: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Communication:
    """What ranks did in communication operations.

    Attributes:
        operations: one row each.
        ranks: number of ranks of each communicator; None unknown.
        clocks: that ``operations.clock`` refers to; the first is the report's.
        files: that were read.
        limitations: what could not be measured, and why.
        window: the analysed part of the run, as the user wrote it; None for all.
    """

    operations: Communications
    ranks: tuple[int | None, ...]
    clocks: tuple[RecordingClock, ...]
    files: tuple[FileRead, ...]
    limitations: tuple[Limitation, ...]
    window: str | None = None


@dataclass(frozen=True)
class Bandwidths:
    """Gigabytes (10^9 bytes) a second of each operation; not a number where unknown.

    As in nccl-tests (``doc/PERFORMANCE.md``): the algorithm's is bytes over time, of all ranks
    together where each hands in a part; the bus's is that times a factor, which makes it comparable
    with the hardware's.

    Attributes:
        bytes: that move in all; not a number where unknown.
        algorithm: over the whole time.
        bus: over the whole time.
        moving: as ``bus``, over the time in which data moves.
    """

    bytes: Floats
    algorithm: Floats
    bus: Floats
    moving: Floats


def bandwidths_of(communication: Communication) -> Bandwidths:
    """Return the bandwidth that each operation achieved."""
    table = communication.operations
    sizes, names = (*communication.ranks, None), (*table.names, "")
    pairs = groups_of(table.name, table.communicator)
    of_pair = [
        (byte_factor(names[name], sizes[number]), bus_factor(names[name], sizes[number]))
        for name, number in zip(
            table.name[pairs.first].tolist(), table.communicator[pairs.first].tolist(), strict=True
        )
    ]
    nan = float("nan")
    times = np.array([nan if t is None else t for t, _ in of_pair])[pairs.of_row]
    factor = np.array([nan if f is None else f for _, f in of_pair])[pairs.of_row]
    size = np.where(table.bytes >= 0, table.bytes, nan) * times
    length_ns = np.where(table.duration_ns > 0, table.duration_ns, nan)
    moving_ns = np.where(table.moving_ns > 0, table.moving_ns, nan)
    algorithm = size / length_ns
    return Bandwidths(size, algorithm, algorithm * factor, size * factor / moving_ns)


@dataclass(frozen=True)
class Total:
    """Operations of one communicator, name, peer, algorithm and protocol, summed.

    Attributes:
        communicator: NCCL's hash, or PyTorch's group; None unknown.
        ranks: number of its ranks; None unknown.
        name: of the operations.
        peers: ranks that they went to or came from, or the root.
        algorithm: "" unknown.
        protocol: "" unknown.
        operations: how many.
        bytes: sum of what the ranks hand in or take; None where one is unknown.
        duration_ns: sum over those whose duration is known; None where none is.
        timed: number of these.
        waiting_ns: sum over those that are split; None where none is.
        moving_ns: likewise.
        algorithm_gbps: gigabytes a second over the whole time; None unknown.
        bus_gbps: the same of the bus.
        moving_gbps: the same of the bus, while data moves.
    """

    communicator: Communicator | None
    ranks: int | None
    name: str
    peers: tuple[int, ...]
    algorithm: str
    protocol: str
    operations: int
    bytes: int | None
    duration_ns: int | None
    timed: int
    waiting_ns: int | None
    moving_ns: int | None
    algorithm_gbps: float | None
    bus_gbps: float | None
    moving_gbps: float | None


def totals_of(communication: Communication) -> tuple[Total, ...]:
    """Return the totals, those that took longest first.

    Sends and receives of one communicator are one total each, whatever their peers.
    """
    return tuple(
        sorted(
            _totals(communication),
            key=lambda total: (
                -(total.duration_ns or 0),
                communicator_text(total.communicator),
                total.name,
                total.algorithm,
                total.protocol,
            ),
        )
    )


def _totals(communication: Communication) -> Iterator[Total]:
    table = communication.operations
    bandwidths = bandwidths_of(communication)
    groups = groups_of(table.communicator, table.name, table.algorithm, table.protocol)
    order = np.argsort(groups.of_row, kind="stable")
    bounds = np.searchsorted(groups.of_row[order], np.arange(len(groups) + 1)).tolist()
    names = (*table.names, "")
    for low, high in pairwise(bounds):
        rows = order[low:high]
        first = int(rows[0])
        number = int(table.communicator[first])
        other = np.where(table.peer[rows] != NONE, table.peer[rows], table.root[rows])
        timed = table.duration_ns[rows] >= 0
        waits, moves = table.waiting_ns[rows], table.moving_ns[rows]
        size, length_ns = bandwidths.bytes[rows], table.duration_ns[rows]
        name = names[table.name[first]]
        ranks = None if number == NONE else communication.ranks[number]
        factor = bus_factor(name, ranks)
        whole = _over(size, length_ns)
        moving = _over(size, moves)
        yield Total(
            communicator=None if number == NONE else table.communicators[number],
            ranks=ranks,
            name=name,
            peers=tuple(np.unique(other[other != NONE]).tolist()),
            algorithm=names[table.algorithm[first]],
            protocol=names[table.protocol[first]],
            operations=len(rows),
            bytes=_sum(table.bytes[rows]) if bool((table.bytes[rows] >= 0).all()) else None,
            duration_ns=_sum(length_ns[timed]) if timed.any() else None,
            timed=int(timed.sum()),
            waiting_ns=_sum(waits[waits >= 0]) if (waits >= 0).any() else None,
            moving_ns=_sum(moves[moves >= 0]) if (moves >= 0).any() else None,
            algorithm_gbps=whole,
            bus_gbps=None if whole is None or factor is None else whole * factor,
            moving_gbps=None if moving is None or factor is None else moving * factor,
        )


def _sum(column: Ints) -> int:
    return int(column.sum(dtype=object)) if len(column) else 0


def _over(size: Floats, length_ns: Ints) -> float | None:
    """Return bytes a nanosecond over the operations with known size and time; None for none."""
    known = ~np.isnan(size) & (length_ns > 0)
    if not known.any():
        return None
    return float(size[known].sum() / length_ns[known].sum(dtype=float))


def busy_ns(communication: Communication) -> int:
    """Return the time of all operations in ns; those that share their times count once."""
    table = communication.operations
    timed = np.flatnonzero(table.duration_ns >= 0)
    placed = timed[table.start_ns[timed] != UNKNOWN]
    rest = int(table.duration_ns[timed].sum()) - int(table.duration_ns[placed].sum())
    if len(placed) == 0:
        return rest
    columns = (table.clock, table.kernel, table.start_ns, table.duration_ns)
    once = groups_of(*(column[placed] for column in columns)).first
    return rest + int(table.duration_ns[placed][once].sum())
