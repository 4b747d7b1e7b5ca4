"""Pairing by time: match iterations of ranks on one clock even if some ranks skip iterations.

A stage may have no work in an iteration, such as a vision encoder in a step with text samples only.
The stage's rank then has fewer iterations than other ranks, and no constant shift of iteration
numbers pairs them. On one clock, occurrences of the same iteration on different ranks overlap in
time, and different iterations do not::

    stage 0   ├─ 0 ─┤             ├─ 1 ─┤
    stage 1    ├─ 0 ─┤   ├─ 1 ─┤   ├─ 2 ─┤      iteration 1 of stage 0 is 2 of stage 1
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Ints, make_mask
from bubbleviz.model.grouping import find_first_rows
from bubbleviz.model.intervals import Intervals, find_overlaps, group_extents


def pair_by_time(
    rank: Ints, iteration: Ints, start_ns: Ints, end_ns: Ints, is_worked: Bools
) -> Ints | None:
    """Number the iterations on all ranks by their overlap with the iterations on a reference rank.

    The reference is the rank with the most iterations, and the smallest rank wins ties. An
    iteration of another rank gets the number of the reference iteration with the longest overlap.

    Args:
        rank: Rank of each operation whose times are compared.
        iteration: Zero-based iteration of each operation, numbered separately for each rank.
        start_ns: Start of each operation, on one clock.
        end_ns: End of each operation.
        is_worked: Mask of the iterations in which a rank works, shape (ranks, iterations). The time
            of an iteration is unknown if it is in this mask but no operation is given for it.

    Returns:
        Common iteration number for each iteration on each rank, shape (ranks, iterations). An
        iteration whose time is unknown gets its rank's previous iteration number plus 1. An
        iteration without work has the same number as the previous one, or -1 if there is none.

        The result is None in each of these cases:

        - There are no operations.
        - An iteration overlaps no reference iteration.
        - The numbers of a rank are not strictly ascending.
    """
    shape = is_worked.shape
    first_ns, last_ns = _find_extents(rank, iteration, (start_ns, end_ns), shape)
    has_work = make_mask(shape, (rank, iteration))
    n_worked = np.count_nonzero(has_work, axis=1)
    if not n_worked.any():
        return None
    reference = int(n_worked.argmax())
    is_used = has_work[reference]
    reference_ns = first_ns[reference, is_used], last_ns[reference, is_used]
    numbers = np.full(shape, NONE, np.int64)
    for row in np.flatnonzero(n_worked).tolist():
        iterations = np.flatnonzero(has_work[row])
        longest = _find_longest_overlaps(
            (first_ns[row, iterations], last_ns[row, iterations]), reference_ns
        )
        if (longest == NONE).any() or (np.diff(longest) <= 0).any():
            return None
        numbers[row, iterations] = longest
    if not _number_untimed(numbers, is_worked & ~has_work):
        return None
    return np.maximum.accumulate(numbers, axis=1)


def _find_extents(
    rank: Ints, iteration: Ints, times: Intervals, shape: tuple[int, ...]
) -> Intervals:
    """Return the first start and last end of the operations in each iteration on each rank.

    Args:
        rank: Rank of each operation.
        iteration: Zero-based iteration of each operation, numbered separately for each rank.
        times: Starts and ends of the operations.
        shape: Number of ranks and number of iterations.

    Returns:
        First start and last end of each iteration, both of the given shape. For an iteration
        without operations, they are 0 and -1.
    """
    cell = rank * shape[1] + iteration
    first_ns, last_ns = group_extents(cell, shape[0] * shape[1], *times)
    return first_ns.reshape(shape), last_ns.reshape(shape)


def _number_untimed(numbers: Ints, is_untimed: Bools) -> bool:
    """Give each iteration whose time is unknown its rank's next number.

    The next number is 1 plus the largest number of the rank's earlier iterations, or 0 if none of
    them has a number.

    Args:
        numbers: Common iteration number for each iteration on each rank, or -1 if it has none,
            shape (ranks, iterations). Modified in place.
        is_untimed: Mask of the iterations to number, same shape as ``numbers``.

    Returns:
        True if all iterations were numbered. False if a later iteration of the same rank already
        has one of the new numbers. The remaining iterations are then not numbered.
    """
    for row, column in np.argwhere(is_untimed).tolist():
        number = int(numbers[row, :column].max(initial=NONE)) + 1
        if number in numbers[row, column:]:
            return False
        numbers[row, column] = number
    return True


def _find_longest_overlaps(intervals: Intervals, reference: Intervals) -> Ints:
    """Return, for each interval, the index of the reference interval with the longest overlap.

    If the overlaps with several reference intervals are equally long, the first interval wins. The
    index is -1 if no reference interval overlaps the interval.

    Args:
        intervals: Starts and ends of the intervals.
        reference: Starts and ends of the reference intervals, in any order. Must not be empty.
    """
    start_ns, end_ns = intervals
    first_ns, last_ns = reference
    row, index = find_overlaps(intervals, reference)
    overlap_end_ns = np.minimum(end_ns[row], last_ns[index])
    overlap_ns = overlap_end_ns - np.maximum(start_ns[row], first_ns[index])
    is_overlap = overlap_ns > 0
    row, index, overlap_ns = row[is_overlap], index[is_overlap], overlap_ns[is_overlap]
    best = find_first_rows(row, -overlap_ns)
    longest = np.full(len(start_ns), NONE, np.int64)
    longest[row[best]] = index[best]
    return longest
