"""A table of idle time in which each piece has one cause, and functions that split the pieces.

Two commands use this table, and define busy time differently:

- In ``analyze``, a rank is busy while it runs compute operations.
- In ``idle``, a GPU is busy while it runs any kernel or copy.

Both commands find the gaps between busy times. Each gap is split at the points where the waits that
precede the next work end. Then the pieces are split at evidence that takes precedence, such as
profiler overhead::

    busy      ███│                   gap                   │███
    waits        ├─ input ───┤├─ launch ─┤├──── rest ─────┤
    evidence            ├ profiler ┤
    pieces       ├──────┤├────────┤├─────┤├───────────────┤
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, is_constant, make_constant
from bubbleviz.model.grouping import sort_rows
from bubbleviz.model.intervals import Intervals


@dataclass(frozen=True, eq=False, repr=False)
class IdleIntervals(Table):
    """Pieces of idle time, sorted by (rank, start).

    All pieces cut from the same idle interval have the same ``interval`` number. Below, "work"
    means an operation in ``analyze``, and a kernel or copy in ``idle``.

    Attributes:
        rank: Index of the idle rank.
        start_ns: Start of the piece.
        end_ns: End of the piece.
        cause: Code of :class:`~bubbleviz.explain.causes.cause.Cause`, or -1 if the piece has an
            activity instead.
        interval: Zero-based number of the idle interval within its rank.
        before: Row of the work that ended last before the idle interval, or -1 if there is none.
        after: Row of the first work after the idle interval, or -1 if there is none.
        peer_operation: Row of the operation that the rank waits for, or -1 if there is none. In a
            collective, this is the last operation that the last member started before it entered.
            In a queue, this is the transfer ahead in the queue.
        collective: Kind of the collective that the rank is in, or -1 if it is in none.
        activity: Index of the host activity, or -1 if the piece has a cause instead.
        host_call: The call that the host was in, or -1 if unknown. In ``analyze``, this is a row of
            the operations' names. In ``idle``, it is a row of the host's events.
        host_range: The innermost range that the host was in, as a row of the operations' names, or
            -1 if unknown.
        unrecorded: 1 if the rank may have run work that was not recorded, else 0.
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
    activity: Ints
    host_call: Ints
    host_range: Ints
    unrecorded: Ints


IdleT = TypeVar("IdleT", bound=IdleIntervals)


@dataclass(frozen=True, eq=False, repr=False)
class BusyTimes(Table):
    """Times during which work keeps ranks busy, sorted by start.

    The work is the compute operations in ``analyze``, and all kernels and copies in ``idle``. If
    there are several ranks, their times are packed into one timeline.

    Attributes:
        rank: Index of the rank.
        row: Row of the work.
        start_ns: Start of the work.
        end_ns: End of the work.
    """

    rank: Ints
    row: Codes
    start_ns: Ints
    end_ns: Ints

    def sort_by_start(self) -> BusyTimes:
        """Return the table sorted by start."""
        is_sorted = (self.start_ns[1:] >= self.start_ns[:-1]).all()
        return self if is_sorted else self.take(sort_rows(self.start_ns))

    def find_gaps(self, windows: Intervals, also_busy: Intervals | None = None) -> Intervals:
        """Return the times in the windows when no work runs, as disjoint ascending intervals.

        Args:
            windows: Disjoint ascending intervals.
            also_busy: Additional busy times, or None if there are none.
        """
        start_ns, end_ns = self.start_ns, self.end_ns
        if also_busy is not None:
            start_ns, end_ns = np.append(start_ns, also_busy[0]), np.append(end_ns, also_busy[1])
        return intervals.difference(windows, intervals.union(start_ns, end_ns))

    def describe_gaps(self, rank: Ints, gaps: Intervals) -> IdleIntervals:
        """Build one idle interval per gap, with the work before and after it, but without a cause.

        Args:
            rank: Rank of each gap, ascending.
            gaps: Intervals during which no work of the rank runs, ascending.

        Returns:
            One row per gap. ``before`` is the work that ended last before the gap; the last row
            wins ties. ``after`` is the work that starts first after the gap; the first row wins
            ties. ``before`` or ``after`` is -1 if the rank has no such work. ``cause`` is -1.
        """
        start_ns, end_ns = gaps
        by_end = sort_rows(self.end_ns)
        n_ended = np.searchsorted(self.end_ns[by_end], start_ns, side="right")
        last_work = np.append(by_end, NONE)[n_ended - 1]
        # There is no work at an index past the last work.
        next_work = np.searchsorted(self.start_ns, end_ns)
        count, none = len(rank), make_constant(NONE, len(rank))
        return IdleIntervals(
            rank=rank,
            start_ns=start_ns,
            end_ns=end_ns,
            cause=none,
            interval=np.arange(count) - np.searchsorted(rank, rank),
            before=self._get_rows(rank, last_work),
            after=self._get_rows(rank, next_work),
            peer_operation=none,
            collective=none,
            activity=none,
            host_call=none,
            host_range=none,
            unrecorded=make_constant(0, count),
        )

    def _get_rows(self, rank: Ints, position: Ints) -> Ints:
        """Return the row of the work at each position, or -1 if another rank ran that work."""
        owner, row = np.append(self.rank, NONE), np.append(self.row, NONE)
        return np.where(owner[position] == rank, row[position], NONE).astype(np.int64)


