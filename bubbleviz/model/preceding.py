"""Preceding rows: which row of a group came last before a time."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.sorting import sorted_rows


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
