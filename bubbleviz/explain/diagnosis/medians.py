"""Medians of groups, and of the other members of each member's group."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.columns import Floats, Ints
from bubbleviz.model.sorting import sorted_rows


def group_medians(group: Ints, groups: int, values: Floats) -> Floats:
    """Return the lower median of each group; NaN for one without values.

    Args:
        group: of each value, from 0.
        groups: number of groups.
        values: one a row.
    """
    order = sorted_rows(group, values)
    size = np.bincount(group, minlength=groups)
    first = np.cumsum(size) - size
    medians = np.full(groups, np.nan)
    some = size > 0
    medians[some] = values[order][(first + (size - 1) // 2)[some]]
    return medians


def median_of(values: Floats) -> float:
    """Return the lower median of some values; ``np.median`` would load ``numpy.ma``."""
    return quantile_of(values, 0.5)


def quantile_of(values: Floats, share: float) -> float:
    """Return the value that a share of the others lies below."""
    return float(np.sort(values)[int(share * (len(values) - 1))])


def others_medians(group: Ints, values: Floats) -> Floats:
    """Return for each value the median of the others of its group; NaN without any.

    ::

        sorted      a   b   c   d        the others of b are a, c, d: their median is c
                        ^
    """
    count = len(values)
    order = sorted_rows(group, values)
    size = np.bincount(group)[group[order]] if count else np.zeros(0, np.int64)
    ordered = group[order]
    new = np.append(True, ordered[1:] != ordered[:-1])[:count]
    first = np.maximum.accumulate(np.where(new, np.arange(count), 0))
    place = np.arange(count) - first
    at_rank = values[order]

    def other(number: Ints) -> Floats:
        """Return the value of that number among the others of each value."""
        taken = first + number + (place <= number)
        return np.asarray(at_rank[np.clip(taken, 0, max(count - 1, 0))], np.float64)

    medians = np.empty(count)
    both = other((size - 2) // 2) + other((size - 1) // 2)
    medians[order] = np.where(size > 1, both / 2, np.nan)
    return medians
