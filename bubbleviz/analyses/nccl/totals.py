"""Totals: communication by communicator, operation and peer; bytes, time, bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from bubbleviz.analyses.nccl.kernels import KernelPool, parse_kernel_name
from bubbleviz.analyses.nccl.members import (
    SIZES,
    Communications,
    Communicator,
    RecordingClock,
    Timing,
    bus_factor,
    byte_factor,
    communicator_text,
)
from bubbleviz.analyses.nccl.profiles import NcclProfile
from bubbleviz.errors import NothingToAnalyseError
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Floats, Ints, constant, joined
from bubbleviz.model.grouping import Numbering, distinct, groups_of
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.values import frozen
from bubbleviz.sources.nccl.events import STATES, UNKNOWN, EventFile, OperationKind

#: The terms of the report; below the table and in the JSON.
DEFINITIONS = (
    "n: ranks of the communicator, from NCCL's ranges or PyTorch's groups, else the highest rank "
    "seen plus one",
    "MB, ms, waiting, moving: sums over the operations, (k) over k of them where the others' are "
    "unknown",
    "bytes: elements times their size, as one rank hands in or takes them (an AllGather's: of one "
    "rank's part)",
    "ms: from start to end, over all ranks; operations that share a kernel each have all its time",
    "busy: ms in which GPUs run any of these operations, each instant of a GPU once (an operation "
    "without a known start counts whole); rows that share kernels, or run at one time, overlap: "
    "they add up to more than is busy in all",
    "waiting: from a rank's own start to the start of the operation's last member; where no other "
    "member is known, while a step of its proxy thread waits for the peer (SendPeerWait, RecvWait) "
    "and none moves data (SendWait, RecvFlushWait)",
    "moving: the rest of the operation's time, where its end is known",
    "GB/s: 10^9 bytes a second; alg: bytes over time, all ranks' parts together; bus: times "
    "2(n-1)/n (AllReduce), (n-1)/n (AllGather, ReduceScatter, AlltoAll, Gather, Scatter) or 1, as "
    "in nccl-tests; moving: bus, over the time in which data moves",
)


@frozen
class FileRead:
    """A file that was read.

    Attributes:
        path: as given.
        format: ``nsys``, or the name of a format of event files.
        operations: communication operations that it recorded, those of the window alone.
        events: how many events each category has; empty for profiles.
    """

    path: str
    format: str
    operations: int
    events: tuple[tuple[str, int], ...]


@frozen
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

    @property
    def communicators(self) -> tuple[tuple[Communicator, int | None], ...]:
        """The communicators of the operations, and how many ranks each has; None unknown."""
        of_all = self.operations.communicators
        used = distinct(self.operations.communicator)
        return tuple((of_all[row], self.ranks[row]) for row in used[used != NONE].tolist())


def bandwidths_of(communication: Communication) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the bandwidth that each operation achieved; not a number where unknown.

    As in nccl-tests (``doc/PERFORMANCE.md``): the algorithm's is bytes over time, of all ranks
    together where each hands in a part; the bus's is that times a factor, which makes it comparable
    with the hardware's.

    Returns:
        Bytes that move in all; and in gigabytes (10^9 bytes) a second the algorithm's over the
        whole time, the bus's, and the bus's over the time in which data moves.
    """
    table = communication.operations
    sizes, names = (*communication.ranks, None), (*table.names, "")
    pairs = groups_of(table.name, table.communicator)
    columns = (table.name[pairs.first].tolist(), table.communicator[pairs.first].tolist())
    of_pair = [(names[name], sizes[number]) for name, number in zip(*columns, strict=True)]
    # None becomes what is not a number.
    times = np.array([byte_factor(*pair) for pair in of_pair], float)[pairs.of_row]
    factor = np.array([bus_factor(*pair) for pair in of_pair], float)[pairs.of_row]
    size = np.where(table.bytes >= 0, table.bytes, np.nan) * times
    algorithm = size / np.where(table.duration_ns > 0, table.duration_ns, np.nan)
    moving_ns = np.where(table.moving_ns > 0, table.moving_ns, np.nan)
    return size, algorithm, algorithm * factor, size * factor / moving_ns


@frozen
class Sums:
    """Sums over operations; each over those whose value is known, and None where none is.

    Attributes:
        operations: how many.
        bytes: what the ranks hand in or take.
        sized: number of operations whose bytes are known.
        duration_ns: from start to end; operations of one kernel each have all of its time.
        timed: number of operations whose duration is known.
        busy_ns: time in which any of them runs, at each instant of a GPU once; those whose start
            is unknown are added whole.
        waiting_ns: time before the last member began.
        waited: number of operations whose waiting is known.
        moving_ns: the rest of the duration.
        moved: number of operations whose moving is known.
    """

    operations: int
    bytes: int | None
    sized: int
    duration_ns: int | None
    timed: int
    busy_ns: int | None
    waiting_ns: int | None
    waited: int
    moving_ns: int | None
    moved: int


