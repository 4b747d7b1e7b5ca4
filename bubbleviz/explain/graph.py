"""The graph of an iteration: when its operations ran, and which others each of them followed.

Every operation starts its delay after the last of those that it follows: the operation before it
on its rank, and the producers of its input on other ranks, a transfer after they end::

    rank 0   ├── F0 ──┼── F1 ──┤
                      └transfer┐
    rank 1                     └delay├── F0 ──┤
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.causes.idle_intervals import IdleIntervals
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.receives import Receives
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.values import frozen


@frozen
class Graph:
    """The operations of one iteration in order of their start, and those that each follows.

    Attributes:
        rows: of the operations table.
        rank: of each.
        start_ns: end less busy time, as if an operation waited only before it began.
        busy_ns: how long it works, beyond what runs before it on its rank has covered.
        before: places of those that each follows: the one before it on its rank, and up to two on
            other ranks (an overlapped pair takes two results); -1 none, shape (3, operations).
        transfer_ns: how long its input is in transfer from other ranks.
        delay_ns: from the last of those that it follows to ``start_ns``; 0 where it follows none.
        delay_by_cause: how much of the delay has which cause, shape (operations, causes).
    """

    rows: Ints
    rank: Ints
    start_ns: Ints
    busy_ns: Ints
    before: Ints
    transfer_ns: Ints
    delay_ns: Ints
    delay_by_cause: Ints

    @property
    def end_ns(self) -> Ints:
        """When each ended."""
        return self.start_ns + self.busy_ns

    @property
    def follows(self) -> Bools:
        """Which follow any other; the rest start when they did."""
        return np.asarray((self.before != NONE).any(axis=0), bool)

    @property
    def arrived_ns(self) -> Ints:
        """When each of those that it follows had ended and arrived, shape (3, operations)."""
        return _arrived(self.before, self.end_ns, self.transfer_ns)


def _arrived(before: Ints, end_ns: Ints, transfer_ns: Ints) -> Ints:
    ends = np.append(end_ns, NEVER)[before]
    ends[1:] += np.where(before[1:] == NONE, 0, transfer_ns)
    return ends


def graph_of(
    operations: Operations,
    dependencies: Dependencies,
    receives: Receives,
    idle: Sequence[IdleIntervals],
    iteration: int,
) -> Graph:
    """Return the operations of one iteration, and those that each follows.

    Args:
        operations: of all ranks.
        dependencies: between operations.
        receives: of operations.
        idle: idle intervals of each rank.
        iteration: index of the iteration.
    """
    rows = np.flatnonzero(
        (operations.iteration == iteration)
        & (operations.has_span == 1)
        & np.isin(operations.phase, WORK)
    )
    start_ns = operations.end_ns[rows] - operations.busy_ns[rows]
    order = np.lexsort((rows, operations.end_ns[rows], start_ns))
    rows, start_ns = rows[order], start_ns[order]
    rank, end_ns = operations.rank[rows], operations.end_ns[rows]
    start_ns, end_ns = one_at_a_time(rank, start_ns, end_ns)
    by_rank = np.lexsort((np.arange(len(rows)), rank))
    next_to = rank[by_rank[1:]] == rank[by_rank[:-1]]
    before = np.full((3, len(rows)), NONE, np.int64)
    before[0, by_rank[1:][next_to]] = by_rank[:-1][next_to]
    before[1:] = _producers(rows, len(operations), dependencies)
    transfer_ns = _transfers(operations, receives)[rows]
    # No transfer takes longer than the time between producer and consumer.
    produced_ns = np.append(end_ns, NEVER)[before[1:]].max(axis=0)
    remote = produced_ns != NEVER
    room_ns = np.where(remote, start_ns - np.where(remote, produced_ns, 0), 0)
    transfer_ns = np.clip(transfer_ns, 0, np.maximum(room_ns, 0))
    ready_ns = _arrived(before, end_ns, transfer_ns).max(axis=0)
    follows = (before != NONE).any(axis=0)
    delay_ns = np.where(follows, start_ns - ready_ns, 0)
    delays = np.zeros((len(rows), len(Cause)), np.int64)
    by_number = np.searchsorted(rank[by_rank], np.arange(len(idle) + 1)).tolist()
    for idle_of_rank, low, high in zip(idle, by_number[:-1], by_number[1:], strict=True):
        at = by_rank[low:high]
        at = at[follows[at]]
        since_ns = np.minimum(ready_ns[at], end_ns[at])
        for cause in Cause if len(at) else ():
            times = idle_of_rank.of((cause,))
            delays[at, cause] = intervals.measure_within(times, since_ns, end_ns[at])
    # A span that begins with work that needs no input has idle time after its start.
    room_ns = np.maximum(delay_ns, 0)[:, None] - np.cumsum(delays, axis=1) + delays
    delays = np.clip(delays, 0, np.maximum(room_ns, 0))
    busy_ns = end_ns - start_ns
    return Graph(rows, rank, start_ns, busy_ns, before, transfer_ns, delay_ns, delays)


def one_at_a_time(rank: Ints, start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return times in which no two operations of a rank overlap: each continues where others end.

    Operations of a rank stand in order of their start.

    ::

        stream 1   ├────── F3 ──────┤              ├────── F3 ──────┤
        stream 2        ├──── B1 ────────┤                          ├ B1 ┤
    """
    start_ns, end_ns = start_ns.copy(), end_ns.copy()
    order = np.argsort(rank, kind="stable")
    bounds = np.flatnonzero(np.append(True, rank[order][1:] != rank[order][:-1]))[: len(rank)]
    for rows in np.split(order, bounds[1:]):
        latest_ns = np.maximum.accumulate(end_ns[rows])
        covered_ns = np.append(NEVER, latest_ns[:-1])
        start_ns[rows] = np.maximum(start_ns[rows], covered_ns)
        end_ns[rows] = np.maximum(end_ns[rows], start_ns[rows])
    return start_ns, end_ns


