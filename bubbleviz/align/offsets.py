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
:mod:`bubbleviz.align.clock_segments` widens by what clocks may drift. A drift is applied
only where no constant offset satisfies the bounds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bubbleviz.align.clock_segments import DRIFT, ClockSegments, Floats, bands, feasible, segmented
from bubbleviz.model.columns import NONE, Bools, Ints, Table
from bubbleviz.model.grouping import least_of_each, sorted_rows
from bubbleviz.model.values import frozen

# Precedences: events on two clocks of which one is known to be no later than the other.


@frozen
class Precedences(Table):
    """Pairs of events on two clocks of which the first is not later than the second.

    Attributes:
        before: clock of the first event.
        after: clock of the second, another.
        before_ns: time of the first on its own clock.
        after_ns: time of the second on its own clock.
        before_row: row of what the first event is; -1 none.
        after_row: likewise of the second.
        iteration: of the second, counted over all ranks.
    """

    before: Ints
    after: Ints
    before_ns: Ints
    after_ns: Ints
    before_row: Ints
    after_row: Ints
    iteration: Ints


def together(*parts: Precedences) -> Precedences:
    """Return all of them as one table."""
    some = [part for part in parts if len(part)]
    if len(some) == 1:
        return some[0]
    empty = np.empty(0, np.int64)
    return Precedences(
        *(
            np.concatenate([empty, *(getattr(part, name) for part in some)])
            for name in Precedences.column_names()
        )
    )


# Difference constraints between constant offsets, as a matrix of limits.
#
# ``limit[after, before]`` is the most by which the correction of ``before`` can exceed that of
# ``after``; infinite where nothing bounds it.


def tightest_limits(precedences: Precedences, clocks: int) -> tuple[Floats, Ints]:
    """Return the least ``after - before`` of each pair (after, before) of clocks, and its row.

    That is the most by which the correction of ``before`` can exceed that of ``after``.
    """
    slack = precedences.after_ns - precedences.before_ns
    pair = precedences.after * clocks + precedences.before
    row = least_of_each(pair, clocks * clocks, slack)
    limit = np.where(row == NONE, np.inf, np.append(slack, 0)[row]).reshape(clocks, clocks)
    np.fill_diagonal(limit, 0.0)
    return limit, row.reshape(clocks, clocks)


@frozen
class _Arcs(Table):
    """The finite limits between different clocks, in order of (before, after).

    Attributes:
        after: clock that an arc leads from.
        before: clock that it leads to.
        limit_ns: its length.
    """

    after: Ints
    before: Ints
    limit_ns: Floats

    @classmethod
    def of(cls, limit: Floats) -> _Arcs:
        """Return the arcs of a matrix of limits."""
        before, after = np.nonzero(np.isfinite(limit.T) & ~np.eye(len(limit), dtype=bool))
        return cls(after, before, limit[after, before])

    def reversed(self) -> _Arcs:
        """Return arcs that lead back, as long as these."""
        order = sorted_rows(self.after, self.before)
        return _Arcs(self.before[order], self.after[order], self.limit_ns[order])

    def shortest(self, walks: Floats) -> Floats:
        """Return the shortest walks to each clock that are one arc longer; infinite without one."""
        longer = np.full(len(walks), np.inf)
        if len(self):
            first = np.flatnonzero(np.diff(self.before, prepend=NONE))
            found = np.minimum.reduceat(walks[self.after] + self.limit_ns, first)
            longer[self.before[first]] = found
        return longer


def needed_slack(limit: Floats) -> tuple[float, list[int]]:
    """Return the slack that each bound needs so that constant offsets exist, and the worst circle.

    It is the negative of the least mean length of a circle (Karp 1978, "A characterization of
    the minimum cycle mean in a digraph"), with walks that may begin anywhere; 0 or less where no
    bound needs any. The clocks of that circle are returned in the order of its arcs, which lead
    from ``after`` to ``before``. It takes clocks times arcs.
    """
    clocks, arcs = len(limit), _Arcs.of(limit)
    walks = np.zeros((clocks + 1, clocks))
    for length in range(clocks):
        walks[length + 1] = arcs.shortest(walks[length])
    ends = np.flatnonzero(np.isfinite(walks[clocks]))
    if len(ends) == 0:
        return -np.inf, []
    steps = (clocks - np.arange(clocks))[:, None]
    means = ((walks[clocks, ends] - walks[:clocks, ends]) / steps).max(axis=0)
    # The longest walk to the clock with the least mean runs through that circle.
    walk = [int(ends[means.argmin()])]
    for length in range(clocks - 1, -1, -1):
        into = arcs.take(np.flatnonzero(arcs.before == walk[-1]))
        walk.append(int(into.after[(walks[length][into.after] + into.limit_ns).argmin()]))
        if walk[-1] in walk[:-1]:
            break
    return -float(means.min()), walk[walk.index(walk[-1]) + 1 :][::-1]


