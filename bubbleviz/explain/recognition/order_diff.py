"""Comparing two orders of one rank: what is late, early, missing, extra or repeated.

Operations that both orders hold, and that stand in the same sequence in both, are kept; as many
as possible (a longest increasing subsequence). The others are out of place::

    planned   F0 F1 B0 F2 B1 B2
    measured  F0 F1 F2 B0 B1 B2      F2 is early by 1 (or B0 late by 1)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import chain

import numpy as np

from bubbleviz.explain.recognition.orders import settled
from bubbleviz.model.columns import Bools, Ints


@dataclass(frozen=True)
class Difference:
    """How an order differs from a planned one; codes as in :mod:`..recognition.orders`.

    Attributes:
        moved: codes of operations out of place, in measured order.
        places: of each, how many operations in place it is late by; negative where early.
        missing: planned, and not measured.
        extra: measured, and not planned.
        repeated: measured again.
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


def difference(measured: Ints, planned: Ints) -> Difference:
    """Return how a measured order differs from a planned one, which holds nothing twice.

    It takes O(n log n) of what lies between the first and the last difference.
    """
    none = np.empty(0, np.int64)
    measured = settled(measured, planned)
    if np.array_equal(measured, planned):
        return Difference(none, none, none, none, none)
    firsts = np.sort(np.unique(measured, return_index=True)[1])
    again = np.ones(len(measured), bool)
    again[firsts] = False
    own = measured[firsts]
    known = np.isin(own, planned)
    held = np.isin(planned, own)
    common, expected = own[known], planned[held]
    order = np.argsort(expected)
    at = order[np.searchsorted(expected[order], common)]
    kept = _in_place(at)
    moved = np.flatnonzero(~kept)
    # How many in place stand before it as measured, and as planned.
    before = np.cumsum(kept)[moved]
    standing = np.sort(at[kept])
    return Difference(
        moved=common[moved],
        places=before - np.searchsorted(standing, at[moved]),
        missing=planned[~held],
        extra=own[~known],
        repeated=measured[again],
    )


def _in_place(at: Ints) -> Bools:
    """Return which places of a permutation belong to a longest rising subsequence."""
    kept = np.ones(len(at), bool)
    off = np.flatnonzero(at != np.arange(len(at)))
    if len(off) == 0:
        return kept
    # What is at its own place before the first and behind the last difference is in any such.
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


def joined_codes(found: Difference) -> list[tuple[str, int, int]]:
    """Return (what, code, places) of each deviation, late and early ones first."""
    moved = zip(found.moved.tolist(), found.places.tolist(), strict=True)
    return list(
        chain(
            (("late" if places > 0 else "early", code, abs(places)) for code, places in moved),
            (("missing", code, 0) for code in found.missing.tolist()),
            (("extra", code, 0) for code in found.extra.tolist()),
            (("repeated", code, 0) for code in found.repeated.tolist()),
        )
    )
