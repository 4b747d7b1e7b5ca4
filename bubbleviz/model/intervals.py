"""Operations on columns of half-open time intervals, such as union, difference and overlap.

A *set* of intervals is a pair of int64 arrays ``(start_ns, end_ns)``. The intervals of a set are
sorted, and neither overlap nor touch. All functions sort and sum columns instead of looping over
intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.grouping import expand_ranges, find_distinct, sort_rows
from bubbleviz.native import functions as native
from bubbleviz.native.functions import accelerated_by

Intervals = tuple[Ints, Ints]
#: The sets of several groups as arrays (group, start_ns, end_ns), sorted by (group, start).
GroupIntervals = tuple[Ints, Ints, Ints]


def make_empty() -> Intervals:
    """Return the empty set."""
    return np.empty(0, np.int64), np.empty(0, np.int64)


@accelerated_by(native.union)
def union(start_ns: Ints, end_ns: Ints, mask: Bools | None = None) -> Intervals:
    """Return the union of intervals as a set. Empty intervals (end <= start) are ignored.

    Overlapping and touching intervals are merged. A new interval of the set begins if all earlier
    intervals end before the next start::

        intervals   ├──────┤   ├──┤
                       ├──┤
        running max ───────┤   ───┤
        union       ├──────┤   ├──┤

    Args:
        start_ns: Starts of the intervals, in any order.
        end_ns: Ends of the intervals.
        mask: Mask of the intervals to use, or None for all.
    """
    if mask is not None:
        start_ns, end_ns = start_ns[mask], end_ns[mask]
    is_nonempty = end_ns > start_ns
    if not is_nonempty.all():
        start_ns, end_ns = start_ns[is_nonempty], end_ns[is_nonempty]
    if len(start_ns) == 0:
        return make_empty()
    if not (start_ns[1:] >= start_ns[:-1]).all():
        order = sort_rows(start_ns)
        start_ns, end_ns = start_ns[order], end_ns[order]
    latest_ns = np.maximum.accumulate(end_ns)
    first = np.concatenate(([True], start_ns[1:] > latest_ns[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start_ns[first], latest_ns[last]


def measure(intervals: Intervals) -> int:
    """Return the total length of a set in ns."""
    return int((intervals[1] - intervals[0]).sum())


@accelerated_by(native.difference)
def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the times that ``a`` covers but ``b`` does not."""
    # Sweep over all end points. An interval of ``a`` adds 1 while it lasts.
    # An interval of ``b`` adds -2 while it lasts.
    # The sum is 1 only where ``a`` covers the time and ``b`` does not.
    # The points are four sorted runs, which a stable sort merges.
    points, change = np.concatenate((*a, *b)), np.array([1, -1, -2, 2], np.int8)
    order = np.argsort(points, kind="stable")
    covered = np.cumsum(np.repeat(change, [len(a[0])] * 2 + [len(b[0])] * 2)[order])
    points = points[order]
    is_covered_row = np.flatnonzero((covered[:-1] == 1) & (points[1:] > points[:-1]))
    return points[is_covered_row], points[is_covered_row + 1]


def clip_intervals(intervals: Intervals, low_ns: int, high_ns: int) -> Intervals:
    """Return the part of a set that lies in [low_ns, high_ns). Empty if ``high_ns <= low_ns``."""
    start_ns, end_ns = (np.clip(column, low_ns, max(low_ns, high_ns)) for column in intervals)
    is_nonempty = end_ns > start_ns
    return start_ns[is_nonempty], end_ns[is_nonempty]


