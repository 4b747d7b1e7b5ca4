"""Measured: how long iterations took, and how late what was launched in them."""

from __future__ import annotations

import numpy as np

from bubbleviz.explain.slowdown.replay import Order
from bubbleviz.explain.slowdown.work import COMPUTING, Work
from bubbleviz.model.columns import Ints
from bubbleviz.model.grouping import distinct
from bubbleviz.model.intervals import group_extents


def measured_ns(work: Work, iterations: Ints) -> Ints:
    """Return how long each of some iterations took: from its first start to its last end.

    Args:
        work: of all ranks.
        iterations: numbers of the iterations.
    """
    low, high = _extents(work, iterations)
    return high - low


def _extents(work: Work, iterations: Ints) -> tuple[Ints, Ints]:
    place = np.searchsorted(iterations, work.iteration)
    place = np.where(np.isin(work.iteration, iterations), place, len(iterations))
    low, high = group_extents(place, len(iterations) + 1, work.start_ns, work.end_ns)
    return low[:-1], high[:-1]


def delays_of(work: Work, order: Order) -> Ints:
    """Return how long each row started after all that it follows had ended.

    The launch delay of ``calc_launch_delay`` in the published ``analyzer/wia.py``; of a row that
    follows none it counts from the first start of its iteration.
    """
    ready_ns = group_extents(
        order.row, len(work), work.end_ns[order.before], work.end_ns[order.before]
    )[1]
    iterations = distinct(work.iteration)
    first_ns = _extents(work, iterations)[0][np.searchsorted(iterations, work.iteration)]
    follows = np.bincount(order.row, minlength=len(work)) > 0
    return work.start_ns - np.where(follows, ready_ns, first_ns)


def early_starts(work: Work, order: Order) -> Ints:
    """Return how long before all that it follows had ended each row started, as negative numbers.

    Operations can begin with work that needs no input; any other row starts no earlier.
    """
    early_ns = np.minimum(delays_of(work, order), 0)
    early_ns[~np.isin(work.role, COMPUTING)] = 0
    return early_ns
