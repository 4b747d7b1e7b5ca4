"""Finds ranks that other ranks wait for because they are missing or late.

An operation is open if a member has entered it but not finished it. Members that have not entered
an open operation block it. A blocking member that is not itself waiting in another open operation
blocks the run::

    rank 0   ├─ barrier ······      waits for 2 and 3
    rank 2   ├─ all-reduce ···      waits for 3
    rank 3                          waits in no operation: all wait for it
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from bubbleviz.analyses.nccl.communications import PER_RANK_OPERATIONS, Communications, Communicator
from bubbleviz.analyses.nccl.summary import LateRank
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model import grouping, intervals
from bubbleviz.model.collectives import Group
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.sources.nccl.events import PROGRESS

_STARTED, _COMPLETED = PROGRESS.index("started"), PROGRESS.index("completed")
#: Operations for which all members must pass the same number of elements.
_EQUAL_COUNT_OPERATIONS = (PER_RANK_OPERATIONS - {"Gather", "Scatter"}) | {
    "AllReduce",
    "Broadcast",
    "Reduce",
}
#: Matches the description of a pipeline's process group, such as ``mesh_pp``.
_PIPELINE = re.compile(r"(?:mesh_)?pp|pipeline\w*", re.IGNORECASE)


@dataclass(frozen=True)
class Fault:
    """A collective or send/receive that not all members entered, finished, or called the same way.

    Attributes:
        communicator: Communicator of the operation.
        name: Name of the operation.
        sequence: Sequence number of the operation, or -1 if unknown.
        entered: Ranks in the run that have entered the operation.
        missing: Ranks in the run that have a dump but have not entered the operation.
        undumped: Ranks without a dump, which may have entered the operation.
        calls: For a mismatch, a description of each distinct call and the ranks that made it.
    """

    communicator: Communicator
    name: str
    sequence: int
    entered: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    undumped: tuple[int, ...] = ()
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()


def add_run_ranks(table: Communications, dumped: Bools, inspected: Bools) -> Communications:
    """Fill in ``run_rank``: translate ranks in a communicator to ranks in the complete run.

    Args:
        table: Operations from all files.
        dumped: Mask of the rows from flight recorders. If the members of a row's group are unknown,
            its rank is already the rank in the run.
        inspected: Mask of the rows from NCCL Inspector, see :func:`_find_ranks_in_largest`.

    Returns:
        The operations with ``run_rank`` filled in, which is -1 if unknown.
    """
    members = [
        communicator.ranks if isinstance(communicator, Group) else ()
        for communicator in table.communicators
    ]
    sizes = np.array([*map(len, members), 0])
    all_members = np.array([*chain.from_iterable(members), NONE], np.int64)
    first, size = (np.cumsum(sizes) - sizes)[table.communicator], sizes[table.communicator]
    is_member = (table.rank >= 0) & (table.rank < size)
    member_rank = all_members[np.where(is_member, first + table.rank, NONE)]
    dumped_rank = np.where(dumped & (size == 0), table.rank, NONE)
    run_rank = np.where(is_member, member_rank, dumped_rank)
    rows = np.flatnonzero(inspected)
    run_rank[rows] = _find_ranks_in_largest(table.take(rows))
    return replace(table, run_rank=run_rank)


def _find_ranks_in_largest(table: Communications) -> Ints:
    """Return the rank of each row's GPU in the largest communicator.

    The ranks are unknown (-1) unless this communicator contains every GPU once. The largest
    communicator is the one with the highest rank. On ties, the first one that contains every GPU is
    used.

    Args:
        table: Operations whose GPUs have distinct numbers.
    """
    gpus = grouping.group_rows(table.gpu)
    unknown = np.full(len(table), NONE, np.int64)
    has_member = (table.communicator != NONE) & (table.rank != NONE)
    highest = np.full(len(table.communicators), NONE, np.int64)
    np.maximum.at(highest, table.communicator[has_member], table.rank[has_member])
    for communicator in np.flatnonzero(highest == highest.max(initial=0)).tolist():
        rows = np.flatnonzero(has_member & (table.communicator == communicator))
        members = grouping.group_rows(gpus.of_row[rows], table.rank[rows])
        first_rows = rows[members.first]
        n_ranks = len(grouping.find_distinct(table.rank[first_rows]))
        if len(members) == n_ranks == len(gpus):
            rank_of_gpu = unknown[: len(gpus)].copy()
            rank_of_gpu[gpus.of_row[first_rows]] = table.rank[first_rows]
            return rank_of_gpu[gpus.of_row]
    return unknown


def add_awaited_times(table: Communications, instance: Ints) -> Communications:
    """Fill in ``awaited_ns``, the time that other members spent waiting for each rank.

    The members of an instance wait for the last member, which is the one that did not wait. The
    last member's ``awaited_ns`` is the sum of the waiting times in the instance. If several members
    did not wait, they share the sum equally. All other members get 0.

    Args:
        table: Operations with ``waiting_ns``.
        instance: Instance number of each row, shared by all members of an operation, or -1 if
            unknown.

    Returns:
        The operations with ``awaited_ns`` filled in, which is -1 if the row's instance or waiting
        time is unknown.
    """
    rows = np.flatnonzero((instance != NONE) & (table.waiting_ns >= 0))
    groups = grouping.group_rows(instance[rows])
    total_ns = np.bincount(groups.of_row, table.waiting_ns[rows], len(groups))
    is_last = table.waiting_ns[rows] == 0
    n_last = np.bincount(groups.of_row[is_last], minlength=len(groups))
    share_ns = total_ns[groups.of_row] / np.maximum(n_last[groups.of_row], 1)
    awaited_ns = np.full(len(table), NONE, np.int64)
    awaited_ns[rows] = np.where(is_last, np.rint(share_ns), 0)
    return replace(table, awaited_ns=awaited_ns)


def find_stages(communicators: Sequence[Communicator]) -> dict[int, int]:
    """Return each rank's pipeline stage, which is its position in its pipeline group.

    If a rank is in several pipeline groups, the largest group is used, because pairs of stages may
    have their own groups.
    """
    groups = [communicator for communicator in communicators if isinstance(communicator, Group)]
    pipelines = [group.ranks for group in groups if _PIPELINE.fullmatch(group.description)]
    pipelines.sort(key=len)
    return {rank: stage for ranks in pipelines for stage, rank in enumerate(ranks)}


def list_late_ranks(table: Communications, files: Sequence[str] = ()) -> list[LateRank]:
    """List the ranks that others waited for, longest total waiting time first.

    Ties are sorted by rank number. Operations whose rank in the run is unknown are ignored, unless
    their file is known to belong to a single process.

    Args:
        table: Operations with ``awaited_ns``.
        files: For each file, its path if it belongs to a single process, otherwise "".
    """
    is_of_process = np.array([path != "" for path in files], bool)
    has_file = np.isin(table.source, np.flatnonzero(is_of_process))
    is_listed = (table.run_rank != NONE) | has_file
    rows = np.flatnonzero(is_listed & (table.awaited_ns > 0))
    source = np.where(table.run_rank == NONE, table.source, NONE)[rows]
    late = grouping.group_rows(table.run_rank[rows], source)
    operations = np.bincount(late.of_row, minlength=len(late))
    awaited_ns = np.bincount(late.of_row, table.awaited_ns[rows], len(late)).astype(np.int64)
    late_ranks = [
        LateRank(
            rank=None if rank == NONE else rank,
            operations=n_operations,
            awaited_ns=waited_ns,
            file=files[file] if rank == NONE else None,
        )
        for rank, file, n_operations, waited_ns in zip(
            table.run_rank[rows[late.first]].tolist(),
            source[late.first].tolist(),
            operations.tolist(),
            awaited_ns.tolist(),
            strict=True,
        )
    ]
    return sorted(late_ranks, key=_make_late_key)


def _make_late_key(entry: LateRank) -> tuple[int, int, str]:
    """Return the sort key that puts the longest awaited rank first."""
    return -entry.awaited_ns, NONE if entry.rank is None else entry.rank, entry.file or ""


def find_faults(table: Communications, dumped: Collection[int]) -> tuple[Fault, ...]:
    """Find where the run hangs, that is, each communicator's or pair's first unfinished operation.

    A pair consists of a sender and a receiver. A rank has not entered an operation in two cases:
    its dump ends before the operation, or its GPU has not started the operation although another
    rank's GPU has.

    Collectives are matched by sequence number. The unfinished sends and receives of a pair are
    matched by order.

    Args:
        table: Operations from all files. Only rows from flight recorders have a ``progress``.
        dumped: Ranks of the run whose flight recorders were read.

    Returns:
        Hangs, followed by mismatched calls of collectives.
    """
    has_rank = (table.communicator != NONE) & (table.run_rank != NONE)
    table = table.take((table.progress != NONE) & has_rank)
    is_p2p, is_unfinished = table.peer != NONE, table.progress < _COMPLETED
    source, target = _find_direction(table)
    queue = grouping.group_rows(table.communicator, source, target).of_row
    position = np.where(is_p2p, 0, table.sequence)
    open_p2p = np.flatnonzero(is_p2p & is_unfinished)
    position[open_p2p] = 1 + number_occurrences((queue[open_p2p], table.run_rank[open_p2p]))
    rows = np.flatnonzero(np.isin(queue, queue[is_unfinished]))
    queues = [rows[indices] for _, indices in grouping.list_rows_by_value(queue[rows])]
    hangs = (
        _find_hang(table, queue_rows, position, _get_pair(source, target, queue_rows[0]), dumped)
        for queue_rows in queues
    )
    return (*hangs, *_find_mismatches(table.take(~is_p2p)))


def _find_hang(
    table: Communications,
    rows: Ints,
    position: Ints,
    pair: tuple[int, int] | None,
    dumped: Collection[int],
) -> Fault:
    """Find a communicator's or pair's first unfinished operation, and who has entered it.

    A rank has entered the operation if it recorded this operation or a later one. If any GPU has
    started the operation, the rank's own GPU must have started it as well. Members that have not
    entered the operation are ``missing`` if their flight recorder was read, otherwise ``undumped``.

    Args:
        table: Operations recorded by flight recorders.
        rows: Rows of the communicator or pair. At least one row is unfinished.
        position: A number for each row of ``table``. All members of an operation have the same
            number. Later operations of the communicator or pair have larger numbers.
        pair: Sender and receiver in the communicator, or None for collectives.
        dumped: Ranks of the run whose flight recorders were read.
    """
    is_unfinished = table.progress[rows] < _COMPLETED
    first = int(position[rows[is_unfinished]].min())
    entered = {*table.run_rank[rows[position[rows] >= first]].tolist()}
    operation_rows = rows[position[rows] == first]
    is_started = table.progress[operation_rows] >= _STARTED
    if (table.progress[operation_rows] == _STARTED).any():
        entered -= {*table.run_rank[operation_rows[~is_started]].tolist()}
    missing = _list_members(table, rows, pair) - entered
    row = int(operation_rows[0])
    return Fault(
        table.communicators[int(table.communicator[row])],
        table.names[table.name[row]],
        int(table.sequence[row]),
        entered=tuple(sorted(entered)),
        missing=tuple(sorted(missing & {*dumped})),
        undumped=tuple(sorted(missing - {*dumped})),
    )


def _get_pair(source: Ints, target: Ints, row: int) -> tuple[int, int] | None:
    """Return the sending and receiving rank of a row, or None if the row is a collective."""
    return None if source[row] == NONE else (int(source[row]), int(target[row]))


def _find_direction(table: Communications) -> tuple[Ints, Ints]:
    """Return the sending and the receiving rank of each row, or -1 for collectives."""
    is_p2p = table.peer != NONE
    is_send = np.array([name == "Send" for name in table.names], bool)[table.name]
    source = np.where(is_p2p, np.where(is_send, table.rank, table.peer), NONE)
    target = np.where(is_p2p, np.where(is_send, table.peer, table.rank), NONE)
    return source, target


def _list_members(table: Communications, rows: Ints, pair: tuple[int, int] | None) -> set[int]:
    """Return the ranks of the run that take part in an operation.

    For a pair, these are its two ranks. For a collective, these are the members of the group, or
    the ranks of the given rows if the members are unknown.

    Args:
        table: Operations.
        rows: Rows of the communicator or pair.
        pair: Sender and receiver in the communicator, or None for a collective.
    """
    communicator = table.communicators[int(table.communicator[rows[0]])]
    group = communicator.ranks if isinstance(communicator, Group) else ()
    if pair is not None:
        return {group[rank] if rank < len(group) else rank for rank in pair}
    return {*group} or {*table.run_rank[rows].tolist()}


def find_culprits(faults: Sequence[Fault]) -> list[int]:
    """Return the ranks that block the run, ascending.

    A rank blocks the run if it is missing in an operation and is not waiting in any other.
    """
    waiting = {rank for fault in faults if not fault.calls for rank in fault.entered}
    return sorted({rank for fault in faults for rank in fault.missing} - waiting)


def _find_mismatches(table: Communications) -> Iterator[Fault]:
    """Yield, for each communicator, the first collective that its members called differently.

    Calls can differ in name, datatype or (for ``_EQUAL_COUNT_OPERATIONS``) number of elements.

    Args:
        table: Collectives recorded by flight recorders.
    """
    nth = number_occurrences((table.communicator, table.sequence, table.run_rank))
    collectives = grouping.group_rows(table.communicator, table.sequence, nth)
    has_equal_count = np.array([name in _EQUAL_COUNT_OPERATIONS for name in table.names], bool)
    count = np.where(has_equal_count[table.name], table.count, NONE)
    call = grouping.group_rows(table.name, count, table.datatype).of_row
    low, high = intervals.group_extents(collectives.of_row, len(collectives), call, call)
    rows = np.flatnonzero((low != high)[collectives.of_row])
    rows = rows[np.lexsort((table.run_rank[rows], collectives.of_row[rows], table.sequence[rows]))]
    _, first = np.unique(table.communicator[rows], return_index=True)
    for row in np.sort(rows[first]).tolist():
        member_rows = rows[collectives.of_row[rows] == collectives.of_row[row]]
        yield Fault(
            table.communicators[table.communicator[row]],
            table.names[table.name[row]],
            int(table.sequence[row]),
            calls=_list_calls(table, member_rows, count),
        )


def _list_calls(
    table: Communications, rows: Ints, count: Ints
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Describe each distinct call of a collective, and list the ranks that made the call.

    The call made by the most ranks comes first. On ties, the call with the smallest rank comes
    first.

    Args:
        table: Collectives recorded by flight recorders.
        rows: One row per member of the collective, sorted by rank.
        count: Number of elements in each row of ``table``, or -1 to leave it out.
    """
    ranks_of_call: dict[str, tuple[int, ...]] = {}
    for row in rows.tolist():
        text = _describe_call(table, row, int(count[row]))
        ranks_of_call[text] = (*ranks_of_call.get(text, ()), int(table.run_rank[row]))
    return tuple(sorted(ranks_of_call.items(), key=lambda call: (-len(call[1]), call[1])))


def _describe_call(table: Communications, row: int, count: int) -> str:
    """Describe a call by name, number of elements (-1 to leave it out) and datatype."""
    name, datatype = table.names[table.name[row]], (*table.names, "")[table.datatype[row]]
    elements = f"{count:,} elements" if count != NONE else ""
    return " of ".join(filter(None, (name, elements, datatype)))
