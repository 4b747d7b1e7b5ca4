"""Idle intervals as pieces with a cause each, and what is laid over their causes.

Ranks are laid side by side on one line (:class:`~bubbleviz.model.intervals.Packing`), so that one
pass serves all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.collective_waits import CollectiveWaits
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import distinct
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


@frozen
class IdleIntervals(Table):
    """Idle intervals of ranks, cut by cause; warm-up and drain depend on the window.

    In order of (rank, start).

    Attributes:
        rank: the rank.
        start_ns: start of the piece.
        end_ns: end.
        cause: code of :class:`Cause`.
        interval: number of the idle interval within the rank.
        before: row of the operation that ended last before the interval; -1 none.
        after: row of the next operation; -1 none.
        peer_operation: row of the operation before which the last member entered the collective
            that the rank waits in; -1 where it waits in none.
        collective: kind of the collective that the rank is in; -1 none.
    """

    rank: Ints
    start_ns: Ints
    end_ns: Ints
    cause: Ints
    interval: Ints
    before: Ints
    after: Ints
    peer_operation: Ints
    collective: Ints

    @classmethod
    def none(cls) -> IdleIntervals:
        """Return no intervals."""
        return cls(*(np.empty(0, np.int64) for _ in cls.column_names()))

    def time_within(
        self, causes: tuple[Cause, ...], rank: Ints, low_ns: Ints, high_ns: Ints
    ) -> Ints:
        """Return how long ranks were idle for some causes in windows [low, high] of theirs."""
        rows = np.isin(self.cause, causes)
        own = self.rank[rows], self.start_ns[rows], self.end_ns[rows]
        return intervals.measure_in_groups(own, rank, low_ns, high_ns)


def overlaid(idle: IdleIntervals, times: intervals.Intervals, cause: Cause) -> IdleIntervals:
    """Return idle intervals in which everything within some times has one cause.

    Both are on one line.
    """
    if len(times[0]) == 0 or len(idle) == 0:
        return idle
    pieces = divided(idle, times[0], times[1])
    under = _covering(times[0], times[1], pieces.start_ns) != NONE
    return replace(pieces, cause=np.where(under, cause, pieces.cause))


def in_collectives(
    idle: IdleIntervals, exposed: intervals.Intervals, own: CollectiveWaits
) -> IdleIntervals:
    """Return idle intervals in which a rank in a collective moves data, or waits in it.

    Where one waits and another moves at a time, data moves. All times are on one line.

    Args:
        idle: idle intervals.
        exposed: when collectives ran and no operation.
        own: the collectives.
    """
    if len(exposed[0]) == 0 or len(idle) == 0:
        return idle
    times = (*exposed, own.start_ns, own.moving_ns, own.end_ns)
    pieces = divided(idle, *times)
    inside = _covering(*exposed, pieces.start_ns) != NONE
    moves = _covering(own.moving_ns, own.end_ns, pieces.start_ns)
    waits = _covering(own.start_ns, own.moving_ns, pieces.start_ns)
    waiting = inside & (moves == NONE) & (waits != NONE)
    held = np.where(moves != NONE, moves, waits)
    cause = np.where(waiting, Cause.DEPENDENCY, Cause.COLLECTIVE)
    kind = np.append(own.kind, NONE)[held]
    peer = np.append(own.last_operation, NONE)[waits]
    return replace(
        pieces,
        cause=np.where(inside, cause, pieces.cause),
        peer_operation=np.where(waiting, peer, NONE),
        collective=np.where(inside, kind, NONE),
    )


def divided(idle: IdleIntervals, *times_ns: Ints) -> IdleIntervals:
    """Return idle intervals cut at some times."""
    if len(idle) == 0:
        return idle
    low, high = idle.start_ns[0], idle.end_ns[-1]
    cuts = [times[(times > low) & (times < high)] for times in times_ns]
    points = distinct(idle.start_ns, idle.end_ns, *cuts)
    starts, ends = points[:-1], points[1:]
    row = np.searchsorted(idle.start_ns, starts, side="right") - 1
    within = (row >= 0) & (starts < idle.end_ns[np.maximum(row, 0)])
    return replace(idle.take(row[within]), start_ns=starts[within], end_ns=ends[within])


def _covering(start_ns: Ints, end_ns: Ints, time_ns: Ints) -> Ints:
    """Return the interval that covers each time, of several the one that ends last; -1 none."""
    if len(start_ns) == 0:
        return np.full(len(time_ns), NONE, np.int64)
    order = sorted_rows(start_ns)
    latest_ns = np.maximum.accumulate(end_ns[order])
    # The last to end of those that begin up to each.
    rises = np.append(True, latest_ns[1:] > latest_ns[:-1])
    last = order[np.maximum.accumulate(np.where(rises, np.arange(len(order)), 0))]
    at = np.searchsorted(start_ns[order], time_ns, side="right") - 1
    found = last[np.maximum(at, 0)]
    return np.where((at >= 0) & (end_ns[found] > time_ns), found, NONE)
