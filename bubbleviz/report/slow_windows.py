"""Finds iterations that took much longer than usual."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

#: Minimum excess of a slow iteration over the median: as a fraction of the median, and in standard
#: deviations.
MIN_SLOW_EXCESS, _MIN_SLOW_DEVIATIONS = 0.1, 6.0
#: Standard deviation of a normal distribution, divided by its median absolute deviation.
_NORMAL_DEVIATION = 1.4826


def measure_slow_windows(windows_ns: Mapping[int, int]) -> dict[int, float]:
    """Return the length of each slow window divided by the median, keyed by iteration index.

    A window is slow if it exceeds the median by more than the fraction ``MIN_SLOW_EXCESS``, and by
    more than ``_MIN_SLOW_DEVIATIONS`` standard deviations. The standard deviation is estimated from
    the median absolute deviation, so that slow iterations do not increase it. With fewer than three
    windows, the result is empty.

    Args:
        windows_ns: Length of the window of each iteration, keyed by iteration index.
    """
    if len(windows_ns) < 3:
        return {}
    usual_ns = median(windows_ns.values())
    deviation_ns = _NORMAL_DEVIATION * median(abs(ns - usual_ns) for ns in windows_ns.values())
    min_ns = usual_ns + max(MIN_SLOW_EXCESS * usual_ns, _MIN_SLOW_DEVIATIONS * deviation_ns)
    return {index: ns / usual_ns for index, ns in windows_ns.items() if ns > min_ns}