@dataclass(frozen=True)
class Wait:
    """One kind of wait, with one row per idle interval.

    Attributes:
        until_ns: End of the wait, or :data:`~bubbleviz.align.arrivals.NEVER` if there is none.
        cause: Cause of the idle time during the wait, or -1 if the wait has an activity instead.
        activity: Activity of the host during the wait, or -1 if the wait has a cause instead.
        peer_operation: Operation of another rank that the rank waits for, or -1 if unknown.
    """

    until_ns: Ints
    cause: Ints
    activity: Ints
    peer_operation: Ints

    @staticmethod
    def of(
        until_ns: Ints,
        *,
        cause: Ints | int = NONE,
        activity: Ints | int = NONE,
        peer_operation: Ints | int = NONE,
    ) -> Wait:
        """Build a wait. A scalar cause, activity or operation is repeated for all intervals."""
        count = len(until_ns)
        return Wait(
            until_ns, *(_fill_column(value, count) for value in (cause, activity, peer_operation))
        )


def _fill_column(value: Ints | int, count: int) -> Ints:
    return make_constant(value, count) if isinstance(value, int) else value


def split_at_waits(gaps: IdleIntervals, waits: Sequence[Wait]) -> IdleIntervals:
    """Split each idle interval at the points where the waits that precede the next work end.

    The waits follow each other: wait ``i`` lasts from the end of wait ``i - 1`` to its own
    ``until_ns``. A wait that would end before it begins takes no time, like wait 2::

        gap         ├──────────────────────────────────┤
        until_ns            0     2    1
        pieces      ├─ 0 ──┤├─── 1 ───┤├───── rest ────┤

    Args:
        gaps: Idle intervals, one row per interval.
        waits: The waits, in order. The last wait lasts until the end of each interval, so its
            ``until_ns`` is ignored.

    Returns:
        The non-empty pieces, with the cause, activity and peer operation of their waits.
    """
    *limited, rest = waits
    limited = [wait for wait in limited if not _is_absent(wait)]
    parts = [*limited, rest]
    bounds = [gaps.start_ns]
    for wait in limited:
        bounds.append(np.clip(wait.until_ns, bounds[-1], gaps.end_ns))
    bounds_ns = np.stack((*bounds, gaps.end_ns), axis=1)
    gap, part = np.nonzero(bounds_ns[:, 1:] > bounds_ns[:, :-1])
    return replace(
        gaps.take(gap),
        start_ns=bounds_ns[gap, part],
        end_ns=bounds_ns[gap, part + 1],
        cause=_get_values([wait.cause for wait in parts], gap, part),
        activity=_get_values([wait.activity for wait in parts], gap, part),
        peer_operation=_get_values([wait.peer_operation for wait in parts], gap, part),
    )


