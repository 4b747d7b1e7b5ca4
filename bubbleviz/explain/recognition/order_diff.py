"""Order diff: operations of a measured order that are late, early, missing, extra or repeated.

Of the operations in both orders, as many as possible are in place: a longest sequence that both
share (a longest increasing subsequence). The others are out of place::

    planned   F0 F1 B0 F2 B1 B2
    measured  F0 F1 F2 B0 B1 B2      F2 is early by 1 (or B0 late by 1)
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain

import numpy as np

from bubbleviz.explain.recognition.order_codes import in_planned_order
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen


@frozen
class OrderDifference:
    """How an order differs from a planned one; codes as in :mod:`..recognition.order_codes`.

    Attributes:
        moved: codes of operations out of place, in measured order.
        places: by how many operations each is late; negative where early.
        missing: codes that are planned, not measured.
        extra: codes that are measured, not planned.
        repeated: codes that are measured again.
    """

    moved: Ints
    places: Ints
    missing: Ints
    extra: Ints
    repeated: Ints

    @property
    def count(self) -> int:
        """Number of operations that are not as planned."""
        columns = (self.moved, self.missing, self.extra, self.repeated)
        return sum(len(column) for column in columns)


def difference(measured: Ints, planned: Ints) -> OrderDifference:
    """Return how a measured order differs from a planned one, which repeats nothing.

    It takes O(n log n) of what lies between the first and the last difference.
    """
    none = np.empty(0, np.int64)
    measured = in_planned_order(measured, planned)
    if np.array_equal(measured, planned):
        return OrderDifference(none, none, none, none, none)
    firsts = np.sort(np.unique(measured, return_index=True)[1])
    again = np.ones(len(measured), bool)
    again[firsts] = False
    distinct = measured[firsts]
    in_plan = np.isin(distinct, planned)
    ran = np.isin(planned, distinct)
    common, expected = distinct[in_plan], planned[ran]
    order = np.argsort(expected)
    at = order[np.searchsorted(expected[order], common)]
    kept = _in_place(at)
    moved = np.flatnonzero(~kept)
    # How many in place come before it as measured, and as planned.
    before = np.cumsum(kept)[moved]
    standing = np.sort(at[kept])
    return OrderDifference(
        moved=common[moved],
        places=before - np.searchsorted(standing, at[moved]),
        missing=planned[~ran],
        extra=distinct[~in_plan],
        repeated=measured[again],
    )


def _in_place(at: Ints) -> Bools:
    """Return which places of a permutation belong to a longest rising subsequence."""
    kept = np.ones(len(at), bool)
    off = np.flatnonzero(at != np.arange(len(at)))
    if len(off) == 0:
        return kept
    # Those before the first and after the last difference belong to every longest one.
    first, last = int(off[0]), int(off[-1]) + 1
    kept[first:last] = _longest_rising(at[first:last].tolist())
    return kept


def _longest_rising(values: list[int]) -> Bools:
    """Return which of some distinct values belong to a longest rising subsequence."""
    ends: list[int] = []
    rows: list[int] = []
    before = [-1] * len(values)
    for row, value in enumerate(values):
        length = bisect_left(ends, value)
        if length:
            before[row] = rows[length - 1]
        if length == len(ends):
            ends.append(value)
            rows.append(row)
        else:
            ends[length] = value
            rows[length] = row
    chosen = np.zeros(len(values), bool)
    row = rows[-1] if rows else -1
    while row >= 0:
        chosen[row] = True
        row = before[row]
    return chosen


def joined_codes(diff: OrderDifference) -> list[tuple[str, int, int]]:
    """Return (what, code, places) of each deviation, late and early ones first."""
    moved = zip(diff.moved.tolist(), diff.places.tolist(), strict=True)
    return list(
        chain(
            (("late" if places > 0 else "early", code, abs(places)) for code, places in moved),
            (("missing", code, 0) for code in diff.missing.tolist()),
            (("extra", code, 0) for code in diff.extra.tolist()),
            (("repeated", code, 0) for code in diff.repeated.tolist()),
        )
    )
