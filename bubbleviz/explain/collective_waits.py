"""Split collectives into waiting for the last member and moving data.

Data moves once the last member has entered. The last member waits least, so the duration of the
shortest kernel is an upper bound on the time for which data moved. Every longer kernel first waits,
and then moves data for this time. If the shortest kernel is too short to have moved data, the
longer kernels only waited. Only durations are compared, so no common clock is needed::

    rank 0   ├─ waiting ──────┼─ moving ─┤
    rank 1                    ├─ moving ─┤      the shortest: it entered last
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bubbleviz.model import operations as tables
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import Groups, find_first_rows, group_rows, mask_run_starts
from bubbleviz.model.intervals import find_last_before, group_extents
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE

#: Kernel durations that differ by at most this many ns are treated as equal. Moving data takes
#: longer.
_GRAIN_NS = 5_000


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveWaits(Table):
    """The collectives of each rank, sorted by (rank, start) and split into waiting and moving data.

    Attributes:
        rank: Index of the rank.
        iteration: Iteration of the rank, or -1 if unknown.
        kind: Index of the kind in ``kinds``.
        start_ns: Time at which the rank entered.
        moving_ns: Time at which the rank stopped waiting for the last member and data began to
            move. Equal to ``start_ns`` if the members are unknown.
        end_ns: Time at which the rank left.
        last_rank: Rank of the member that entered last, or -1 if it is unknown or is ``rank``
            itself.
        last_operation: Row of the last operation that the last rank started before entering, or -1
            if there is none.
        has_members: Mask of the collectives whose members are known.
        kinds: NCCL names of the collective kinds, or "" for a kind without a name.
    """

    rank: Ints
    iteration: Ints
    kind: Ints
    start_ns: Ints
    moving_ns: Ints
    end_ns: Ints
    last_rank: Ints
    last_operation: Ints
    has_members: Bools
    kinds: tuple[str, ...] = field(metadata={"shared": True})


def measure_collective_waits(
    collectives: CollectiveIntervals, operations: tables.Operations
) -> CollectiveWaits:
    """Split each collective into waiting for its last member and moving data.

    Kernel durations determine the last member and the split:

    - The last member is one of the members whose kernel is at most 5 us longer than the shortest
      kernel. Among these, it is the member that was idle for the shortest time before it entered;
      the lowest rank wins ties.
    - Every member moves data at the end of its kernel, for as long as the shortest kernel took.
      Before that, it waits.
    - If the shortest kernel takes at most 5 us, only the last member moves data, and all other
      members only wait.

    Args:
        collectives: Collectives of all ranks, on any clocks. A single collective on one rank can
            span several rows.
        operations: Operations of all ranks.

    Returns:
        One row per row of ``collectives``, in the same order.
    """
    moving_ns = collectives.start_ns.copy()
    last_rank = np.full(len(collectives), NONE, np.int64)
    last_operation = last_rank.copy()
    rows = np.flatnonzero(collectives.meeting >= 0)
    # A member may have several pieces. It enters with the first piece and leaves with the last one.
    groups = group_rows(collectives.meeting[rows], collectives.rank[rows])
    members = _list_members(collectives, rows, groups)
    previous_operation = _find_last_started_operations(operations, members.rank, members.start_ns)
    last_member = _find_last_members(members, operations, previous_operation)
    waits_for_other = members.rank[last_member] != members.rank
    # A shorter time cannot be distinguished from the launch latency of the last member.
    is_indistinct = waits_for_other & (members.shortest_ns <= _GRAIN_NS)
    moved_from_ns = members.end_ns - np.where(is_indistinct, 0, members.shortest_ns)
    moving_ns[rows] = np.clip(
        moved_from_ns[groups.of_row], collectives.start_ns[rows], collectives.end_ns[rows]
    )
    waiting_for = np.where(waits_for_other, last_member, NONE)[groups.of_row]
    last_rank[rows] = np.append(members.rank, NONE)[waiting_for]
    last_operation[rows] = np.append(previous_operation, NONE)[waiting_for]
    return CollectiveWaits(
        rank=collectives.rank,
        iteration=collectives.iteration,
        kind=collectives.kind,
        start_ns=collectives.start_ns,
        moving_ns=moving_ns,
        end_ns=collectives.end_ns,
        last_rank=last_rank,
        last_operation=last_operation,
        has_members=collectives.meeting >= 0,
        kinds=collectives.kinds,
    )


@dataclass(frozen=True, eq=False, repr=False)
class _Members(Table):
    """Members of collectives, one row per (collective, rank), sorted by collective and rank.

    Attributes:
        meeting: Number of the collective. Numbers are consecutive and start at 0.
        rank: Index of the rank.
        start_ns: Time at which the member entered.
        end_ns: Time at which the member left.
        shortest_ns: Shortest duration of any member of the same collective.
    """

    meeting: Ints
    rank: Ints
    start_ns: Ints
    end_ns: Ints
    shortest_ns: Ints


def _list_members(collectives: CollectiveIntervals, rows: Ints, groups: Groups) -> _Members:
    """List the members of collectives: one row per collective and rank.

    A member enters with its first piece and leaves with its last piece.

    Args:
        collectives: Collectives of all ranks, one row per piece.
        rows: Rows of the pieces of collectives whose members are known.
        groups: Groups of ``rows`` that belong to the same member, sorted by (meeting, rank). A
            meeting is one collective over all of its members.
    """
    start_ns, end_ns = group_extents(
        groups.of_row, len(groups), collectives.start_ns[rows], collectives.end_ns[rows]
    )
    first = rows[groups.first]
    # Meeting numbers may have gaps.
    meeting = np.cumsum(mask_run_starts(collectives.meeting[first])) - 1
    length_ns = end_ns - start_ns
    shortest_ns = length_ns[find_first_rows(meeting, length_ns)][meeting]
    return _Members(meeting, collectives.rank[first], start_ns, end_ns, shortest_ns)


def _find_last_members(
    members: _Members, operations: tables.Operations, previous_operation: Ints
) -> Ints:
    """For each member, return the row of the last member to enter the same collective.

    :func:`measure_collective_waits` describes how the last member is chosen.

    Args:
        members: Members of collectives.
        operations: Operations of all ranks.
        previous_operation: Row of the last operation that each member's rank started before it
            entered, or -1.
    """
    # If several members enter at the same time, another collective had blocked all of them until
    # then. The other collective waited for the member that computed until just before that time.
    computed_ns = np.append(operations.end_ns, np.iinfo(np.int64).min // 2)[previous_operation]
    idle_ns = members.start_ns - computed_ns
    length_ns = members.end_ns - members.start_ns
    is_earlier = (length_ns - members.shortest_ns > _GRAIN_NS).astype(np.int64)
    return find_first_rows(members.meeting, is_earlier, idle_ns, members.rank)[members.meeting]


def _find_last_started_operations(operations: tables.Operations, rank: Ints, time_ns: Ints) -> Ints:
    """For each query, find the last compute operation that a rank started before a time.

    Args:
        operations: Operations of all ranks.
        rank: Rank of each query.
        time_ns: Time of each query.

    Returns:
        Row of the operation for each query, or -1 if there is none.
    """
    if not len(rank):
        return rank
    rows = np.flatnonzero((operations.has_span == 1) & mask_phases(operations.phase, COMPUTE))
    last: Ints = find_last_before(operations.rank[rows], operations.start_ns[rows], rank, time_ns)
    return np.append(rows, NONE)[last]
