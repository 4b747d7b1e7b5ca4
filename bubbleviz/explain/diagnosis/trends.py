"""Trends: whether something grows steadily over the iterations of a run."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints

#: A trend needs so many iterations, explains this share of the variance, and makes this change of
#: a logarithm from the first iteration to the last.
_LEAST_ITERATIONS, _EXPLAINED, _CHANGE = 8, 0.7, 0.03


def lines(group: Ints, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return slope and explained share of the variance of a line through each group's points.

    Args:
        group: of each point, from 0.
        x: of the points.
        y: likewise.
    """
    count = np.maximum(np.bincount(group), 1)
    mean_x, mean_y = np.bincount(group, x) / count, np.bincount(group, y) / count
    dx, dy = x - mean_x[group], y - mean_y[group]
    xx, xy, yy = (np.bincount(group, v) for v in (dx * dx, dx * dy, dy * dy))
    slope = np.divide(xy, xx, out=np.zeros(len(count)), where=xx > 0)
    explained = np.divide(xy * xy, xx * yy, out=np.zeros(len(count)), where=xx * yy > 0)
    return slope, explained


def rises(count: Ints | int, slope: Floats, explained: Floats) -> Bools:
    """Tell which lines rise enough, and steadily.

    Args:
        count: number of points of each.
        slope: of each, a logarithm by point.
        explained: share of the variance.
    """
    change = slope * (np.asarray(count) - 1)
    enough = (np.asarray(count) >= _LEAST_ITERATIONS) & (explained >= _EXPLAINED)
    return np.asarray(enough & (change >= _CHANGE), bool)
