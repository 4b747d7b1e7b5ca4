"""Members: which operations of several ranks are one, and who waited for whom.

The members of a collective have one communicator, name and sequence number; where no number is
recorded they are counted. The k-th send from one rank to another belongs to the k-th receive of it.
Data moves once the last member has begun::

    rank 0   ├─ waiting ─┼─ moving ─┤
    rank 1               ├─ moving ─┤
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

import numpy as np

from bubbleviz.interpret.iterations import occurrences
from bubbleviz.model import collectives, grouping, intervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table, constant
from bubbleviz.sources.nccl.events import STATES, UNKNOWN, OperationKind

# Communications: the tables of operations and of the clocks that recorded them.


#: NCCL's hash of it, or the PyTorch process group that owns it.
Communicator = int | collectives.Group
#: How many bytes an element has (``ncclDataType_t`` of nccl.h, ``ScalarType`` of
#: c10/core/ScalarType.h).
SIZES = {
    **dict.fromkeys(("ncclInt8", "ncclChar", "ncclUint8"), 1),
    **dict.fromkeys(("ncclFloat8e4m3", "ncclFloat8e5m2"), 1),
    **dict.fromkeys(("ncclFloat16", "ncclHalf", "ncclBfloat16"), 2),
    **dict.fromkeys(("ncclInt32", "ncclInt", "ncclUint32", "ncclFloat32", "ncclFloat"), 4),
    **dict.fromkeys(("ncclInt64", "ncclUint64", "ncclFloat64", "ncclDouble"), 8),
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "Bits8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    **dict.fromkeys(("Float8_e8m0fnu", "Float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16", "Bits16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
#: Operations that move n times the counted bytes: each of n ranks hands in, or takes, as many.
EACH = frozenset(("AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Gather", "Scatter"))


def communicator_text(value: Communicator | None) -> str:
    """Return a communicator's hash as NCCL's log has it, or a group's label; "" unknown."""
    if isinstance(value, collectives.Group):
        return value.label
    return "" if value is None else f"0x{value:016x}"


def bus_factor(name: str, ranks: int | None) -> float | None:
    """Return the factor that makes bandwidth comparable with that of the hardware.

    From nccl-tests, ``doc/PERFORMANCE.md``: 2(n-1)/n of an all-reduce, (n-1)/n of what each of n
    ranks has a part in (about that where parts differ, in an AlltoAllv), else 1. None where the
    number of ranks is unknown and counts.
    """
    if name == "AllReduce":
        return None if not ranks else 2 * (ranks - 1) / ranks
    if name in EACH or name == "AlltoAllv":
        return None if not ranks else (ranks - 1) / ranks
    return 1.0


class Timing(IntEnum):
    """The source of an operation's times."""

    #: The host, which enqueued it.
    LAUNCH = 0
    #: The proxy thread, which serves the network.
    PROXY = 1
    #: The host, which saw the kernel begin and end.
    HOST = 2
    #: The GPU's clock.
    GPU = 3
    #: A kernel of a profile.
    KERNEL = 4


class Split(IntEnum):
    """How waiting and moving were separated."""

    UNKNOWN = 0
    #: Until the last member of the operation began, it waited.
    MEMBERS = 1
    #: By the steps of its proxy thread.
    PROXY = 2
    #: As ``MEMBERS``, with members paired by their order alone.
    ORDER = 3


class Alignment(Enum):
    """What aligned a clock to the report's; the values stand in JSON."""

    #: It is the report's own clock, or ticks with it.
    REFERENCE = "reference"
    #: Its operations were matched with a profile's kernels.
    KERNELS = "kernels"
    #: UTC, as the profile's host recorded it.
    UTC = "utc"
    #: The ends of operations in common with aligned clocks.
    OPERATIONS = "operations"
    #: Nothing: its times stand alone.
    UNALIGNED = "unaligned"


@dataclass(frozen=True)
class RecordingClock:
    """A clock that recorded operations, and how it was aligned to the report's clock.

    Attributes:
        label: Display name.
        aligned_by: How it was aligned.
        matched: Number of operations or kernels by which it is aligned.
        of: Number of operations or kernels that could be matched.
        median_ns: Median distance between matched pairs after the alignment, or None without pairs.
        largest_ns: The largest distance, or None without pairs.
        drift_ppm: Its drift in parts per million, or None if no drift was fitted.
    """

    label: str
    aligned_by: Alignment
    matched: int = 0
    of: int = 0
    median_ns: int | None = None
    largest_ns: int | None = None
    drift_ppm: float | None = None

    @staticmethod
    def measured(
        label: str, aligned_by: Alignment, of: int, far_ns: Ints, drift: float = 0.0
    ) -> RecordingClock:
        """Return a clock aligned by pairs, of which these are the distances that remain."""
        return RecordingClock(
            label,
            aligned_by,
            matched=len(far_ns),
            of=of,
            median_ns=round(float(np.median(far_ns))) if len(far_ns) else 0,
            largest_ns=int(far_ns.max(initial=0)),
            drift_ppm=1e6 * drift if drift else None,
        )

    @property
    def aligned(self) -> bool:
        """Whether its times are on the report's clock."""
        return self.aligned_by is not Alignment.UNALIGNED


