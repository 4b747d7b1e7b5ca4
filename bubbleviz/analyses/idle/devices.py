"""Devices: when each device of a profile was busy, with what, and its idle gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bubbleviz.analyses.idle.gaps import Busy, Gaps, busy_of, gaps_of
from bubbleviz.analyses.idle.report import Breakdown
from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools
from bubbleviz.model.profile import Activities
from bubbleviz.model.values import frozen


@frozen
class DeviceTime:
    """A device of a process: when it was busy, and its gaps.

    Attributes:
        rank: row of the profile's ranks.
        process: of the device.
        busy: when it was busy.
        gaps: all of them.
        short: which are kernel-to-kernel gaps.
        span_ns: from the start of its first work to the end of its last, inside the window.
        single: whether a single kernel or copy is all that it ran.
    """

    rank: int
    process: int
    busy: Busy
    gaps: Gaps
    short: Bools
    span_ns: tuple[int, int]
    single: bool

    @property
    def long_gaps(self) -> Gaps:
        """The gaps that are attributed to what the host did."""
        return self.gaps.take(~self.short)

    def within(self, low_ns: int, high_ns: int, shortest_ns: int) -> DeviceTime | None:
        """Return the part between two instants; None where that misses the span."""
        low_ns, high_ns = max(low_ns, self.span_ns[0]), min(high_ns, self.span_ns[1])
        if high_ns <= low_ns:
            return None
        gaps = self.gaps.within(low_ns, high_ns)
        short = _short(gaps, shortest_ns)
        busy = self.busy.within(low_ns, high_ns)
        span_ns = low_ns, high_ns
        return DeviceTime(self.rank, self.process, busy, gaps, short, span_ns, self.single)

    def exposed(self) -> tuple[intervals.Intervals, intervals.Intervals, intervals.Intervals]:
        """Return the intervals of compute, of exposed communication and of exposed copies."""
        busy = self.busy
        start_ns, end_ns = (
            np.concatenate(c) for c in zip(busy.compute_ns, busy.communication_ns, strict=True)
        )
        kernels = intervals.union(start_ns, end_ns)
        return (
            busy.compute_ns,
            intervals.difference(busy.communication_ns, busy.compute_ns),
            intervals.difference(busy.copy_ns, kernels),
        )

    def breakdown(self) -> Breakdown:
        """Return the lengths of all kinds of time."""
        busy, (start_ns, end_ns) = self.busy, self.span_ns
        _, communication, copies = self.exposed()
        return Breakdown(
            start_ns=start_ns,
            end_ns=end_ns,
            busy_ns=intervals.measure(busy.any_ns),
            compute_ns=intervals.measure(busy.compute_ns),
            communication_ns=intervals.measure(busy.communication_ns),
            copy_ns=intervals.measure(busy.copy_ns),
            exposed_communication_ns=intervals.measure(communication),
            exposed_point_to_point_ns=intervals.measure(
                intervals.difference(busy.point_to_point_ns, busy.compute_ns)
            ),
            exposed_copy_ns=intervals.measure(copies),
        )


def devices_of(activities: Activities, kinds: Kinds, shortest_ns: int) -> Iterator[DeviceTime]:
    """Yield the devices on which work took any time.

    Args:
        activities: of a profile.
        kinds: names of communication kernels.
        shortest_ns: shorter gaps are kernel-to-kernel gaps.
    """
    communication = matching(activities.names, kinds.communication)
    point_to_point = matching(activities.names, kinds.point_to_point)
    for rank, process in enumerate(activities.ranks[:, 0].tolist()):
        rows = np.flatnonzero(activities.rank == rank)
        busy = busy_of(activities, rows, communication, point_to_point)
        if len(busy.any_ns[0]):
            gaps = gaps_of(activities, rows)
            span_ns = int(busy.any_ns[0][0]), int(busy.any_ns[1][-1])
            short, single = _short(gaps, shortest_ns), len(rows) == 1
            yield DeviceTime(rank, process, busy, gaps, short, span_ns, single)


def _short(gaps: Gaps, shortest_ns: int) -> Bools:
    return np.asarray(gaps.end_ns - gaps.start_ns < shortest_ns, bool)


def idle_by_process(devices: Sequence[DeviceTime]) -> Mapping[int, intervals.Intervals]:
    """Return the idle intervals of each process's devices, without kernel-to-kernel gaps."""
    idle = {}
    for process in {device.process for device in devices}:
        gaps = [device.long_gaps for device in devices if device.process == process]
        start_ns = np.concatenate([table.start_ns for table in gaps])
        idle[process] = intervals.union(start_ns, np.concatenate([t.end_ns for t in gaps]))
    return idle
