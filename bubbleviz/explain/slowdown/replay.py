"""Replay: how long iterations take when their work takes other times, in the same order.

A row starts once all that it follows has ended. Communication moves once the last member of its
meeting has started; each member ends its own transfer later::

    rank 0   ├─ compute ─┤├▒ waits ▒│▓ transfer ▓┤├─ compute ─┤
    rank 1   ├────── compute ──────┤├▓ transfer ▓┤├─ compute ─┤

Rows that no other row stands between are replayed together, over all iterations and ranks, and
over several scenarios at a time. Semantics as in the published ``analyzer/simulator.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import distinct, expanded, groups_of
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: Times that are replayed at once, over all scenarios: 64 MB of them.
_AT_ONCE = 1 << 23


@frozen(shown=False)
class Order(Table):
    """Pairs of rows of a work table: each ``row`` starts after the end of ``before``."""

    row: Ints
    before: Ints


@frozen
class _Level:
    """Rows that start together, and those that end once these have started.

    Attributes:
        start: first of the rows, as places in the order of levels.
        alone: end of those that meet nobody.
        stop: end of the rows.
        before: places of the rows that each follows, shape (followed, rows).
        met: members of the meetings that these rows complete, meeting by meeting.
        first: place in ``met`` of the first member of each meeting.
        sizes: number of members of each.
    """

    start: int
    alone: int
    stop: int
    before: Ints
    met: Ints
    first: Ints
    sizes: Ints


@frozen
class Replay:
    """Work in the order in which it is replayed.

    Attributes:
        rows: of the work table, level by level.
        levels: of these.
        iterations: number of each iteration, ascending.
        closing: places of the rows that end iterations, iteration by iteration.
        first_closing: the first of these of each iteration, as a place in ``closing``.
        unordered: rows that follow themselves by way of others, so that they are not replayed.
    """

    rows: Ints
    levels: tuple[_Level, ...]
    iterations: Ints
    closing: Ints
    first_closing: Ints
    unordered: Ints

    def ends_ns(self, own_ns: Ints, delay_ns: Ints | None = None) -> Ints:
        """Return when each row ends, in ns from the start of its iteration.

        Args:
            own_ns: duration of each row, of communication its transfer; shape (rows, scenarios).
            delay_ns: how long each starts after all that it follows has ended; shape (rows,), or
                (rows, scenarios).

        Returns:
            In the order of levels, shape (rows, scenarios); two more rows are meaningless.
        """
        return self._ends_ns(own_ns[self.rows], None if delay_ns is None else delay_ns[self.rows])

    def _ends_ns(self, own: Ints, delay: Ints | None) -> Ints:
        """Return the same of times in the order of levels."""
        count = len(self.rows)
        ends = np.empty((count + 2, own.shape[1]), np.int64)
        ends[count], ends[count + 1] = 0, NEVER
        if delay is not None and delay.ndim == 1:
            delay = delay[:, None]
        for level in self.levels:
            starts = ends[level.before[0]]
            for before in level.before[1:]:
                np.maximum(starts, ends[before], out=starts)
            if delay is not None:
                starts += delay[level.start : level.stop]
            ends[level.start : level.stop] = starts
            ends[level.start : level.alone] += own[level.start : level.alone]
            if len(level.met):
                latest = np.maximum.reduceat(ends[level.met], level.first, axis=0)
                ends[level.met] = np.repeat(latest, level.sizes, axis=0) + own[level.met]
        return ends

    def lengths_ns(self, own_ns: Ints, delay_ns: Ints | None = None) -> Ints:
        """Return how long iterations take, shape (iterations, scenarios).

        An iteration ends with the last optimizer; of ranks without any all work counts.

        Args:
            own_ns: as for ``ends_ns``.
            delay_ns: likewise.
        """
        own_ns, delay_ns = own_ns[self.rows], None if delay_ns is None else delay_ns[self.rows]
        return self.placed_lengths_ns(own_ns, delay_ns)

    def placed_lengths_ns(self, own_ns: Ints, delay_ns: Ints | None = None) -> Ints:
        """Return the same of times in the order of levels, that of :attr:`rows`.

        Args:
            own_ns: as for ``ends_ns``.
            delay_ns: likewise.
        """
        if not len(self.iterations):
            return np.zeros((0, own_ns.shape[1]), np.int64)
        ends = self._ends_ns(own_ns, delay_ns)[self.closing]
        return np.asarray(np.maximum.reduceat(ends, self.first_closing, axis=0), np.int64)

    def mixed(self, group: Ints) -> Bools:
        """Return which rows of the work follow work of several groups, or meet such work.

        Args:
            group: of each row.
        """
        count, own = len(self.rows), group[self.rows]
        # The smallest and, negative, the largest group that each row follows.
        groups = np.empty((count + 2, 2), np.int64)
        groups[count:] = np.iinfo(np.int64).max
        groups[:count, 0], groups[:count, 1] = own, -own
        for level in self.levels:
            here = groups[level.start : level.stop]
            for before in level.before:
                np.minimum(here, groups[before], out=here)
            if len(level.met):
                least = np.minimum.reduceat(groups[level.met], level.first, axis=0)
                groups[level.met] = np.repeat(least, level.sizes, axis=0)
        mixed = np.zeros(len(group), bool)
        mixed[self.rows] = groups[:count, 0] != -groups[:count, 1]
        return mixed


def scenarios_at_once(rows: int) -> int:
    """Return how many scenarios of so many rows are replayed together."""
    return max(1, _AT_ONCE // (rows + 1))


def replay_of(work: Work, order: Order) -> Replay:
    """Return work in the order in which it is replayed.

    Args:
        work: of all ranks.
        order: what each of its rows follows.
    """
    meeting = _meetings(work)
    started, ended = _levels(meeting, order)
    unordered = np.flatnonzero((started == NONE) | (ended == NONE))
    # What cannot be ordered takes its whole iteration along.
    left_out = np.isin(work.iteration, distinct(work.iteration[unordered]))
    kept = np.flatnonzero(~left_out)
    meets = np.bincount(meeting)[meeting] > 1
    rows = kept[sorted_rows(started[kept], meets[kept])]
    place = np.full(len(work), NONE, np.int64)
    place[rows] = np.arange(len(rows))
    levels = tuple(_by_level(rows, place, started, ended, meeting, meets, order))
    closing = _closing(work, rows)
    iterations = work.iteration[rows[closing]]
    first = np.flatnonzero(np.append(True, iterations[1:] != iterations[:-1])[: len(closing)])
    return Replay(rows, levels, iterations[first], closing, first, unordered)


def _meetings(work: Work) -> Ints:
    """Return a number for the meeting of each row; a row without any meets itself."""
    count = int(work.meeting.max(initial=NONE)) + 1
    alone = count + np.arange(len(work))
    return groups_of(np.where(work.meeting == NONE, alone, work.meeting)).of_row


def _levels(meeting: Ints, order: Order) -> tuple[Ints, Ints]:
    """Return the level in which each row starts, and that in which it ends; -1 for never.

    Args:
        meeting: of each row.
        order: what each follows.
    """
    count = len(meeting)
    waiting = np.bincount(order.row, minlength=count)
    missing = np.bincount(meeting)
    members, member_first = _listed(meeting, np.arange(count), len(missing))
    followers, follower_first = _listed(order.before, order.row, count)
    started, ended = np.full((2, count), NONE, np.int64)
    ready, level = np.flatnonzero(waiting == 0), 0
    while len(ready):
        started[ready] = level
        np.subtract.at(missing, meeting[ready], 1)
        complete = distinct(meeting[ready])
        complete = complete[missing[complete] == 0]
        done = members[expanded(member_first[complete], member_first[complete + 1])[1]]
        ended[done] = level
        next_rows = followers[expanded(follower_first[done], follower_first[done + 1])[1]]
        np.subtract.at(waiting, next_rows, 1)
        ready = distinct(next_rows)
        ready = ready[waiting[ready] == 0]
        level += 1
    return started, ended


def _listed(group: Ints, values: Ints, groups: int) -> tuple[Ints, Ints]:
    """Return values group by group, and where each group begins (and the last one ends)."""
    order = sorted_rows(group)
    first = np.searchsorted(group[order], np.arange(groups + 1))
    return values[order], first


def _by_level(
    rows: Ints,
    place: Ints,
    started: Ints,
    ended: Ints,
    meeting: Ints,
    meets: Bools,
    order: Order,
) -> Iterator[_Level]:
    """Yield the levels of rows that stand in their order."""
    count = int(started[rows].max(initial=NONE)) + 1
    first = np.searchsorted(started[rows], np.arange(count + 1)).tolist()
    followed, followed_first = _listed(order.row, place[order.before], len(place))
    follows = followed_first[1:] - followed_first[:-1]
    met = rows[meets[rows]]
    met = met[sorted_rows(ended[met], meeting[met])]
    met_first = np.searchsorted(ended[met], np.arange(count + 1)).tolist()
    for level in range(count):
        own = rows[first[level] : first[level + 1]]
        before = np.full((max(1, int(follows[own].max())), len(own)), len(rows) + 1, np.int64)
        before[0, follows[own] == 0] = len(rows)
        for number in range(len(before)):
            more = follows[own] > number
            before[number, more] = followed[followed_first[own[more]] + number]
        members = met[met_first[level] : met_first[level + 1]]
        of_member = meeting[members]
        new = np.append(True, of_member[1:] != of_member[:-1])[: len(members)]
        bounds = np.flatnonzero(new)
        sizes = np.diff(np.append(bounds, len(members)))
        alone = first[level] + int((~meets[own]).sum())
        yield _Level(first[level], alone, first[level + 1], before, place[members], bounds, sizes)


def _closing(work: Work, rows: Ints) -> Ints:
    """Return the places of the rows that end iterations, iteration by iteration."""
    iteration, optimizes = work.iteration[rows], work.role[rows] == Role.OPTIMIZER
    place = work.rank_iteration[rows]
    some = np.bincount(place, optimizes) > 0
    closing = np.flatnonzero(optimizes | ~some[place]) if len(rows) else rows
    return closing[sorted_rows(iteration[closing])]