@dataclass(frozen=True, eq=False, repr=False)
class Communications(Table):
    """One row an operation of a rank; -1 is "none" in identifiers, ``UNKNOWN`` in times.

    Attributes:
        source: row of the files read.
        kind: code of :class:`~bubbleviz.sources.nccl.events.OperationKind`.
        pid: the process.
        gpu: number of the GPU, as far as files tell them apart; -1 unknown.
        name: row of ``names``.
        communicator: row of ``communicators``.
        rank: in the communicator.
        run_rank: the same rank in the run; -1 unknown.
        peer: rank that it sends to or receives from.
        root: rank that it starts from or ends at.
        sequence: number among the communicator's operations of this name.
        count: elements.
        datatype: row of ``names``.
        bytes: that the rank hands in, or takes.
        progress: place in :data:`~bubbleviz.sources.nccl.events.PROGRESS`.
        algorithm: row of ``names``.
        protocol: row of ``names``.
        channels: over which it runs.
        clock: row of the clocks; start and end are comparable where it is aligned.
        start_ns: start.
        end_ns: end.
        duration_ns: from start to end, which can be known where these are not; -1 unknown.
        timing: code of :class:`Timing`.
        kernel: row of the profiles' kernels; operations of one kernel share its times.
        shared: how many operations share these times.
        state_ns: shape (rows, states), as of :class:`~bubbleviz.sources.nccl.events.NcclEvents`.
        waiting_ns: the part of the duration that it waited for others; -1 unknown.
        moving_ns: the rest of it; -1 unknown.
        awaited_ns: how long other members waited for this one to enter; -1 unknown.
        split: code of :class:`Split`.
        names: names of operations, datatypes, algorithms and protocols.
        communicators: NCCL's hashes of them, or PyTorch's groups.
    """

    source: Ints
    kind: Ints
    pid: Ints
    gpu: Ints
    name: Ints
    communicator: Ints
    rank: Ints
    run_rank: Ints
    peer: Ints
    root: Ints
    sequence: Ints
    count: Ints
    datatype: Ints
    bytes: Ints
    progress: Ints
    algorithm: Ints
    protocol: Ints
    channels: Ints
    clock: Ints
    start_ns: Ints
    end_ns: Ints
    duration_ns: Ints
    timing: Ints
    kernel: Ints
    shared: Ints
    state_ns: Ints
    waiting_ns: Ints
    moving_ns: Ints
    awaited_ns: Ints
    split: Ints
    names: tuple[str, ...] = field(metadata={"shared": True})
    communicators: tuple[Communicator, ...] = field(metadata={"shared": True})


def communications(
    rows: int,
    columns: Mapping[str, Ints | int],
    names: tuple[str, ...],
    communicators: tuple[Communicator, ...],
) -> Communications:
    """Return operations with some columns, or values of whole columns; the others hold none."""
    values: dict[str, Ints | int] = dict.fromkeys(Communications.column_names(), NONE)
    values |= {"split": 0, "shared": 1, "state_ns": np.zeros((rows, len(STATES)), np.int64)}
    every = {
        name: constant(value, rows) if isinstance(value, int) else value
        for name, value in {**values, **columns}.items()
    }
    return Communications(**every, names=names, communicators=communicators)


#: Of k-th kernels, the share that must run at one time.
_TOGETHER = 0.95


def epochs_of(table: Communications) -> Ints:
    """Return for each operation the last collective of the largest group that its file has before.

    That is its number; -1 for none. Ranks call those in one order, so that sends and receives are
    counted from there where what a file begins with is lost.
    """
    sizes = np.array([*(len(getattr(own, "ranks", ())) for own in table.communicators), 0])
    size = np.where((table.peer == NONE) & (table.sequence >= 0), sizes[table.communicator], 0)
    anchors = (size > 0) & (table.communicator == table.communicator[size.argmax()])
    # Numbers grow within a file, and files follow one another, far apart.
    begin = table.source << 40
    last = np.maximum.accumulate(begin + np.where(anchors, table.sequence % (1 << 40) + 1, 0))
    return np.asarray(last - begin - 1, np.int64)