def sums_of(table: Communications) -> Sums:
    """Return the sums over operations."""
    size, sized = _known(table.bytes)
    duration_ns, timed = _known(table.duration_ns)
    waiting_ns, waited = _known(table.waiting_ns)
    moving_ns, moved = _known(table.moving_ns)
    busy_ns = None
    if timed:
        placed = (table.duration_ns >= 0) & (table.start_ns != UNKNOWN)
        rest_ns = table.duration_ns[(table.duration_ns >= 0) & ~placed].sum()
        start_ns, length_ns = table.start_ns[placed], table.duration_ns[placed]
        # The times of two clocks do not compare.
        clocks = groups_of(table.gpu[placed], table.clock[placed])
        busy_ns = int(rest_ns) + int(
            intervals.group_measure(
                clocks.of_row, len(clocks), start_ns, start_ns + length_ns
            ).sum()
        )
    return Sums(
        *(len(table), size, sized, duration_ns, timed, busy_ns),
        *(waiting_ns, waited, moving_ns, moved),
    )


def _known(column: Ints) -> tuple[int | None, int]:
    """Return the sum of what is known, None where nothing is, and of how many rows it is."""
    known = column >= 0
    count = int(known.sum())
    return int(column[known].sum(dtype=object)) if count else None, count


@frozen
class Total(Sums):
    """Operations of one communicator, name, peer, algorithm and protocol, summed.

    Attributes:
        rows: of the operations.
        communicator: NCCL's hash, or PyTorch's group; None unknown.
        ranks: number of its ranks; None unknown.
        name: of the operations.
        peers: ranks that they went to or came from, or the root.
        algorithm: "" unknown.
        protocol: "" unknown.
        algorithm_gbps: gigabytes a second over the whole time, of the operations whose bytes and
            time are known; None unknown.
        bus_gbps: the same of the bus.
        moving_gbps: the same of the bus, while data moves.
    """

    rows: Ints
    communicator: Communicator | None
    ranks: int | None
    name: str
    peers: tuple[int, ...]
    algorithm: str
    protocol: str
    algorithm_gbps: float | None
    bus_gbps: float | None
    moving_gbps: float | None


def totals_of(communication: Communication) -> tuple[Total, ...]:
    """Return the totals, those that took longest first.

    Sends and receives of one communicator are one total each, whatever their peers.
    """
    table = communication.operations
    sizes, names = bandwidths_of(communication)[0], (*table.names, "")
    groups = groups_of(table.communicator, table.name, table.algorithm, table.protocol)
    order = np.argsort(groups.of_row, kind="stable")
    bounds = np.searchsorted(groups.of_row[order], np.arange(len(groups) + 1)).tolist()
    totals = []
    for low, high in pairwise(bounds):
        rows = order[low:high]
        of_total = table.take(rows)
        number, first = int(table.communicator[rows[0]]), rows[0]
        other = np.where(of_total.peer != NONE, of_total.peer, of_total.root)
        name = names[table.name[first]]
        ranks = None if number == NONE else communication.ranks[number]
        factor = bus_factor(name, ranks)
        whole, moving = (
            _over(sizes[rows], length_ns)
            for length_ns in (of_total.duration_ns, of_total.moving_ns)
        )
        totals.append(
            Total(
                **vars(sums_of(of_total)),
                rows=rows,
                communicator=None if number == NONE else table.communicators[number],
                ranks=ranks,
                name=name,
                peers=tuple(distinct(other[other != NONE]).tolist()),
                algorithm=names[table.algorithm[first]],
                protocol=names[table.protocol[first]],
                algorithm_gbps=whole,
                bus_gbps=None if whole is None or factor is None else whole * factor,
                moving_gbps=None if moving is None or factor is None else moving * factor,
            )
        )
    totals.sort(
        key=lambda total: (
            -(total.duration_ns or 0),
            communicator_text(total.communicator),
            total.name,
            total.algorithm,
            total.protocol,
        )
    )
    return tuple(totals)


def _over(size: Floats, length_ns: Ints) -> float | None:
    """Return bytes a nanosecond over the operations with known size and time; None for none."""
    known = ~np.isnan(size) & (length_ns > 0)
    if not known.any():
        return None
    return float(size[known].sum() / length_ns[known].sum(dtype=float))


# Rows: the operations of event files, and of profiles, in one table.


#: More elements than any operation has.
_MOST_COUNT = 1 << 59
#: Columns that stand as they are in the tables they come from.
_OF_EVENTS = ("kind", "pid", "rank", "peer", "root", "sequence", "count", "channels", "state_ns")
_OF_OPERATIONS = ("rank", "peer", "root", "sequence", "count", "bytes")


def _table(rows: int, columns: Mapping[str, Ints | int]) -> Communications:
    """Return operations with some columns, or values of whole columns; the others hold none."""
    values: dict[str, Ints | int] = dict.fromkeys(Communications.column_names(), NONE)
    values |= {"split": 0, "shared": 1, "state_ns": np.zeros((rows, len(STATES)), np.int64)}
    every = {
        name: constant(value, rows) if isinstance(value, int) else value
        for name, value in {**values, **columns}.items()
    }
    return Communications(**every, names=(), communicators=())


