"""Gaps: when a device ran nothing, and which part of each gap lies before the next launch.

::

    device     ████████│ gap                        │████
    host         ...... doing something  │ launch() ...
                       ├─── host ────────┤├ launch ─┤
    device     ████████│ gap       │████                    launched long before: a dependency
    host       launch()
"""

from __future__ import annotations

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import distinct, found_in
from bubbleviz.model.profile import PAGE_MIGRATION, Activities, Calls
from bubbleviz.model.values import frozen

#: From the launching call's start to the work's start an idle device takes 5 to 10 us, with a clock
#: that is off by 1 us or a slow host up to 20 us; what takes longer waits for something else.
LATENCY_NS = 20_000


@frozen
class Busy:
    """When a device of a process was busy, and with what.

    Attributes:
        any_ns: intervals in which anything ran.
        compute_ns: in which a kernel ran that is no communication.
        communication_ns: in which a communication kernel ran.
        point_to_point_ns: in which one ran that passes data from one rank to another.
        copy_ns: in which a copy or memset ran.
    """

    any_ns: intervals.Intervals
    compute_ns: intervals.Intervals
    communication_ns: intervals.Intervals
    point_to_point_ns: intervals.Intervals
    copy_ns: intervals.Intervals

    def within(self, low_ns: int, high_ns: int) -> Busy:
        """Return the part between two instants."""
        return Busy(
            intervals.within(self.any_ns, low_ns, high_ns),
            intervals.within(self.compute_ns, low_ns, high_ns),
            intervals.within(self.communication_ns, low_ns, high_ns),
            intervals.within(self.point_to_point_ns, low_ns, high_ns),
            intervals.within(self.copy_ns, low_ns, high_ns),
        )


@frozen
class Gaps(Table):
    """Idle gaps of a device, in order.

    Attributes:
        start_ns: end of the work before.
        end_ns: start of the work after.
        before: row of the activities: the one that ended last before it.
        after: row of the activities: the one that began first after it; of several the first row.
    """

    start_ns: Ints
    end_ns: Ints
    before: Ints
    after: Ints

    def within(self, low_ns: int, high_ns: int) -> Gaps:
        """Return the parts of gaps between two instants."""
        start_ns, end_ns = (np.clip(time, low_ns, high_ns) for time in (self.start_ns, self.end_ns))
        return Gaps(start_ns, end_ns, self.before.copy(), self.after.copy()).take(end_ns > start_ns)


@frozen
class GapLaunches(Table):
    """The call that launched the work after each gap; one row a gap.

    Attributes:
        thread: of the call; -1 unknown.
        call_start_ns: start of the call.
        call_end_ns: end of the call.
        copies: whether the call copied rather than launched a kernel.
    """

    thread: Ints
    call_start_ns: Ints
    call_end_ns: Ints
    copies: Bools


def busy_of(
    activities: Activities, rows: Ints, communication: Bools, point_to_point: Bools
) -> Busy:
    """Return the intervals in which a device was busy.

    Args:
        activities: of a profile.
        rows: those of the device.
        communication: which names are those of communication kernels.
        point_to_point: which of these pass data from one rank to another.
    """
    start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
    copy = rows >= activities.kernels
    # Copies have no name: the last place stands for them.
    name = activities.name_id[rows]
    communicates = np.append(communication, False)[name] & ~copy
    passes = np.append(communication & point_to_point, False)[name] & ~copy

    def union_of(mask: Bools) -> intervals.Intervals:
        return intervals.union(start_ns[mask], end_ns[mask])

    return Busy(
        any_ns=intervals.union(start_ns, end_ns),
        compute_ns=union_of(~communicates & ~copy),
        communication_ns=union_of(communicates),
        point_to_point_ns=union_of(passes),
        copy_ns=union_of(copy),
    )


def migrations_of(activities: Activities) -> Bools:
    """Tell which activities are page migrations of managed memory."""
    migrates = [name == PAGE_MIGRATION for name in activities.names]
    migrations: Bools = np.array([*migrates, False], bool)[activities.name_id]
    migrations[: activities.kernels] = False
    return migrations


