"""Clock segments: clocks that drift, as difference constraints laid out in time.

Any two clocks may drift apart by ``DRIFT`` at any time, that is each by half of it against a
common mean. A node is a clock in a segment of time; a step to the next segment costs half of
``DRIFT`` times its length; a bound is an arc from one clock to another, in the segment in which
it holds. Then a path between two clocks in one segment bounds their difference there::

    clock 0   o──o──o──o        ──  drift, both ways
                 │     │         │  a bound, one way
    clock 1   o──o──o──o
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import sorted_rows
from bubbleviz.model.values import frozen

Floats = npt.NDArray[np.float64]

#: By how much two clocks may drift apart.
DRIFT = 50e-6
_EACH = DRIFT / 2
#: ClockSegments that a capture is segmented into: fewer where there are many clocks.
_MOST, _FEWEST, _NODES = 128, 32, 4096
#: Numbers that are worked on at once.
_AT_ONCE = 1 << 20


@frozen
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
    same segment (Bellman and Ford's, on lengths that a feasible potential makes non-negative).

    Args:
        segments: the bounds.
        potential: corrections that satisfy them.
        slack_ns: what every bound gives.
        reference: the clock whose correction is 0.
    """
    after, before = (segments.after, segments.segment), (segments.before, segments.segment)
    height = potential[after] - potential[before]
    # Rounding makes no circle negative.
    length = np.maximum(segments.limit_ns + slack_ns + height, 0.0) - height
    there = _shortest(segments, before, after, length, reference)
    back = _shortest(segments, after, before, length, reference)
    return -back, there


def _shortest(
    segments: ClockSegments,
    head: tuple[Ints, Ints],
    tail: tuple[Ints, Ints],
    length: Floats,
    reference: int,
) -> Floats:
    """Return the shortest paths from the reference to each clock in the same segment.

    Args:
        segments: the bounds, as arcs.
        head: clock and segment that each arc leads to.
        tail: those that it leads from.
        length: of each.
        reference: the clock that paths begin at.
    """
    clocks, count = segments.captured.shape
    found = np.full((clocks, count), np.inf)
    reached = _reached(head[0], tail[0], clocks, reference)
    inside = np.flatnonzero(reached[tail[0]])
    # Others may be many, and stay where they are.
    every = np.flatnonzero(reached)
    place = np.cumsum(reached) - 1
    to, start = (place[ends[0][inside]] * count + ends[1][inside] for ends in (head, tail))
    order = sorted_rows(to)
    to, start, length = to[order], start[order], length[inside][order]
    first = np.flatnonzero(np.diff(to, prepend=NONE))
    size = max(1, _AT_ONCE // max(len(to), len(every) * count))
    for low in range(0, count, size):
        sources = np.arange(low, min(low + size, count))
        paths = np.full((len(sources), len(every), count), np.inf)
        paths[np.arange(len(sources)), place[reference], sources] = 0.0
        paths = _slowed(paths, _EACH * segments.length_ns)
        # A path may come to a clock several times, in another segment each time.
        for _ in range(len(every) * count if len(to) else 0):
            flat = paths.reshape(len(sources), -1)
            nearer = flat.copy()
            reached = np.minimum.reduceat(flat[:, start] + length, first, axis=1)
            nearer[:, to[first]] = np.minimum(nearer[:, to[first]], reached)
            # Less than a millionth of a nanosecond is rounding.
            if not (nearer < flat - 1e-6).any():
                break
            paths = _slowed(nearer.reshape(paths.shape), _EACH * segments.length_ns)
        found[every[:, None], sources] = paths[np.arange(len(sources)), :, sources].T
    return found


def _reached(head: Ints, tail: Ints, clocks: int, reference: int) -> Bools:
    """Return which clocks arcs lead to from the reference."""
    reached = np.zeros(clocks, bool)
    reached[reference] = True
    for _ in range(clocks):
        new = reached.copy()
        new[head[reached[tail]]] = True
        if (new == reached).all():
            break
        reached = new
    return reached
