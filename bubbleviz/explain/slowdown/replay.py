"""Replay: how long iterations take when their work takes other times, in the same order.

A row starts once all that it follows has ended. Communication moves once the last member of its
meeting has started; each member ends its own transfer later::

    rank 0   ├─ compute ─┤├▒ waits ▒│▓ transfer ▓┤├─ compute ─┤
    rank 1   ├────── compute ──────┤├▓ transfer ▓┤├─ compute ─┤

Rows that no other row stands between are replayed together, over all iterations and ranks, and
over several scenarios at a time. Semantics as in the published ``analyzer/simulator.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, starmap

import numpy as np

from bubbleviz.align.waits import NEVER
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.work import Role, Work
from bubbleviz.model.columns import NONE, Bools, Ints, constant, scattered
from bubbleviz.model.grouping import distinct, expanded, found_in, groups_of, heads, sorted_rows
from bubbleviz.model.intervals import group_latest

#: Times that are replayed at once, over all scenarios: 4 MB of them, or up to 32 MB where fewer
#: scenarios would be together than a line of the processor's cache holds.
_AT_ONCE, _MOST_AT_ONCE, _TOGETHER = 1 << 19, 1 << 22, 8


@dataclass(frozen=True)
class Replay:
    """Work in the order in which it is replayed.

    Rows are given by their places in this order. All follow something: those that nothing comes
    before follow a place behind the last one, which ends at 0. A row that meets nobody is a meeting
    of its own.

    Attributes:
        rows: of the work table, level by level.
        levels: row and meeting that begin each level, and the ends; shape (levels + 1, 2).
        followed: places that rows follow, row by row.
        followed_first: the first of these of each row, and the end.
        members: places of the members of meetings, level by level and meeting by meeting.
        members_first: the first of these of each meeting, and the end.
        iterations: number of each iteration, ascending.
        closing: places of the rows that end iterations, iteration by iteration.
        first_closing: the first of these of each iteration, as a place in ``closing``.
        unordered: rows that follow themselves by way of others, so that they are not replayed.
    """

    rows: Ints
    levels: Ints
    followed: Ints
    followed_first: Ints
    members: Ints
    members_first: Ints
    iterations: Ints
    closing: Ints
    first_closing: Ints
    unordered: Ints

    def run(self, ends: Ints, own_ns: Ints, delay_ns: Ints) -> None:
        """Set when each row ends.

        Args:
            ends: when each starts at the earliest, and at last what those end at that nothing comes
                before; shape (rows + 1, scenarios).
            own_ns: see :meth:`ends_ns`, in the order of :attr:`rows`.
            delay_ns: likewise.
        """
        # Rows that start together, and what they follow; meetings that they complete, and members.
        row, meeting = self.levels.T
        bounds = row, self.followed_first[row], meeting, self.members_first[meeting]
        slices = (starmap(slice, pairwise(column.tolist())) for column in bounds)
        for rows, entries, meetings, met in zip(*slices, strict=True):
            first = self.followed_first[rows] - entries.start
            latest = np.maximum.reduceat(ends[self.followed[entries]], first, axis=0)
            ends[rows] = np.maximum(ends[rows], latest) + delay_ns[rows]
            members, first = self.members[met], self.members_first[meetings] - met.start
            if len(members):
                latest = np.maximum.reduceat(ends[members], first, axis=0)
                sizes = np.diff(first, append=len(members))
                ends[members] = np.repeat(latest, sizes, axis=0) + own_ns[members]

    def ends_ns(self, own_ns: Ints, delay_ns: Ints, *, placed: bool = False) -> Ints:
        """Return when each row ends, in ns from the start of its iteration.

        Args:
            own_ns: duration of each row, of communication its transfer; shape (rows, scenarios).
            delay_ns: how long each starts after all that it follows has ended; shape (rows,), or
                (rows, scenarios).
            placed: whether both stand in the order of :attr:`rows`, and not of the work.

        Returns:
            In the order of :attr:`rows`, shape (rows, scenarios).
        """
        if not placed:
            own_ns, delay_ns = own_ns[self.rows], delay_ns[self.rows]
        count = len(self.rows)
        ends = np.full((count + 1, own_ns.shape[1]), NEVER)
        ends[count] = 0
        self.run(ends, own_ns, delay_ns.reshape(count, delay_ns.size // max(count, 1)))
        return ends[:count]

    def lengths_ns(self, own_ns: Ints, delay_ns: Ints, *, placed: bool = False) -> Ints:
        """Return how long iterations take, shape (iterations, scenarios).

        An iteration ends with the last optimizer; of ranks without any all work counts. Arguments
        are those of :meth:`ends_ns`.
        """
        if not len(self.iterations):
            return np.zeros((0, own_ns.shape[1]), np.int64)
        return self.closed_ns(self.ends_ns(own_ns, delay_ns, placed=placed))

    def closed_ns(self, ends_ns: Ints) -> Ints:
        """Return when iterations end whose rows do as :meth:`ends_ns` says."""
        closing_ns = ends_ns[self.closing]
        return np.asarray(np.maximum.reduceat(closing_ns, self.first_closing, axis=0), np.int64)

    def mixed(self, group: Ints) -> Bools:
        """Return which rows of the work follow work of several groups, or meet such work.

        Args:
            group: of each row.
        """
        count, own = len(self.rows), group[self.rows]
        # The largest and, negative, the smallest group that each row follows.
        groups = np.append(np.stack((own, -own), axis=1), [[NEVER, NEVER]], axis=0)
        nothing = np.zeros((count, 2), np.int64)
        self.run(groups, nothing, nothing)
        mixed = np.zeros(len(group), bool)
        mixed[self.rows] = groups[:count, 0] != -groups[:count, 1]
        return mixed


def scenarios_at_once(rows: int) -> int:
    """Return how many scenarios of so many rows are replayed together."""
    together = min(_TOGETHER, _MOST_AT_ONCE // (rows + 1))
    return max(1, _AT_ONCE // (rows + 1), together)


def replay_of(work: Work, order: Dependencies) -> Replay:
    """Return work in the order in which it is replayed.

    Args:
        work: of all ranks.
        order: what each of its rows follows.
    """
    # A row without a meeting meets itself.
    alone = int(work.meeting.max(initial=NONE)) + 1 + np.arange(len(work))
    meeting = groups_of(np.where(work.meeting == NONE, alone, work.meeting)).of_row
    started, ended = _levels(meeting, order)
    unordered = np.flatnonzero((started == NONE) | (ended == NONE))
    # What cannot be ordered takes its whole iteration along.
    left_out = np.isin(work.iteration, distinct(work.iteration[unordered]))
    kept = np.flatnonzero(~left_out)
    rows = kept[sorted_rows(started[kept])]
    count, place = len(rows), scattered(len(work), rows, np.arange(len(rows)))
    after, before = place[order.after], place[order.before]
    known = (after != NONE) & (before != NONE)
    first_ones = np.flatnonzero(np.bincount(after[known], minlength=count) == 0)
    after = np.append(after[known], first_ones)
    before = np.append(before[known], constant(count, len(first_ones)))
    met = kept[sorted_rows(ended[kept], meeting[kept])]
    first_met = heads(ended[met], meeting[met])
    level = np.append(distinct(started[kept]), len(work))
    begins = (np.searchsorted(own, level) for own in (started[rows], ended[met[first_met]]))
    levels = np.stack(tuple(begins), axis=1)
    members = place[met], np.append(first_met, len(met))
    optimizes, of_rank = work.role[rows] == Role.OPTIMIZER, work.rank_iteration[rows]
    some = np.bincount(of_rank, optimizes) > 0
    closing = np.flatnonzero(optimizes | ~some[of_rank]) if len(rows) else rows
    closing = closing[sorted_rows(work.iteration[rows[closing]])]
    iterations = work.iteration[rows[closing]]
    first = heads(iterations)
    followed = _listed(after, before, count)
    return Replay(rows, levels, *followed, *members, iterations[first], closing, first, unordered)


def _levels(meeting: Ints, order: Dependencies) -> tuple[Ints, Ints]:
    """Return the level in which each row starts, and that in which it ends; -1 for never.

    Args:
        meeting: of each row.
        order: what each follows.
    """
    count = len(meeting)
    waiting = np.bincount(order.after, minlength=count)
    missing = np.bincount(meeting)
    members, member_first = _listed(meeting, np.arange(count), len(missing))
    followers, follower_first = _listed(order.before, order.after, count)
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
    begin = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=groups), out=begin[1:])
    return values[sorted_rows(group)], begin


# Slack: how much later work can end without a longer iteration, all else as measured.
#
# What follows a row has to start in time, and so have all members of a collective before the first
# of them may end no later. That is a replay backwards from the end of the iteration, in which
# members wait for the row that starts earliest::
#
#     rank 0   ├─ B7 ─┤· slack ·│▓ all-reduce ▓┤├ Optimizer ┤
#     rank 1   ├────── B7 ──────┤▓ all-reduce ▓┤├ Optimizer ┤


def slack_of(work: Work, order: Dependencies, replay: Replay, own_ns: Ints, delay_ns: Ints) -> Ints:
    """Return how much later each row could end without a longer iteration; -1 for not replayed.

    Args:
        work: of all ranks.
        order: what each of its rows follows.
        replay: of it, of a row at least.
        own_ns: how long each row takes itself.
        delay_ns: how long each row starts after all that it follows has ended.
    """
    ends_ns = replay.ends_ns(own_ns[:, None], delay_ns)[:, 0]
    ends_ns = scattered(len(work), replay.rows, ends_ns)
    closing = replay.rows[replay.closing]
    whole_ns = np.maximum.reduceat(ends_ns[closing], replay.first_closing)
    # What ends after its iteration does cannot end later. Backwards, times are negative.
    iteration = found_in(replay.iterations, work.iteration)
    latest_ns = -np.maximum(whole_ns[iteration], ends_ns)
    back = replay_of(work, Dependencies(order.before, order.after))
    times_ns = np.append(latest_ns[back.rows], NEVER)[:, None]
    back.run(times_ns, delay_ns[back.rows, None], own_ns[back.rows, None])
    needed_ns = scattered(len(work), back.rows, times_ns[:-1, 0])[order.after]
    needed_ns = group_latest(order.before, len(work), needed_ns, NEVER)
    slack_ns = -np.maximum(latest_ns, needed_ns) - ends_ns
    return scattered(len(work), replay.rows, slack_ns[replay.rows])
