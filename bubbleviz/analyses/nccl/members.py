"""Members: which operations of several ranks are one, and who waited for whom.

The members of a collective have one communicator, name and sequence number; where no number is
recorded they are counted. The k-th send from one rank to another belongs to the k-th receive of it.
Data moves once the last member has begun::

    rank 0   ├─ waiting ─┼─ moving ─┤
    rank 1               ├─ moving ─┤
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.nccl.communications import (
    Alignment,
    Communications,
    RecordingClock,
    Split,
    Timing,
)
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model import grouping, intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.sources.nccl.events import UNKNOWN, OperationKind

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
    counted[in_time] = number_occurrences(tuple(column[in_time] for column in columns))
    number = grouping.group_rows(*key, counted).of_row
    # A rank is a member once: wrapped sequence numbers, or a rank recorded twice, are ambiguous.
    members = grouping.group_rows(number, rank, np.where(p2p, sends, 0).astype(np.int64))
    twice = np.bincount(members.of_row)[members.of_row] > 1
    instance[rows] = np.where(np.isin(number, grouping.find_distinct(number[twice])), NONE, number)
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
    kernels = grouping.group_rows(table.kernel[rows])
    first = rows[kernels.first]
    order = np.lexsort((table.start_ns[first], place[first], family[first]))
    start_ns, end_ns = table.start_ns[first[order]], table.end_ns[first[order]]
    of_family, of_place = family[first[order]], place[first[order]]
    nth = number_occurrences((of_family, of_place))
    paired = np.full(len(first), NONE, np.int64)
    used = 0
    for code in grouping.find_distinct(of_family).tolist():
        alike = np.flatnonzero(of_family == code)
        counts = np.unique(of_place[alike], return_counts=True)[1]
        if len(counts) < 2 or len(grouping.find_distinct(counts)) > 1:
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
    by = grouping.group_rows(instance[rows])
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
    by = grouping.group_rows(number[rows], together[rows])
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