def split_at(start_ns: Ints, end_ns: Ints, times_ns: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut intervals at the given times.

    ::

        intervals   ├─ 0 ─────────┤├─ 1 ──┤      ├─ 2 ──┤
        times            │    │    │         │
        pieces      ├─0─┤├─0─┤├─0─┤├─ 1 ──┤      ├─ 2 ──┤

    Args:
        start_ns: Starts of the intervals, which must be sorted, disjoint and not empty.
        end_ns: Ends of the intervals.
        times_ns: Times at which to cut, in any order. A time outside all intervals, or at the start
            or end of an interval, has no effect.

    Returns:
        row: Index of the interval that each piece belongs to. The pieces are sorted by start.
        start_ns: Start of each piece.
        end_ns: End of each piece.
    """
    n_intervals = len(start_ns)
    if n_intervals == 0:
        return np.empty(0, np.int64), start_ns, end_ns
    last_begun = np.searchsorted(start_ns, times_ns, side="right") - 1
    candidate = np.maximum(last_begun, 0)
    is_inside = (times_ns > start_ns[candidate]) & (times_ns < end_ns[candidate])
    cut_ns = find_distinct(times_ns[is_inside])
    insert_at = np.searchsorted(start_ns, cut_ns)
    piece_start_ns = np.insert(start_ns, insert_at, cut_ns)
    row = np.insert(np.arange(n_intervals), insert_at, insert_at - 1)
    is_last = np.append(row[1:] != row[:-1], True)
    next_start_ns = np.append(piece_start_ns[1:], 0)
    return row, piece_start_ns, np.where(is_last, end_ns[row], next_start_ns)


def find_covering(start_ns: Ints, end_ns: Ints, time_ns: Ints) -> Ints:
    """Find, for each time, an interval that covers the time.

    The intervals are half-open, may overlap, and may be in any order.

    Args:
        start_ns: Starts of the intervals.
        end_ns: Ends of the intervals.
        time_ns: Times to look up.

    Returns:
        For each time, the row of the interval that covers the time, or -1 if there is none. If
        several intervals cover the time, the interval that ends last wins. Among intervals that end
        at the same time, the interval that starts first wins.
    """
    n_intervals = len(start_ns)
    if n_intervals == 0:
        return np.full(len(time_ns), NONE, np.int64)
    order = sort_rows(start_ns)
    ordered_end_ns = end_ns[order]
    latest_end_ns = np.maximum.accumulate(ordered_end_ns)
    # Running argmax of the ends: the interval that ends last among those that have started.
    ends_later = np.append(True, latest_end_ns[1:] > latest_end_ns[:-1])
    last_to_end = np.maximum.accumulate(np.where(ends_later, np.arange(n_intervals), 0))
    last_begun = np.searchsorted(start_ns[order], time_ns, side="right") - 1
    row = order[last_to_end[np.maximum(last_begun, 0)]]
    is_covered = (last_begun >= 0) & (end_ns[row] > time_ns)
    return np.where(is_covered, row, NONE)


def mask_overlapping(start_ns: Ints, end_ns: Ints, times: Intervals) -> Bools:
    """Return a mask of the intervals that overlap a set. Merely touching the set is not an overlap.

    Args:
        start_ns: Starts of the intervals, in any order.
        end_ns: Ends of the intervals.
        times: The set.
    """
    set_start_ns, set_end_ns = times
    n_ended = np.searchsorted(set_end_ns, start_ns, side="right")
    n_begun = np.searchsorted(set_start_ns, end_ns)
    return np.asarray(n_ended < n_begun, bool)


@accelerated_by(native.measure_within)
def measure_within(intervals: Intervals, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return, for each window [low_ns, high_ns), how many ns of the window a set covers."""
    single_set = np.zeros(len(intervals[0]), np.int64), *intervals
    return GroupCover(single_set, 1).within(np.zeros_like(low_ns), low_ns, high_ns)


@dataclass(frozen=True)
class Packing:
    """Places the times of all groups on one line, so that one operation handles all groups.

    A set operation on the line then treats every group separately. The section of a group is one
    ns longer than the extent of its times, so intervals of neighboring groups never touch::

        group 0   10 ├───┤ 40                 line   0 ├───┤ 30
        group 1   12 ├─────┤ 60                          31 ├─────┤ 79

    Attributes:
        origin_ns: Earliest time of each group, shape (groups,).
        offset_ns: Start of each group's section of the line, then the end of the line, shape
            (groups + 1,).
    """

    origin_ns: Ints
    offset_ns: Ints

    @staticmethod
    def of(low_ns: Ints, high_ns: Ints) -> Packing:
        """Create the packing of groups whose times have the given bounds.

        Args:
            low_ns: Earliest time of each group.
            high_ns: Latest time of each group, at least ``low_ns - 1``.
        """
        width = high_ns - low_ns + 1
        return Packing(low_ns, np.concatenate(([0], np.cumsum(width))))

    def place(self, group: Codes, time_ns: Ints) -> Ints:
        """Convert times to positions on the line.

        Args:
            group: Group of each time.
            time_ns: Times between the lowest and the highest time of their groups.
        """
        return time_ns + self.shift_ns[group]

    @property
    def shift_ns(self) -> Ints:
        """Difference between position on the line and time for each group, shape (groups,)."""
        return self.offset_ns[: len(self.origin_ns)] - self.origin_ns

    def find_groups(self, start: Ints) -> Ints:
        """Return the group whose section of the line contains each interval start."""
        return np.searchsorted(self.offset_ns, start, side="right") - 1

    def unpack(self, intervals: Intervals) -> tuple[Ints, Ints, Ints]:
        """Convert a set on the line back to times, as arrays (group, start_ns, end_ns)."""
        group = self.find_groups(intervals[0])
        shift_ns = self.shift_ns[group]
        return group, intervals[0] - shift_ns, intervals[1] - shift_ns


@accelerated_by(native.group_extents)
def group_extents(group: Codes, n_groups: int, low_ns: Ints, high_ns: Ints) -> Intervals:
    """Return the minimum of ``low_ns`` and the maximum of ``high_ns`` in each group.

    For a group without rows, the minimum is 0 and the maximum is -1.

    Args:
        group: Group of each row.
        n_groups: Number of groups.
        low_ns: Lower value of each row, such as the start of an interval.
        high_ns: Higher value of each row, such as the end of the interval.
    """
    low = np.full(n_groups, np.iinfo(np.int64).max)
    high = np.full(n_groups, np.iinfo(np.int64).min)
    np.minimum.at(low, group, low_ns)
    np.maximum.at(high, group, high_ns)
    is_empty = low > high
    low[is_empty], high[is_empty] = 0, -1
    return low, high


def group_latest(group: Codes, n_groups: int, time_ns: Codes, fill_value: int) -> Ints:
    """Return the latest time in each group, or ``fill_value`` for groups without rows."""
    time_ns = time_ns.astype(np.int64, copy=False)
    low, high = group_extents(group, n_groups, time_ns, time_ns)
    high[low > high] = fill_value
    return high


@accelerated_by(native.group_union)
def group_union(
    group: Codes, n_groups: int, start_ns: Ints, end_ns: Ints, mask: Bools | None = None
) -> GroupIntervals:
    """Merge the intervals of each group into a set.

    The result is sorted by (group, start). Empty intervals (end <= start) are ignored.

    Args:
        group: Group of each interval. Ignored for intervals outside the mask.
        n_groups: Number of groups.
        start_ns: Start of each interval.
        end_ns: End of each interval.
        mask: Mask of the intervals to use, or None for all.
    """
    if mask is not None:
        group, start_ns, end_ns = group[mask], start_ns[mask], end_ns[mask]
    packing = Packing.of(*group_extents(group, n_groups, start_ns, end_ns))
    low, high = packing.place(group, start_ns), packing.place(group, end_ns)
    return packing.unpack(union(low, high))


def group_measure(
    group: Codes, n_groups: int, start_ns: Ints, end_ns: Ints, mask: Bools | None = None
) -> Ints:
    """Return the total length of each group's merged intervals in ns, shape (n_groups,).

    For the arguments, see :func:`group_union`.
    """
    group_id, low_ns, high_ns = group_union(group, n_groups, start_ns, end_ns, mask)
    return group_sum(group_id, n_groups, high_ns - low_ns)


class GroupCover:
    """Measures how many ns of a window are covered by the intervals of a group.

    The time covered before a point is a running sum over earlier intervals, plus part of the
    interval at that point. A window therefore costs two binary searches, even if windows overlap.

    Args:
        sets: Sets of the groups, sorted by (group, start).
        n_groups: Number of groups.
        weight_ns: Weight of each interval, which replaces its length, or None to use the length. A
            fraction of an interval counts as the same fraction of its weight.
    """

    def __init__(self, sets: GroupIntervals, n_groups: int, weight_ns: Ints | None = None) -> None:
        group, start_ns, end_ns = sets
        self._extents = group_extents(group, n_groups, start_ns, end_ns)
        self._packing = Packing.of(*self._extents)
        self._line = self._packing.place(group, start_ns), self._packing.place(group, end_ns)
        self._weight_ns = weight_ns
        self._cumulative_ns = np.zeros(len(group) + 1, np.int64)
        np.cumsum(
            end_ns - start_ns if weight_ns is None else weight_ns, out=self._cumulative_ns[1:]
        )

    def within(self, group: Codes, low_ns: Ints, high_ns: Ints) -> Ints:
        """Return, for each window, how many ns of the window the set of its group covers.

        Args:
            group: Group of each window.
            low_ns: Starts of the windows.
            high_ns: Ends of the windows, not before their starts.
        """
        if len(self._cumulative_ns) == 1:
            return np.zeros_like(low_ns)
        return self._measure_up_to(group, high_ns) - self._measure_up_to(group, low_ns)

    def _measure_up_to(self, group: Codes, time_ns: Ints) -> Ints:
        """Return, for each time, how many ns of the group's set lie before the time.

        If the intervals have weights, a fraction of an interval counts as the same fraction of its
        weight, rounded to whole ns.

        Args:
            group: Group of each time.
            time_ns: Times up to which the sets are measured.
        """
        # Clip times to the extent of the group, because the line continues with other groups.
        first_ns, last_ns = self._extents
        inside_ns = np.clip(time_ns, first_ns[group], last_ns[group])
        position, (start, end) = self._packing.place(group, inside_ns), self._line
        row = np.searchsorted(start, position, side="right") - 1
        started_row = np.maximum(row, 0)
        part = np.minimum(position, end[started_row]) - start[started_row]
        if self._weight_ns is not None:
            fraction = part / np.maximum(end[started_row] - start[started_row], 1)
            part = np.rint(self._weight_ns[started_row] * fraction).astype(np.int64)
        return np.where(row >= 0, self._cumulative_ns[started_row] + part, 0)


@accelerated_by(native.measure_groups)
def measure_windows(
    sets: GroupIntervals, n_groups: int, group: Ints, low_ns: Ints, high_ns: Ints
) -> Ints:
    """Return, for each window, how many ns of the window the set of its group covers.

    This is fast for a small number of windows that hardly overlap within a group. For many windows,
    use :class:`GroupCover`.

    Args:
        sets: Sets of the groups, sorted by (group, start).
        n_groups: Number of groups.
        group: Group of each window.
        low_ns: Starts of the windows.
        high_ns: Ends of the windows, not before their starts.
    """
    return GroupCover(sets, n_groups).within(group, low_ns, high_ns)


def group_sum(group: Codes, n_groups: int, values: Ints) -> Ints:
    """Return the exact int64 sum of each group's values.

    ``np.bincount`` is not used because it would convert the values to float64.
    """
    total = np.zeros(n_groups, np.int64)
    np.add.at(total, group, values)
    return total


def find_overlaps(first: Intervals, second: Intervals) -> tuple[Ints, Ints]:
    """Find all overlapping pairs of an interval in ``first`` and an interval in ``second``.

    The intervals of each input may be in any order and may overlap. The search is fast if
    ``second`` is nearly sorted by time. Intervals that only touch do not overlap.

    Args:
        first: Starts and ends of the first intervals.
        second: Starts and ends of the second intervals.

    Returns:
        row: For each pair, the row in ``first``. The pairs are sorted by (row, other_row).
        other_row: For each pair, the row in ``second``.
    """
    start_ns, end_ns = first
    other_start_ns, other_end_ns = second
    # Only rows of ``second`` in [low, high) can overlap.
    low = np.searchsorted(np.maximum.accumulate(other_end_ns), start_ns, side="right")
    earliest_ns = np.minimum.accumulate(other_start_ns[::-1])[::-1]
    high = np.maximum(np.searchsorted(earliest_ns, end_ns), low)
    row, other_row = expand_ranges(low, high)
    is_overlap = start_ns[row] < other_end_ns[other_row]
    is_overlap &= other_start_ns[other_row] < end_ns[row]
    return row[is_overlap], other_row[is_overlap]


@accelerated_by(native.find_last_before)
def find_last_before(
    group: Ints, time_ns: Ints, query_group: Ints, query_ns: Ints, *, or_at: bool = False
) -> Ints:
    """Return, for each query, the latest row in the query's group before the query's time.

    The row is -1 if there is none. If several rows have the same time, the last row in the table
    wins::

        group 0    row 0     row 2           row 3
        group 1         row 1
        queries          0: row 0      0: row 2

    Args:
        group: Group of each row.
        time_ns: Time of each row, in any order.
        query_group: Group that each query searches.
        query_ns: Time of each query.
        or_at: Whether a row at exactly the query's time is also accepted.
    """
    all_groups, times_ns = np.concatenate((group, query_group)), np.concatenate((time_ns, query_ns))
    is_row = np.arange(len(all_groups)) < len(group)
    order = sort_rows(all_groups, times_ns, ~is_row if or_at else is_row)
    if len(order) == 0:
        return order
    latest = np.maximum.accumulate(np.where(is_row[order], np.arange(len(order)), NONE))
    row = np.where(
        (latest != NONE) & (all_groups[order][latest] == all_groups[order]), order[latest], NONE
    )
    row_of_entry = np.empty(len(all_groups), np.int64)
    row_of_entry[order] = row
    return row_of_entry[len(group) :]
