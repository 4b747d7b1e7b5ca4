"""Host timeline: what threads did at every instant of some segments of time.

Of the ranges and calls around an instant the strongest counts, of equally strong ones the
innermost::

    range       ├─data loading (3)──────────────┤
    call            ├─cudaMemcpy (2)─┤            ├─cudaMalloc (2)─┤
    segment     ├───────────────────────────────────────────────────────┤
    result      ├─data loading──────────────────┤.├─cudaMalloc─────┤....    . unknown
"""

from __future__ import annotations

import numpy as np

from bubbleviz.analyses.idle.gaps import split
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table, joined
from bubbleviz.model.containment import Innermost, disjoint_layers
from bubbleviz.model.grouping import distinct
from bubbleviz.model.values import frozen


@frozen
class HostIntervals(Table):
    """Ranges and calls of threads, each with an activity.

    Attributes:
        thread: of the range or call.
        start_ns: start.
        end_ns: end.
        activity: number of what the host does in it.
        strength: of the activity (:mod:`bubbleviz.conventions.host_activities`).
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints
    strength: Ints


def collapsed(host: HostIntervals, strength: int) -> HostIntervals:
    """Return the same, the intervals of one strength united by thread if they are one activity.

    Frames of Python lie a hundred deep, and all have the same activity.
    """
    mask = host.strength == strength
    alike = host.take(mask)
    if len(alike) == 0 or (alike.activity != alike.activity[0]).any():
        return host
    threads, number = np.unique(alike.thread, return_inverse=True)
    group, start_ns, end_ns = intervals.group_union(
        number, len(threads), alike.start_ns, alike.end_ns
    )
    activity, strengths = (
        np.full(len(group), value) for value in (alike.activity[0], np.int64(strength))
    )
    united = HostIntervals(threads[group], start_ns, end_ns, activity, strengths)
    return joined((host.take(~mask), united))


@frozen
class GapSegments(Table):
    """Segments of gaps, those of one gap disjoint, each with a thread and what it did.

    Attributes:
        gap: row of the gaps.
        thread: of the host.
        start_ns: start.
        end_ns: end.
        activity: what the thread did; -1 unknown.
    """

    gap: Ints
    thread: Ints
    start_ns: Ints
    end_ns: Ints
    activity: Ints


def with_activities(segments: GapSegments, host: HostIntervals) -> GapSegments:
    """Return segments with what their threads did, cut where that changes.

    Args:
        segments: those of one thread disjoint, none empty; one with an activity is left as it is.
        host: ranges and calls of threads.

    Returns:
        First the segments that had an activity, then the others by (thread, start).
    """
    done = segments.take(segments.activity != NONE)
    segments = segments.take(segments.activity == NONE)
    if len(segments) == 0 or len(host) == 0:
        return joined((done, segments))
    segments = segments.take(np.lexsort((segments.start_ns, segments.thread)))
    threads, number = np.unique(segments.thread, return_inverse=True)
    extents = intervals.group_extents(number, len(threads), segments.start_ns, segments.end_ns)
    # One line on which the times of different threads do not meet.
    line = intervals.Packing.of(*extents)
    start, end = line.place(number, segments.start_ns), line.place(number, segments.end_ns)
    host = host.take(np.isin(host.thread, threads))
    group = np.searchsorted(threads, host.thread)
    low_ns, high_ns = extents[0][group], extents[1][group]
    host_start = line.place(group, np.clip(host.start_ns, low_ns, high_ns))
    host_end = line.place(group, np.clip(host.end_ns, low_ns, high_ns))
    near = np.flatnonzero(
        np.searchsorted(end, host_start, side="right") < np.searchsorted(start, host_end)
    )
    host, host_start, host_end = host.take(near), host_start[near], host_end[near]
    row, begin, stop = split(start, end, distinct(host_start, host_end))
    strongest = _strongest(host, host_start, host_end).around(begin, stop)
    cut = GapSegments(
        gap=segments.gap[row],
        thread=segments.thread[row],
        start_ns=begin - start[row] + segments.start_ns[row],
        end_ns=stop - start[row] + segments.start_ns[row],
        activity=np.append(host.activity, NONE)[strongest],
    )
    return joined((done, cut))


def _strongest(host: HostIntervals, start: Ints, end: Ints) -> Innermost:
    """Return a search for the strongest interval around a time, of equals the innermost."""
    row = np.arange(len(host))
    length_ns = host.end_ns - host.start_ns
    weakest_first = np.lexsort((row, host.start_ns, -length_ns, host.strength))
    depth = np.empty(len(row), np.int64)
    depth[weakest_first] = row
    return Innermost(start, end, depth, disjoint_layers(start, end))
