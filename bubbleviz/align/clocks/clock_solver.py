"""Clock solver: compute the clocks of all machines from pairs of events whose order is known.

A clock's offset is the midpoint of the interval of possible offsets. The clock's uncertainty is
half the width of this interval, plus the possible drift
(:class:`~bubbleviz.align.clocks.drift.ClockSegments`). Drift is applied only if no constant offset
satisfies the bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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
    """A cycle of precedences that no clock corrections can satisfy.

    Attributes:
        rows: Rows of the precedences in the cycle. The earlier clock of each precedence is the
            later clock of the next precedence. The first precedence follows the last.
        by_ns: Time by which the precedences contradict each other: the negated sum of their limits
            (``later_ns - earlier_ns``).
    """

    rows: tuple[int, ...]
    by_ns: int


def solve_clocks(
    precedences: Precedences, start_ns: Ints, end_ns: Ints, reference: int = 0
) -> tuple[tuple[ProfileClock, ...], Contradiction | None]:
    """Find corrections of all clocks that satisfy the precedences.

    The corrections come from the first of the following steps that succeeds:

    1. Constant offsets are used if they satisfy every bound, or violate no bound by more than
       ``GRAIN_NS / 2``.
    2. Otherwise, clocks may drift by up to ``DRIFT``. A drift is used only for clocks that need it.
    3. If no drifts satisfy the precedences either, the precedences contradict each other. Every
       bound is then loosened by the smallest slack for which constant offsets exist, and twice this
       slack is added to the uncertainties.

    The uncertainty is None for clocks that the reference does not bound.

    Args:
        precedences: Precedences between the clocks.
        start_ns: Start of each clock's capture, in its uncorrected time.
        end_ns: End of each clock's capture, in its uncorrected time.
        reference: Clock whose correction is 0.

    Returns:
        corrections: Correction of each clock, with an uncertainty that covers the entire capture.
        contradiction: The worst contradiction between precedences, or None if they are consistent.
    """
    limit, row = find_tightest_limits(precedences, len(start_ns))
    needed_slack, cycle = find_worst_cycle(limit)
    slack = round_up(needed_slack)
    captures = _apply_offsets(start_ns, end_ns, limit + slack, reference)
    segments = _segment_bounded(precedences, captures, reference)
    potential, contradiction = None, None
    if needed_slack > GRAIN_NS / 2:
        slack, potential = _find_drifting_corrections(segments, slack)
        if potential is None:
            contradiction = _make_contradiction(limit, row, cycle)
    if potential is None:
        lines: Floats = np.zeros(segments.is_captured.shape)
        bands = compute_bands(segments, lines, slack, reference)
    else:
        bands = compute_bands(segments, potential, slack, reference)
        lines = _fit_lines(segments, bands, limit, captures.is_bounded, reference)
    corrections = [
        _make_clock(segments, captures, clock, lines[clock], bands) for clock in range(len(lines))
    ]
    if contradiction is not None:
        # Either of two contradicting bounds may be correct, so the gap is added to the error.
        corrections = [_add_uncertainty(c, math.ceil(2 * needed_slack)) for c in corrections]
    corrections[reference] = ProfileClock(0, 0)
    return tuple(corrections), contradiction


@dataclass(frozen=True)
class _Captures:
    """The captures of all clocks, with a constant offset applied to each clock.

    Attributes:
        offset: Offset of each clock. The offset is arbitrary if it is not bounded.
        is_bounded: Mask of the clocks whose offset is bounded.
        start_ns: Start of each clock's capture, plus the offset.
        end_ns: End of each clock's capture, plus the offset.
    """

    offset: Floats
    is_bounded: Bools
    start_ns: Floats
    end_ns: Floats


def _apply_offsets(start_ns: Ints, end_ns: Ints, limit: Floats, reference: int) -> _Captures:
    """Find constant offsets that satisfy all limits, and apply them to the captures.

    Args:
        start_ns: Start of each clock's capture, in its uncorrected time.
        end_ns: End of each clock's capture, in its uncorrected time.
        limit: Limits of all clock pairs, indexed [later, earlier]. There must be constant
            offsets that satisfy the limits.
        reference: Clock whose offset is 0.
    """
    offset, half_width = compute_intervals(limit, reference)
    return _Captures(offset, np.isfinite(half_width), start_ns + offset, end_ns + offset)


def _find_drifting_corrections(
    segments: ClockSegments, slack_ns: float
) -> tuple[float, Floats | None]:
    """Find corrections that satisfy all bounds, allowing drifts of up to ``DRIFT``.

    At first, the corrections are computed without slack. If there are no such corrections, a slack
    of ``GRAIN_NS / 2`` is added to every bound.

    Args:
        segments: Bounds between clocks.
        slack_ns: Slack to return if no corrections are found.

    Returns:
        slack_ns: Slack that was added to every bound.
        corrections: Correction of each clock in each segment, shape (clocks, segments), or None if
            no corrections exist.
    """
    for tried_slack_ns in (0.0, GRAIN_NS / 2):
        corrections = find_feasible_corrections(segments, tried_slack_ns)
        if corrections is not None:
            return tried_slack_ns, corrections
    return slack_ns, None


def _make_contradiction(limit: Floats, row: Ints, cycle: list[int]) -> Contradiction:
    """Return the contradiction between the limits along a cycle of clocks.

    Args:
        limit: Tightest limits between clocks, indexed [later, earlier].
        row: Row of the precedence that determines each limit, same shape as ``limit``.
        cycle: Clocks in the cycle, in the order of its arcs.
    """
    arcs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    by_ns = round(-sum(float(limit[arc]) for arc in arcs))
    return Contradiction(tuple(int(row[arc]) for arc in arcs), by_ns)


def _segment_bounded(
    precedences: Precedences, captures: _Captures, reference: int
) -> ClockSegments:
    """Divide the captures into time segments, with offsets applied and unbounded clocks left out.

    The offsets of unbounded clocks are arbitrary. Their precedences are therefore left out, and
    their captures are replaced by the reference clock's capture.

    Args:
        precedences: Precedences between the clocks.
        captures: Captures of all clocks, with offsets.
        reference: Clock whose correction is 0.
    """
    offset, is_bounded = captures.offset, captures.is_bounded
    is_used = is_bounded[precedences.earlier_clock] & is_bounded[precedences.later_clock]
    used = precedences.take(is_used)
    capture_of = np.where(is_bounded, np.arange(len(is_bounded)), reference)
    return divide_into_segments(
        used.earlier_clock,
        used.later_clock,
        used.earlier_ns + offset[used.earlier_clock],
        used.later_ns + offset[used.later_clock],
        captures.start_ns[capture_of],
        captures.end_ns[capture_of],
    )


def _fit_lines(
    segments: ClockSegments,
    bands: tuple[Floats, Floats],
    limit: Floats,
    is_bounded: Bools,
    reference: int,
) -> Floats:
    """Choose a line within each clock's band: a constant line if possible, else one with drift.

    A clock needs drift in either of the following cases, which are checked with a tolerance of
    ``GRAIN_NS``:

    - No constant value lies within the clock's band.
    - The two limits between this clock and another clock (other than the reference) contradict each
      other.

    A constant line is halfway between the highest lower bound and the lowest upper bound. A line
    with drift is computed by :func:`fit_drift_line`.

    Args:
        segments: Bounds between clocks.
        bands: Lower and upper bounds of the corrections, each of shape (clocks, segments).
        limit: Limits of all clock pairs, indexed [later, earlier].
        is_bounded: Mask of the clocks whose offset is bounded.
        reference: Clock whose correction is 0.

    Returns:
        Correction of each clock in each segment, to be added to its offset, shape
        (clocks, segments). The correction is 0 for a clock whose offset is not bounded.
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
    captures: _Captures,
    clock: int,
    line: Floats,
    bands: tuple[Floats, Floats],
) -> ProfileClock:
    """Return the correction for a clock, which is the sum of its offset and a line.

    Possible corrections form a band around the line. The uncertainty is an upper bound on the
    distance between the line and the edges of this band at any time in the capture, including
    rounding errors. The uncertainty is None if the offset of the clock is not bounded.

    Args:
        segments: Bounds between clocks.
        captures: Captures of all clocks, with offsets.
        clock: Index of the clock.
        line: Additional correction of this clock in each segment.
        bands: Lower and upper bounds of the additional corrections, each of shape
            (clocks, segments).
    """
    offset = float(captures.offset[clock])
    first_ns, last_ns = float(segments.middle_ns[0]), float(segments.middle_ns[-1])
    drift = float(line[-1] - line[0]) / (last_ns - first_ns)
    t0_ns = round(first_ns - offset) if drift else 0
    since_first_ns = t0_ns + offset - first_ns
    total_offset = float(line[0]) + offset + drift * since_first_ns
    uncertainty_ns = None
    if captures.is_bounded[clock]:
        max_slope = DRIFT + abs(drift)
        capture = float(captures.start_ns[clock]), float(captures.end_ns[clock])
        distances = bands[1][clock] - line, line - bands[0][clock]
        error_ns = max(
            _bound_maximum(segments, clock, distance, capture, max_slope) for distance in distances
        )
        error_ns += abs(total_offset - round(total_offset))
        uncertainty_ns = math.ceil(error_ns) + (1 if drift else 0)
    return ProfileClock(round(total_offset), uncertainty_ns, drift * 1e6, t0_ns)


