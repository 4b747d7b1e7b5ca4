"""Ranks on one line: what some ranks ran, side by side, so that one pass finds all their idle time.

::

    rank 0   ├ busy ┤   ├ busy ┤
    rank 1     ├ busy ┤     ├ busy ┤
    line     ├ busy ┤   ├ busy ┤ ├ busy ┤     ├ busy ┤
             └──── rank 0 ─────┘ └───── rank 1 ──────┘
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.count.rank_slices import of_ranks
from bubbleviz.explain.collective_waits import CollectiveWaits
from bubbleviz.explain.stretch import Stretch
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.operations import BusyIntervals, RankIntervals
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@frozen
class RankLine:
    """Some ranks on one line; times are places on it.

    Attributes:
        first: the first of the ranks; others follow by number.
        packing: of the ranks.
        rank: of each busy interval, counted from ``first``.
        operation: that is busy.
        start_ns: when it starts, ascending.
        end_ns: when it ends.
        windows: between each rank's earliest and latest window.
        unattributed: when compute kernels ran outside operations.
        exposed: when collectives ran and no operation.
        overheads: when the profiler held a rank up.
        collectives: of ranks on which some are exposed.
    """

    first: int
    packing: intervals.Packing
    rank: Ints
    operation: Ints
    start_ns: Ints
    end_ns: Ints
    windows: intervals.Intervals
    unattributed: intervals.Intervals
    exposed: intervals.Intervals
    overheads: intervals.Intervals
    collectives: CollectiveWaits

    @property
    def gaps(self) -> intervals.Intervals:
        """When each rank ran nothing between its earliest and its latest window."""
        loose = self.unattributed
        covered = intervals.union(
            np.concatenate((self.start_ns, loose[0])), np.concatenate((self.end_ns, loose[1]))
        )
        return intervals.difference(self.windows, covered)

    def next_operation(self, time_ns: Ints, rank: Ints) -> Ints:
        """Return the operation of a rank that starts next at or after each time; -1 none."""
        at = np.searchsorted(self.start_ns, time_ns)
        return self._of_rank(np.arange(len(self.rank)), at, rank)

    def previous_operation(self, time_ns: Ints, rank: Ints) -> Ints:
        """Return the operation of a rank that ended last before or at each time; -1 none."""
        order = sorted_rows(self.end_ns)
        at = np.searchsorted(self.end_ns[order], time_ns, side="right") - 1
        return self._of_rank(order, at, rank)

    def _of_rank(self, order: Ints, at: Ints, rank: Ints) -> Ints:
        """Return the operations at some places of an order, where they are of a rank."""
        row = np.append(order, NONE)[at]
        same = np.append(self.rank, NONE)[row] == rank
        return np.where(same, np.append(self.operation, NONE)[row], NONE)


def line_of(
    stretch: Stretch,
    computing: BusyIntervals,
    windows: tuple[Ints, Ints],
    ranks: tuple[int, int],
) -> RankLine:
    """Return some ranks on one line.

    Args:
        stretch: of a run.
        computing: when operations that compute keep them busy, in order of rank.
        windows: earliest start and latest end of each rank's windows; without any, the start is
            after the end.
        ranks: first and end of the ranks on the line.
    """
    first, end = ranks
    unattributed = of_ranks(stretch.unattributed, ranks)
    exposed = of_ranks(stretch.exposed, ranks)
    overheads = of_ranks(stretch.overheads, ranks)
    is_exposed = np.zeros(end - first, bool)
    is_exposed[exposed.rank] = True
    low, high = np.searchsorted(stretch.collectives.rank, ranks).tolist()
    collectives = stretch.collectives.take(slice(low, high))
    collectives = collectives.take(is_exposed[collectives.rank - first])
    rank = stretch.operations.rank[computing.operation] - first
    known = np.flatnonzero(windows[0][first:end] <= windows[1][first:end])
    seen = windows[0][first:end][known], windows[1][first:end][known]
    held = collectives.rank - first
    packing = _packing(
        end - first,
        (rank, computing.start_ns, computing.end_ns),
        (known, *seen),
        *(
            (table.rank, table.start_ns, table.end_ns)
            for table in (unattributed, exposed, overheads)
        ),
        (held, collectives.start_ns, collectives.end_ns),
    )
    start_ns = packing.place(rank, computing.start_ns)
    order = sorted_rows(start_ns)

    def placed(table: RankIntervals) -> intervals.Intervals:
        return packing.place(table.rank, table.start_ns), packing.place(table.rank, table.end_ns)

    return RankLine(
        first,
        packing,
        rank[order],
        computing.operation[order],
        start_ns[order],
        packing.place(rank, computing.end_ns)[order],
        intervals.union(packing.place(known, seen[0]), packing.place(known, seen[1])),
        placed(unattributed),
        placed(exposed),
        placed(overheads),
        replace(
            collectives,
            start_ns=packing.place(held, collectives.start_ns),
            moving_ns=packing.place(held, collectives.moving_ns),
            end_ns=packing.place(held, collectives.end_ns),
        ),
    )


def _packing(ranks: int, *times: tuple[Ints, Ints, Ints]) -> intervals.Packing:
    """Return a packing with room for some (rank, start, end)."""
    low_ns, high_ns = np.full(ranks, _LATEST), np.full(ranks, _EARLIEST)
    for rank, start_ns, end_ns in times:
        low, high = intervals.group_extents(rank, ranks, start_ns, end_ns)
        some = np.zeros(ranks, bool)
        some[rank] = True
        low_ns[some] = np.minimum(low_ns[some], low[some])
        high_ns[some] = np.maximum(high_ns[some], high[some])
    none = low_ns > high_ns
    low_ns[none], high_ns[none] = 0, 0
    return intervals.Packing.of(low_ns, high_ns)
