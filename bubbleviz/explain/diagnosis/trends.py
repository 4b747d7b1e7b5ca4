"""Trends: whether something grows over the iterations of a run, steadily or at once."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import first_of_each
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen

#: A trend makes this change of a logarithm from the first iteration to the last.
_CHANGE = 0.03
#: It needs so many iterations, and explains this share of the variance: of so many, of one more,
#: of any more. Chance does so about once in a hundred times (F test of a line).
_LEAST_ITERATIONS, _EXPLAINED = 6, np.array((0.84, 0.77, 0.7))
#: A jump needs so many iterations, has so many on either side, makes this change of a logarithm,
#: and is so many times as large as what is left: of several places the best is chosen, which
#: chance makes large.
_LEAST_AROUND, _BESIDE, _JUMP, _TIMES = 8, 2, 0.05, 8.0
#: A smaller sum of squares is what sums are rounded by.
_ROUNDED = 1e-18


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
    beyond = np.asarray(count) - _LEAST_ITERATIONS
    enough = (beyond >= 0) & (explained >= _EXPLAINED[np.clip(beyond, 0, len(_EXPLAINED) - 1)])
    return np.asarray(enough & (change >= _CHANGE), bool)


@frozen
class Jumps:
    """Where each group's points jump, by which they are explained best.

    Attributes:
        begin: where the first point behind the jump is.
        change: of the mean.
        explained: share of the variance.
        stands_out: whether the jump is up, and more than chance.
    """

    begin: Floats
    change: Floats
    explained: Floats
    stands_out: Bools


def jumps(group: Ints, x: Floats, y: Floats) -> Jumps:
    """Return the best jump of each group's points.

    ::

        y              • • •      change
            • • • •               from the mean before to the mean behind
                     begin

    Args:
        group: of each point, from 0; each has some.
        x: of the points.
        y: likewise.
    """
    order = sorted_rows(group, x)
    of, value = group[order], y[order]
    count = np.bincount(of)
    first = np.cumsum(count) - count
    before = np.arange(len(of)) - first[of]
    behind = count[of] - before
    sums = np.cumsum(value) - value
    total = np.bincount(of, value)
    left = (sums - sums[first][of]) / np.maximum(before, 1)
    right = (total[of] - (sums - sums[first][of])) / behind
    change = right - left
    possible = (before >= _BESIDE) & (behind >= _BESIDE)
    between = np.where(possible, before * behind / count[of] * change**2, 0.0)
    best = first_of_each(of, -between)
    variance = np.bincount(of, (value - (total / count)[of]) ** 2)
    left_over = np.sqrt(np.maximum(variance - between[best], 0.0) / np.maximum(count - 2, 1))
    enough = (count >= _LEAST_AROUND) & possible[best]
    return Jumps(
        begin=x[order][best],
        change=change[best],
        explained=np.divide(
            between[best], variance, out=np.zeros(len(best)), where=variance > _ROUNDED
        ),
        stands_out=enough & (change[best] >= _JUMP) & (change[best] >= _TIMES * left_over),
    )
