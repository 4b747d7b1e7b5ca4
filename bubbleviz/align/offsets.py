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
:class:`ClockSegments` widen by what clocks may drift. A drift is applied only where no constant
offset satisfies the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bubbleviz.model.columns import NONE, Bools, Floats, Ints, Table, joined, scattered
from bubbleviz.model.grouping import first_of_each, sorted_rows

#: By how much two clocks may drift apart, each half of it against a common mean.
DRIFT = 50e-6
_EACH = DRIFT / 2
#: Bounds that miss each other by less are the grain of clocks, no contradiction.
GRAIN_NS = 5_000.0


def correct_times(
    times_ns: Ints, offset_ns: Ints | int, drift_ppm: Floats | float, t0_ns: Ints | int
) -> Ints:
    """Return ``t + offset_ns + round((t - t0_ns) drift_ppm 1e-6)`` for each time t.

    Args:
        times_ns: Times on one or several clocks.
        offset_ns: Offset of the clock, or of the clock of each time.
        drift_ppm: Drift of the clock, or of the clock of each time.
        t0_ns: Time at which the drift is 0.
    """
    corrected_ns = times_ns + offset_ns
    if np.any(drift_ppm):
        drifted_ns = np.rint((times_ns - t0_ns) * drift_ppm * 1e-6)
        corrected_ns += drifted_ns.astype(np.int64)
    return corrected_ns


@dataclass(frozen=True)
class ProfileClock:
    """Correction of the times of a clock, as described in :func:`correct_times`.

    It converts times of a profile to the clock of the report, or corrects such a conversion.

    Attributes:
        offset_ns: Offset of the clock.
        uncertainty_ns: Bound on the error at every instant of the capture, or None if unbounded.
        drift_ppm: Drift of the clock.
        t0_ns: Time at which the drift is 0.
    """

    offset_ns: int
    uncertainty_ns: int | None
    drift_ppm: float = 0.0
    t0_ns: int = 0

    def convert(self, times_ns: Ints) -> Ints:
        """Return the corrected times."""
        return correct_times(times_ns, self.offset_ns, self.drift_ppm, self.t0_ns)

    def corrected(self, correction: ProfileClock) -> ProfileClock:
        """Return this clock with a further correction of the times that it gives."""
        return ProfileClock(
            self.offset_ns + correction.offset_ns,
            correction.uncertainty_ns,
            # Rounded to a millionth of a ppm, so that the printed number gives the same times.
            round(correction.drift_ppm, 6),
            correction.t0_ns - self.offset_ns if correction.drift_ppm else 0,
        )

    def relative_to(self, session: ProfileClock) -> ProfileClock:
        """Return the correction that leads from the times that ``session`` gives to this clock.

        Args:
            session: Clock of the same profile, without drift.
        """
        return ProfileClock(
            self.offset_ns - session.offset_ns,
            self.uncertainty_ns,
            self.drift_ppm,
            self.t0_ns + session.offset_ns,
        )


def subtract_sessions(
    clocks: Sequence[ProfileClock], sessions: Sequence[ProfileClock]
) -> tuple[ProfileClock, ...]:
    """Return the corrections that lead from the clocks of sessions to other clocks.

    Args:
        clocks: Clock of each profile.
        sessions: Clock of each profile according to its session, without drift.
    """
    pairs = zip(clocks, sessions, strict=True)
    return tuple(clock.relative_to(session) for clock, session in pairs)


@dataclass(frozen=True, eq=False, repr=False)
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
    return joined([part for part in parts if len(part)] or [Precedences.none()])


# Constant offsets: a matrix of limits, and its finite ones as arcs (after, before, limit).
#
# ``limit[after, before]`` is the most by which the correction of ``before`` can exceed that of
# ``after``; infinite where nothing bounds it. An arc leads from ``after`` to ``before``.

_Arcs = tuple[Ints, Ints, Floats]


def tightest_limits(precedences: Precedences, clocks: int) -> tuple[Floats, Ints]:
    """Return the least ``after - before`` of each pair (after, before) of clocks, and its row."""
    slack = precedences.after_ns - precedences.before_ns
    pair = precedences.after * clocks + precedences.before
    least = first_of_each(pair, slack)
    row = scattered(clocks * clocks, pair[least], least)
    limit = np.where(row == NONE, np.inf, np.append(slack, 0)[row]).reshape(clocks, clocks)
    np.fill_diagonal(limit, 0.0)
    return limit, row.reshape(clocks, clocks)


def _arcs(limit: Floats) -> _Arcs:
    after, before = np.nonzero(np.isfinite(limit) & ~np.eye(len(limit), dtype=bool))
    return after, before, limit[after, before]


def _longer(arcs: _Arcs, walks: Floats) -> Floats:
    """Return the shortest walks to each clock that are one arc longer; infinite without one."""
    found = np.full(len(walks), np.inf)
    np.minimum.at(found, arcs[1], walks[arcs[0]] + arcs[2])
    return found