def instances_of(table: Communications, epoch: Ints | int = NONE) -> Ints:
    """Return a number for each operation that its members share; -1 where they are unknown.

    Args:
        table: operations.
        epoch: of each, from which sends and receives are counted.
    """
    send, receive = (
        np.array([name == passing for name in (*table.names, "")], bool)[table.name]
        for passing in ("Send", "Recv")
    )
    passing = (send | receive) & (table.kind != OperationKind.PROXY)
    known = (table.communicator != NONE) & (table.rank != NONE)
    rows = np.flatnonzero(known & (~passing | (table.peer != NONE)))
    instance = np.full(len(table), NONE, np.int64)
    if len(rows) == 0:
        return instance
    p2p, sends = passing[rows], send[rows]
    communicator, rank, peer = table.communicator[rows], table.rank[rows], table.peer[rows]
    key = (
        communicator,
        np.where(p2p, NONE, table.name[rows]),
        np.where(p2p, np.where(sends, rank, peer), NONE),
        np.where(p2p, np.where(sends, peer, rank), NONE),
        np.where(passing, epoch, table.sequence)[rows],
    )
    # The place of each among those of its rank with the same key; where the start is unknown, which
    # is earlier than all times, the order of the file counts.
    in_time = np.argsort(table.start_ns[rows], kind="stable")
    counted = np.empty(len(rows), np.int64)
    columns = (*key, rank, sends.astype(np.int64))
    counted[in_time] = occurrences(tuple(column[in_time] for column in columns))
    number = grouping.groups_of(*key, counted).of_row
    # A rank is a member once: wrapped sequence numbers, or a rank recorded twice, are ambiguous.
    members = grouping.groups_of(number, rank, np.where(p2p, sends, 0).astype(np.int64))
    twice = np.bincount(members.of_row)[members.of_row] > 1
    instance[rows] = np.where(np.isin(number, grouping.distinct(number[twice])), NONE, number)
    return instance


def paired_by_order(table: Communications, place: Ints, family: Ints) -> Ints:
    """Return a number for each kernel that others share by their order alone; -1 none.

    For exports without communicators. The k-th kernels of a family are taken for one
    operation where all GPUs ran as many of them, and each k-th ran at one time on all.

    Args:
        table: operations.
        place: the GPU of each; -1 unknown.
        family: number of what its kernel does; -1 unknown.
    """
    number = np.full(len(table), NONE, np.int64)
    unpaired = (
        (table.kernel != NONE) & (table.communicator == NONE) & (table.kind == OperationKind.KERNEL)
    )
    rows = np.flatnonzero(unpaired & (place != NONE) & (family != NONE))
    if len(rows) == 0:
        return number
    kernels = grouping.groups_of(table.kernel[rows])
    first = rows[kernels.first]
    order = np.lexsort((table.start_ns[first], place[first], family[first]))
    start_ns, end_ns = table.start_ns[first[order]], table.end_ns[first[order]]
    of_family, of_place = family[first[order]], place[first[order]]
    nth = occurrences((of_family, of_place))
    paired = np.full(len(first), NONE, np.int64)
    used = 0
    for code in grouping.distinct(of_family).tolist():
        alike = np.flatnonzero(of_family == code)
        counts = np.unique(of_place[alike], return_counts=True)[1]
        if len(counts) < 2 or len(grouping.distinct(counts)) > 1:
            continue
        (_, last_start_ns), (first_end_ns, _) = (
            intervals.group_extents(nth[alike], int(counts[0]), times_ns[alike], times_ns[alike])
            for times_ns in (start_ns, end_ns)
        )
        together = last_start_ns < first_end_ns
        if together.mean() >= _TOGETHER:
            paired[order[alike]] = np.where(together[nth[alike]], used + nth[alike], NONE)
            used += int(counts[0])
    number[rows] = paired[kernels.of_row]
    return number


def ended_together(table: Communications, instance: Ints, polled: Bools) -> Communications:
    """Return the operations, those of one instance with one end: that which was seen first.

    Args:
        table: operations.
        instance: of each.
        polled: which have exact lengths, and ends that were seen some time after.
    """
    ended = polled & (instance != NONE) & (table.start_ns != UNKNOWN) & (table.end_ns != UNKNOWN)
    rows = np.flatnonzero(ended)
    by = grouping.groups_of(instance[rows])
    end_ns, move_ns = table.end_ns[rows], np.zeros(len(table), np.int64)
    move_ns[rows] = (
        intervals.group_extents(by.of_row, len(by), end_ns, end_ns)[0][by.of_row] - end_ns
    )
    return replace(table, start_ns=table.start_ns + move_ns, end_ns=table.end_ns + move_ns)


