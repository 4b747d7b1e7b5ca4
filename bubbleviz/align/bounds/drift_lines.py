"""Drift lines: a straight line through the band that bounds leave a clock over time."""

from __future__ import annotations

import numpy as np

from bubbleviz.align.bounds.clock_segments import DRIFT, Floats


def drift_line(at_ns: Floats, low: Floats, high: Floats) -> Floats:
    """Return a line through a band, at most ``DRIFT`` steep.

    It follows the middle of the band where that is narrow (least squares), unless the farthest
    edge of the band then lies much farther away than necessary.
    """
    place = (at_ns - at_ns.mean()) / float(np.ptp(at_ns))
    steepest = DRIFT * float(np.ptp(at_ns))
    nearest, least = _nearest_line(place, low, high, steepest)
    weight = 1 / np.maximum(high - low, 1.0)
    fitted = np.polynomial.Polynomial.fit(place, (low + high) / 2, 1, w=weight, domain=[-1, 1])
    slope = float(np.clip(fitted.convert().coef[-1], -steepest, steepest))
    sloped = slope * place
    line = sloped + (float((high - sloped).max()) + float((low - sloped).min())) / 2
    reach = float(np.maximum(high - line, line - low).max())
    return np.asarray(line if reach <= 1.05 * least else nearest, np.float64)


def _nearest_line(
    place: Floats, low: Floats, high: Floats, steepest: float
) -> tuple[Floats, float]:
    """Return the line whose farthest edge of the band lies nearest, and how far that is.

    A linear program in the height, the slope and the distance, which is minimised.
    """
    from scipy.optimize import linprog

    # high - line and line - low are at most the distance.
    above = np.stack((-np.ones(len(place)), -place, -np.ones(len(place))), axis=1)
    below = np.stack((np.ones(len(place)), place, -np.ones(len(place))), axis=1)
    program = linprog(
        [0.0, 0.0, 1.0],
        A_ub=np.concatenate((above, below)),
        b_ub=np.concatenate((-high, low)),
        bounds=[(None, None), (-steepest, steepest), (0, None)],
    )
    height, slope, distance = program.x
    return np.asarray(height + slope * place, np.float64), float(distance)