def needed_slack(limit: Floats) -> tuple[float, list[int]]:
    """Return the slack that each bound needs so that constant offsets exist, and the worst circle.

    It is the negative of the least mean length of a circle (Karp 1978, "A characterization of
    the minimum cycle mean in a digraph"), with walks that may begin anywhere; 0 or less where no
    bound needs any. The clocks of that circle are returned in the order of its arcs, which lead
    from ``after`` to ``before``. It takes clocks times arcs.
    """
    clocks, arcs = len(limit), _arcs(limit)
    walks = np.zeros((clocks + 1, clocks))
    for length in range(clocks):
        walks[length + 1] = _longer(arcs, walks[length])
    ends = np.flatnonzero(np.isfinite(walks[clocks]))
    if len(ends) == 0:
        return -np.inf, []
    steps = (clocks - np.arange(clocks))[:, None]
    means = ((walks[clocks, ends] - walks[:clocks, ends]) / steps).max(axis=0)
    # The longest walk to the clock with the least mean runs through that circle.
    walk = [int(ends[means.argmin()])]
    for length in range(clocks - 1, -1, -1):
        after, _, limit_ns = (column[arcs[1] == walk[-1]] for column in arcs)
        walk.append(int(after[(walks[length][after] + limit_ns).argmin()]))
        if walk[-1] in walk[:-1]:
            break
    return -float(means.min()), walk[walk.index(walk[-1]) + 1 :][::-1]


def rounded_up(slack: float) -> float:
    """Return the slack with what sums of it may lose by rounding; 0 where none is needed."""
    return slack + 0.5 if slack > 0 else 0.0


def intervals(limit: Floats, reference: int) -> tuple[Floats, Floats]:
    """Return the middle of each clock's interval, and half its width, by limits without a circle.

    That is infinite for clocks that the reference does not bound from both sides. They are set
    against the first clock that does, which keeps its own time.
    """
    from scipy.sparse.csgraph import johnson

    after, before, limit_ns = _arcs(limit)
    paths = johnson(_graph((after, before), limit_ns, len(limit)))
    bounded = np.isfinite(paths) & np.isfinite(paths.T)
    root = np.where(bounded[reference], reference, bounded.argmax(axis=1))
    every = np.arange(len(limit))
    there, back = paths[root, every], paths[every, root]
    return (there - back) / 2, np.where(root == reference, (there + back) / 2, np.inf)


def _graph(ends: tuple[Ints, Ints], length: Floats, nodes: int) -> Any:
    """Return a graph of arcs (tails, heads) for SciPy, which annotates little."""
    from scipy.sparse import csr_array

    return csr_array((length, ends), shape=(nodes, nodes))


# Clock segments: clocks that drift, as difference constraints laid out in time.
#
# A node is a clock in a segment of time; a step to the next segment costs half of ``DRIFT`` times
# its length; a bound is an arc from one clock to another, in the segment in which it holds. Then a
# path between two clocks in one segment bounds their difference there::
#
#     clock 0   o──o──o──o        ──  drift, both ways
#                  │     │         │  a bound, one way
#     clock 1   o──o──o──o

#: Segments of a capture: fewer where there are many clocks.
_MOST, _FEWEST, _NODES = 128, 32, 4096


@dataclass(frozen=True)
class ClockSegments:
    """Bounds between clocks by segment of time.

    Attributes:
        length_ns: of a segment.
        middle_ns: the middle of each.
        after: clock of the later event of each arc; there is at most one arc for each pair of
            clocks and segment, the tightest.
        before: clock of the earlier event.
        segment: the arc's segment.
        limit_ns: the most that the correction of ``before`` exceeds that of ``after``.
        captured: which segments each clock's capture touches, shape (clocks, segments).
    """

    length_ns: float
    middle_ns: Floats
    after: Ints
    before: Ints
    segment: Ints
    limit_ns: Floats
    captured: Bools


