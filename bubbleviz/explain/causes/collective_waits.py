"""Collective waits: until when each rank only waited in a collective, and for whom.

Data moves from the moment the last member has entered. That one waits least, so the shortest of
the members' kernels bounds the move, and the rest of each other one is waiting, at its start. No
common clock is needed::

    rank 0   ├─ waiting ──────┼─ moving ─┤
    rank 1                    ├─ moving ─┤      the shortest: it entered last
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import first_of_each, groups_of
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.values import frozen

#: Ranks that enter within so long of each other enter together.
_GRAIN_NS = 5_000


@frozen
class CollectiveWaits(Table):
    """Collectives of ranks, in order of (rank, start), split into waiting and moving.

    Attributes:
        rank: the rank.
        iteration: its iteration; -1 unknown.
        kind: row of ``kinds``.
        start_ns: when the rank entered.
        moving_ns: when the last member had entered: the rank waits until then. Where the members
            are unknown that is the start.
        end_ns: when the rank left.
        last_rank: the rank that entered last; -1 where that is the rank itself, or unknown.
        last_operation: row of the operation that it ran or had run before it entered; -1 none.
        kinds: NCCL's names of operations; "" for what has none.
    """

    rank: Ints
    iteration: Ints
    kind: Ints
    start_ns: Ints
    moving_ns: Ints
    end_ns: Ints
    last_rank: Ints
    last_operation: Ints
    kinds: tuple[str, ...] = field(metadata={"shared": True})

    @property
    def waits(self) -> Bools:
        """Which begin with a wait for another rank."""
        return np.asarray((self.moving_ns > self.start_ns) & (self.last_rank >= 0), bool)


def collective_waits(collectives: CollectiveIntervals, operations: Operations) -> CollectiveWaits:
    """Return collectives split into waiting and moving.

    Args:
        collectives: of all ranks, on any clocks.
        operations: of all ranks.
    """
    moving_ns = collectives.start_ns.copy()
    last_rank = np.full(len(collectives), NONE, np.int64)
    last_operation = last_rank.copy()
    rows = np.flatnonzero(collectives.meeting >= 0)
    # A member may have several pieces: it entered with the first and left with the last.
    members = groups_of(collectives.meeting[rows], collectives.rank[rows])
    start_ns, end_ns = group_extents(
        members.of_row, len(members), collectives.start_ns[rows], collectives.end_ns[rows]
    )
    rank, meeting = collectives.rank[rows][members.first], collectives.meeting[rows][members.first]
    length_ns = end_ns - start_ns
    shortest = first_of_each(meeting, length_ns)
    # Of the numbers of meetings some may be missing.
    of_meeting = np.searchsorted(meeting[shortest], meeting)
    shortest_ns = length_ns[shortest][of_meeting]
    before = _running(operations, rank, start_ns)
    # Where several enter together, another collective held them; the one that worked until then
    # was waited for.
    idle_ns = start_ns - np.append(operations.end_ns, np.iinfo(np.int64).min // 2)[before]
    earlier = (length_ns - shortest_ns > _GRAIN_NS).astype(np.int64)
    entered = first_of_each(meeting, earlier, idle_ns, rank)[of_meeting]
    other, operation = rank[entered] != rank, before[entered]
    of_row = members.of_row
    moving_ns[rows] = np.clip(
        (end_ns - shortest_ns)[of_row], collectives.start_ns[rows], collectives.end_ns[rows]
    )
    last_rank[rows] = np.where(other, rank[entered], NONE)[of_row]
    last_operation[rows] = np.where(other, operation, NONE)[of_row]
    return CollectiveWaits(
        rank=collectives.rank,
        iteration=collectives.iteration,
        kind=collectives.kind,
        start_ns=collectives.start_ns,
        moving_ns=moving_ns,
        end_ns=collectives.end_ns,
        last_rank=last_rank,
        last_operation=last_operation,
        kinds=collectives.kinds,
    )


def _running(operations: Operations, rank: Ints, time_ns: Ints) -> Ints:
    """Return the compute operation that each rank had begun last before a time; -1 none."""
    rows = np.flatnonzero((operations.has_span == 1) & np.isin(operations.phase, COMPUTE))
    both_rank = np.concatenate((operations.rank[rows], rank))
    asked = np.arange(len(both_rank)) >= len(rows)
    begun = np.concatenate((operations.start_ns[rows], time_ns))
    # Of what begins at that very time, nothing had begun before it.
    order = np.lexsort((~asked, begun, both_rank))
    latest = np.where(asked[order], NONE, np.arange(len(order)))
    latest = np.maximum.accumulate(latest) if len(order) else latest
    found = np.full(len(both_rank), NONE, np.int64)
    found[order] = np.where(latest == NONE, NONE, order[latest])
    found = found[len(rows) :]
    same = (found != NONE) & (both_rank[found] == rank)
    return np.where(same, np.append(rows, NONE)[np.where(same, found, NONE)], NONE)
