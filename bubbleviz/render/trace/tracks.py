"""Tracks: what trace viewers show, which know processes, slices in time, flows and counters.

What overlaps on a track is spread to lanes, so that no time is lost::

    lane 0   ├── F 3 ──┤├─── B 1 ───┤
    lane 1        ├── F 4 ──┤

Times are nanoseconds since the base of the trace, never negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bubbleviz.model.coded_texts import CodedTexts
from bubbleviz.model.columns import Bools, Ints, Table
from bubbleviz.model.values import frozen

#: Properties of a trace as a whole.
Value: TypeAlias = int | float | str


@frozen
class Numbers(Table):
    """A number of each slice.

    Attributes:
        values: whole numbers, or fractions, shape (slices,).
        known: whether a slice has one, shape (slices,).
    """

    values: Ints | npt.NDArray[np.float64]
    known: Bools


@frozen
class Argument:
    """One property of the slices of a track."""

    name: str
    values: CodedTexts | Numbers

    @property
    def known(self) -> Bools:
        """Which slices have it, shape (slices,)."""
        return self.values.known


@frozen
class FlowEnds(Table):
    """Ends of flows in slices of a track, in order of (place, flow).

    Attributes:
        place: of the slice in its track.
        flow: number of the flow.
    """

    place: Ints
    flow: Ints

    def turns(self) -> Iterator[FlowEnds]:
        """Yield the first end in each slice, then the second ones, and so on."""
        turn = np.arange(len(self)) - np.searchsorted(self.place, self.place)
        for number in range(int(turn.max(initial=-1)) + 1):
            yield self.take(turn == number)


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
        arguments: of the slices; every slice has the first one.
        leaving: the flows that leave a slice.
        entering: the flows that enter one.
    """

    name: str
    category: str
    start_ns: Ints
    end_ns: Ints
    lane: Ints
    names: CodedTexts
    arguments: tuple[Argument, ...]
    leaving: FlowEnds
    entering: FlowEnds

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
    ended_ns = np.maximum.accumulate(end_ns)
    # Slices between two instants at which all lanes are free are a cluster.
    begins = np.concatenate((np.ones(1, bool), start_ns[1:] >= ended_ns[:-1]))[: len(lane)]
    cluster = np.cumsum(begins) - 1
    size = np.bincount(cluster)[cluster]
    lane[(size == 2) & ~begins] = 1
    several = np.flatnonzero(size > 2)
    lane[several] = _greedy_lanes(start_ns[several], end_ns[several])
    return lane


def _greedy_lanes(start_ns: Ints, end_ns: Ints) -> list[int]:
    """Return the lane of each slice, looking at one after the other."""
    lane: list[int] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane.append(heappop(free) if free else len(busy))
        heappush(busy, (end, lane[-1]))
    return lane
