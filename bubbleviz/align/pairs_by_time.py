"""Pairing by time: which iterations are the same on ranks of one clock, if some ranks skip some.

A stage may have no work in an iteration, as a vision encoder in a step whose samples are text
alone. Then its rank has fewer iterations than others, and no shift of their numbers pairs them.
On one clock, the parts of one iteration overlap in time, and those of others do not::

    stage 0   ├─ 0 ─┤             ├─ 1 ─┤
    stage 1    ├─ 0 ─┤   ├─ 1 ─┤   ├─ 2 ─┤      iteration 1 of stage 0 is 2 of stage 1
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import NONE, Ints, marked
from bubbleviz.model.intervals import group_extents


def pair_by_time(
    rank: Ints, iteration: Ints, start_ns: Ints, end_ns: Ints, shape: tuple[int, int]
) -> Ints | None:
    """Return the common number of each rank's iterations, by overlap in time.

    The numbers are the iterations of the rank that has most of them, of several ranks the first.
    Each iteration of another rank gets the number of the one that it overlaps longest.

    Args:
        rank: Rank of each operation that is work.
        iteration: The rank's own iteration of each of them, from 0.
        start_ns: Start of each, on one clock.
        end_ns: End of each.
        shape: Number of ranks, and of iterations of the rank that has most.

    Returns:
        Number of each rank's own iterations, shape ``shape``. An iteration without work has the
        number of the rank's iteration before, or -1 if there is none. None if an iteration
        overlaps none of the reference, or if two iterations of a rank would get one number.
    """
    cell, n_cells = rank * shape[1] + iteration, shape[0] * shape[1]
    first_of_cell, last_of_cell = group_extents(cell, n_cells, start_ns, end_ns)
    first_ns, last_ns = first_of_cell.reshape(shape), last_of_cell.reshape(shape)
    has_work = marked(n_cells, cell).reshape(shape)
    n_worked = np.count_nonzero(has_work, axis=1)
    if not n_worked.any():
        return None
    reference = int(n_worked.argmax())
    columns = np.flatnonzero(has_work[reference])
    numbers = np.full(shape, NONE, np.int64)
    for row in np.flatnonzero(n_worked).tolist():
        worked = np.flatnonzero(has_work[row])
        begin = np.maximum(first_ns[row, worked, None], first_ns[reference, columns])
        end = np.minimum(last_ns[row, worked, None], last_ns[reference, columns])
        longest = (end - begin).argmax(axis=1)
        overlaps = np.take_along_axis(end - begin, longest[:, None], axis=1) > 0
        if not overlaps.all() or (np.diff(longest) <= 0).any():
            return None
        numbers[row, worked] = longest
    return np.maximum.accumulate(numbers, axis=1)
