"""Ranks side by side: several on one line of time, where they are worked out like a single one.

What a rank takes beyond its kernels is a few hundred calls of numpy, whatever it ran: of ranks that
ran little, many take them together::

    rank 0   5 ├─ what it did ─┤ 95        line   0 ├─────┤ 90
    rank 1   7 ├─ what it did ───┤ 99                      91 ├──────┤ 183
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Codes, Ints, TableT
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.values import frozen

#: Kernels and copies of ranks that are worked out together, and room for their ranges, rank by
#: rank: as much as stays in the cache.
_TOGETHER, _ROOM = 1 << 15, 1 << 18
#: Before and behind everything that a single rank did.
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@frozen
class Line:
    """Where the times of some ranks of a profile lie on a line.

    Attributes:
        ranks: which, all that follow each other.
        packing: of them; None where the line of a single rank is time itself.
    """

    ranks: range
    packing: intervals.Packing | None = None

    @staticmethod
    def of(ranks: range, *times: tuple[Codes, Ints, Ints]) -> Line:
        """Return the line of ranks that did something at some times.

        Args:
            ranks: of a profile.
            times: their ranks, starts and ends.
        """
        if len(ranks) == 1:
            return Line(ranks)
        rank, low_ns, high_ns = (np.concatenate(columns) for columns in zip(*times, strict=True))
        order = np.argsort(rank, kind="stable")
        low_ns, high_ns = intervals.group_extents(
            rank[order] - ranks.start, len(ranks), low_ns[order], high_ns[order]
        )
        # What is behind everything that a rank did is on its stretch, too.
        return Line(ranks, intervals.Packing.of(low_ns, np.maximum(low_ns, high_ns) + 1))

    def place(self, rank: Codes, time_ns: Ints, unknown: int | None = None) -> Ints:
        """Return the places of times of ranks; what stands for an unknown one stays."""
        if self.packing is None:
            return time_ns
        place = self.packing.place(rank - self.ranks.start, time_ns)
        return place if unknown is None else np.where(time_ns == unknown, unknown, place)

    def time(self, rank: Codes, place: Ints) -> Ints:
        """Return the times of places; -1 stays."""
        if self.packing is None:
            return place
        time_ns = place - self.packing.shift_ns[rank - self.ranks.start]
        return np.where(place == NONE, NONE, time_ns)

    def begins(self, rank: Codes) -> Ints:
        """Return where the stretches of ranks begin: what is before is not theirs."""
        if self.packing is None:
            return np.broadcast_to(np.int64(_FIRST), len(rank))
        return self.packing.offset_ns[rank - self.ranks.start]

    def ends(self, rank: Codes) -> Ints:
        """Return the last places of ranks, behind everything that they did."""
        if self.packing is None:
            return np.broadcast_to(np.int64(_LAST), len(rank))
        return self.packing.offset_ns[rank - self.ranks.start + 1] - 1

    def owners(self, place: Ints) -> Ints:
        """Return the rank of each place."""
        if self.packing is None:
            return np.full(len(place), self.ranks.start, np.int64)
        return self.packing.groups(place) + self.ranks.start

    def of_ranks(self, places: intervals.Intervals) -> RankIntervals:
        """Return a set of places as times of ranks."""
        rank = self.owners(places[0])
        return RankIntervals(rank, self.time(rank, places[0]), self.time(rank, places[1]))

    def placed(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the places of times; -1 stays."""
        return self._with(table, columns, lambda time_ns: self.place(rank, time_ns, NONE))

    def in_time(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the times of places; -1 stays."""
        return self._with(table, columns, lambda place: self.time(rank, place))

    def _with(
        self, table: TableT, columns: Sequence[str], changed: Callable[[Ints], Ints]
    ) -> TableT:
        if self.packing is None:
            return table
        values: dict[str, Any] = {name: changed(getattr(table, name)) for name in columns}
        return replace(table, **values)


def together(kernels: Ints, ranges: int) -> Iterator[range]:
    """Yield ranks that are worked out together, all of them in order.

    Args:
        kernels: how many kernels and copies each rank ran.
        ranges: how many ranges the profile has, each of which may have run on any rank.
    """
    first, most = 0, max(1, _ROOM // (ranges + 1))
    while first < len(kernels):
        ran = np.cumsum(kernels[first : first + most])
        end = first + max(1, int(np.searchsorted(ran, _TOGETHER, side="right")))
        yield range(first, end)
        first = end
