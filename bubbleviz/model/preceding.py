"""Preceding rows: which row of a group came last before a time."""

from __future__ import annotations

from typing import Literal

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.intervals import Packing, group_extents
from bubbleviz.model.sorting import sorted_rows

#: Places on a line lie below this.
_ROOM = 1 << 62
#: Groups are numbered from 0 if there are no more than rows, and so many.
_FEW = 1024


def last_before(
    group: Ints, time_ns: Ints, wanted: Ints, wanted_ns: Ints, *, or_at: bool = False
) -> Ints:
    """Return the last row of each wanted group before a time; -1 where there is none.

    Of rows at one time it is the last in the table::

        group 0    row 0     row 2           row 3
        group 1         row 1
        wanted           0: row 0      0: row 2

    Args:
        group: number of the group of each row.
        time_ns: of each row, in any order.
        wanted: number of the group that is looked for.
        wanted_ns: before when.
        or_at: whether rows at that very time count.
    """
    if _is_ordered(group, time_ns, wanted):
        return _in_order(group, time_ns, wanted, wanted_ns, or_at=or_at)
    both, times_ns = np.concatenate((group, wanted)), np.concatenate((time_ns, wanted_ns))
    is_row = np.arange(len(both)) < len(group)
    order = sorted_rows(both, times_ns, ~is_row if or_at else is_row)
    if len(order) == 0:
        return order
    latest = np.maximum.accumulate(np.where(is_row[order], np.arange(len(order)), NONE))
    row = np.where((latest != NONE) & (both[order][latest] == both[order]), order[latest], NONE)
    found = np.empty(len(both), np.int64)
    found[order] = row
    return found[len(group) :]


def _is_ordered(group: Ints, time_ns: Ints, wanted: Ints) -> bool:
    """Return whether rows stand in order of their group and time, and groups fit on one line."""
    if not len(group) or int(group[0]) < 0 or int(wanted.min(initial=0)) < 0:
        return False
    groups = int(max(group[-1], wanted.max(initial=NONE))) + 1
    if groups > _FEW + len(group) + len(wanted):
        return False  # such as threads, whose numbers are those of the system
    if (int(time_ns.max()) - int(time_ns.min()) + 1) * groups >= _ROOM:
        return False
    later = (group[1:] > group[:-1]) | ((group[1:] == group[:-1]) & (time_ns[1:] >= time_ns[:-1]))
    return bool(later.all())


def _in_order(group: Ints, time_ns: Ints, wanted: Ints, wanted_ns: Ints, *, or_at: bool) -> Ints:
    """Return the same where rows stand in order of their group and time."""
    groups = int(max(group[-1], wanted.max(initial=NONE))) + 1
    low_ns, high_ns = group_extents(group, groups, time_ns, time_ns)
    packing = Packing.of(low_ns, np.maximum(high_ns, low_ns))
    # On the line the last place of a group is just before the first one of the next group.
    latest_ns = high_ns[wanted] + (0 if or_at else 1)
    placed = packing.place(wanted, np.clip(wanted_ns, low_ns[wanted] - 1, latest_ns))
    side: Literal["left", "right"] = "right" if or_at else "left"
    row = np.searchsorted(packing.place(group, time_ns), placed, side=side) - 1
    return np.where((row >= 0) & (group[row] == wanted), row, NONE)
