"""Elements of a trace: processes, tracks of slices, flows and counters.

Overlapping slices in a track are placed in different lanes, so that viewers show all of them::

    lane 0   ├── F 3 ──┤├─── B 1 ───┤
    lane 1        ├── F 4 ──┤

Times are in nanoseconds after the base time of the trace, and are never negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

import numpy as np

from bubbleviz.model.columns import Ints

#: Value of a trace property or a slice property.
Value: TypeAlias = int | float | str
#: Values of one property, one per slice. The value is None if the slice lacks the property.
Column: TypeAlias = Sequence[int | float | str | None]
#: For each slice, the ids of its flows.
Flows: TypeAlias = Sequence[Sequence[int]]


class Slice(NamedTuple):
    """A slice of a :class:`SliceTrack`.

    Attributes:
        start_ns: Start of the slice, in ns after the base time of the trace.
        end_ns: End of the slice, in ns after the base time of the trace.
        lane: Zero-based index of the lane in the track.
        name: Name of the slice.
        arguments: Properties of the slice, keyed by name. Properties that are None are left out.
        leaving: Ids of the flows that start in the slice.
        entering: Ids of the flows that end in the slice.
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
    """A track of slices, sorted by (start, end).

    Attributes:
        name: Name of the track.
        category: Category of the slices, such as ``operation`` or ``bubble``.
        start_ns: Start of each slice in ns after the base time of the trace, shape (slices,).
        end_ns: End of each slice in ns after the base time of the trace, shape (slices,).
        names: Name of each slice.
        arguments: Slice properties: one column of values per property, keyed by name.
        leaving: For each slice, the ids of the flows that start in it, or () if there are no flows.
        entering: For each slice, the ids of the flows that end in it, or () if there are no flows.
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
        """Index of the lane that contains each slice. Slices in the same lane do not overlap."""
        return assign_lanes(self.start_ns, self.end_ns)

    @property
    def lanes(self) -> int:
        """Number of lanes. A track without slices has one lane."""
        return int(self.lane.max(initial=0)) + 1

    def slices(self) -> Iterator[Slice]:
        """Yield the slices in order of (start, end)."""
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
    """A process in a trace viewer, which represents one rank or all ranks together.

    Attributes:
        number: Unique number of the process. The first rank has number 1. Process ids of the
            operating system are not used, because they are not unique across hosts.
        order: Zero-based position of the process in the viewer.
        name: Label of the rank, or ``all ranks``.
        labels: Descriptions of the rank, such as "stage 0" and "host node1".
        ratios: (time, bubble ratio) of each iteration. The time is the start of the iteration's
            window, in ns after the base time of the trace.
        tracks: The tracks in display order.
    """

    number: int
    order: int
    name: str
    labels: tuple[str, ...]
    ratios: Sequence[tuple[int, float]]
    tracks: tuple[SliceTrack, ...]


def assign_lanes(start_ns: Ints, end_ns: Ints) -> Ints:
    """Assign each slice to the lowest lane that is free when the slice starts.

    A lane becomes free at the end of its last slice, so a slice may start exactly at that time.

    Args:
        start_ns: Start of each slice, shape (slices,). Slices must be sorted by (start, end).
        end_ns: End of each slice, shape (slices,).

    Returns: Zero-based lane index of each slice, shape (slices,).
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
