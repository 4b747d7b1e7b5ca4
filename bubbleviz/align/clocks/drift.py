"""Drift: clocks that run at different speeds, as difference constraints laid out in time.

A node is a clock in a segment of time. A step to the next segment costs half of ``DRIFT`` times
its length. A bound is an arc from one clock to another, in the segment in which it holds. A path
between two clocks in one segment then bounds their difference there::

    clock 0   o──o──o──o        ──  drift, both ways
                 │     │         │  a bound, one way
    clock 1   o──o──o──o
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.clocks.offsets import build_graph
from bubbleviz.align.profile_clocks import DRIFT
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import sort_rows

_EACH = DRIFT / 2


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
    order = sort_rows(cell, limit)
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
    reversed_values = (rising + slope)[..., ::-1]
    falling = np.minimum.accumulate(reversed_values, axis=-1)[..., ::-1]
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
        dijkstra(build_graph(ends, length, node.size), indices=node[reference])
        .reshape(count, clocks, count)
        .diagonal(axis1=0, axis2=2)
        for ends in ((tail, head), (head, tail))
    )
    above = potential - potential[reference]
    return above - back, above + there


def drift_line(at_ns: Floats, low: Floats, high: Floats) -> Floats:
    """Return the line, at most ``DRIFT`` steep, whose farthest edge of a band lies nearest.

    A linear program in the height, the slope and the distance, which is minimised.
    """
    from scipy.optimize import linprog

    place = (at_ns - at_ns.mean()) / float(np.ptp(at_ns))
    steepest = DRIFT * float(np.ptp(at_ns))
    # high - line and line - low are at most the distance.
    ones = np.ones(len(place))
    above = np.stack((-ones, -place, -ones), axis=1)
    below = np.stack((np.ones(len(place)), place, -np.ones(len(place))), axis=1)
    program = linprog(
        [0.0, 0.0, 1.0],
        A_ub=np.concatenate((above, below)),
        b_ub=np.concatenate((-high, low)),
        bounds=[(None, None), (-steepest, steepest), (0, None)],
    )
    height, slope, _ = program.x
    return np.asarray(height + slope * place, np.float64)