def gaps_of(activities: Activities, rows: Ints) -> Gaps:
    """Return the gaps between the activities of a device; those without duration are ignored."""
    rows = rows[activities.end_ns[rows] > activities.start_ns[rows]]
    start_ns = activities.start_ns[rows]
    if not (start_ns[1:] >= start_ns[:-1]).all():
        rows = rows[np.argsort(start_ns, kind="stable")]
    start_ns, end_ns = activities.start_ns[rows], activities.end_ns[rows]
    latest_ns = np.maximum.accumulate(end_ns)
    last = np.maximum.accumulate(np.where(end_ns == latest_ns, np.arange(len(rows)), 0))
    at = np.flatnonzero(start_ns[1:] > latest_ns[:-1])
    return Gaps(latest_ns[at], start_ns[at + 1], rows[last[at]], rows[at + 1])


def launches_of(gaps: Gaps, call: Codes, calls: Calls, kernels: int) -> GapLaunches:
    """Return the call that launched the work after each gap.

    Args:
        gaps: of a device.
        call: row of the launching call of every activity; -1 unknown.
        calls: some calls, in order of their rows; all others count as unknown.
        kernels: how many activities are kernels.
    """
    row = call[gaps.after].astype(np.int64)
    at = found_in(calls.row, row)
    thread, start_ns, end_ns = (
        np.append(column, NONE)[at] for column in (calls.thread, calls.start_ns, calls.end_ns)
    )
    return GapLaunches(thread, start_ns, end_ns, gaps.after >= kernels)


@frozen
class Cuts:
    """Where gaps are cut: [start, entered) is the host's, [entered, under_way) the launch's.

    The rest, [under_way, end), is the device's.

    Attributes:
        entered_ns: start of the launching call, inside the gap; the gap's end if it is unknown.
        under_way_ns: when the work should have started.
    """

    entered_ns: Ints
    under_way_ns: Ints


def cuts_of(gaps: Gaps, launches: GapLaunches) -> Cuts:
    """Return where gaps are cut."""
    known = launches.thread != NONE
    due_ns = np.maximum(launches.call_end_ns, launches.call_start_ns + LATENCY_NS)
    entered_ns = np.where(known, launches.call_start_ns, gaps.end_ns)
    return Cuts(
        np.clip(entered_ns, gaps.start_ns, gaps.end_ns),
        np.clip(np.where(known, due_ns, gaps.end_ns), gaps.start_ns, gaps.end_ns),
    )


def split(start_ns: Ints, end_ns: Ints, points_ns: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (row, start_ns, end_ns) of disjoint, ascending intervals, cut at some points.

    Args:
        start_ns: starts of intervals that are not empty.
        end_ns: their ends.
        points_ns: any times.
    """
    if len(start_ns) == 0:
        return np.empty(0, np.int64), start_ns, end_ns
    row = np.searchsorted(start_ns, points_ns, side="right") - 1
    nearest = np.maximum(row, 0)
    inside = (row >= 0) & (points_ns > start_ns[nearest]) & (points_ns < end_ns[nearest])
    cut_ns = distinct(points_ns[inside])
    behind = np.searchsorted(start_ns, cut_ns)
    begin_ns = np.insert(start_ns, behind, cut_ns)
    row = np.insert(np.arange(len(start_ns)), behind, behind - 1)
    last = np.append(row[1:] != row[:-1], True)
    return row, begin_ns, np.where(last, end_ns[row], np.append(begin_ns[1:], 0))


def covered(intervals_ns: intervals.Intervals, time_ns: Ints) -> Bools:
    """Tell which instants lie in a set of intervals."""
    row = np.searchsorted(intervals_ns[0], time_ns, side="right") - 1
    ends = np.append(intervals_ns[1], NONE)
    return np.asarray((row >= 0) & (time_ns < ends[row]), bool)