def rounded_up(slack: float) -> float:
    """Return the slack with what sums of it may lose by rounding; 0 where none is needed."""
    return slack + 0.5 if slack > 0 else 0.0


def _between(arcs: _Arcs, root: Ints) -> tuple[Floats, Floats]:
    """Return the shortest paths from each clock's root to it, and back (Bellman and Ford).

    No circle is negative. Clocks of one root reach each other, and no path between two of them
    leads over another one.
    """
    own = arcs.take(np.flatnonzero(root[arcs.after] == root[arcs.before]))
    found = []
    for way in (own, own.reversed()):
        paths = np.where(root == np.arange(len(root)), 0.0, np.inf)
        for _ in range(len(root)):
            nearer = np.minimum(paths, way.shortest(paths))
            if (nearer == paths).all():
                break
            paths = nearer
        found.append(paths)
    return found[0], found[1]


def _roots(arcs: _Arcs, clocks: int, reference: int) -> Ints:
    """Return the first of the clocks that bound each one from both sides, or the reference."""
    part = _strong_parts(arcs, clocks)
    first = np.full(clocks, clocks)
    np.minimum.at(first, part, np.arange(clocks))
    first[part[reference]] = reference
    return np.asarray(first[part], np.int64)


def _strong_parts(arcs: _Arcs, clocks: int) -> Ints:
    """Return a number for each clock that those share which reach each other.

    Kosaraju's two searches (Sharir 1981, "A strong-connectivity algorithm and its applications in
    data flow analysis"): clocks in the order in which a search leaves them, the last one first,
    then all that lead to each, as far as they have no number yet.
    """
    onward: list[list[int]] = [[] for _ in range(clocks)]
    backward: list[list[int]] = [[] for _ in range(clocks)]
    for tail, head in zip(arcs.after.tolist(), arcs.before.tolist(), strict=True):
        onward[tail].append(head)
        backward[head].append(tail)
    part = [NONE] * clocks
    for number, clock in enumerate(reversed(_left(onward))):
        found = [clock] if part[clock] == NONE else []
        for other in found:
            part[other] = number
            for before in backward[other]:
                if part[before] == NONE:
                    part[before] = number
                    found.append(before)
    return np.array(part, np.int64)


def _left(onward: list[list[int]]) -> list[int]:
    """Return clocks in the order in which a search in depth leaves them."""
    left: list[int] = []
    seen = [False] * len(onward)
    for clock in range(len(onward)):
        path = [] if seen[clock] else [(clock, iter(onward[clock]))]
        seen[clock] = True
        while path:
            at, others = path[-1]
            following = next((other for other in others if not seen[other]), None)
            if following is None:
                left.append(at)
                path.pop()
            else:
                seen[following] = True
                path.append((following, iter(onward[following])))
    return left


def middles(limit: Floats, reference: int) -> tuple[Floats, Bools]:
    """Return the middle of each clock's interval, and whether it is bounded from both sides.

    Clocks that are not bounded against the reference are set against the first clock that bounds
    them, which keeps its own time.
    """
    arcs = _Arcs.of(limit)
    root = _roots(arcs, len(limit), reference)
    there, back = _between(arcs, root)
    return (there - back) / 2, root == reference


def half_widths(limit: Floats, reference: int) -> Floats:
    """Return half of what is left open of each clock against the reference; infinite for all."""
    arcs = _Arcs.of(limit)
    root = _roots(arcs, len(limit), reference)
    there, back = _between(arcs, root)
    return np.where(root == reference, (there + back) / 2, np.inf)


# Drift lines: a straight line through the band that bounds leave a clock over time.


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
