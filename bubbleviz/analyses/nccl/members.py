"""Finds rows from different ranks that record the same operation, and who waited for whom.

A communication operation is recorded once per rank. The rows of all ranks that took part in an
operation are its *members*, and share an *instance* number. Data moves once the last member has
started::

    rank 0   ├─ waiting ──┼─ moving ─┤
    rank 1         ├ wait ┼─ moving ─┤
    rank 2                ├─ moving ─┤        the last member: the others waited for it

The steps, in the order in which :mod:`.analysis` runs them:

1. :func:`find_epochs`, if a ring buffer lost its oldest entries: number the collectives of the
   largest group, so that sends and receives can be counted from a common start.
2. :func:`number_instances`: group the rows into instances. Members of a collective share the same
   communicator, name and sequence number. The k-th send from one rank to another is paired with the
   k-th receive on the other rank.
3. :func:`align_member_ends`: shift rows of flight recorders, so that all members end together.
4. :func:`align_clocks_by_ends`: align the remaining clocks by the ends of common operations.
5. :func:`pair_by_order`: for profiles without communicators, group the k-th kernel of every GPU.
6. :func:`split_waiting`: split each duration into waiting and moving, as in the figure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from bubbleviz.sources.nccl.events import ROOTED_OPERATIONS, UNKNOWN, OperationKind

#: Minimum fraction of the groups of k-th kernels in which all kernels run simultaneously.
_MIN_OVERLAPPING = 0.95
#: Upper bound for sequence numbers in a file, used to keep the numbers of different files apart.
_SEQUENCE_LIMIT = 1 << 40


def find_epochs(table: Communications) -> Ints:
    """Find the collective from which each row's sends and receives are counted, called its anchor.

    The k-th send is paired with the k-th receive. If files have lost their oldest entries, this
    count cannot begin at the start of a file, so it begins at the anchor. Anchors are the
    collectives of the communicator with the most ranks, because all its ranks call its collectives
    in the same order.

    Returns:
        For each row, the sequence number of the last anchor at or before the row in the same file,
        or -1 if there is none.
    """
    sizes = [len(getattr(communicator, "ranks", ())) for communicator in table.communicators]
    is_collective = (table.peer == NONE) & (table.sequence >= 0)
    size = np.where(is_collective, np.array([*sizes, 0])[table.communicator], 0)
    is_anchor = (size > 0) & (table.communicator == table.communicator[size.argmax()])
    # Sequence numbers increase within a file. The base of a file exceeds all numbers of earlier
    # files, so the maximum never crosses files.
    file_base = table.source * _SEQUENCE_LIMIT
    anchor = np.where(is_anchor, table.sequence % _SEQUENCE_LIMIT + 1, 0)
    last_anchor = np.maximum.accumulate(file_base + anchor)
    return np.asarray(last_anchor - file_base - 1, np.int64)


def mask_incomplete(table: Communications, is_numbered: Sequence[bool]) -> Bools:
    """Find the sends and receives that cannot be paired because others were not recorded.

    NCCL Inspector numbers all sends and receives of a rank in a communicator, starting at 1. If a
    number is missing, the k-th recorded send is not always the k-th send.

    Args:
        table: Operations from all files.
        is_numbered: For each event file, whether the column ``sequence`` has these numbers.

    Returns:
        A mask of the sends and receives in these files whose rank or peer lacks a number.
    """
    is_incomplete = np.zeros(len(table), bool)
    has_number = np.isin(table.source, np.flatnonzero(is_numbered)) & (table.sequence >= 0)
    rows = np.flatnonzero(has_number & (table.peer != NONE) & (table.communicator != NONE))
    if len(rows) == 0:
        return is_incomplete
    # One group for each rank in a communicator, whether it is the caller or the peer.
    ranks = np.append(table.rank[rows], table.peer[rows])
    groups = grouping.group_rows(np.tile(table.communicator[rows], 2), ranks)
    caller, peer = np.split(groups.of_row, 2)
    sequence = table.sequence[rows]
    _, last = intervals.group_extents(caller, len(groups), sequence, sequence)
    n_recorded = np.bincount(caller, minlength=len(groups))
    has_gaps = (n_recorded > 0) & (last != n_recorded)
    is_incomplete[rows] = has_gaps[caller] | has_gaps[peer]
    return is_incomplete


def number_instances(table: Communications, epoch: Ints | int = NONE) -> Ints:
    """Give all rows that record the same operation, on any rank, the same instance number.

    Rows are members of the same operation if all columns of their key are equal::

        collective        communicator, name, -,      -,        sequence, k
        send or receive   communicator, -,    sender, receiver, epoch,    k

    The number k counts the earlier rows of the same rank with the same key. Repeated sequence
    numbers differ in k, and the k-th send is paired with the k-th receive.

    Args:
        table: Operations from all files.
        epoch: For each row, the anchor from which sends and receives are counted; see
            :func:`find_epochs`.

    Returns:
        The instance number of each row, or -1 if unknown. If a rank occurs more than once in an
        instance, all rows of the instance get -1, because the sequence numbers wrapped or the rank
        was recorded twice.
    """
    instance = np.full(len(table), NONE, np.int64)
    is_send, is_receive = _mask_name(table, "Send"), _mask_name(table, "Recv")
    is_p2p = (is_send | is_receive) & (table.kind != OperationKind.PROXY)
    has_member = (table.communicator != NONE) & (table.rank != NONE)
    rows = np.flatnonzero(has_member & (~is_p2p | (table.peer != NONE)))
    if len(rows) == 0:
        return instance
    sequence = np.where(is_p2p, epoch, table.sequence)[rows]
    number = _number_by_key(table, rows, is_p2p[rows], is_send[rows], sequence)
    role = np.where(is_p2p, is_send, 0)[rows].astype(np.int64)
    members = grouping.group_rows(number, table.rank[rows], role).of_row
    is_repeated = np.bincount(members)[members] > 1
    ambiguous = grouping.find_distinct(number[is_repeated])
    instance[rows] = np.where(np.isin(number, ambiguous), NONE, number)
    return instance


def _number_by_key(
    table: Communications, rows: Ints, is_p2p: Bools, is_send: Bools, sequence: Ints
) -> Ints:
    """Assign an integer id to each distinct key, as described in :func:`number_instances`.

    Args:
        table: Operations from all files.
        rows: Rows to number.
        is_p2p: Mask of the sends and receives among ``rows``.
        is_send: Mask of the sends among ``rows``.
        sequence: For each of ``rows``, its sequence number, or its epoch for sends and receives.
    """
    rank, peer = table.rank[rows], table.peer[rows]
    key = (
        table.communicator[rows],
        np.where(is_p2p, NONE, table.name[rows]),
        np.where(is_p2p, np.where(is_send, rank, peer), NONE),
        np.where(is_p2p, np.where(is_send, peer, rank), NONE),
        sequence,
    )
    nth = _count_earlier((*key, rank, is_send.astype(np.int64)), table.start_ns[rows])
    return grouping.group_rows(*key, nth).of_row


def _mask_name(table: Communications, name: str) -> Bools:
    """Return a mask of the rows whose operation has the given name."""
    return np.array([text == name for text in (*table.names, "")], bool)[table.name]


def _count_earlier(columns: tuple[Ints, ...], start_ns: Ints) -> Ints:
    """Return, for each row, the number of earlier rows with equal columns.

    Earlier means a smaller start time, or a smaller row at the same time. Rows without a start come
    first, because ``UNKNOWN`` is the smallest time.
    """
    in_time = np.argsort(start_ns, kind="stable")
    nth = np.empty(len(start_ns), np.int64)
    nth[in_time] = number_occurrences(tuple(column[in_time] for column in columns))
    return nth


def pair_by_order(table: Communications, gpu_index: Ints, family: Ints) -> Ints:
    """Pair kernels on different GPUs based only on their order, for profiles without communicators.

    The k-th kernels of a family on all GPUs form a group. The groups of a family are paired if both
    conditions are met:

    - Every GPU ran the same number of kernels of the family.
    - In at least ``_MIN_OVERLAPPING`` of the groups, there is an instant at which all kernels run.

    Groups without a common instant stay unpaired.

    Args:
        table: Operations from all files.
        gpu_index: GPU of each row, or -1 if unknown.
        family: Kernel family of each row, or -1 if unknown.

    Returns:
        An instance number for each row, or -1 if the row is not paired.
    """
    instance = np.full(len(table), NONE, np.int64)
    is_bare_kernel = (
        (table.kernel != NONE) & (table.communicator == NONE) & (table.kind == OperationKind.KERNEL)
    )
    rows = np.flatnonzero(is_bare_kernel & (gpu_index != NONE) & (family != NONE))
    if len(rows) == 0:
        return instance
    kernels = grouping.group_rows(table.kernel[rows])
    kernel_row = rows[kernels.first]
    order = np.lexsort((table.start_ns[kernel_row], gpu_index[kernel_row], family[kernel_row]))
    sorted_row = kernel_row[order]
    instance_of_kernel = np.empty(len(kernel_row), np.int64)
    instance_of_kernel[order] = _pair_sorted_kernels(
        table, sorted_row, gpu_index[sorted_row], family[sorted_row]
    )
    instance[rows] = instance_of_kernel[kernels.of_row]
    return instance


def _pair_sorted_kernels(table: Communications, rows: Ints, gpu_index: Ints, family: Ints) -> Ints:
    """Pair the k-th kernels of each family on all GPUs, see :func:`pair_by_order`.

    Args:
        table: Operations from all files.
        rows: One row of each kernel, sorted by (family, GPU, start).
        gpu_index: GPU of each of ``rows``.
        family: Kernel family of each of ``rows``.

    Returns:
        An instance number for each of ``rows``, or -1 if the row is not paired.
    """
    nth = number_occurrences((family, gpu_index))
    instance = np.full(len(rows), NONE, np.int64)
    n_instances = 0
    for code in grouping.find_distinct(family).tolist():
        of_family = np.flatnonzero(family == code)
        per_gpu = np.unique(gpu_index[of_family], return_counts=True)[1]
        if len(per_gpu) < 2 or len(grouping.find_distinct(per_gpu)) > 1:
            continue
        n_groups = int(per_gpu[0])
        is_overlapping = _mask_overlapping(table, rows[of_family], nth[of_family], n_groups)
        if is_overlapping.mean() >= _MIN_OVERLAPPING:
            number = np.where(is_overlapping, n_instances + np.arange(n_groups), NONE)
            instance[of_family] = number[nth[of_family]]
            n_instances += n_groups
    return instance


def _mask_overlapping(table: Communications, rows: Ints, group: Ints, n_groups: int) -> Bools:
    """Return a mask of the groups in which all operations run simultaneously at some instant.

    Args:
        table: Operations from all files.
        rows: Rows of the operations.
        group: Group of each of ``rows``.
        n_groups: Number of groups.
    """
    start_ns, end_ns = table.start_ns[rows], table.end_ns[rows]
    _, last_start_ns = intervals.group_extents(group, n_groups, start_ns, start_ns)
    first_end_ns, _ = intervals.group_extents(group, n_groups, end_ns, end_ns)
    return np.asarray(last_start_ns < first_end_ns, bool)


def align_member_ends(table: Communications, instance: Ints, polled: Bools) -> Communications:
    """Shift operations of flight recorders so that all members of an instance end together.

    A flight recorder polls, so it sees the end of an operation too late, but its durations are
    exact. All members are shifted to the earliest end observed in the instance.

    Args:
        table: Operations from all files.
        instance: Instance number of each row, shared by all members of an operation, or -1 if
            unknown.
        polled: Mask of the rows from flight recorders. The times of all other rows do not change.
    """
    is_timed = (table.start_ns != UNKNOWN) & (table.end_ns != UNKNOWN)
    rows = np.flatnonzero(polled & (instance != NONE) & is_timed)
    groups = grouping.group_rows(instance[rows])
    end_ns = table.end_ns[rows]
    first_end_ns, _ = intervals.group_extents(groups.of_row, len(groups), end_ns, end_ns)
    shift_ns = np.zeros(len(table), np.int64)
    shift_ns[rows] = first_end_ns[groups.of_row] - end_ns
    return replace(table, start_ns=table.start_ns + shift_ns, end_ns=table.end_ns + shift_ns)


def align_clocks_by_ends(
    table: Communications, instance: Ints, clocks: Sequence[RecordingClock], bases: Sequence[int]
) -> tuple[Communications, tuple[RecordingClock, ...]]:
    """Align clocks to the reference clock by the ends of common operations.

    All members of an operation are assumed to end at the same instant. A base is a group of clocks
    that already agree. In each round, the base that shares the most operations with aligned clocks
    is shifted by the median distance. The rounds end when no unaligned base shares an operation
    with an aligned one.

    Args:
        table: Operations of all files, each on the clock that recorded it.
        instance: Instance number of each row, shared by all members of an operation, or -1 if
            unknown.
        clocks: Clocks of the recordings.
        bases: Base number of each clock. Clocks with the same base already agree. Base 0 is the
            reference.

    Returns:
        table: The operations, with shifted times.
        clocks: The clocks, along with the remaining distances between the ends of operations.
    """
    rows = np.flatnonzero((instance != NONE) & (table.end_ns != UNKNOWN))
    number, base_of_clock = instance[rows], np.array(bases, np.int64)
    base = base_of_clock[table.clock[rows]] if len(rows) else rows
    aligned_clocks = list(clocks)
    unaligned = set(base_of_clock.tolist()) - {0}
    while unaligned:
        next_base, distance_ns = _measure_distances(number, table.end_ns[rows], base, unaligned)
        if len(distance_ns) == 0:
            break
        shift_ns = round(float(np.median(distance_ns)))
        table = _shift_times(table, base_of_clock[table.clock] == next_base, shift_ns)
        for clock in np.flatnonzero(base_of_clock == next_base).tolist():
            if clocks[clock].aligned_by in {Alignment.UNALIGNED, Alignment.UTC}:
                aligned_clocks[clock] = RecordingClock.measured(
                    clocks[clock].label,
                    Alignment.OPERATIONS,
                    int((base == next_base).sum()),
                    np.abs(distance_ns - shift_ns),
                )
        unaligned.remove(next_base)
    return table, tuple(aligned_clocks)


def _measure_distances(
    number: Ints, end_ns: Ints, base: Ints, unaligned: Collection[int]
) -> tuple[int, Ints]:
    """Choose the next base to align, and measure its distance from the reference clock.

    The base that shares the most operations with aligned clocks is chosen. On ties, the smallest
    base number wins.

    Args:
        number: Instance number of each operation.
        end_ns: End time of each operation on the clock that recorded it.
        base: Base of each operation's clock.
        unaligned: Bases that are not aligned.

    Returns:
        base: The chosen base, or -1 if there are no common operations.
        distance_ns: For each common operation of the chosen base, the end on the reference clock
            minus the end on the operation's clock. Empty if there are no common operations.
    """
    # The end of each instance on the reference clock, as recorded by one of its aligned members.
    is_aligned = ~np.isin(base, sorted(unaligned))
    reference_end_ns = np.full(int(number.max(initial=NONE)) + 1, UNKNOWN)
    reference_end_ns[number[is_aligned]] = end_ns[is_aligned]
    common = np.flatnonzero(~is_aligned & (reference_end_ns[number] != UNKNOWN))
    if len(common) == 0:
        return NONE, common
    next_base = int(np.bincount(base[common]).argmax())
    common = common[base[common] == next_base]
    return next_base, reference_end_ns[number[common]] - end_ns[common]


def _shift_times(table: Communications, mask: Bools, shift_ns: int) -> Communications:
    """Add ``shift_ns`` to the known start and end times of the masked rows."""
    start_ns, end_ns = (
        np.where(mask & (time_ns != UNKNOWN), time_ns + shift_ns, time_ns)
        for time_ns in (table.start_ns, table.end_ns)
    )
    return replace(table, start_ns=start_ns, end_ns=end_ns)


def split_waiting(
    table: Communications,
    instance: Ints,
    order_instance: Ints,
    compared: Sequence[int],
    peer_wait_ns: Ints,
    transfer_ns: Ints,
    has_exact_duration: Bools,
) -> Communications:
    """Split the duration of each operation into waiting and moving data.

    An operation waits until its last member starts, and moves data for the rest of its duration.
    The first source that gives a waiting time is used:

    - the exact durations of the members with the same ``instance``,
    - the members with the same ``instance``,
    - the members with the same ``order_instance``,
    - the time that the proxy thread spent waiting for the peer, capped at the duration.

    If no source gives a waiting time, the waiting and moving times are unknown.

    Args:
        table: Operations from all files.
        instance: Instance number of each row, shared by all members of an operation, or -1 if
            unknown.
        order_instance: Instance number of each row that was paired based only on order, or -1 for
            other rows.
        compared: A group id for each clock. Times on clocks in the same group are comparable.
        peer_wait_ns: Time that each operation's proxy thread spent waiting for the peer, or 0 if
            there is no proxy thread.
        transfer_ns: Time that the proxy thread spent moving data, or 0 if there is no proxy thread.
        has_exact_duration: Mask of the rows whose duration is more exact than their times.

    Returns:
        The operations with ``waiting_ns`` and ``moving_ns``, which are -1 if unknown, and with
        ``split``, the source of both (:class:`Split`).
    """
    waiting_ns = np.full(len(table), NONE, np.int64)
    split = np.full(len(table), Split.UNKNOWN, np.int64)
    clock_group = np.array(compared, np.int64)[table.clock] if len(table) else table.clock
    exact_instance = np.where(has_exact_duration, instance, NONE)
    for wait_ns, kind in (
        (_compare_durations(table, exact_instance), Split.DURATION),
        (_measure_waiting(table, instance, clock_group), Split.MEMBERS),
        (_measure_waiting(table, order_instance, clock_group), Split.ORDER),
    ):
        is_new = (wait_ns >= 0) & (split == Split.UNKNOWN)
        waiting_ns[is_new], split[is_new] = wait_ns[is_new], kind
    is_timed = table.duration_ns >= 0
    has_proxy = (split == Split.UNKNOWN) & is_timed & (peer_wait_ns + transfer_ns > 0)
    waiting_ns = np.where(has_proxy, np.minimum(peer_wait_ns, table.duration_ns), waiting_ns)
    split = np.where(has_proxy, Split.PROXY, split).astype(np.int64)
    moving_ns = np.where((waiting_ns >= 0) & is_timed, table.duration_ns - waiting_ns, NONE)
    return replace(table, waiting_ns=waiting_ns, moving_ns=moving_ns, split=split)


def _measure_waiting(table: Communications, number: Ints, clock_group: Ints) -> Ints:
    """Return the time from each operation's start to the start of its last member.

    The waiting time is capped at the duration, if the duration is known. Rows that share a kernel
    are treated as one member.

    Args:
        table: Operations from all files.
        number: Instance number of each row, or -1 if unknown.
        clock_group: Group of comparable clocks of each row. Members in other groups are ignored.

    Returns:
        The waiting time of each row in ns, or -1 if unknown. The value is -1 if there is no other
        member. It is also -1 if only the launch was recorded, because a kernel can start long after
        its launch.
    """
    wait_ns = np.full(len(table), NONE, np.int64)
    has_start = (table.start_ns != UNKNOWN) & (table.timing != Timing.LAUNCH)
    rows = np.flatnonzero((number != NONE) & has_start)
    if len(rows) == 0:
        return wait_ns
    groups = grouping.group_rows(number[rows], clock_group[rows])
    start_ns, duration_ns = table.start_ns[rows], table.duration_ns[rows]
    _, last_start_ns = intervals.group_extents(groups.of_row, len(groups), start_ns, start_ns)
    member = np.where(table.kernel[rows] < 0, -rows, table.kernel[rows])
    first_member, last_member = intervals.group_extents(groups.of_row, len(groups), member, member)
    has_others = (last_member > first_member)[groups.of_row]
    late_ns = last_start_ns[groups.of_row] - start_ns
    late_ns = np.where(duration_ns < 0, late_ns, np.minimum(late_ns, duration_ns))
    wait_ns[rows[has_others]] = np.maximum(late_ns[has_others], 0)
    return wait_ns


def _compare_durations(table: Communications, number: Ints) -> Ints:
    """Return how much longer each operation ran than the shortest member of its instance.

    All members of an operation are assumed to end together, so the member with the shortest
    duration started last. This does not hold for operations with a root, which are left out.

    Args:
        table: Operations from all files.
        number: Instance number of each row, or -1 if unknown or if the duration is not exact.

    Returns:
        The waiting time of each row in ns, or -1 if unknown or if there is no other member.
    """
    wait_ns = np.full(len(table), NONE, np.int64)
    is_rooted = np.array([name in ROOTED_OPERATIONS for name in (*table.names, "")], bool)
    rows = np.flatnonzero((number != NONE) & (table.duration_ns >= 0) & ~is_rooted[table.name])
    if len(rows) == 0:
        return wait_ns
    groups = grouping.group_rows(number[rows])
    duration_ns = table.duration_ns[rows]
    shortest_ns, _ = intervals.group_extents(groups.of_row, len(groups), duration_ns, duration_ns)
    has_others = (np.bincount(groups.of_row) > 1)[groups.of_row]
    late_ns = duration_ns - shortest_ns[groups.of_row]
    wait_ns[rows[has_others]] = late_ns[has_others]
    return wait_ns
