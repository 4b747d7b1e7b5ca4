"""Fits of lines, parabolas and jumps to many groups of points at once.

A group contains the points of one series, for example the paces of a rank in all iterations.
Isolated outliers are removed before the fits (:func:`replace_spikes`)::

    line (fit_lines)         parabola (fit_parabolas)         jump (fit_jumps)

              •                               •
           •                                •                         • • •
        •                                 •
     •                             • • •                      • • • •

All fits minimize the squared differences between the points and the curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import find_first_rows, sort_rows

#: Minimum part of the squared positions that a line does not explain, for the fit of a parabola.
#: A smaller part consists of rounding errors, because there are fewer than three positions.
_MIN_CURVE = 1e-9
#: Minimum total rise of a rising line.
_MIN_RISE = 0.03
#: Minimum number of points of a rising line. Minimum fraction of the variance that it explains with
#: 6, 7, and 8 or more points. Chance explains this fraction in about one in a hundred series (F
#: test of a line).
_MIN_TREND_POINTS, _MIN_EXPLAINED = 6, np.array((0.84, 0.77, 0.7))
#: Minimum number of points in which a jump can be found, and minimum number on each side.
MIN_JUMP_POINTS, MIN_SIDE = 8, 2
#: Minimum change at a jump, in absolute terms and in standard deviations. The number of standard
#: deviations is large because the best of many positions is chosen.
_MIN_JUMP, _MIN_JUMP_ERRORS = 0.05, 8.0
#: Minimum difference between an outlier and the median of the outlier and its two neighbors.
_MIN_SPIKE = 0.2
#: Maximum sum of squares that is attributed to rounding.
_MAX_ROUNDING = 1e-18


def replace_spikes(group: Ints, x: Floats, y: Floats) -> Floats:
    """Replace isolated outliers, which would hide a trend or a jump.

    ::

        y         •           outlier
            • • • ○ • • •     replacement: the median of the outlier and its two neighbors

    Each point is compared with the median of itself and its two neighbors, or of the first or last
    three points at the ends of a group. If it differs from this median by more than 0.2, it is
    replaced with the median. Groups of fewer than 6 points are unchanged.

    Args:
        group: Zero-based group number of each point.
        x: Position of each point, which determines the order of points in a group.
        y: Value of each point.

    Returns:
        A copy of ``y`` without outliers.
    """
    order = sort_rows(group, x)
    group_of_point, value = group[order], y[order]
    count = np.bincount(group_of_point)
    first = np.cumsum(count) - count
    middle = np.arange(len(order))
    middle = np.clip(middle, (first + 1)[group_of_point], (first + count - 2)[group_of_point])
    triples = [value.take(middle + offset, mode="clip") for offset in (-1, 0, 1)]
    median = np.sort(triples, axis=0)[1]
    is_long = count[group_of_point] >= _MIN_TREND_POINTS
    is_spike = is_long & (np.abs(value - median) > _MIN_SPIKE)
    smooth = y.copy()
    smooth[order] = np.where(is_spike, median, value)
    return smooth


def fit_lines(group: Ints, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Fit a line through the points of each group by least squares.

    Args:
        group: Zero-based group number of each point.
        x: Position of each point.
        y: Value of each point.

    Returns:
        slope: Slope of each group's line, or 0 if all ``x`` of the group are equal.
        explained: Fraction of the variance that each line explains (R squared), or 0 if all ``x``
            or all ``y`` of the group are equal.
    """
    count = np.maximum(np.bincount(group), 1)
    mean_x, mean_y = np.bincount(group, x) / count, np.bincount(group, y) / count
    dx, dy = x - mean_x[group], y - mean_y[group]
    xx, xy, yy = (np.bincount(group, v) for v in (dx * dx, dx * dy, dy * dy))
    slope = np.divide(xy, xx, out=np.zeros(len(count)), where=xx > 0)
    explained = np.divide(xy * xy, xx * yy, out=np.zeros(len(count)), where=xx * yy > 0)
    return slope, explained