def operations_of(
    recorded: Sequence[EventFile],
    profiles: Sequence[NcclProfile],
    pool: KernelPool,
    times: Mapping[str, Ints],
) -> Communications:
    """Return the operations of event files, then those of profiles that no event file has.

    Args:
        recorded: event files.
        profiles: as read.
        pool: their kernels.
        times: columns of the recorded operations, with clocks of event files from 0.

    Raises:
        NothingToAnalyseError: there is none.
    """
    names, communicators = Numbering[str](), Numbering[Communicator]()

    def numbers(numbering: Numbering[Any], values: Iterable[Any]) -> Ints:
        """Return the numbers of values, and at the end, where -1 leads, that of none."""
        return np.append(numbering.numbers(values), NONE)

    tables, begin = [], 0
    columns: dict[str, Ints | int]
    for source, file in enumerate(recorded):
        events = file.events
        rows = slice(begin, begin + len(events))
        begin += len(events)
        name = numbers(names, events.names)
        communicator = numbers(communicators, events.communicators)
        element = np.array([SIZES.get(text, NONE) for text in (*events.names, "")], np.int64)
        size = element[events.datatype]
        sized = (events.count >= 0) & (size > 0) & (events.count < _MOST_COUNT)
        counted = np.where(sized, np.where(sized, events.count, 0) * size, NONE)
        columns = {
            **{column: getattr(events, column) for column in _OF_EVENTS},
            **{column: time[rows] for column, time in times.items()},
            **{
                column: name[getattr(events, column)]
                for column in ("name", "datatype", "algorithm", "protocol")
            },
            "source": source,
            "communicator": communicator[events.communicator],
            "bytes": np.where(counted >= 0, counted, events.payload),
            "clock": times["clock"][rows] + len(profiles),
        }
        tables.append(_table(len(events), columns))
    matched = [table.kernel[table.kind != OperationKind.PROXY] for table in tables]
    taken = np.concatenate([np.empty(0, np.int64), *matched])
    at = 0
    for clock, profile in enumerate(profiles):
        # A profile's operations, then its kernels that carry out none.
        kernels, operations = profile.kernels, profile.operations
        carries = np.zeros(len(kernels), bool)
        carries[operations.first] = carries[operations.last] = True
        bare = np.flatnonzero(~carries)
        first = np.concatenate((operations.first, bare))
        last = np.concatenate((operations.last, bare))
        none = constant(NONE, len(bare))
        fields = [parse_kernel_name(name) for name in kernels.names]
        # The name of a kernel's operation is "unknown" where it has none, other fields are empty.
        kernel_name = numbers(names, [operation or "unknown" for operation, _, _ in fields])
        algorithm, protocol = (
            np.array([names.number(f[part]) if f[part] else NONE for f in fields], np.int64)
            for part in (1, 2)
        )
        name = numbers(names, operations.names)
        communicator = numbers(communicators, operations.communicators)
        start_ns, end_ns = pool.start_ns[at + first], pool.end_ns[at + last]
        pids = np.array([pid for pid, _ in kernels.places] or [0], np.int64)
        columns = {
            **{c: np.concatenate((getattr(operations, c), none)) for c in _OF_OPERATIONS},
            "source": len(recorded) + clock,
            "kind": int(OperationKind.KERNEL),
            "pid": pids[kernels.place[first]],
            "name": np.concatenate((name[operations.name], kernel_name[kernels.name[bare]])),
            "communicator": np.concatenate((communicator[operations.communicator], none)),
            "datatype": np.concatenate((name[operations.datatype], none)),
            "algorithm": algorithm[kernels.name[first]],
            "protocol": protocol[kernels.name[first]],
            "clock": clock,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "duration_ns": end_ns - start_ns,
            "timing": int(Timing.KERNEL),
            "kernel": at + first,
            "gpu": pool.place_of(at + first),
        }
        table = _table(len(first), columns)
        tables.append(table.take(~np.isin(table.kernel, taken)))
        at += len(kernels)
    if sum(map(len, tables)) == 0:
        paths = [file.path for file in recorded] + [profile.source.path for profile in profiles]
        others = next((f"; {profile.others}" for profile in profiles if profile.others), "")
        raise NothingToAnalyseError(
            f"{paths[0]}: no communication operation of NCCL was recorded; record events with "
            "NCCL_PROFILE_EVENT_MASK=4095, or a profile with nsys profile -t cuda,nvtx or "
            "rocprofv3 --runtime-trace; list the kernels of another library under communication "
            f"in a TOML file, and give it with --convention{others}"
        )
    return replace(joined(tables), names=names.values, communicators=communicators.values)


def with_shared(table: Communications) -> Communications:
    """Return the operations with how many have the same kernel, or the same times."""
    shared = np.ones(len(table), np.int64)
    timed = np.flatnonzero((table.start_ns != UNKNOWN) & (table.end_ns != UNKNOWN))
    if len(timed):
        columns = (table.clock, table.kernel, table.start_ns, table.end_ns)
        groups = groups_of(*(column[timed] for column in columns))
        shared[timed] = np.bincount(groups.of_row)[groups.of_row]
    return replace(table, shared=shared)
