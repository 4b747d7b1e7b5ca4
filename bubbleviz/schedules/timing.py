"""Start and end times of the rows in a dependency graph.

A row is a node of the graph, for example an operation or a transfer. A row starts once every row
that it follows has ended and its own delay has passed. The row ends after its own duration. The
rows in a *meeting* wait for each other before their own durations begin::

    row 0   ├─ own ─┤
    row 1           ├▒ waits ▒│▓ own ▓┤           follows row 0, meets row 3
    row 2   ├─ own ───┤                           follows nothing
    row 3             ├ delay ┤▓ own ▓┤           follows row 2, meets row 1

numpy is fast only on long arrays, so there are two ways to evaluate this recurrence. In a measured
run, thousands of rows from all iterations and ranks are on the same *level*: they follow only rows
of earlier levels. :class:`Timing` evaluates one level at a time, with the semantics of the
published ``analyzer/simulator.py``. In a plan, a level has at most one row per device, but a search
times thousands of scenarios. :func:`compute_ends` evaluates one row at a time, and
:func:`compute_ends_of_scenarios` evaluates one row in all scenarios at a time. In both functions,
edges have lags instead of delays, and two rows that meet follow each other's predecessors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import NamedTuple, TypeVar

import numpy as np

from bubbleviz.model.columns import NONE, Floats, Ints, make_constant, scatter
from bubbleviz.model.grouping import (
    expand_ranges,
    find_distinct,
    find_run_starts,
    group_rows,
    sort_rows,
)

#: The smallest time, earlier than any other time.
NEVER = np.iinfo(np.int64).min

#: Target number of end times (rows x scenarios) in a batch, which take 4 MB. Maximum number of end
#: times if a batch is enlarged to fill cache lines. Number of end times in a cache line.
_TIMES_TOGETHER, _MAX_TIMES_TOGETHER, _CACHE_LINE = 1 << 19, 1 << 22, 8


class _Level(NamedTuple):
    """The rows in a level, and the meetings that they complete.

    Attributes:
        rows: Positions of the rows that start in this level.
        followed: Entries of :attr:`Timing.followed` that belong to the rows in ``rows``.
        meetings: Meetings whose last member starts in this level.
        members: Entries of :attr:`Timing.members` that belong to the meetings in ``meetings``.
    """

    rows: slice
    followed: slice
    meetings: slice
    members: slice


@dataclass(frozen=True)
class Timing:
    """The rows of a dependency graph, sorted into levels and ready for timing.

    ``levels``, ``followed`` and ``members`` identify a row by its position in ``rows``. If a row
    follows no other row, ``followed`` contains the position after the last row, whose end time is
    fixed. A row that meets no other row is the only member of its own meeting.

    Attributes:
        rows: Row index at each position, sorted by level.
        levels: Position of the first row and index of the first meeting in each level, shape
            (levels + 1, 2). The last entry contains the numbers of rows and meetings.
        followed: Positions that each row follows, concatenated in the order of ``rows``.
        followed_first: Index in ``followed`` of each row's first entry, with the length of
            ``followed`` at the end.
        members: Positions of the members of each meeting, concatenated by level and meeting.
        members_first: Index in ``members`` of each meeting's first member, with the length of
            ``members`` at the end.
        unordered: Indices of the rows that can never start or end because of a dependency cycle.
    """

    rows: Ints
    levels: Ints
    followed: Ints
    followed_first: Ints
    members: Ints
    members_first: Ints
    unordered: Ints

    def compute_ends(self, duration: Ints, delay: Ints, earliest: Ints | None = None) -> Ints:
        """Return the end time of each row, in the order of :attr:`rows`, shape (rows, scenarios).

        A row starts ``delay`` after the latest end of the rows that it follows. It ends
        ``duration`` after the latest start among all rows in its meeting.

        Args:
            duration: Duration of each row, in the order of :attr:`rows`, shape (rows, scenarios).
            delay: Delay of each row, shape (rows,) or (rows, scenarios).
            earliest: Lower bounds of the start times, before the delay is added; shape (rows,
                scenarios). If None, rows that follow no other row start at 0 plus their delay.
        """
        count = len(self.rows)
        end_times = np.full((count + 1, duration.shape[1]), NEVER)
        if earliest is None:
            end_times[count] = 0
        else:
            end_times[:count] = earliest
        delay = delay.reshape(count, delay.size // max(count, 1))
        for level in self._levels():
            first = self.followed_first[level.rows] - level.followed.start
            latest = _find_latest(end_times, self.followed[level.followed], first)
            end_times[level.rows] = np.maximum(end_times[level.rows], latest) + delay[level.rows]
            members = self.members[level.members]
            if len(members):
                first = self.members_first[level.meetings] - level.members.start
                sizes = np.diff(first, append=len(members))
                last_start = np.repeat(_find_latest(end_times, members, first), sizes, axis=0)
                end_times[members] = last_start + duration[members]
        return end_times[:count]

    def _levels(self) -> Iterator[_Level]:
        """Yield the levels in the order in which they are computed."""
        row, meeting = self.levels.T
        bounds = row, self.followed_first[row], meeting, self.members_first[meeting]
        slices = (starmap(slice, pairwise(column.tolist())) for column in bounds)
        return starmap(_Level, zip(*slices, strict=True))


def _find_latest(end_times: Ints, positions: Ints, first: Ints) -> Ints:
    """Return the latest end in each group of positions. Group i starts at index ``first[i]``."""
    return np.asarray(np.maximum.reduceat(end_times[positions], first, axis=0), np.int64)


def count_scenarios_together(n_rows: int) -> int:
    """Return the number of scenarios to time in one batch, if each has ``n_rows`` rows.

    The result is at least 1. A batch has about ``_TIMES_TOGETHER`` end times. The batch is enlarged
    to up to ``_MAX_TIMES_TOGETHER`` if necessary to time as many scenarios as fit in a cache line.
    """
    a_line = min(_CACHE_LINE, _MAX_TIMES_TOGETHER // (n_rows + 1))
    return max(1, _TIMES_TOGETHER // (n_rows + 1), a_line)


def build_timing(follower: Ints, predecessor: Ints, meeting: Ints, group: Ints) -> Timing:
    """Sort the rows of a dependency graph into levels.

    Args:
        follower: For each edge, the row that waits.
        predecessor: For each edge, the row that the follower waits for.
        meeting: For each row, the number of its meeting, which all members share, or -1 if the row
            meets no other row.
        group: The group of each row. If a row cannot be ordered because of a dependency cycle, all
            rows in its group are left out. Rows of other groups do not wait for rows that are left
            out.
    """
    n_rows = len(group)
    meeting = _number_meetings(meeting)
    start_level, end_level = _find_levels(follower, predecessor, meeting)
    unordered = np.flatnonzero((start_level == NONE) | (end_level == NONE))
    kept_rows = np.flatnonzero(~np.isin(group, find_distinct(group[unordered])))
    rows = kept_rows[sort_rows(start_level[kept_rows])]
    position = scatter(n_rows, rows, np.arange(len(rows)))
    members = kept_rows[sort_rows(end_level[kept_rows], meeting[kept_rows])]
    members_first = find_run_starts(end_level[members], meeting[members])
    return Timing(
        rows,
        _find_level_starts(start_level[rows], end_level[members[members_first]], n_rows),
        *_list_followed(position[follower], position[predecessor], len(rows)),
        position[members],
        np.append(members_first, len(members)),
        unordered,
    )


def _find_level_starts(row_level: Ints, meeting_level: Ints, n_rows: int) -> Ints:
    """Return the first row and the first meeting in each level.

    Args:
        row_level: Level in which each row starts, in ascending order.
        meeting_level: Level in which each meeting is complete, in ascending order.
        n_rows: Number of rows of the graph, which is greater than any level.

    Returns:
        Indices of the first row and of the first meeting in each level, shape (levels + 1, 2). The
        last entry contains the numbers of rows and meetings.
    """
    level = np.append(find_distinct(row_level), n_rows)
    first_row = np.searchsorted(row_level, level)
    first_meeting = np.searchsorted(meeting_level, level)
    return np.stack((first_row, first_meeting), axis=1)


def _number_meetings(meeting: Ints) -> Ints:
    """Renumber meetings from 0. Each row without a meeting (-1) gets a separate meeting."""
    own_meeting = int(meeting.max(initial=NONE)) + 1 + np.arange(len(meeting))
    return group_rows(np.where(meeting == NONE, own_meeting, meeting)).of_row


def _list_followed(follower: Ints, predecessor: Ints, count: int) -> tuple[Ints, Ints]:
    """List the predecessors of each position.

    Edges from or to a row that is left out are dropped.

    Args:
        follower: For each edge, the position that waits, or -1 if its row is left out.
        predecessor: For each edge, the position that the follower waits for, or -1 if its row is
            left out.
        count: Number of positions. A position without predecessors gets the predecessor ``count``.

    Returns:
        followed: Predecessors of position 0, then of position 1, and so on, in one array.
        first: Index in ``followed`` of each position's first entry, with the length of ``followed``
            at the end.
    """
    is_kept = (follower != NONE) & (predecessor != NONE)
    follower, predecessor = follower[is_kept], predecessor[is_kept]
    first = np.flatnonzero(np.bincount(follower, minlength=count) == 0)
    follower = np.append(follower, first)
    predecessor = np.append(predecessor, make_constant(count, len(first)))
    return _list_by_group(follower, predecessor, count)


def _find_levels(follower: Ints, predecessor: Ints, meeting: Ints) -> tuple[Ints, Ints]:
    """Sort rows topologically: return the levels in which each row starts and ends (Kahn).

    - A row that follows no other row starts in level 0.
    - Any other row starts one level after the last row that it follows has ended.
    - A row ends in the level in which the last row of its meeting starts.

    Args:
        follower: For each edge, the row that waits.
        predecessor: For each edge, the row that the follower waits for.
        meeting: The (zero-based) number of each row's meeting.

    Returns:
        start_level: Level in which each row starts, or -1 if it never starts.
        end_level: Level in which each row ends, or -1 if it never ends.
    """
    n_rows = len(meeting)
    n_awaited = np.bincount(follower, minlength=n_rows)
    n_missing = np.bincount(meeting)
    members_of = _make_group_lookup(meeting, np.arange(n_rows), len(n_missing))
    followers_of = _make_group_lookup(predecessor, follower, n_rows)
    start_level, end_level = np.full((2, n_rows), NONE, np.int64)
    ready, level = np.flatnonzero(n_awaited == 0), 0
    while len(ready):
        start_level[ready] = level
        np.subtract.at(n_missing, meeting[ready], 1)
        complete = find_distinct(meeting[ready])
        ended_rows = members_of(complete[n_missing[complete] == 0])
        end_level[ended_rows] = level
        released = followers_of(ended_rows)
        np.subtract.at(n_awaited, released, 1)
        ready = find_distinct(released)
        ready = ready[n_awaited[ready] == 0]
        level += 1
    return start_level, end_level


def _make_group_lookup(group: Ints, values: Ints, n_groups: int) -> Callable[[Ints], Ints]:
    """Return a function that takes group numbers and returns the values in those groups.

    The function returns the values group by group, in the order of the given numbers.

    Args:
        group: The group number of each value.
        values: The values.
        n_groups: Number of groups.
    """
    values, first = _list_by_group(group, values, n_groups)

    def values_of(groups: Ints) -> Ints:
        return values[expand_ranges(first[groups], first[groups + 1])[1]]

    return values_of


def _list_by_group(group: Ints, values: Ints, n_groups: int) -> tuple[Ints, Ints]:
    """Sort values by group.

    Args:
        group: The group number of each value.
        values: The values.
        n_groups: Number of groups.

    Returns:
        values: The values of the first group, then of the second group, and so on, in stable order.
        first: Index in ``values`` of each group's first value, followed by the number of values.
    """
    first = np.zeros(n_groups + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=n_groups), out=first[1:])
    return values[sort_rows(group)], first


#: An edge to a predecessor: (row of the predecessor, lag index). The lag index is -1 if there is no
#: lag. The lag is the time from the end of the predecessor to the start of the following row.
Edge = tuple[int, int]
#: For each row, the edges to the rows that it follows.
Edges = Sequence[Sequence[Edge]]
#: Arrays of times, shape (scenarios,).
Times = TypeVar("Times", Ints, Floats)


def order_rows(edges: Edges) -> list[int]:
    """Sort rows topologically so that each row comes after the rows that it follows.

    Rows that are part of a cycle, or follow one, are left out. If several rows are ready, the one
    that became ready last comes next (like a stack).

    Args:
        edges: Edges to the rows that each row follows.
    """
    followers: list[list[int]] = [[] for _ in edges]
    for row, followed in enumerate(edges):
        for predecessor, _ in followed:
            followers[predecessor].append(row)
    n_awaited = [len(followed) for followed in edges]
    ready = [row for row, count in enumerate(n_awaited) if count == 0]
    order = []
    while ready:
        row = ready.pop()
        order.append(row)
        for follower in followers[row]:
            n_awaited[follower] -= 1
            if n_awaited[follower] == 0:
                ready.append(follower)
    return order


def compute_ends(
    edges: Edges, durations: Sequence[int], lags: Sequence[int], order: Sequence[int] | None = None
) -> list[int]:
    """Return the end time of each row.

    A row starts at the latest end, plus lag, of the rows that it follows. A row that follows no
    other row starts at 0.

    Args:
        edges: For each row, the edges to the rows that it follows.
        durations: The duration of each row.
        lags: Lag times, which edges refer to by index.
        order: Rows to compute, each after the rows that it follows. The end times of all other rows
            are 0. If None, all rows are computed by ascending index, so each row may only follow
            rows with smaller indices.
    """
    end_times = [0] * len(edges)
    for row in range(len(edges)) if order is None else order:
        arrivals = [
            end_times[predecessor] if lag == NONE else end_times[predecessor] + lags[lag]
            for predecessor, lag in edges[row]
        ]
        end_times[row] = max(arrivals, default=0) + durations[row]
    return end_times


def compute_ends_of_scenarios(
    edges: Edges, durations: Sequence[Times], lags: Sequence[Times]
) -> Times:
    """Return the end times of rows in many scenarios, as an array of shape (rows, scenarios).

    The result in each scenario is the same as from :func:`compute_ends`.

    Args:
        edges: For each row, the edges to the rows that it follows, which must have smaller indices.
        durations: For each row, an array of its durations in all scenarios. There must be at least
            one row.
        lags: For each lag, an array of its times in all scenarios.
    """
    end_times = np.empty((len(edges), len(durations[0])), durations[0].dtype)
    scratch = np.empty_like(durations[0])
    for end, duration, followed in zip(end_times, durations, edges, strict=True):
        latest: Times | int = 0
        for number, (predecessor, lag) in enumerate(followed):
            arrival = end_times[predecessor]
            if lag != NONE:
                arrival = np.add(arrival, lags[lag], out=scratch if number else end)
            latest = np.maximum(latest, arrival, out=end) if number else arrival
        np.add(latest, duration, out=end)
    return end_times


def find_longest_path(
    last: int, edges: Edges, end_times: Sequence[int], durations: Sequence[int], lags: Sequence[int]
) -> list[Edge]:
    """Return the critical path to a row: the rows that determine when it ends, last one first.

    Each row is paired with the lag index of the edge from its predecessor on the path. The lag
    index is -1 if the edge has no lag, or if the row has no predecessor on the path. If several
    edges determine the start of a row, the path takes the first one.

    Args:
        last: The row at which the path ends.
        edges: For each row, the edges to the rows that it follows.
        end_times: End time of each row, from :func:`compute_ends`.
        durations: The duration of each row.
        lags: Lag times, which edges refer to by index.
    """
    path = []
    row = last
    while row != NONE:
        start = end_times[row] - durations[row]
        critical = (
            (predecessor, lag)
            for predecessor, lag in edges[row]
            if end_times[predecessor] + (0 if lag == NONE else lags[lag]) == start
        )
        predecessor, lag = next(critical, (NONE, NONE))
        path.append((row, lag))
        row = predecessor
    return path
