"""Leaving together: collectives of ranks that end together are one.

No member leaves before all have entered, and all leave within moments of each other::

    rank 0   ├───────────────────┤        ├──┤
    rank 1        ├──────────────┤  ├──┤             the first are one, the others are not
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.bounds.clock_segments import DRIFT
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import distinct, first_of_each, groups_of
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: Ranks leave a collective within so long of each other,
_LEAVE_NS = 50_000
#: or within one in so many parts of the time that data moved, that of the member that entered last:
#: in jobs that ByteDance published it is one of 1,000 in the median, and one of 100 at most.
_LEAVE_PARTS = 50
#: Pieces of one collective follow each other within so long.
_PIECES_NS = 5_000


@frozen
class Clocks:
    """How far the clocks of ranks may be apart.

    Attributes:
        machine: of each rank.
        comparable: of each machine, whether its times can be compared with others'.
        uncertainty_ns: of each machine; -1 unknown.
    """

    machine: Ints
    comparable: Bools
    uncertainty_ns: Ints

    @property
    def common(self) -> Ints:
        """A number for each rank that those share whose times can be compared."""
        known = self.comparable & (self.uncertainty_ns >= 0)
        return np.where(known[self.machine], NONE, self.machine)

    def tolerance_ns(self, ranks: Ints) -> int:
        """Return how far the ends of one collective of some ranks may be apart; -1 any."""
        machines = distinct(self.machine[ranks])
        if len(machines) == 1:
            return _LEAVE_NS
        uncertainty_ns = self.uncertainty_ns[machines]
        if not self.comparable[machines].all() or (uncertainty_ns < 0).any():
            return NONE
        return _LEAVE_NS + int(np.sort(uncertainty_ns)[-2:].sum())


@frozen
class _Candidates(Table):
    """Rows of collectives that can be one with others, in order of what they do, then of their end.

    Attributes:
        row: of the collectives.
        cell: a number that those share that can be one.
        key: a number for each cell, iteration and kind.
        rank: that it is of.
        end_ns: its end.
        length_ns: how long it took.
        tolerance_ns: how far the ends of one may be apart, however short it is.
    """

    row: Ints
    cell: Ints
    key: Ints
    rank: Ints
    end_ns: Ints
    length_ns: Ints
    tolerance_ns: Ints


def by_ends(
    collectives: CollectiveIntervals,
    rows: Ints,
    cell: Ints,
    members: Ints,
    clocks: Clocks,
    most: Ints | None = None,
) -> Ints:
    """Return the meetings of some rows: of those of all ranks of a cell that end together.

    Args:
        collectives: of all ranks.
        rows: to look at.
        cell: a number of each of these that those share which can be one; -1 none.
        members: cells and their ranks, shape (2, members).
        clocks: of the ranks.
        most: how many of the ranks of each cell can be one; None for all of them.
    """
    found = np.full(len(collectives), NONE, np.int64)
    size = np.bincount(members[0], minlength=int(cell.max(initial=NONE)) + 2)
    if most is not None:
        size[: len(most)] = np.minimum(size[: len(most)], most[: len(size)])
    tolerance_ns = np.full(len(size), NONE, np.int64)
    for place in np.flatnonzero(size > 1).tolist():
        tolerance_ns[place] = clocks.tolerance_ns(members[1][members[0] == place])
    usable = (cell >= 0) & (tolerance_ns[cell] >= 0)
    rows, cell = rows[usable], cell[usable]
    key = groups_of(cell, collectives.iteration[rows], collectives.kind[rows]).of_row
    order = sorted_rows(key, collectives.end_ns[rows])
    rows, cell = rows[order], cell[order]
    own = _Candidates(
        row=rows,
        cell=cell,
        key=key[order],
        rank=collectives.rank[rows],
        end_ns=collectives.end_ns[rows],
        length_ns=collectives.end_ns[rows] - collectives.start_ns[rows],
        tolerance_ns=tolerance_ns[cell],
    )
    number = _clusters(own)
    # Of a rank's pieces the last end counts.
    last = first_of_each(groups_of(number, own.rank).of_row, -own.end_ns)
    count = int(number.max(initial=NONE)) + 1
    low, high = group_extents(number[last], count, own.end_ns[last], own.end_ns[last])
    shortest_ns = group_extents(number[last], count, own.length_ns[last], own.length_ns[last])[0]
    whole = np.bincount(number[last], minlength=len(low))[number] == size[cell]
    tolerance_ns = own.tolerance_ns + _slack_ns(shortest_ns)[number]
    together = whole & ((high - low)[number] <= tolerance_ns)
    together[together] = _steady(collectives, own.take(together), low[number[together]])
    if not together.any():
        return found
    found[rows[together]] = number[together]
    return _with_pieces(collectives, found)


def _slack_ns(length_ns: Ints) -> Ints:
    """Return how much farther apart the ends of long collectives may be than those of short ones.

    Args:
        length_ns: of the shortest of each.
    """
    return np.maximum(length_ns // _LEAVE_PARTS - _LEAVE_NS, 0)


def _clusters(own: _Candidates) -> Ints:
    """Return a number for each row that those share that end together."""
    shorter_ns = np.minimum(own.length_ns[1:], own.length_ns[:-1])
    tolerance_ns = own.tolerance_ns[1:] + _slack_ns(shorter_ns)
    apart = own.end_ns[1:] - own.end_ns[:-1] > tolerance_ns
    apart |= own.key[1:] != own.key[:-1]
    cluster = np.cumsum(np.append(False, apart))[: len(own)]
    return _divided(cluster, own.rank, own.end_ns)


def _divided(cluster: Ints, rank: Ints, end_ns: Ints) -> Ints:
    """Return numbers of clusters, divided where each rank has as many rows of one.

    Several collectives right after each other end within the tolerance; in order they are one each.
    """
    ranks = groups_of(cluster, rank)
    order = sorted_rows(ranks.of_row, end_ns)
    of_rank = ranks.of_row[order]
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.searchsorted(of_rank, of_rank)
    count = np.bincount(ranks.of_row)
    of_cluster = cluster[ranks.first]
    least, most = group_extents(of_cluster, int(cluster.max(initial=NONE)) + 1, count, count)
    return groups_of(cluster, np.where((least == most)[cluster], nth, 0)).of_row


def _steady(collectives: CollectiveIntervals, own: _Candidates, first_ns: Ints) -> Bools:
    """Return which rows end as long after the first of their members each time, but for drift.

    Where clocks are not well known, much ends together within what they may be apart.

    Args:
        collectives: of all ranks.
        own: rows that end together.
        first_ns: the first end of their members.
    """
    kind = collectives.kind[own.row]
    pair = groups_of(own.cell, kind, own.rank)
    apart = own.end_ns - first_ns
    low, high = group_extents(pair.of_row, len(pair), apart, apart)
    first, last = group_extents(pair.of_row, len(pair), own.end_ns, own.end_ns)
    moves = (high - low > _LEAVE_NS + DRIFT * (last - first))[pair.of_row]
    moves &= own.tolerance_ns > _LEAVE_NS
    cells = groups_of(own.cell, kind)
    unsteady = np.zeros(len(cells), bool)
    unsteady[cells.of_row[moves]] = True
    return ~unsteady[cells.of_row]


def _with_pieces(collectives: CollectiveIntervals, found: Ints) -> Ints:
    """Return meetings with the rows that are pieces of them: right before, where others have none.

    ::

        rank 0   ├────────────────┤
        rank 1     ├─────┤├───────┤
    """
    rank, kind, iteration = collectives.rank, collectives.kind, collectives.iteration
    key = groups_of(rank, kind, iteration, collectives.group).of_row
    order = sorted_rows(key, collectives.start_ns)
    now, following = order[:-1], order[1:]
    gap_ns = collectives.start_ns[following] - collectives.end_ns[now]
    follows = (key[now] == key[following]) & (gap_ns <= _PIECES_NS)
    # The meeting that each row, or what follows it right away, is in.
    place = np.arange(len(order))
    ends = np.append(~follows, True) | (found[order] >= 0)
    last = np.minimum.accumulate(np.where(ends, place, len(order))[::-1])[::-1]
    joined = np.full(len(order), NONE, np.int64)
    joined[order] = found[order[last]]
    # Other members of the meeting have fewer of the kind in the iteration.
    count = np.bincount(key)
    met = np.flatnonzero(found >= 0)
    fewest, _ = group_extents(
        found[met], int(found.max(initial=NONE)) + 1, count[key[met]], count[key[met]]
    )
    new = np.flatnonzero((found == NONE) & (joined >= 0))
    new = new[count[key[new]] > fewest[joined[new]]]
    result = found.copy()
    result[new] = joined[new]
    return result
