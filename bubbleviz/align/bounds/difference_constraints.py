"""Difference constraints between constant offsets, as a matrix of limits.

``limit[after, before]`` is the most by which the correction of ``before`` can exceed that of
``after``; infinite where nothing bounds it.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.align.bounds.clock_segments import Floats
from bubbleviz.align.bounds.precedences import Precedences
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.sorting import sorted_rows


def tightest_limits(precedences: Precedences, clocks: int) -> tuple[Floats, Ints]:
    """Return the least ``after - before`` of each pair (after, before) of clocks, and its row.

    That is the most by which the correction of ``before`` can exceed that of ``after``.
    """
    limit = np.full((clocks, clocks), np.inf)
    row = np.full((clocks, clocks), NONE, np.int64)
    slack = precedences.after_ns - precedences.before_ns
    order = sorted_rows(-slack, -np.arange(len(slack)))
    pair = precedences.after[order], precedences.before[order]
    # Of rows that share a pair the last one written stays: the tightest.
    limit[pair], row[pair] = slack[order], order
    np.fill_diagonal(limit, 0.0)
    return limit, row


def needed_slack(limit: Floats) -> tuple[float, list[int]]:
    """Return the slack that each bound needs so that constant offsets exist, and the worst circle.

    It is the negative of the least mean length of a circle (Karp 1978, "A characterization of
    the minimum cycle mean in a digraph"), with walks that may begin anywhere; 0 or less where no
    bound needs any. The clocks of that circle are returned in the order of its arcs, which lead
    from ``after`` to ``before``.
    """
    clocks = len(limit)
    arcs = limit.copy()
    np.fill_diagonal(arcs, np.inf)
    walks, previous = np.zeros((clocks + 1, clocks)), np.zeros((clocks + 1, clocks), np.int64)
    for length in range(clocks):
        longer = walks[length][:, None] + arcs
        previous[length + 1] = longer.argmin(axis=0)
        walks[length + 1] = longer.min(axis=0)
    ends = np.flatnonzero(np.isfinite(walks[clocks]))
    if len(ends) == 0:
        return -np.inf, []
    steps = (clocks - np.arange(clocks))[:, None]
    means = ((walks[clocks, ends] - walks[:clocks, ends]) / steps).max(axis=0)
    # The longest walk to the clock with the least mean runs through that circle.
    walk = [int(ends[means.argmin()])]
    for length in range(clocks, 0, -1):
        walk.append(int(previous[length, walk[-1]]))
        if walk[-1] in walk[:-1]:
            break
    return -float(means.min()), walk[walk.index(walk[-1]) + 1 :][::-1]


def rounded_up(slack: float) -> float:
    """Return the slack with what sums of it may lose by rounding; 0 where none is needed."""
    return slack + 0.5 if slack > 0 else 0.0


def _shortest_paths(limit: Floats) -> Floats:
    """Return the shortest paths between all clocks (Floyd and Warshall); no circle is negative."""
    paths = limit.copy()
    for via in range(len(paths)):
        np.minimum(paths, paths[:, via, None] + paths[None, via, :], out=paths)
    return paths


def middles(limit: Floats, reference: int) -> tuple[Floats, Bools]:
    """Return the middle of each clock's interval, and whether it is bounded from both sides.

    Clocks that are not bounded against the reference are set against the first clock that bounds
    them, which keeps its own time.
    """
    paths = _shortest_paths(limit)
    mutual = np.isfinite(paths) & np.isfinite(paths.T)
    root = np.where(mutual[reference], reference, mutual.argmax(axis=0))
    clock = np.arange(len(limit))
    return (paths[root, clock] - paths[clock, root]) / 2, mutual[reference]


def half_widths(limit: Floats, reference: int) -> Floats:
    """Return half of what is left open of each clock against the reference; infinite for all."""
    paths = _shortest_paths(limit)
    return np.asarray((paths[reference] + paths[:, reference]) / 2, np.float64)