def fit_parabolas(group: Ints, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Fit a parabola through the points of each group by least squares.

    Args:
        group: Zero-based group number of each point.
        x: Position of each point.
        y: Value of each point.

    Returns:
        slope: Slope of each group's parabola at x = 0, or of its line (:func:`fit_lines`) if the
            group has fewer than three distinct positions.
        bend: Quadratic coefficient of each parabola, or 0 if the group has fewer than three
            distinct positions.
    """
    count = np.maximum(np.bincount(group), 1)
    mean_x = np.bincount(group, x) / count
    dx = x - mean_x[group]
    line_slope, _ = fit_lines(group, dx, y)
    # Fit the part of dx**2 that a line does not explain to the part of y that it does not explain.
    square_slope, _ = fit_lines(group, dx, dx**2)
    curve = dx**2 - square_slope[group] * dx
    curve -= (np.bincount(group, curve) / count)[group]
    curve_by_y, curve_squared = np.bincount(group, curve * y), np.bincount(group, curve**2)
    has_bend = curve_squared > _MIN_CURVE * np.bincount(group, dx**4)
    bend = np.divide(curve_by_y, curve_squared, out=np.zeros(len(count)), where=has_bend)
    slope = line_slope - bend * square_slope - 2 * bend * mean_x
    return slope, bend


def is_rising(count: Ints | int, slope: Floats, explained: Floats) -> Bools:
    """Return a mask of the lines that rise significantly.

    A rising line has at least 6 points and rises by at least 0.03 in total. It must also explain
    enough of the variance: 84 % with 6 points, 77 % with 7 points, and 70 % with more.

    Args:
        count: Number of points of each line.
        slope: Slope of each line per point.
        explained: Fraction of the variance that each line explains.
    """
    n_extra = np.asarray(count) - _MIN_TREND_POINTS
    min_explained = _MIN_EXPLAINED[np.clip(n_extra, 0, len(_MIN_EXPLAINED) - 1)]
    is_steady = (n_extra >= 0) & (explained >= min_explained)
    rise = slope * (np.asarray(count) - 1)
    return np.asarray(is_steady & (rise >= _MIN_RISE), bool)


@dataclass(frozen=True, eq=False, repr=False)
class Jumps:
    """The best jump of each group of points.

    Attributes:
        position: Position of the first point after the jump.
        change: Mean value after the jump minus the mean value before it.
        explained: Fraction of the variance that the jump explains.
        is_significant: Whether the jump is upward and larger than expected by chance.
    """

    position: Floats
    change: Floats
    explained: Floats
    is_significant: Bools


def fit_jumps(group: Ints, x: Floats, y: Floats) -> Jumps:
    """Find the jump that explains most of each group's variance (least-squares change point).

    ::

        y              • • •      change
            • • • •               from the mean before to the mean after
                     position

    A jump is significant if three conditions hold:

    - The group has at least 8 points, with at least 2 points on each side.
    - The change is at least 0.05.
    - The change is at least 8 standard deviations of the points around the means before and after
      it.

    Args:
        group: Zero-based group number of each point. Every group must have at least one point.
        x: Position of each point.
        y: Value of each point.

    Returns:
        One jump per group. If several positions are equally good, the first one is used.
    """
    order = sort_rows(group, x)
    group_of_point, value = group[order], y[order]
    is_possible, change, explained_sq = _evaluate_splits(group_of_point, value)
    best = find_first_rows(group_of_point, -explained_sq)

    total_sq = _sum_squared_deviations(group_of_point, value)
    residual_sq = np.maximum(total_sq - explained_sq[best], 0.0)
    has_variance = total_sq > _MAX_ROUNDING
    explained = np.divide(explained_sq[best], total_sq, out=np.zeros(len(best)), where=has_variance)
    is_significant = is_possible[best]
    is_significant &= _is_clear_rise(change[best], residual_sq, np.bincount(group_of_point))
    return Jumps(x[order][best], change[best], explained, is_significant)


def _sum_squared_deviations(group: Ints, value: Floats) -> Floats:
    """For each group, return the sum of squared deviations of its values from their mean.

    Args:
        group: Zero-based group number of each value. Every group must have at least one value.
        value: The values.
    """
    mean = np.bincount(group, value) / np.bincount(group)
    return np.asarray(np.bincount(group, (value - mean[group]) ** 2), np.float64)


def _is_clear_rise(change: Floats, residual_sq: Floats, count: Ints) -> Bools:
    """Return a mask of the jumps that are upward and larger than expected by chance.

    The group must have at least 8 points. The change must be at least 0.05, and at least 8 standard
    deviations of the points around the means before and after the jump. The standard deviation has
    n - 2 degrees of freedom.

    Args:
        change: Change of each jump.
        residual_sq: Sum of squared deviations of each group's points from the two means.
        count: Number of points of each group.
    """
    deviation = np.sqrt(residual_sq / np.maximum(count - 2, 1))
    is_large = (change >= _MIN_JUMP) & (change >= _MIN_JUMP_ERRORS * deviation)
    return np.asarray(is_large & (count >= MIN_JUMP_POINTS), bool)


def _evaluate_splits(group: Ints, value: Floats) -> tuple[Bools, Floats, Floats]:
    """For each point, evaluate a jump directly before this point in its group.

    Args:
        group: Group of each point, ascending.
        value: Value of each point, in order of position.

    Returns:
        is_possible: Whether at least 2 points are on each side.
        change: Mean of the point and all later points minus the mean of the earlier points.
        explained_sq: Sum of squares that the jump explains; 0 if ``is_possible`` is false.
    """
    count = np.bincount(group)
    first = np.cumsum(count) - count
    n_before = np.arange(len(group)) - first[group]
    n_after = count[group] - n_before
    preceding_sum = np.cumsum(value) - value
    sum_before = preceding_sum - preceding_sum[first][group]
    sum_after = np.bincount(group, value)[group] - sum_before
    change = sum_after / n_after - sum_before / np.maximum(n_before, 1)
    is_possible = (n_before >= MIN_SIDE) & (n_after >= MIN_SIDE)
    explained_sq = np.where(is_possible, n_before * n_after / count[group] * change**2, 0.0)
    return is_possible, change, explained_sq
