"""Tracks: the elements of traces: processes, slices in time, flows and counters.

Overlapping slices of a track are distributed over lanes, so that viewers show all of them::

    lane 0   ├── F 3 ──┤├─── B 1 ───┤
    lane 1        ├── F 4 ──┤

Times are nanoseconds since the base of the trace, and never negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import numpy as np

from bubbleviz.model.columns import Ints

#: A property of the entire trace, or of one slice.
Value: TypeAlias = int | float | str
#: A property of each slice, or None if the slice does not have it.
Column: TypeAlias = Sequence[int | float | str | None]
#: The numbers of the flows of each slice.
Flows: TypeAlias = Sequence[Sequence[int]]


class Slice(NamedTuple):
    """A slice of a :class:`SliceTrack`.

    Attributes:
        start_ns: Start since the base of the trace.
        end_ns: End since the base of the trace.
        lane: Lane of the track, from 0.
        name: Name of the slice.
        arguments: The properties that are not None, keyed by name.
        leaving: Numbers of the flows that leave the slice.
        entering: Numbers of the flows that enter the slice.
    """

    start_ns: int
    end_ns: int
    lane: int
    name: str
    arguments: dict[str, Value]
    leaving: Sequence[int]
    entering: Sequence[int]


@dataclass(frozen=True)
class SliceTrack:
    """Slices of one kind, in order of (start, end).

    Attributes:
        name: Name of the track.
        category: Category of the slices.
        start_ns: Start of each slice since the base of the trace, shape (slices,).
        end_ns: End of each slice since the base of the trace.
        names: Name of each slice.
        arguments: Properties of the slices, keyed by property name.
        leaving: Numbers of the flows that leave each slice, or () if no flow leaves any slice.
        entering: Numbers of the flows that enter each slice, or () if no flow enters any slice.
    """

    name: str
    category: str
    start_ns: Ints
    end_ns: Ints
    names: Sequence[str]
    arguments: Mapping[str, Column]
    leaving: Flows = ()
    entering: Flows = ()

    @cached_property
    def lane(self) -> Ints:
        """Lane of each slice, from 0. Slices in a lane do not overlap."""
        return assign_lanes(self.start_ns, self.end_ns)

    @property
    def lanes(self) -> int:
        """Number of lanes; 1 if there are no slices."""
        return int(self.lane.max(initial=0)) + 1

    def slices(self) -> Iterator[Slice]:
        """Yield the slices in their order."""
        columns = (column.tolist() for column in (self.start_ns, self.end_ns, self.lane))
        no_flows: Flows = [()] * len(self.names)
        flows = self.leaving or no_flows, self.entering or no_flows
        rows = zip(*columns, self.names, *flows, strict=True)
        for row, (start_ns, end_ns, lane, name, leaving, entering) in enumerate(rows):
            values = ((key, column[row]) for key, column in self.arguments.items())
            arguments = {key: value for key, value in values if value is not None}
            yield Slice(start_ns, end_ns, lane, name, arguments, leaving, entering)


@dataclass(frozen=True)
class Process:
    """A process of a trace viewer: a rank, or all ranks together.

    Attributes:
        number: Unique process number: 1 for rank 0. Process ids are not unique across hosts.
        order: Position among the processes.
        name: Label of the rank.
        labels: Stage, pipeline, host and process of the rank.
        ratios: Start and ratio of each iteration; starts are relative to the base of the trace.
        tracks: Tracks in display order.
    """

    number: int
    order: int
    name: str
    labels: tuple[str, ...]
    ratios: Sequence[tuple[int, float]]
    tracks: tuple[SliceTrack, ...]


def assign_lanes(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the lane of each slice: the lowest lane that is free when the slice starts.

    Args:
        start_ns: Start of each slice, in order of (start, end), shape (slices,).
        end_ns: End of each slice.
    """
    lane: list[int] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane.append(heappop(free) if free else len(busy))
        heappush(busy, (end, lane[-1]))
    return np.array(lane, np.int64)
