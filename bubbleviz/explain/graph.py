"""The graph of an iteration: when its operations ran, and what each of them followed.

Every operation starts some time (its lag) after the last of what it follows: the end of the
operation before it on its rank, and the arrival of what it takes from others, a transfer after the
ends of those::

    rank 0   ├── F0 ──┼── F1 ──┤
                      └transfer┐
    rank 1                     └lag├── F0 ──┤
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.dependencies import NEVER, Needs
from bubbleviz.explain.idle import Cause, Idle
from bubbleviz.explain.receives import Receives
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import Operations
from bubbleviz.model.phases import WORK, Phase


@dataclass(frozen=True)
class Graph:
    """The operations of one iteration in order of their start, and what each follows.

    Attributes:
        rows: of the operations table.
        rank: of each.
        start_ns: end less busy time, as if an operation waited only before it began.
        busy_ns: how long it works, beyond what runs before it on its rank has covered.
        before: places of what each follows: the one before it on its rank, and up to two of other
            ranks (an overlapped pair takes two results); -1 none, shape (3, operations).
        transfer_ns: how long what it takes from others is on its way.
        lag_ns: from the last of what it follows to ``start_ns``; 0 where it follows none.
        lag_by_cause: how much of the lag has which cause, shape (operations, causes).
    """

    rows: Ints
    rank: Ints
    start_ns: Ints
    busy_ns: Ints
    before: Ints
    transfer_ns: Ints
    lag_ns: Ints
    lag_by_cause: Ints

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
        """When each of what it follows had ended and arrived, shape (3, operations)."""
        return _arrived(self.before, self.end_ns, self.transfer_ns)


def _arrived(before: Ints, end_ns: Ints, transfer_ns: Ints) -> Ints:
    ends = np.append(end_ns, NEVER)[before]
    ends[1:] += np.where(before[1:] == NONE, 0, transfer_ns)
    return ends


def graph_of(
    operations: Operations,
    needs: Needs,
    receives: Receives,
    idle: Sequence[Idle],
    iteration: int,
) -> Graph:
    """Return the operations of one iteration, and what each follows.

    Args:
        operations: of all ranks.
        needs: whose results they take.
        receives: of operations.
        idle: idle time of each rank.
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
    start_ns, end_ns = _side_by_side(rank, start_ns, end_ns)
    by_rank = np.lexsort((np.arange(len(rows)), rank))
    next_to = rank[by_rank[1:]] == rank[by_rank[:-1]]
    before = np.full((3, len(rows)), NONE, np.int64)
    before[0, by_rank[1:][next_to]] = by_rank[:-1][next_to]
    before[1:] = _given(rows, len(operations), needs)
    transfer_ns = _transfers(operations, receives)[rows]
    # No transfer takes longer than there was between the two.
    given_ns = np.append(end_ns, NEVER)[before[1:]].max(axis=0)
    given = given_ns != NEVER
    room_ns = np.where(given, start_ns - np.where(given, given_ns, 0), 0)
    transfer_ns = np.clip(transfer_ns, 0, np.maximum(room_ns, 0))
    ready_ns = _arrived(before, end_ns, transfer_ns).max(axis=0)
    follows = (before != NONE).any(axis=0)
    lag_ns = np.where(follows, start_ns - ready_ns, 0)
    lags = np.zeros((len(rows), len(Cause)), np.int64)
    by_number = np.searchsorted(rank[by_rank], np.arange(len(idle) + 1)).tolist()
    for own, low, high in zip(idle, by_number[:-1], by_number[1:], strict=True):
        at = by_rank[low:high]
        at = at[follows[at]]
        since_ns = np.minimum(ready_ns[at], end_ns[at])
        for cause in Cause if len(at) else ():
            times = own.of((cause,))
            lags[at, cause] = intervals.measure_within(times, since_ns, end_ns[at])
    # A span that begins with work which needs no input has idle time behind its start.
    room_ns = np.maximum(lag_ns, 0)[:, None] - np.cumsum(lags, axis=1) + lags
    lags = np.clip(lags, 0, np.maximum(room_ns, 0))
    busy_ns = end_ns - start_ns
    return Graph(rows, rank, start_ns, busy_ns, before, transfer_ns, lag_ns, lags)


def _side_by_side(rank: Ints, start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return times in which no two operations of a rank overlap: each goes on where others end.

    ::

        stream 1   ├────── F3 ──────┤              ├────── F3 ──────┤
        stream 2        ├──── B1 ────────┤                          ├ B1 ┤
    """
    start_ns, end_ns = start_ns.copy(), end_ns.copy()
    order = np.argsort(rank, kind="stable")
    bounds = np.flatnonzero(np.append(True, rank[order][1:] != rank[order][:-1]))[: len(rank)]
    for own in np.split(order, bounds[1:]):
        latest_ns = np.maximum.accumulate(end_ns[own])
        covered_ns = np.append(NEVER, latest_ns[:-1])
        start_ns[own] = np.maximum(start_ns[own], covered_ns)
        end_ns[own] = np.maximum(end_ns[own], start_ns[own])
    return start_ns, end_ns


def _transfers(operations: Operations, receives: Receives) -> Ints:
    """Return how long what each operation takes from others is on its way.

    Of a receive that waited that was seen; another one began late itself (before a bottleneck all
    do), or was not recorded. Its transfer is the usual one of its virtual stage and direction, and
    where none of these waited that of the run.
    """
    waited = receives.take(receives.wait_ns > 0)
    row, seen = waited.operation, waited.transfer_ns
    if not len(row):
        return np.zeros(len(operations), np.int64)
    forward = np.isin(operations.phase, (Phase.F, Phase.FB)).astype(np.int64)
    kind = groups_of(operations.virtual_stage, forward).of_row
    usual = np.full(int(kind.max()) + 1, np.sort(seen)[(len(seen) - 1) // 2], np.int64)
    order = np.lexsort((seen, kind[row]))
    of_kind = kind[row][order]
    first = np.searchsorted(of_kind, np.arange(len(usual)))
    count = np.bincount(of_kind, minlength=len(usual))
    known = count > 0
    usual[known] = seen[order][(first + (count - 1) // 2)[known]]
    transfer_ns: Ints = usual[kind]
    transfer_ns[row] = seen
    return transfer_ns


def _given(rows: Ints, operations: int, needs: Needs) -> Ints:
    """Return the places of up to two operations of other ranks that each takes results of.

    What it takes of its own rank has run before it there, and need not be followed twice.
    """
    place = np.full(operations, NONE, np.int64)
    place[rows] = np.arange(len(rows))
    remote = needs.take(needs.remote)
    later, earlier = place[remote.after], place[remote.before]
    # What seems to run before what it needs (clocks can be off) cannot be followed.
    held = (later != NONE) & (earlier != NONE) & (earlier < later)
    later, earlier = later[held], earlier[held]
    order = np.argsort(later, kind="stable")
    later, earlier = later[order], earlier[order]
    again = np.append(False, later[1:] == later[:-1])[: len(later)]
    given = np.full((2, len(rows)), NONE, np.int64)
    given[0, later[~again]] = earlier[~again]
    given[1, later[again]] = earlier[again]
    return given
