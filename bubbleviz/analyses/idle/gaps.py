"""Gaps: when devices were busy, with what, and when they ran nothing.

::

    device     ████████│ gap                        │████
    host         ...... doing something  │ launch() ...
                       ├─── host ────────┤├ launch ─┤
    device     ████████│ gap       │████                    launched long before: a dependency
    host       launch()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, constant, narrowed
from bubbleviz.model.profile import Activities

#: From the launching call's start to the work's start an idle device takes 5 to 10 us, with a clock
#: that is off by 1 us or a slow host up to 20 us; what takes longer waits for something else.
LATENCY_NS = 20_000


@dataclass(frozen=True, eq=False, repr=False)
class Gaps(Table):
    """Idle gaps of a device, in order.

    Attributes:
        start_ns: end of the work before.
        end_ns: start of the work after.
        before: row of the activities: the one that ended last before it.
        after: row of the activities: the one that began first after it; of several the first row.
        short: whether it is a kernel-to-kernel gap.
        activity: row of ``activities``: the one with most of its time; -1 as long as not known.
        step: row of the steps: the one in which it begins; -1 none.
        works: distinct names of work; in a report rows of work are of these.
        activities: distinct names of what hosts did.
    """

    start_ns: Ints
    end_ns: Ints
    before: Codes
    after: Codes
    short: Bools
    activity: Codes
    step: Codes
    works: tuple[str, ...] = field(default=(), metadata={"shared": True})
    activities: tuple[str, ...] = field(default=(), metadata={"shared": True})


@dataclass(frozen=True, eq=False, repr=False)
class Launches(Table):
    """For each gap of a device, the call that launched the work after it.

    Attributes:
        thread: Thread that made the call, or -1 if the call is unknown.
        start_ns: Start of the call, or -1 if the call is unknown.
        end_ns: End of the call, or -1 if the call is unknown.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class Device:
    """A device of a process, and its gaps.

    Attributes:
        rank: row of the profile's ranks.
        process: of the device.
        gaps: all of them.
        span_ns: from the start of its first work to the end of its last, inside the window.
        single: whether a single kernel or copy is all that it ran.
    """

    rank: int
    process: int
    gaps: Gaps
    span_ns: tuple[int, int]
    single: bool

    @property
    def long_gaps(self) -> Gaps:
        """The gaps that are attributed to what the host did."""
        return self.gaps.take(~self.gaps.short)

    def within(self, low_ns: int, high_ns: int, shortest_ns: int) -> Device | None:
        """Return the part between two instants; None where that misses the span."""
        low_ns, high_ns = max(low_ns, self.span_ns[0]), min(high_ns, self.span_ns[1])
        if high_ns <= low_ns:
            return None
        gaps = self.gaps
        start_ns, end_ns = (np.clip(time, low_ns, high_ns) for time in (gaps.start_ns, gaps.end_ns))
        short = end_ns - start_ns < shortest_ns
        gaps = replace(gaps, start_ns=start_ns, end_ns=end_ns, short=short).take(end_ns > start_ns)
        return replace(self, gaps=gaps, span_ns=(low_ns, high_ns))


def devices_of(activities: Activities, shortest_ns: int) -> Iterator[Device]:
    """Yield the devices on which work took any time.

    Args:
        activities: of a profile.
        shortest_ns: shorter gaps are kernel-to-kernel gaps.
    """
    for rank, process in enumerate(activities.ranks[:, 0].tolist()):
        rows = np.flatnonzero(activities.rank == rank)
        lasting = rows[activities.end_ns[rows] > activities.start_ns[rows]]
        if not len(lasting):
            continue
        span_ns = int(activities.start_ns[lasting].min()), int(activities.end_ns[lasting].max())
        gaps = _gaps(activities, lasting, shortest_ns)
        yield Device(rank, process, gaps, span_ns, len(rows) == 1)


def times_of(
    device: Device, activities: Activities, kinds: Kinds
) -> dict[str, intervals.Intervals]:
    """Return when a device ran each kind of work.

    Args:
        device: The device. Only times inside its span are returned.
        activities: Kernels and copies of the profile.
        kinds: Names of communication kernels.

    Returns:
        Disjoint intervals by kind of time. The keys are the names of :class:`.report.RankIdle`
        without ``_ns``.
    """
    # Copies have no name: the last place stands for them.
    communication = np.append(matching(activities.names, kinds.communication), False)
    point_to_point = np.append(matching(activities.names, kinds.point_to_point), False)
    rows = np.flatnonzero(activities.rank == device.rank)
    start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
    name, copies = activities.name_id[rows], rows >= activities.kernels
    communicates = communication[name] & ~copies
    busy, compute, communicating, passing, copying = (
        intervals.within(intervals.union(start_ns[mask], end_ns[mask]), *device.span_ns)
        for mask in (
            slice(None),
            ~communicates & ~copies,
            communicates,
            communicates & point_to_point[name],
            copies,
        )
    )
    alone = intervals.difference(copying, compute)
    return {
        "busy": busy,
        "compute": compute,
        "communication": communicating,
        "copy": copying,
        "exposed_communication": intervals.difference(communicating, compute),
        "exposed_point_to_point": intervals.difference(passing, compute),
        "exposed_copy": intervals.difference(alone, communicating),
    }


def _gaps(activities: Activities, rows: Ints, shortest_ns: int) -> Gaps:
    """Return the gaps between the activities of a device, all of which have a duration."""
    start_ns = activities.start_ns[rows]
    if not (start_ns[1:] >= start_ns[:-1]).all():
        rows = rows[np.argsort(start_ns, kind="stable")]
    start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
    latest_ns = np.maximum.accumulate(end_ns)
    last = np.maximum.accumulate(np.where(end_ns == latest_ns, np.arange(len(rows)), 0))
    at = np.flatnonzero(start_ns[1:] > latest_ns[:-1])
    begin_ns, until_ns, unknown = latest_ns[at], start_ns[at + 1], constant(NONE, len(at))
    before, after = (narrowed(column, len(activities)) for column in (rows[last[at]], rows[at + 1]))
    return Gaps(
        begin_ns, until_ns, before, after, until_ns - begin_ns < shortest_ns, unknown, unknown
    )