def _is_absent(wait: Wait) -> bool:
    """Return whether the wait occurs in no idle interval, because all of its ends are ``NEVER``."""
    return bool((wait.until_ns == np.iinfo(np.int64).min).all())


def _get_values(columns: Sequence[Ints], gap: Ints, part: Ints) -> Ints:
    """Return ``columns[part[i]][gap[i]]`` for each piece ``i``.

    Args:
        columns: One column per wait, with one value per gap.
        gap: For each piece, the index of its gap.
        part: For each piece, the index in ``columns`` of its wait.
    """
    if all(is_constant(column) for column in columns):
        values = np.array([column[0] for column in columns], np.int64)
        is_single = (values == values[0]).all()
        return make_constant(int(values[0]), len(part)) if is_single else values[part]
    value = np.empty(len(part), np.int64)
    for number, column in enumerate(columns):
        is_part = part == number
        value[is_part] = column[gap[is_part]]
    return value


def split_idle(idle: IdleT, *times_ns: Ints) -> IdleT:
    """Split idle time at the given times.

    Args:
        idle: Idle time of one rank, or of several ranks packed into one timeline. Sorted by start.
        times_ns: Arrays of times, in any order. Times outside the idle time have no effect.
    """
    row, start_ns, end_ns = intervals.split_at(idle.start_ns, idle.end_ns, np.concatenate(times_ns))
    return replace(idle.take(row), start_ns=start_ns, end_ns=end_ns)


def mark_inside(
    idle: IdleT,
    evidence: Intervals,
    *,
    cause: int = NONE,
    activity: int = NONE,
    unrecorded: int = 0,
) -> IdleT:
    """Set the cause or activity of the idle time that lies inside the given intervals.

    Idle time is split at the bounds of the intervals. The pieces inside also get a ``host_call`` of
    -1. All other pieces do not change.

    Args:
        idle: Idle time of one rank, or of several ranks packed into one timeline. Sorted by start.
        evidence: The intervals, in any order.
        cause: New cause of the idle time inside the intervals, or -1 to set an activity instead.
        activity: New activity of the idle time inside the intervals, or -1 to set a cause instead.
        unrecorded: 1 if the rank may have run unrecorded work inside the intervals, else 0.
    """
    if len(idle) == 0 or len(evidence[0]) == 0:
        return idle
    pieces = split_idle(idle, *evidence)
    is_inside = intervals.find_covering(*evidence, pieces.start_ns) != NONE
    return replace(
        pieces,
        cause=_replace_marked(pieces.cause, is_inside, cause),
        activity=_replace_marked(pieces.activity, is_inside, activity),
        host_call=_replace_marked(pieces.host_call, is_inside, NONE),
        unrecorded=_replace_marked(pieces.unrecorded, is_inside, unrecorded),
    )


def _replace_marked(column: Ints, is_marked: Bools, value: int) -> Ints:
    """Return a column with the marked rows set to a value."""
    if is_constant(column) and column[0] == value:
        return column
    return np.where(is_marked, value, column)


def merge_pieces(idle: IdleT, *columns: str) -> IdleT:
    """Merge adjacent pieces that are equal in the given columns.

    Two pieces are adjacent if the second one starts when the first one ends.

    Args:
        idle: Idle time, sorted by (rank, start).
        columns: Names of the columns to compare. A merged piece ends when its last piece ends. All
            other columns are copied from its first piece.
    """
    continues = idle.start_ns[1:] == idle.end_ns[:-1]
    for name in columns:
        column = getattr(idle, name)
        continues &= column[1:] == column[:-1]
    is_first = np.append(True, ~continues)[: len(idle)]
    is_last = np.append(~continues, True)[: len(idle)]
    return replace(idle.take(is_first), end_ns=idle.end_ns[is_last])
