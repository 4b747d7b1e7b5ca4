"""Solves the clocks of all machines from precedences.

The offset of a clock is the middle of its interval, and half the width is its uncertainty, which
grows by the drift that :class:`~bubbleviz.align.clocks.drift.ClockSegments` allow. A drift is
applied only if no constant offset satisfies the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.clocks.drift import ClockSegments, bands, drift_line, feasible, segmented
from bubbleviz.align.clocks.offsets import (
    Precedences,
    intervals,
    needed_slack,
    rounded_up,
    tightest_limits,
)
from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS, ProfileClock
from bubbleviz.model.columns import Floats, Ints


@dataclass(frozen=True)
class Contradiction:
    """A circle of precedences that no clocks can satisfy.

    Attributes:
        rows: rows of the precedences; the ``before`` clock of each is the ``after`` clock of the
            next.
        by_ns: by how much they miss each other.
    """

    rows: tuple[int, ...]
    by_ns: int


def solve(
    precedences: Precedences, start_ns: Ints, end_ns: Ints, reference: int = 0
) -> tuple[tuple[ProfileClock, ...], Contradiction | None]:
    """Return the corrections of all clocks, and the contradiction that they smooth over, if any.

    Where no constant offsets satisfy the precedences, clocks that need it get a drift; where no
    drift within ``DRIFT`` does either, every precedence gives by as much as the worst needs.

    Args:
        precedences: what was not later than what.
        start_ns: where each clock's capture starts, on the clock itself.
        end_ns: likewise its end.
        reference: the clock whose correction is 0.
    """
    limit, row = tightest_limits(precedences, len(start_ns))
    needed, circle = needed_slack(limit)
    slack = rounded_up(needed)
    offset, half = intervals(limit + slack, reference)
    known = np.isfinite(half)
    # Clocks that nothing bounds have no part in the segments: they may be anywhere.
    bounded = precedences.take(known[precedences.before] & known[precedences.after])
    at = np.where(known, np.arange(len(known)), reference)
    captures = start_ns + offset, end_ns + offset
    segments = segmented(
        bounded.before,
        bounded.after,
        bounded.before_ns + offset[bounded.before],
        bounded.after_ns + offset[bounded.after],
        captures[0][at],
        captures[1][at],
    )
    lines: Floats = np.zeros(segments.captured.shape)
    potential, contradiction, missed_ns = lines, None, 0
    if needed > GRAIN_NS / 2:
        gives = (0.0, GRAIN_NS / 2)
        found = ((give, by) for give in gives if (by := feasible(segments, give)) is not None)
        slack, potential = next(found, (slack, lines))
        if potential is lines:
            # What the bounds miss each other by is error, too: either of two may be right.
            missed_ns = math.ceil(2 * needed)
            pairs = list(zip(circle, [*circle[1:], circle[0]], strict=True))
            by_ns = round(-sum(float(limit[pair]) for pair in pairs))
            contradiction = Contradiction(tuple(int(row[pair]) for pair in pairs), by_ns)
    band = bands(segments, potential, slack, reference)
    if potential is not lines:
        apart = limit + limit.T < -GRAIN_NS
        apart[reference] = apart[:, reference] = False
        for clock in np.flatnonzero(known).tolist():
            low, high = (np.where(np.isfinite(side[clock]), side[clock], 0.0) for side in band)
            least, most = low.max(), high.min()
            # One that no constant offset puts right, be it against another that it exchanges with.
            needs_drift = least - most > GRAIN_NS or apart[clock].any()
            lines[clock] = (
                drift_line(segments.middle_ns, low, high) if needs_drift else (least + most) / 2
            )
    corrections = []
    for clock, line in enumerate(lines):
        elapsed_ns = float(segments.middle_ns[-1] - segments.middle_ns[0])
        drift = float(line[-1] - line[0]) / elapsed_ns
        t0_ns = round(float(segments.middle_ns[0]) - offset[clock]) if drift else 0
        begin_ns = t0_ns + offset[clock] - float(segments.middle_ns[0])
        moved = float(line[0]) + offset[clock] + drift * begin_ns
        uncertainty_ns = None
        if known[clock]:
            # It covers the band over the clock's capture.
            sides = (band[1][clock] - line, line - band[0][clock])
            bounds = float(captures[0][clock]), float(captures[1][clock])
            reach = max(_highest(segments, clock, s, bounds, DRIFT + abs(drift)) for s in sides)
            reach += abs(moved - round(moved))
            uncertainty_ns = math.ceil(reach) + (1 if drift else 0) + missed_ns
        corrections.append(ProfileClock(round(moved), uncertainty_ns, drift * 1e6, t0_ns))
    corrections[reference] = ProfileClock(0, 0)
    return tuple(corrections), contradiction


def _highest(
    segments: ClockSegments, clock: int, height: Floats, bounds: tuple[float, float], slope: float
) -> float:
    r"""Return the most of a height over a capture, of which the middles of segments are known.

    It changes by at most ``slope``, so that between two middles it is below a tent, and beyond the
    outer ones below its sides::

              /\         /
        \    /  \       /
         o--/    \--o--/
    """
    within = np.flatnonzero(segments.captured[clock])
    known, middle_ns = height[within], segments.middle_ns[within]
    tents = (known[1:] + known[:-1] + slope * segments.length_ns) / 2
    first = known[0] + slope * abs(bounds[0] - middle_ns[0])
    last = known[-1] + slope * abs(bounds[1] - middle_ns[-1])
    return float(max(first, last, known.max(), tents.max(initial=known[0])))
