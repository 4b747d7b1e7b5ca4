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
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.align.bounds.clock_segments import (
    DRIFT,
    ClockSegments,
    Floats,
    bands,
    feasible,
    segmented,
)
from bubbleviz.model.columns import NONE, Bools, Ints, Table

#: Bounds that miss each other by less are the grain of clocks, no contradiction.
GRAIN_NS = 5_000.0


@dataclass(frozen=True)
class Precedences(Table):
    """Pairs of events on two clocks of which the first is not later than the second.

    Attributes:
        before: clock of the first event.
        after: clock of the second, another.
        before_ns: time of the first on its own clock.
        after_ns: time of the second on its own clock.
        before_row: row of what the first event is; -1 none.
        after_row: likewise of the second.
    """

    before: Ints
    after: Ints
    before_ns: Ints
    after_ns: Ints
    before_row: Ints
    after_row: Ints


def together(*parts: Precedences) -> Precedences:
    """Return all of them as one table."""
    empty = np.empty(0, np.int64)
    return Precedences(
        *(
            np.concatenate([empty, *(getattr(part, name) for part in parts)])
            for name in Precedences.column_names()
        )
    )


@dataclass(frozen=True)
class Correction:
    """What to add to a clock's time t: ``offset_ns + (t - t0_ns) drift``.

    ``uncertainty_ns`` bounds the error of that at every instant of the clock's capture; None
    where nothing bounds the clock from both sides.
    """

    offset_ns: int
    drift: float
    t0_ns: int
    uncertainty_ns: int | None


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


@dataclass(frozen=True)
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
    limit, row = _tightest(precedences, len(start_ns))
    give, circle = _worst(limit)
    if give <= GRAIN_NS / 2:
        return _constant(problem, limit, give)
    offset, known = _middles(limit + _rounded_up(give), reference)
    segments = _segmented(problem, offset, known)
    for slack in (0.0, GRAIN_NS / 2):
        potential = feasible(segments, slack)
        if potential is not None:
            low, high = bands(segments, potential, slack, reference)
            return _drifting(problem, offset, known, segments, low, high, limit)
    # What the bounds miss each other by is error, too: on either side one of two may be right.
    found = [
        replace(own, uncertainty_ns=own.uncertainty_ns + math.ceil(2 * give))
        if own.uncertainty_ns is not None and clock != reference
        else own
        for clock, own in enumerate(_constant(problem, limit, give).corrections)
    ]
    return Solution(tuple(found), _contradiction(limit, row, circle))


@dataclass(frozen=True)
class _Problem:
    """What :func:`solve` is given."""

    precedences: Precedences
    start_ns: Ints
    end_ns: Ints
    reference: int


def _segmented(problem: _Problem, offset: Floats, known: Bools) -> ClockSegments:
    """Return the segments, with every clock moved by its offset.

    Clocks that nothing bounds have no part in them: they may be anywhere.
    """
    given = problem.precedences.take(
        known[problem.precedences.before] & known[problem.precedences.after]
    )
    at = np.where(known, np.arange(len(known)), problem.reference)
    return segmented(
        given.before,
        given.after,
        given.before_ns + offset[given.before],
        given.after_ns + offset[given.after],
        (problem.start_ns + offset)[at],
        (problem.end_ns + offset)[at],
    )


def _tightest(precedences: Precedences, clocks: int) -> tuple[Floats, Ints]:
    """Return the least ``after - before`` of each pair (after, before) of clocks, and its row.

    That is the most by which the correction of ``before`` can exceed that of ``after``.
    """
    limit = np.full((clocks, clocks), np.inf)
    row = np.full((clocks, clocks), NONE, np.int64)
    slack = precedences.after_ns - precedences.before_ns
    order = np.lexsort((-np.arange(len(slack)), -slack))
    pair = precedences.after[order], precedences.before[order]
    # Of rows that share a pair the last one written stays: the tightest.
    limit[pair], row[pair] = slack[order], order
    np.fill_diagonal(limit, 0.0)
    return limit, row


