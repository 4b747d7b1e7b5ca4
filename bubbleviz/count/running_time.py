"""Running time: how long kernels and copies ran in windows of iterations."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.model.intervals import side_by_side
from bubbleviz.model.operations import RunningTimes


def time_within(times: RunningTimes, time_ns: Ints, low_ns: Ints, high_ns: Ints) -> Ints:
    """Return how much of a time lies in each window [low, high].

    Of a stretch that a window cuts, the time counts by the share of the stretch inside. Iterations'
    own first starts and last ends cut none.

    Args:
        times: the stretches of the ranks.
        time_ns: one of their columns.
        low_ns: starts of windows, shape (windows, ranks).
        high_ns: their ends, likewise; none is before its start.
    """
    if len(times) == 0:
        return np.zeros_like(low_ns)
    sets = times.rank, times.start_ns, times.end_ns
    (start, end), (low, high) = side_by_side(sets, low_ns, high_ns)
    before_ns = np.concatenate(([0], np.cumsum(time_ns)))

    def upto(place: Ints) -> Ints:
        row = np.searchsorted(start, place, side="right") - 1
        at = np.maximum(row, 0)
        share = np.clip((place - start[at]) / np.maximum(end[at] - start[at], 1), 0, 1)
        part_ns = np.rint(time_ns[at] * share).astype(np.int64)
        return np.where(row >= 0, before_ns[at] + part_ns, 0)

    return upto(high) - upto(low)