def aligned_by_ends(
    table: Communications, instance: Ints, clocks: Sequence[RecordingClock], bases: Sequence[int]
) -> tuple[Communications, tuple[RecordingClock, ...]]:
    """Align clocks to the reference by the ends of operations that they have in common.

    No member of a collective is done long before another, and no receive before its send: ends
    of one operation are taken for one instant. Each clock holds the distances that remain.

    Args:
        table: operations, each on its own clock.
        instance: of each.
        clocks: that recorded them.
        bases: the clock that each one ticks with; 0 is the reference.
    """
    rows = np.flatnonzero((instance != NONE) & (table.end_ns != UNKNOWN))
    number, of_clock = instance[rows], np.array(bases, np.int64)
    group = of_clock[table.clock[rows]] if len(rows) else rows
    start_ns, end_ns = table.start_ns.copy(), table.end_ns.copy()
    result = list(clocks)
    rest = set(of_clock.tolist()) - {0}
    while rest:
        # The end of each operation on the reference, by any member.
        ended_ns = np.full(int(number.max(initial=NONE)) + 1, UNKNOWN)
        aligned = ~np.isin(group, sorted(rest))
        ended_ns[number[aligned]] = end_ns[rows[aligned]]
        common = np.flatnonzero(~aligned & (ended_ns[number] != UNKNOWN))
        if len(common) == 0:
            break
        # That with most operations in common goes first.
        nearest = int(np.bincount(group[common]).argmax())
        ours = common[group[common] == nearest]
        apart = ended_ns[number[ours]] - end_ns[rows[ours]]
        move = round(float(np.median(apart)))
        mine = of_clock[table.clock] == nearest
        start_ns = np.where(mine & (start_ns != UNKNOWN), start_ns + move, start_ns)
        end_ns = np.where(mine & (end_ns != UNKNOWN), end_ns + move, end_ns)
        for place in np.flatnonzero(of_clock == nearest).tolist():
            if clocks[place].aligned_by in {Alignment.UNALIGNED, Alignment.UTC}:
                result[place] = RecordingClock.measured(
                    clocks[place].label,
                    Alignment.OPERATIONS,
                    int((group == nearest).sum()),
                    np.abs(apart - move),
                )
        rest.remove(nearest)
    return replace(table, start_ns=start_ns, end_ns=end_ns), tuple(result)


def split(
    table: Communications,
    instance: Ints,
    in_order: Ints,
    compared: Sequence[int],
    peer_wait_ns: Ints,
    transfer_ns: Ints,
) -> Communications:
    """Return the operations with their time split into waiting and moving.

    Args:
        table: operations.
        instance: of each.
        in_order: instance of each that is paired by its order alone; -1 none.
        compared: a number for each clock, equal for those whose times compare.
        peer_wait_ns: how long the proxy thread of each waited for its peer; -1 unknown.
        transfer_ns: how long it moved data; -1 unknown.
    """
    waiting = np.full(len(table), NONE, np.int64)
    split_by = np.full(len(table), Split.UNKNOWN, np.int64)
    together = np.array(compared, np.int64)[table.clock] if len(table) else table.clock
    for number, kind in ((instance, Split.MEMBERS), (in_order, Split.ORDER)):
        wait_ns = _until_the_last(table, number, together)
        new = (wait_ns >= 0) & (split_by == Split.UNKNOWN)
        waiting[new], split_by[new] = wait_ns[new], kind
    alone = (
        (split_by == Split.UNKNOWN) & (table.duration_ns >= 0) & (peer_wait_ns + transfer_ns > 0)
    )
    waiting = np.where(alone, np.minimum(peer_wait_ns, table.duration_ns), waiting)
    split_by = np.where(alone, Split.PROXY, split_by)
    whole = (waiting >= 0) & (table.duration_ns >= 0)
    moving = np.where(whole, table.duration_ns - waiting, NONE)
    return replace(table, waiting_ns=waiting, moving_ns=moving, split=split_by.astype(np.int64))


def _until_the_last(table: Communications, number: Ints, together: Ints) -> Ints:
    """Return the time of each operation before its last member began; -1 unknown.

    It can be known where the end is not.
    """
    wait_ns = np.full(len(table), NONE, np.int64)
    # The time of an operation's launch is not that of its kernel's start.
    ran = (table.start_ns != UNKNOWN) & (table.timing != Timing.LAUNCH)
    rows = np.flatnonzero((number != NONE) & ran)
    if len(rows) == 0:
        return wait_ns
    by = grouping.groups_of(number[rows], together[rows])
    start_ns = table.start_ns[rows]
    _, latest = intervals.group_extents(by.of_row, len(by), start_ns, start_ns)
    # Rows of one kernel are one member.
    member = np.where(table.kernel[rows] < 0, -rows, table.kernel[rows])
    low, high = intervals.group_extents(by.of_row, len(by), member, member)
    several = (high > low)[by.of_row]
    length_ns = table.duration_ns[rows]
    late_ns = latest[by.of_row] - start_ns
    late_ns = np.where(length_ns < 0, late_ns, np.minimum(late_ns, length_ns))
    wait_ns[rows[several]] = np.maximum(late_ns[several], 0)
    return wait_ns
