"""Delays: how long iterations took, and how late work started after all that it follows."""

from __future__ import annotations

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.explain.dependencies import Dependencies
from bubbleviz.explain.slowdown.work import COMPUTING, Work, plays
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import find_distinct, find_positions
from bubbleviz.model.intervals import group_extents, group_latest


def measured_ns(work: Work, iterations: Ints) -> Ints:
    """Return how long each of some iterations took: from its first start to its last end.

    Args:
        work: of all ranks.
        iterations: numbers of the iterations.
    """
    low, high = _extents(work, iterations)
    return high - low


def _extents(work: Work, iterations: Ints) -> tuple[Ints, Ints]:
    # Any other iteration is the last place, at -1.
    place = find_positions(iterations, work.iteration)
    low, high = group_extents(place, len(iterations) + 1, work.start_ns, work.end_ns)
    return low[:-1], high[:-1]


def delays_of(work: Work, order: Dependencies) -> Ints:
    """Return how long each row started after all that it follows had ended.

    The launch delay of ``calc_launch_delay`` in the published ``analyzer/wia.py``; of a row that
    follows none it counts from the first start of its iteration.
    """
    ready_ns = group_latest(order.after, len(work), work.end_ns[order.before], NEVER)
    iterations = find_distinct(work.iteration)
    first_ns = _extents(work, iterations)[0][find_positions(iterations, work.iteration)]
    return work.start_ns - np.where(ready_ns == NEVER, first_ns, ready_ns)


def early_starts(work: Work, delays_ns: Ints) -> Ints:
    """Return how long before all that it follows had ended each row started, as negative numbers.

    Operations can begin with work that needs no input; any other row starts no earlier.
    """
    early_ns = np.minimum(delays_ns, 0)
    early_ns[~plays(work.role, COMPUTING)] = 0
    return early_ns