def segmented(
    before: Ints, after: Ints, before_ns: Floats, after_ns: Floats, start_ns: Floats, end_ns: Floats
) -> ClockSegments:
    """Return the bounds that pairs of events give, by segment.

    Args:
        before: clock of the first event of each pair.
        after: clock of the second, another.
        before_ns: when it was; all clocks are already about right.
        after_ns: likewise.
        start_ns: where each clock's capture starts.
        end_ns: where it ends.
    """
    clocks = len(start_ns)
    first = min(float(start_ns.min()), float(after_ns.min(initial=np.inf)))
    last = max(float(end_ns.max()), float(after_ns.max(initial=-np.inf)))
    count = max(_FEWEST, min(_MOST, _NODES // clocks))
    length = max((last - first) / count, 1.0)
    middle: Floats = first + length * np.arange(0.5, count, dtype=np.float64)
    segment = np.clip(((after_ns - first) / length).astype(np.int64), 0, count - 1)
    # An event that is moved to the middle of its segment may drift on the way.
    away = np.abs(after_ns - middle[segment]) + np.abs(before_ns - middle[segment])
    limit = after_ns - before_ns + _EACH * away
    cell = (after * clocks + before) * count + segment
    order = sorted_rows(cell, limit)
    tightest = order[np.unique(cell[order], return_index=True)[1]]
    edges = np.stack((middle - length / 2, middle + length / 2))
    return ClockSegments(
        length_ns=length,
        middle_ns=middle,
        after=after[tightest],
        before=before[tightest],
        segment=segment[tightest],
        limit_ns=limit[tightest],
        captured=(edges[0] <= end_ns[:, None]) & (edges[1] >= start_ns[:, None]),
    )


def feasible(segments: ClockSegments, slack_ns: float) -> Floats | None:
    """Return corrections that satisfy all bounds, shape (clocks, segments), or None.

    Bellman and Ford's relaxation, all arcs at once; between relaxations every clock's corrections
    are made to drift no faster than they may.

    Args:
        segments: the bounds.
        slack_ns: what every bound gives.
    """
    shape = segments.captured.shape
    corrections = np.zeros(shape)
    tail = segments.after, segments.segment
    head = segments.before, segments.segment
    limit = segments.limit_ns + slack_ns
    for _ in range(shape[0] * shape[1] + 1):
        relaxed = corrections.copy()
        np.minimum.at(relaxed, head, corrections[tail] + limit)
        relaxed = _slowed(relaxed, _EACH * segments.length_ns)
        # Less than a thousandth of a nanosecond is rounding.
        if (corrections - relaxed).max(initial=0.0) < 1e-3:
            return corrections
        corrections = relaxed
    return None


def _slowed(values: Floats, step: float) -> Floats:
    """Return the largest values below others that change by at most ``step`` a column."""
    slope = step * np.arange(values.shape[-1])
    rising = np.minimum.accumulate(values - slope, axis=-1) + slope
    falling = np.minimum.accumulate((rising + slope)[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(falling - slope, np.float64)


def bands(
    segments: ClockSegments, potential: Floats, slack_ns: float, reference: int
) -> tuple[Floats, Floats]:
    """Return the least and the largest correction of each clock in each segment.

    Infinite where nothing bounds it. They are shortest paths from and to the reference in the
    same segment (Dijkstra's, on lengths that a feasible potential makes non-negative).

    Args:
        segments: the bounds.
        potential: corrections that satisfy them.
        slack_ns: what every bound gives.
        reference: the clock whose correction is 0.
    """
    from scipy.sparse.csgraph import dijkstra

    clocks, count = potential.shape
    node = np.arange(clocks * count).reshape(clocks, count)
    drift_ns = np.full(clocks * (count - 1), _EACH * segments.length_ns)
    steps = node[:, :-1].ravel(), node[:, 1:].ravel()
    tail = np.concatenate((node[segments.after, segments.segment], *steps))
    head = np.concatenate((node[segments.before, segments.segment], *steps[::-1]))
    length = np.concatenate((segments.limit_ns + slack_ns, drift_ns, drift_ns))
    height = potential.ravel()
    # Rounding makes no circle negative.
    length = np.maximum(length + height[tail] - height[head], 0.0)
    there, back = (
        dijkstra(_graph(ends, length, node.size), indices=node[reference])
        .reshape(count, clocks, count)
        .diagonal(axis1=0, axis2=2)
        for ends in ((tail, head), (head, tail))
    )
    above = potential - potential[reference]
    return above - back, above + there


# Drift lines: a straight line through the band that bounds leave a clock over time.


def drift_line(at_ns: Floats, low: Floats, high: Floats) -> Floats:
    """Return the line, at most ``DRIFT`` steep, whose farthest edge of a band lies nearest.

    A linear program in the height, the slope and the distance, which is minimised.
    """
    from scipy.optimize import linprog

    place = (at_ns - at_ns.mean()) / float(np.ptp(at_ns))
    steepest = DRIFT * float(np.ptp(at_ns))
    # high - line and line - low are at most the distance.
    above = np.stack((-np.ones(len(place)), -place, -np.ones(len(place))), axis=1)
    below = np.stack((np.ones(len(place)), place, -np.ones(len(place))), axis=1)
    program = linprog(
        [0.0, 0.0, 1.0],
        A_ub=np.concatenate((above, below)),
        b_ub=np.concatenate((-high, low)),
        bounds=[(None, None), (-steepest, steepest), (0, None)],
    )
    height, slope, _ = program.x
    return np.asarray(height + slope * place, np.float64)


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
        drift = float(line[-1] - line[0]) / float(segments.middle_ns[-1] - segments.middle_ns[0])
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