def _worst(limit: Floats) -> tuple[float, list[int]]:
    """Return by how much each bound must give so that constant offsets exist, and why.

    It is the negative of the least mean length of a circle (Karp 1978, "A characterization of
    the minimum cycle mean in a digraph"), with walks that may begin anywhere; 0 or less where no
    bound has to give. The clocks of that circle are returned in the order of its arcs, which lead
    from ``after`` to ``before``.
    """
    clocks = len(limit)
    arcs = limit.copy()
    np.fill_diagonal(arcs, np.inf)
    walks, previous = np.zeros((clocks + 1, clocks)), np.zeros((clocks + 1, clocks), np.int64)
    for length in range(clocks):
        longer = walks[length][:, None] + arcs
        previous[length + 1] = longer.argmin(axis=0)
        walks[length + 1] = longer.min(axis=0)
    ends = np.flatnonzero(np.isfinite(walks[clocks]))
    if len(ends) == 0:
        return -np.inf, []
    steps = (clocks - np.arange(clocks))[:, None]
    means = ((walks[clocks, ends] - walks[:clocks, ends]) / steps).max(axis=0)
    # The longest walk to the clock with the least mean runs through that circle.
    walk = [int(ends[means.argmin()])]
    for length in range(clocks, 0, -1):
        walk.append(int(previous[length, walk[-1]]))
        if walk[-1] in walk[:-1]:
            break
    return -float(means.min()), walk[walk.index(walk[-1]) + 1 :][::-1]


def _rounded_up(give: float) -> float:
    """Return the same, with what sums of it may lose by rounding; 0 where nothing has to give."""
    return give + 0.5 if give > 0 else 0.0


def _shortest(limit: Floats) -> Floats:
    """Return the shortest paths between all clocks (Floyd and Warshall); no circle is negative."""
    paths = limit.copy()
    for via in range(len(paths)):
        np.minimum(paths, paths[:, via, None] + paths[None, via, :], out=paths)
    return paths


def _middles(limit: Floats, reference: int) -> tuple[Floats, Bools]:
    """Return the middle of each clock's interval, and whether it is bounded from both sides.

    Clocks that are not bounded against the reference are put against the first of those that
    they are bounded against, which keeps the time that it came with.
    """
    paths = _shortest(limit)
    mutual = np.isfinite(paths) & np.isfinite(paths.T)
    root = np.where(mutual[reference], reference, mutual.argmax(axis=0))
    clock = np.arange(len(limit))
    return (paths[root, clock] - paths[clock, root]) / 2, mutual[reference]


def _constant(problem: _Problem, limit: Floats, give: float) -> Solution:
    """Return constant corrections, every bound giving by ``give`` if that is more than 0."""
    slack = _rounded_up(give)
    offset, known = _middles(limit + slack, problem.reference)
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
        problem: what is asked.
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
    found = []
    for clock in range(len(offset)):
        least, most = flat[0][clock].max(), flat[1][clock].min()
        if known[clock] and (least - most > GRAIN_NS or apart[clock].any()):
            line = _line(segments.middle_ns, flat[0][clock], flat[1][clock])
        else:
            line = np.full(len(segments.middle_ns), (least + most) / 2 if known[clock] else 0.0)
        found.append(
            _correction(problem, segments, clock, offset[clock], line, (low, high), known[clock])
        )
    return Solution(tuple(found))


def _line(at_ns: Floats, low: Floats, high: Floats) -> Floats:
    """Return a line through a band, at most ``DRIFT`` steep.

    It follows the middle of the band where that is narrow (least squares), unless its farthest
    edge then lies much farther away than it must.
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

    That is a linear program in its height, its slope and the distance that is made small.
    """
    from scipy.optimize import linprog

    # high - line and line - low are at most the distance.
    above = np.stack((-np.ones(len(place)), -place, -np.ones(len(place))), axis=1)
    below = np.stack((np.ones(len(place)), place, -np.ones(len(place))), axis=1)
    found = linprog(
        [0.0, 0.0, 1.0],
        A_ub=np.concatenate((above, below)),
        b_ub=np.concatenate((-high, low)),
        bounds=[(None, None), (-steepest, steepest), (0, None)],
    )
    height, slope, distance = found.x
    return np.asarray(height + slope * place, np.float64), float(distance)


def _contradiction(limit: Floats, row: Ints, circle: list[int]) -> Contradiction:
    """Return what the bounds of a circle of clocks miss each other by."""
    pairs = list(zip(circle, [*circle[1:], circle[0]], strict=True))
    return Contradiction(
        rows=tuple(int(row[pair]) for pair in pairs),
        by_ns=round(-sum(float(limit[pair]) for pair in pairs)),
    )
