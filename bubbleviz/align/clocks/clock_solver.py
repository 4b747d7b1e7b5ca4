"""Solves the clocks of all machines from precedences.

The offset of a clock is the middle of its interval, and half the width is its uncertainty, which
grows by the drift that :class:`~bubbleviz.align.clocks.drift.ClockSegments` allow. A drift is
applied only if no constant offset satisfies the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.clocks.drift import (
    ClockSegments,
    compute_bands,
    divide_into_segments,
    find_feasible_corrections,
    fit_drift_line,
)
from bubbleviz.align.clocks.offsets import (
    Precedences,
    compute_intervals,
    find_tightest_limits,
    find_worst_cycle,
    round_up,
)
from bubbleviz.align.profile_clocks import DRIFT, GRAIN_NS, ProfileClock
from bubbleviz.model.columns import Bools, Floats, Ints


@dataclass(frozen=True)
class Contradiction:
    """A cycle of precedences that no clocks can satisfy.

    Attributes:
        rows: Rows of the precedences. The earlier clock of each is the later clock of the next.
        by_ns: Negated sum of the limits of the cycle, by which the precedences contradict each
            other.
    """

    rows: tuple[int, ...]
    by_ns: int


def solve_clocks(
    precedences: Precedences, start_ns: Ints, end_ns: Ints, reference: int = 0
) -> tuple[tuple[ProfileClock, ...], Contradiction | None]:
    """Find corrections of all clocks that satisfy the precedences.

    If no constant offsets satisfy them, the clocks that need it get a drift. If no drift up to
    ``DRIFT`` satisfies them either, they contradict each other. Every bound then gets the same
    slack, the smallest one with which offsets exist, and twice this slack is added to the
    uncertainties. Clocks that the reference does not bound have the uncertainty None.

    Args:
        precedences: Precedences between the clocks.
        start_ns: Start of the capture of each clock, on the clock itself.
        end_ns: End of the capture of each clock, on the clock itself.
        reference: Clock whose correction is 0.

    Returns:
        corrections: Correction of each clock, with an uncertainty that covers its whole capture.
        contradiction: Worst contradiction of the precedences, or None if there is none.
    """
    limit, row = find_tightest_limits(precedences, len(start_ns))
    needed_slack, cycle = find_worst_cycle(limit)
    slack = round_up(needed_slack)
    offset, half_width = compute_intervals(limit + slack, reference)
    is_bounded = np.isfinite(half_width)
    captures = start_ns + offset, end_ns + offset
    segments = _segment_bounded(precedences, offset, captures, is_bounded, reference)

    no_drift: Floats = np.zeros(segments.is_captured.shape)
    potential, contradiction, missed_ns = no_drift, None, 0
    if needed_slack > GRAIN_NS / 2:
        # Try without slack first, then with the resolution of the clocks.
        for tried_slack in (0.0, GRAIN_NS / 2):
            corrections = find_feasible_corrections(segments, tried_slack)
            if corrections is not None:
                slack, potential = tried_slack, corrections
                break
        else:
            # Either of two contradicting bounds may be correct, so the gap adds to the error.
            missed_ns = math.ceil(2 * needed_slack)
            arcs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
            by_ns = round(-sum(float(limit[arc]) for arc in arcs))
            contradiction = Contradiction(tuple(int(row[arc]) for arc in arcs), by_ns)
    bands = compute_bands(segments, potential, slack, reference)
    lines = no_drift
    if potential is not no_drift:
        lines = _fit_lines(segments, bands, limit, is_bounded, reference)
    clocks = [
        _make_clock(
            segments,
            clock,
            lines[clock],
            float(offset[clock]),
            (bands[0][clock], bands[1][clock]),
            (float(captures[0][clock]), float(captures[1][clock])),
            missed_ns if is_bounded[clock] else None,
        )
        for clock in range(len(lines))
    ]
    clocks[reference] = ProfileClock(0, 0)
    return tuple(clocks), contradiction


def _segment_bounded(
    precedences: Precedences,
    offset: Floats,
    captures: tuple[Floats, Floats],
    is_bounded: Bools,
    reference: int,
) -> ClockSegments:
    """Divide the captures into segments of time, with offsets applied.

    Precedences of unbounded clocks are left out, and their captures are replaced by the capture of
    the reference clock, because their offsets are arbitrary.

    Args:
        precedences: Precedences between the clocks.
        offset: Offset of each clock.
        captures: Start and end of the capture of each clock, with offsets.
        is_bounded: Mask of the clocks with a bounded offset.
        reference: Clock whose correction is 0.
    """
    is_used = is_bounded[precedences.earlier_clock] & is_bounded[precedences.later_clock]
    used = precedences.take(is_used)
    capture_of = np.where(is_bounded, np.arange(len(is_bounded)), reference)
    return divide_into_segments(
        used.earlier_clock,
        used.later_clock,
        used.earlier_ns + offset[used.earlier_clock],
        used.later_ns + offset[used.later_clock],
        captures[0][capture_of],
        captures[1][capture_of],
    )


def _fit_lines(
    segments: ClockSegments,
    bands: tuple[Floats, Floats],
    limit: Floats,
    is_bounded: Bools,
    reference: int,
) -> Floats:
    """Choose a line within the band of each clock: constant if possible, else with drift.

    A clock needs drift if its band has no constant value, or if the bounds between it and another
    clock contradict each other without drift.

    Args:
        segments: Bounds between clocks.
        bands: Lower and upper bounds of the corrections, shape (clocks, segments).
        limit: Limits of all pairs of clocks.
        is_bounded: Mask of the clocks with a bounded offset.
        reference: Clock whose correction is 0.

    Returns:
        Further correction of each clock in each segment, shape (clocks, segments). It is 0 for a
        clock that is not bounded.
    """
    lines = np.zeros(segments.is_captured.shape)
    contradicts = limit + limit.T < -GRAIN_NS
    contradicts[reference] = contradicts[:, reference] = False
    for clock in np.flatnonzero(is_bounded).tolist():
        low, high = (np.where(np.isfinite(edge[clock]), edge[clock], 0.0) for edge in bands)
        highest_low, lowest_high = low.max(), high.min()
        if highest_low - lowest_high > GRAIN_NS or contradicts[clock].any():
            lines[clock] = fit_drift_line(segments.middle_ns, low, high)
        else:
            lines[clock] = (highest_low + lowest_high) / 2
    return lines


def _make_clock(
    segments: ClockSegments,
    clock: int,
    line: Floats,
    offset: float,
    band: tuple[Floats, Floats],
    capture: tuple[float, float],
    missed_ns: int | None,
) -> ProfileClock:
    """Convert an offset and a line of further corrections to the correction of a clock.

    The uncertainty bounds the distance from the line to either edge of the band at every instant of
    the capture, and includes rounding.

    Args:
        segments: Bounds between clocks.
        clock: Index of the clock.
        line: Further correction in each segment.
        offset: Offset of the clock.
        band: Lower and upper bound of the further correction in each segment.
        capture: Start and end of the clock's capture, with the offset.
        missed_ns: Amount to add to the uncertainty, or None if the clock is not bounded.
    """
    first_ns, last_ns = float(segments.middle_ns[0]), float(segments.middle_ns[-1])
    drift = float(line[-1] - line[0]) / (last_ns - first_ns)
    t0_ns = round(first_ns - offset) if drift else 0
    since_first_ns = t0_ns + offset - first_ns
    total_offset = float(line[0]) + offset + drift * since_first_ns
    uncertainty_ns = None
    if missed_ns is not None:
        max_slope = DRIFT + abs(drift)
        distances = band[1] - line, line - band[0]
        error_ns = max(
            _bound_maximum(segments, clock, distance, capture, max_slope) for distance in distances
        )
        error_ns += abs(total_offset - round(total_offset))
        uncertainty_ns = math.ceil(error_ns) + (1 if drift else 0) + missed_ns
    return ProfileClock(round(total_offset), uncertainty_ns, drift * 1e6, t0_ns)


def _bound_maximum(
    segments: ClockSegments,
    clock: int,
    values: Floats,
    capture: tuple[float, float],
    max_slope: float,
) -> float:
    r"""Return an upper bound of a function over a capture, from its values in segments.

    The function changes by at most ``max_slope`` per ns. Between the middles of two segments it is
    therefore below a tent, and before the first and after the last middle below a slope::

              /\         /
        \    /  \       /
         o--/    \--o--/

    Args:
        segments: Bounds between clocks.
        clock: Index of the clock.
        values: Value of the function in the middle of each segment.
        capture: Start and end of the clock's capture.
        max_slope: Maximum slope of the function.
    """
    captured = np.flatnonzero(segments.is_captured[clock])
    values, middle_ns = values[captured], segments.middle_ns[captured]
    tents = (values[1:] + values[:-1] + max_slope * segments.length_ns) / 2
    first = values[0] + max_slope * abs(capture[0] - middle_ns[0])
    last = values[-1] + max_slope * abs(capture[1] - middle_ns[-1])
    return float(max(first, last, values.max(), tents.max(initial=values[0])))
