"""Tracks: what trace viewers show, which know processes, slices in time, flows and counters.

What overlaps on a track is spread to lanes, so that no time is lost::

    lane 0   ├── F 3 ──┤├─── B 1 ───┤
    lane 1        ├── F 4 ──┤

Times are nanoseconds since the base of the trace, never negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.model.values import frozen

#: What arguments of slices hold.
Value = int | float | str


@frozen
class Argument:
    """One property of the slices of a track, a value each; None where a slice has none."""

    name: str
    values: Sequence[Value | None]


@frozen
class SliceTrack:
    """Slices of one kind, in order of (start, end); those of one lane follow each other.

    Attributes:
        name: of the track.
        category: of its slices.
        start_ns: since the trace's base, shape (slices,).
        end_ns: likewise.
        lane: 0 and up; a slice begins where the one before it in its lane has ended, or later.
        names: of the slices.
        arguments: of the slices.
        leaving: by place of a slice, the flows that leave it.
        entering: likewise those that enter it.
    """

    name: str
    category: str
    start_ns: Ints
    end_ns: Ints
    lane: Ints
    names: Sequence[str]
    arguments: tuple[Argument, ...]
    leaving: Mapping[int, Sequence[int]]
    entering: Mapping[int, Sequence[int]]

    @property
    def lanes(self) -> int:
        """How many lanes it has; one where it has no slices."""
        return int(self.lane.max(initial=0)) + 1


@frozen
class Counter:
    """A ratio by iteration.

    Attributes:
        name: of the ratio.
        time_ns: starts of the iterations since the trace's base.
        values: of the ratio.
    """

    name: str
    time_ns: Sequence[int]
    values: Sequence[float]


@frozen
class Process:
    """What a viewer takes for a process: a rank, or all of them.

    Attributes:
        number: stands for the process id, which is not unique over hosts: 1 for rank 0.
        order: place among the processes.
        name: the rank's label.
        labels: stage, pipeline, host and process of the rank.
        counter: its ratio.
        tracks: in order of display.
    """

    number: int
    order: int
    name: str
    labels: tuple[str, ...]
    counter: Counter
    tracks: tuple[SliceTrack, ...]


def lanes_of(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the lane of each slice: the lowest that is free when it starts.

    Args:
        start_ns: in order of (start, end), shape (slices,).
        end_ns: likewise.
    """
    lane = np.zeros(len(start_ns), np.int64)
    if (start_ns[1:] >= end_ns[:-1]).all():
        return lane
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = 0
    for place, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane[place] = heappop(free)
        else:
            lane[place], lanes = lanes, lanes + 1
        heappush(busy, (end, int(lane[place])))
    return lane