def _add_uncertainty(clock: ProfileClock, added_ns: int) -> ProfileClock:
    """Return the clock with ``added_ns`` added to its uncertainty, unless that is None."""
    if clock.uncertainty_ns is None:
        return clock
    return replace(clock, uncertainty_ns=clock.uncertainty_ns + added_ns)


def _bound_maximum(
    segments: ClockSegments,
    clock: int,
    values: Floats,
    capture: tuple[float, float],
    max_slope: float,
) -> float:
    r"""Return an upper bound on a function during a capture, given one value per segment.

    The function changes by at most ``max_slope`` per ns. Between the midpoints of two segments, it
    is therefore bounded by the peak of a tent. Before the first midpoint and after the last one, it
    is bounded by a line with this slope::

              /\         /
        \    /  \       /
         o--/    \--o--/

    Args:
        segments: Bounds between clocks.
        clock: Index of the clock.
        values: Value of the function at the midpoint of each segment.
        capture: Start and end of the clock's capture.
        max_slope: Maximum slope of the function.
    """
    captured = np.flatnonzero(segments.is_captured[clock])
    values, middle_ns = values[captured], segments.middle_ns[captured]
    tents = (values[1:] + values[:-1] + max_slope * segments.length_ns) / 2
    first = values[0] + max_slope * abs(capture[0] - middle_ns[0])
    last = values[-1] + max_slope * abs(capture[1] - middle_ns[-1])
    return float(max(first, last, values.max(), tents.max(initial=values[0])))
