"""Pairing by time: match the iterations of ranks on one clock if some ranks skip some iterations.

A stage may have no work in an iteration, such as a vision encoder in a step with text samples only.
Its rank then has fewer iterations than others, and no constant shift of their numbers pairs them.
On one clock, the parts of one iteration overlap in time, and parts of different iterations do not::

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
    """Number the iterations of all ranks by their overlap in time with those of a reference rank.

    The reference is the rank with the most iterations, or the first of several such ranks. An
    iteration of another rank gets the number of the reference iteration with the longest overlap.

    Args:
        rank: Rank of each operation whose time is compared.
        iteration: Iteration of each operation, numbered per rank from 0.
        start_ns: Start of each operation, on one clock.
        end_ns: End of each operation.
        is_worked: Mask of the iterations in which a rank works, shape (ranks, iterations). It may
            include iterations without any operation in ``rank``, whose time is unknown.

    Returns:
        Number of each rank's iterations, shape (ranks, iterations). An iteration whose time is
        unknown has the next number after the previous iteration of its rank. An iteration without
        work has the same number as the previous one, or -1 if there is none. The result is None
        without any operation, if an iteration overlaps no reference iteration, or if two iterations
        of a rank would get the same number.
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
    """Return the first start and the last end of the operations in each iteration of each rank.

    Args:
        rank: Rank of each operation.
        iteration: Iteration of each operation, numbered per rank from 0.
        times: Starts and ends of the operations.
        shape: Number of ranks and number of iterations.

    Returns:
        First start and last end, each of the given shape; (0, -1) without any operation.
    """
    cell = rank * shape[1] + iteration
    first_ns, last_ns = group_extents(cell, shape[0] * shape[1], *times)
    return first_ns.reshape(shape), last_ns.reshape(shape)


def _number_untimed(numbers: Ints, is_untimed: Bools) -> bool:
    """Number the iterations whose time is unknown: each follows the largest number before it.

    Args:
        numbers: Number of each rank's iterations, or -1, shape (ranks, iterations); updated.
        is_untimed: Mask of the iterations to number, same shape.

    Returns:
        False if a later iteration of the same rank already has the number.
    """
    for row, column in np.argwhere(is_untimed).tolist():
        number = int(numbers[row, :column].max(initial=NONE)) + 1
        if number in numbers[row, column:]:
            return False
        numbers[row, column] = number
    return True


def _find_longest_overlaps(intervals: Intervals, reference: Intervals) -> Ints:
    """Return the index of the reference interval that overlaps each interval longest.

    If several overlap it equally long, the first wins. The index is -1 if none overlaps it.

    Args:
        intervals: Starts and ends of the intervals.
        reference: Starts and ends of the reference intervals, at least one, in any order.
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