def _transfers(operations: Operations, receives: Receives) -> Ints:
    """Return how long the input of each operation is in transfer.

    A receive that waited shows it. Any other one began late itself (before a bottleneck all do), or
    was not recorded: its transfer is the median of its virtual stage and direction, and where no
    receive of these waited, of the run.
    """
    waited = receives.take(receives.wait_ns > 0)
    row, measured_ns = waited.operation, waited.transfer_ns
    if not len(row):
        return np.zeros(len(operations), np.int64)
    forward = np.isin(operations.phase, (Phase.F, Phase.FB)).astype(np.int64)
    kind = groups_of(operations.virtual_stage, forward).of_row
    median_ns = np.full(
        int(kind.max()) + 1, np.sort(measured_ns)[(len(measured_ns) - 1) // 2], np.int64
    )
    order = np.lexsort((measured_ns, kind[row]))
    of_kind = kind[row][order]
    first = np.searchsorted(of_kind, np.arange(len(median_ns)))
    count = np.bincount(of_kind, minlength=len(median_ns))
    known = count > 0
    median_ns[known] = measured_ns[order][(first + (count - 1) // 2)[known]]
    transfer_ns: Ints = median_ns[kind]
    transfer_ns[row] = measured_ns
    return transfer_ns


def _producers(rows: Ints, operations: int, dependencies: Dependencies) -> Ints:
    """Return the places of up to two operations on other ranks whose results each takes.

    Producers on its own rank ran before it there, and need not be followed twice.
    """
    place = np.full(operations, NONE, np.int64)
    place[rows] = np.arange(len(rows))
    remote = dependencies.take(dependencies.remote)
    later, earlier = place[remote.after], place[remote.before]
    # An operation that seems to run before its producer (clocks can be off) cannot follow it.
    ordered = (later != NONE) & (earlier != NONE) & (earlier < later)
    later, earlier = later[ordered], earlier[ordered]
    order = np.argsort(later, kind="stable")
    later, earlier = later[order], earlier[order]
    again = np.append(False, later[1:] == later[:-1])[: len(later)]
    producers = np.full((2, len(rows)), NONE, np.int64)
    producers[0, later[~again]] = earlier[~again]
    producers[1, later[again]] = earlier[again]
    return producers
