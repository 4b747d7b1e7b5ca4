"""Offsets: where clocks can stand against each other, by what happened before what.

An event on one clock that cannot be later than an event on another bounds the difference of the
clocks from one side; a pair the other way closes the interval::

    clock 0   F ─────┤                     ├───── B
    clock 1           ├───── F   B ──────┤
                     └┘ moves left at most this far
                                         └─┘ moves right at most this far

All clocks are solved together, as difference constraints: the correction of a clock against
another lies between two shortest paths (Cormen et al., Introduction to Algorithms, "Difference
constraints and shortest paths"). The middle is the offset, half the width its uncertainty, which
:mod:`bubbleviz.align.bounds.clock_segments` widens by what clocks may drift. A drift is applied
only where no constant offset satisfies the bounds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bubbleviz.align.bounds.clock_segments import (
    DRIFT,
    ClockSegments,
    Floats,
    bands,
    feasible,
    segmented,
)
from bubbleviz.align.bounds.difference_constraints import (
    middles,
    needed_slack,
    rounded_up,
    tightest_limits,
)
from bubbleviz.align.bounds.drift_lines import drift_line
from bubbleviz.align.bounds.precedences import Precedences
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.values import frozen

#: Bounds that miss each other by less are the grain of clocks, no contradiction.
GRAIN_NS = 5_000.0


@frozen
class Correction:
    """What to add to a clock's time t: ``offset_ns + (t - t0_ns) drift``.

    ``uncertainty_ns`` bounds the error of that at every instant of the clock's capture; None
    where nothing bounds the clock from both sides.
    """

    offset_ns: int
    drift: float
    t0_ns: int
    uncertainty_ns: int | None


@frozen
class Contradiction:
    """A circle of precedences that no clocks can satisfy.

    Attributes:
        rows: rows of the precedences; the ``before`` clock of each is the ``after`` clock of the
            next.
        by_ns: by how much they miss each other.
    """

    rows: tuple[int, ...]
    by_ns: int


@frozen
class Solution:
    """One correction a clock, and the contradiction that was smoothed over, if any."""

    corrections: tuple[Correction, ...]
    contradiction: Contradiction | None = None


def solve(precedences: Precedences, start_ns: Ints, end_ns: Ints, reference: int = 0) -> Solution:
    """Return the corrections of all clocks against the reference.

    Where no constant offsets satisfy the precedences, clocks that need it get a drift; where no
    drift within ``DRIFT`` does either, every precedence gives by as much as the worst needs.

    Args:
        precedences: what was not later than what.
        start_ns: where each clock's capture starts, on the clock itself.
        end_ns: likewise its end.
        reference: the clock whose correction is 0.
    """
    problem = _Problem(precedences, start_ns, end_ns, reference)
    limit, row = tightest_limits(precedences, len(start_ns))
    slack_needed, circle = needed_slack(limit)
    if slack_needed <= GRAIN_NS / 2:
        return _constant(problem, limit, slack_needed)
    offset, known = middles(limit + rounded_up(slack_needed), reference)
    segments = _segmented(problem, offset, known)
    for slack in (0.0, GRAIN_NS / 2):
        potential = feasible(segments, slack)
        if potential is not None:
            low, high = bands(segments, potential, slack, reference)
            return _drifting(problem, offset, known, segments, low, high, limit)
    # What the bounds miss each other by is error, too: on either side one of two may be right.
    corrections = [
        replace(correction, uncertainty_ns=correction.uncertainty_ns + math.ceil(2 * slack_needed))
        if correction.uncertainty_ns is not None and clock != reference
        else correction
        for clock, correction in enumerate(_constant(problem, limit, slack_needed).corrections)
    ]
    return Solution(tuple(corrections), _contradiction(limit, row, circle))


@frozen
class _Problem:
    """The arguments of :func:`solve`."""

    precedences: Precedences
    start_ns: Ints
    end_ns: Ints
    reference: int


def _segmented(problem: _Problem, offset: Floats, known: Bools) -> ClockSegments:
    """Return the segments, with every clock moved by its offset.

    Clocks that nothing bounds have no part in them: they may be anywhere.
    """
    bounded = problem.precedences.take(
        known[problem.precedences.before] & known[problem.precedences.after]
    )
    at = np.where(known, np.arange(len(known)), problem.reference)
    return segmented(
        bounded.before,
        bounded.after,
        bounded.before_ns + offset[bounded.before],
        bounded.after_ns + offset[bounded.after],
        (problem.start_ns + offset)[at],
        (problem.end_ns + offset)[at],
    )


def _constant(problem: _Problem, limit: Floats, slack_needed: float) -> Solution:
    """Return constant corrections, every bound giving by the slack if that is more than 0."""
    slack = rounded_up(slack_needed)
    offset, known = middles(limit + slack, problem.reference)
    segments = _segmented(problem, offset, known)
    still = np.zeros(segments.captured.shape)
    low, high = bands(segments, still, slack, problem.reference)
    line = np.zeros(len(segments.middle_ns))
    return Solution(
        tuple(
            _correction(problem, segments, clock, offset[clock], line, (low, high), known[clock])
            for clock in range(len(offset))
        )
    )


def _correction(
    problem: _Problem,
    segments: ClockSegments,
    clock: int,
    offset: float,
    line: Floats,
    band: tuple[Floats, Floats],
    known: bool,
) -> Correction:
    """Return a correction whose uncertainty covers the band over the clock's capture.

    Args:
        problem: precedences and captures.
        segments: the segments of time.
        clock: which clock.
        offset: what its times were moved by before they were put into segments.
        line: what is added in the middle of each segment.
        band: the least and the largest addition of every clock in each segment.
        known: whether the band is finite.
    """
    drift = float(line[-1] - line[0]) / float(segments.middle_ns[-1] - segments.middle_ns[0])
    t0_ns = round(float(segments.middle_ns[0]) - offset) if drift else 0
    moved = float(line[0]) + offset + drift * (t0_ns + offset - float(segments.middle_ns[0]))
    if clock == problem.reference:
        return Correction(0, 0.0, 0, 0)
    if not known:
        return Correction(round(moved), drift, t0_ns, None)
    bounds = problem.start_ns[clock] + offset, problem.end_ns[clock] + offset
    sides = (band[1][clock] - line, line - band[0][clock])
    reach = max(_highest(segments, clock, side, bounds, DRIFT + abs(drift)) for side in sides)
    reach += abs(moved - round(moved))
    return Correction(round(moved), drift, t0_ns, math.ceil(reach) + (1 if drift else 0))


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


def _drifting(
    problem: _Problem,
    offset: Floats,
    known: Bools,
    segments: ClockSegments,
    low: Floats,
    high: Floats,
    limit: Floats,
) -> Solution:
    """Return corrections with a drift for the clocks that need one.

    These are the clocks that no constant offset puts right against the reference, or against
    another clock that it exchanges data with.
    """
    apart = limit + limit.T < -GRAIN_NS
    apart[problem.reference] = apart[:, problem.reference] = False
    flat = np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 0.0)
    corrections = []
    for clock in range(len(offset)):
        least, most = flat[0][clock].max(), flat[1][clock].min()
        if known[clock] and (least - most > GRAIN_NS or apart[clock].any()):
            line = drift_line(segments.middle_ns, flat[0][clock], flat[1][clock])
        else:
            line = np.full(len(segments.middle_ns), (least + most) / 2 if known[clock] else 0.0)
        corrections.append(
            _correction(problem, segments, clock, offset[clock], line, (low, high), known[clock])
        )
    return Solution(tuple(corrections))


def _contradiction(limit: Floats, row: Ints, circle: list[int]) -> Contradiction:
    """Return the contradiction of a circle of clocks."""
    pairs = list(zip(circle, [*circle[1:], circle[0]], strict=True))
    return Contradiction(
        rows=tuple(int(row[pair]) for pair in pairs),
        by_ns=round(-sum(float(limit[pair]) for pair in pairs)),
    )
