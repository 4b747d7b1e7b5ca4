"""Measure iteration lengths, and the time from the end of predecessors to the start of work."""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.work import COMPUTING, Work, has_role
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct, find_positions
from bubbleviz.model.intervals import group_extents, group_latest


def measure_iterations(work: Work, iterations: Ints) -> Ints:
    """Return the length of each iteration in ns, from the first start to the last end of its work.

    Args:
        work: Work table of all ranks.
        iterations: Numbers of the iterations to measure, ascending.
    """
    start_ns, end_ns = _find_extents(work, iterations)
    return end_ns - start_ns


def _find_extents(work: Work, iterations: Ints) -> tuple[Ints, Ints]:
    """Return two arrays: the first start and the last end of the work in each iteration, in ns.

    Args:
        work: Work table of all ranks.
        iterations: Numbers of the iterations, ascending.
    """
    # Rows of other iterations have position -1, so they go into an extra last group.
    position = find_positions(iterations, work.iteration)
    low, high = group_extents(position, len(iterations) + 1, work.start_ns, work.end_ns)
    return low[:-1], high[:-1]


def measure_delays(work: Work, order: Dependencies) -> Ints:
    """For each row, return the time in ns from the end of its last predecessor to its start.

    This is the launch delay that ``calc_launch_delay`` computes in the published
    ``analyzer/wia.py``. A delay is negative if the row starts before a predecessor ends. The delay
    of a row without a predecessor is measured from the first start of its iteration.

    Args:
        work: Work table of all ranks.
        order: Dependencies of the work, as pairs of a row and one of its predecessors.
    """
    ready_ns = group_latest(order.successor, len(work), work.end_ns[order.predecessor], NEVER)
    iterations = find_distinct(work.iteration)
    first_ns = _find_extents(work, iterations)[0][find_positions(iterations, work.iteration)]
    return work.start_ns - np.where(ready_ns == NEVER, first_ns, ready_ns)


def keep_early_starts(work: Work, delays_ns: Ints) -> Ints:
    """Return the negative delays of compute operations, and 0 for all other rows.

    A compute operation can start before its input is ready if its first part needs no input. In a
    replay, no other row starts before its predecessors end.

    Args:
        work: Work table of all ranks.
        delays_ns: Delay of each row, as returned by :func:`measure_delays`.
    """
    early_ns = np.minimum(delays_ns, 0)
    early_ns[~has_role(work.role, COMPUTING)] = 0
    return early_ns
