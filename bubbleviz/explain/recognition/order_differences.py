"""Compare two orders: find operations that are late, early, missing, extra or repeated.

The operations of a longest common subsequence of both orders are in place. All other operations
that both orders contain are out of place. No operation is planned twice, so the longest common
subsequence is found as a longest increasing subsequence of planned positions::

    planned   F0 F1 B0 F2 B1 B2
    measured  F0 F1 F2 B0 B1 B2      F2 is early by 1 (or B0 late by 1)
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from bubbleviz.explain.recognition.order_codes import order_as_planned
from bubbleviz.model import grouping
from bubbleviz.model.columns import NONE, Bools, Ints


@dataclass(frozen=True)
class OrderDifference:
    """The difference between a measured and a planned order, as codes of operations.

    Attributes:
        displaced: Operations out of place, in measured order.
        places: Number of operations by which each displaced operation is late. Negative if the
            operation is early. This is the number of in-place operations before it in the measured
            order, minus that number in the planned order.
        missing: Planned operations that were not measured.
        extra: Measured operations that are not planned.
        repeated: Second and later occurrences of operations that ran several times. The first
            occurrence is compared with the plan.
    """

    displaced: Ints
    places: Ints
    missing: Ints
    extra: Ints
    repeated: Ints

    @property
    def count(self) -> int:
        """Number of operations that are displaced, missing, extra or repeated."""
        columns = (self.displaced, self.missing, self.extra, self.repeated)
        return sum(len(column) for column in columns)


def compare_orders(measured: Ints, planned: Ints) -> OrderDifference:
    """Find the operations of a measured order that differ from a planned order.

    Unordered weight gradients are first sorted as planned. They are dropped if they are not planned
    (:func:`.order_as_planned`). Finding the operations in place takes O(n log n) for the n
    operations from the first to the last difference.

    Args:
        measured: Codes of the operations in the order in which they ran.
        planned: Codes of the operations in the planned order, without duplicates.
    """
    measured = order_as_planned(measured, planned)
    if np.array_equal(measured, planned):
        return OrderDifference(*[np.empty(0, np.int64)] * 5)
    first_rows = np.sort(np.unique(measured, return_index=True)[1])
    distinct_codes = measured[first_rows]
    planned_row = _find_rows(planned, distinct_codes)
    is_planned = planned_row != NONE
    common, planned_row = distinct_codes[is_planned], planned_row[is_planned]
    has_run = np.zeros(len(planned), bool)
    has_run[planned_row] = True
    # Position of each operation in the plan, not counting operations that did not run.
    position = (np.cumsum(has_run) - 1)[planned_row]
    in_place = _mask_in_place(position)
    displaced_rows = np.flatnonzero(~in_place)
    n_before_measured = np.cumsum(in_place)[displaced_rows]
    n_before_planned = np.searchsorted(np.sort(position[in_place]), position[displaced_rows])
    return OrderDifference(
        displaced=common[displaced_rows],
        places=n_before_measured - n_before_planned,
        missing=planned[~has_run],
        extra=distinct_codes[~is_planned],
        repeated=np.delete(measured, first_rows),
    )


def _find_rows(codes: Ints, queries: Ints) -> Ints:
    """Return the row of each query in a column of distinct codes, or -1 if it does not occur."""
    by_code = np.argsort(codes)
    return np.append(by_code, NONE)[grouping.find_positions(codes[by_code], queries)]


def _mask_in_place(position: Ints) -> Bools:
    """Return a mask of a longest increasing subsequence.

    Args:
        position: A permutation of 0 to n - 1.
    """
    in_place = np.ones(len(position), bool)
    changed = np.flatnonzero(position != np.arange(len(position)))
    if len(changed):
        # Everything before the first and after the last change belongs to the subsequence.
        between = slice(int(changed[0]), int(changed[-1]) + 1)
        in_place[between] = _mask_longest_increasing(position[between].tolist())
    return in_place


def _mask_longest_increasing(values: list[int]) -> Bools:
    """Return a mask of a longest increasing subsequence of distinct values (patience sorting).

    ``tails[n]`` is the smallest last value of all increasing subsequences of length n + 1 that were
    found so far.
    """
    tails: list[int] = []
    tail_rows: list[int] = []
    previous_row = [NONE] * len(values)
    for row, value in enumerate(values):
        length = bisect_left(tails, value)
        if length:
            previous_row[row] = tail_rows[length - 1]
        tails[length : length + 1], tail_rows[length : length + 1] = [value], [row]
    is_chosen = np.zeros(len(values), bool)
    row = tail_rows[-1] if tail_rows else NONE
    while row != NONE:
        is_chosen[row] = True
        row = previous_row[row]
    return is_chosen
