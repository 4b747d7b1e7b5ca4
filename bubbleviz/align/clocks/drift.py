"""Drift: solve for clocks that run at different rates, using difference constraints.

In the constraint graph, a node is one clock in one time segment. An arc to the next or previous
segment of the same clock has the length ``DRIFT / 2`` times the duration of a segment. A bound is
an arc from one clock to another, in the segment of its later event. A path between two clocks in
the same segment then bounds their difference in that segment::

    clock 0   o──o──o──o        ──  drift, in both directions
                 │     │         │  a bound, in one direction
    clock 1   o──o──o──o
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bubbleviz.align.clocks.offsets import build_graph
from bubbleviz.align.profile_clocks import DRIFT
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.grouping import sort_rows

#: Maximum relative drift of one clock.
_CLOCK_DRIFT = DRIFT / 2


#: Maximum and minimum number of segments in a capture, and maximum number of graph nodes. With many
#: clocks, it is the maximum number of nodes that limits the number of segments.
_MAX_SEGMENTS, _MIN_SEGMENTS, _MAX_NODES = 128, 32, 4096


@dataclass(frozen=True)
class ClockSegments:
    """Bounds between clocks in each time segment.

    There is at most one arc per ordered clock pair and segment: the tightest bound.

    Attributes:
        length_ns: Duration of a segment.
        middle_ns: Time of each segment's midpoint.
        later: The clock on which each arc's later event was timed.
        earlier: The clock on which each arc's earlier event was timed.
        segment: Segment of each arc.
        limit_ns: Maximum by which the correction of the clock ``earlier`` may exceed the correction
            of the clock ``later``.
        is_captured: Mask of the segments that overlap the capture of each clock, shape
            (clocks, segments).
    """

    length_ns: float
    middle_ns: Floats
    later: Ints
    earlier: Ints
    segment: Ints
    limit_ns: Floats
    is_captured: Bools


def divide_into_segments(
    earlier: Ints,
    later: Ints,
    earlier_ns: Floats,
    later_ns: Floats,
    start_ns: Floats,
    end_ns: Floats,
) -> ClockSegments:
    """Divide time into equal segments and find the tightest bounds between clocks in each segment.

    All times must be on approximately aligned clocks. A bound applies at the midpoint of the
    segment that contains the later event. It is loosened by the maximum drift between this midpoint
    and each of the two events.

    Args:
        earlier: The first event's clock in each pair.
        later: The second event's clock in each pair. Always differs from ``earlier``.
        earlier_ns: Time of the first event in each pair.
        later_ns: Time of the second event in each pair.
        start_ns: Start of each clock's capture.
        end_ns: End of each clock's capture.
    """
    n_clocks = len(start_ns)
    first_ns = min(float(start_ns.min()), float(later_ns.min(initial=np.inf)))
    last_ns = max(float(end_ns.max()), float(later_ns.max(initial=-np.inf)))
    n_segments = max(_MIN_SEGMENTS, min(_MAX_SEGMENTS, _MAX_NODES // n_clocks))
    length_ns = max((last_ns - first_ns) / n_segments, 1.0)
    middle_ns: Floats = first_ns + length_ns * np.arange(0.5, n_segments, dtype=np.float64)
    segment = np.clip(((later_ns - first_ns) / length_ns).astype(np.int64), 0, n_segments - 1)
    moved_ns = _measure_moves(earlier_ns, later_ns, middle_ns[segment])
    limit_ns = later_ns - earlier_ns + _CLOCK_DRIFT * moved_ns
    tightest = _find_tightest((later * n_clocks + earlier) * n_segments + segment, limit_ns)
    begins_in_time = middle_ns - length_ns / 2 <= end_ns[:, None]
    ends_in_time = middle_ns + length_ns / 2 >= start_ns[:, None]
    return ClockSegments(
        length_ns=length_ns,
        middle_ns=middle_ns,
        later=later[tightest],
        earlier=earlier[tightest],
        segment=segment[tightest],
        limit_ns=limit_ns[tightest],
        is_captured=begins_in_time & ends_in_time,
    )


def _measure_moves(earlier_ns: Floats, later_ns: Floats, target_ns: Floats) -> Floats:
    """Return ``abs(later_ns - target_ns) + abs(earlier_ns - target_ns)`` for each event pair."""
    return np.asarray(np.abs(later_ns - target_ns) + np.abs(earlier_ns - target_ns), np.float64)


def _find_tightest(cell: Ints, limit_ns: Floats) -> Ints:
    """Return the row of each cell's tightest bound (smallest limit), sorted by cell.

    Args:
        cell: Cell number of each bound. A cell is a clock pair in a segment.
        limit_ns: Limit of each bound.
    """
    order = sort_rows(cell, limit_ns)
    return order[np.unique(cell[order], return_index=True)[1]]


def find_feasible_corrections(segments: ClockSegments, slack_ns: float) -> Floats | None:
    """Find corrections that satisfy all bounds, or return None if there are none.

    The corrections are found with the Bellman-Ford algorithm, with all arcs relaxed at once. After
    each relaxation, each clock's corrections are reduced until consecutive segments differ by no
    more than the possible drift.

    Args:
        segments: Bounds between clocks.
        slack_ns: Slack to add to every bound.

    Returns:
        Correction of each clock in each segment in ns, shape (clocks, segments), or None.
    """
    n_clocks, n_segments = segments.is_captured.shape
    corrections = np.zeros((n_clocks, n_segments))
    tail = segments.later, segments.segment
    head = segments.earlier, segments.segment
    limit_ns = segments.limit_ns + slack_ns
    for _ in range(n_clocks * n_segments + 1):
        relaxed = corrections.copy()
        np.minimum.at(relaxed, head, corrections[tail] + limit_ns)
        relaxed = _limit_slope(relaxed, _CLOCK_DRIFT * segments.length_ns)
        # A change of less than a thousandth of a nanosecond is a rounding error.
        if (corrections - relaxed).max(initial=0.0) < 1e-3:
            return corrections
        corrections = relaxed
    return None


def _limit_slope(values: Floats, max_step: float) -> Floats:
    """Lower values as little as possible so that neighbors differ by at most ``max_step``.

    Neighbors are consecutive entries along the last axis. The result is computed with two running
    minima, one from each side.
    """
    slope = max_step * np.arange(values.shape[-1])
    rising = np.minimum.accumulate(values - slope, axis=-1) + slope
    reversed_values = (rising + slope)[..., ::-1]
    falling = np.minimum.accumulate(reversed_values, axis=-1)[..., ::-1]
    return np.asarray(falling - slope, np.float64)


def compute_bands(
    segments: ClockSegments, potential: Floats, slack_ns: float, reference: int
) -> tuple[Floats, Floats]:
    """Compute the smallest and largest possible corrections of each clock in each segment.

    The bounds are the lengths of the shortest paths between the clock and the reference in the same
    segment. The potential makes all lengths non-negative for Dijkstra's algorithm (as in Johnson's
    algorithm).

    Args:
        segments: Bounds between clocks.
        potential: Corrections that satisfy the bounds, shape (clocks, segments).
        slack_ns: Slack to add to every bound.
        reference: Clock whose correction is 0.

    Returns:
        lower: Smallest correction, shape (clocks, segments). Negative infinity if the correction
            has no lower bound.
        upper: Largest correction, same shape as ``lower``. Infinity if the correction has no upper
            bound.
    """
    from scipy.sparse.csgraph import dijkstra

    n_clocks, n_segments = potential.shape
    node = np.arange(n_clocks * n_segments).reshape(n_clocks, n_segments)
    (tail, head), length_ns = _list_arcs(segments, node, slack_ns)
    height = potential.ravel()
    # Taking the maximum keeps rounding errors from making a length negative.
    length_ns = np.maximum(length_ns + height[tail] - height[head], 0.0)

    def measure_paths(arcs: tuple[Ints, Ints]) -> Floats:
        """Return the distance from the reference to each clock in the same segment."""
        graph = build_graph(arcs, length_ns, node.size)
        distance = dijkstra(graph, indices=node[reference])
        by_segment = distance.reshape(n_segments, n_clocks, n_segments)
        return np.asarray(by_segment.diagonal(axis1=0, axis2=2), np.float64)

    to_clock, from_clock = measure_paths((tail, head)), measure_paths((head, tail))
    relative = potential - potential[reference]
    return relative - from_clock, relative + to_clock


def _list_arcs(
    segments: ClockSegments, node: Ints, slack_ns: float
) -> tuple[tuple[Ints, Ints], Floats]:
    """List the arcs of the constraint graph.

    The arcs are the bounds between clocks, and the possible drift of each clock from a segment to
    the next and to the previous one.

    Args:
        segments: Bounds between clocks.
        node: Node number of each clock in each segment, shape (clocks, segments).
        slack_ns: Slack to add to every bound.

    Returns:
        arcs: Tails and heads of the arcs, as node numbers.
        length_ns: Length of each arc.
    """
    previous, following = node[:, :-1].ravel(), node[:, 1:].ravel()
    drift_ns = np.full(len(previous), _CLOCK_DRIFT * segments.length_ns)
    tail = np.concatenate((node[segments.later, segments.segment], previous, following))
    head = np.concatenate((node[segments.earlier, segments.segment], following, previous))
    return (tail, head), np.concatenate((segments.limit_ns + slack_ns, drift_ns, drift_ns))


def fit_drift_line(time_ns: Floats, low: Floats, high: Floats) -> Floats:
    """Fit a line to a band so that its largest distance from either edge is minimal.

    The line is found with a linear program that minimizes this distance over the height and the
    slope of the line. The absolute slope is limited to ``DRIFT``.

    Args:
        time_ns: Times at which the band is known. At least two of them must differ.
        low: The band's lower edge at each time.
        high: The band's upper edge at each time.

    Returns:
        Value of the line at each time.
    """
    from scipy.optimize import linprog

    duration_ns = float(np.ptp(time_ns))
    relative_time = (time_ns - time_ns.mean()) / duration_ns
    max_slope = DRIFT * duration_ns
    # Constraints: high - line <= distance, and line - low <= distance.
    ones = np.ones(len(relative_time))
    from_high = np.stack((-ones, -relative_time, -ones), axis=1)
    from_low = np.stack((ones, relative_time, -ones), axis=1)
    program = linprog(
        [0.0, 0.0, 1.0],
        A_ub=np.concatenate((from_high, from_low)),
        b_ub=np.concatenate((-high, low)),
        bounds=[(None, None), (-max_slope, max_slope), (0, None)],
    )
    height, slope, _ = program.x
    return np.asarray(height + slope * relative_time, np.float64)
