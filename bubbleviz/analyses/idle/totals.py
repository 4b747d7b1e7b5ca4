"""Totals: attributed idle time summed by activity, by step, and by slice of a strip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bubbleviz.analyses.idle.attribution import AttributedIdle
from bubbleviz.analyses.idle.gaps import Busy, Gaps, busy_of, gaps_of, split
from bubbleviz.analyses.idle.report import BUSY, ActivityIdle, Breakdown, Example, StepIdle, Strip
from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.interpret.iterations import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints
from bubbleviz.model.grouping import Numbering, distinct, groups_of
from bubbleviz.model.profile import Activities
from bubbleviz.model.values import frozen

#: Slices of a strip: about as many as a picture has pixels.
SLICES = 960


def by_activity(
    idle: AttributedIdle, names: Sequence[str], example: Callable[[int, str], Example | None]
) -> tuple[ActivityIdle, ...]:
    """Return the idle time of a rank by activity, the longest first.

    Args:
        idle: of the rank.
        names: of activities.
        example: describes the gap in which an activity took most.
    """
    each = groups_of(idle.activity, idle.gap)
    spent_ns = intervals.group_sum(each.of_row, len(each), idle.end_ns - idle.start_ns)
    activity, gap = idle.activity[each.first], idle.gap[each.first]
    # Few: as many as there are names.
    totals = (
        _total(names[number], spent_ns[activity == number], gap[activity == number], example)
        for number in distinct(activity).tolist()
    )
    return tuple(sorted(totals, key=lambda total: (-total.idle_ns, total.activity)))


def _total(
    name: str, spent_ns: Ints, gap: Ints, example: Callable[[int, str], Example | None]
) -> ActivityIdle:
    longest = int(spent_ns.argmax())
    return ActivityIdle(
        activity=name,
        idle_ns=int(spent_ns.sum()),
        gaps=len(spent_ns),
        longest_ns=int(spent_ns[longest]),
        example=example(int(gap[longest]), name),
    )


def main_activity(idle: AttributedIdle, gaps: int) -> Ints:
    """Return the activity with most of each gap, shape (gaps,); of equal ones the lower number."""
    each = groups_of(idle.gap, idle.activity)
    spent_ns = intervals.group_sum(each.of_row, len(each), idle.end_ns - idle.start_ns)
    gap, activity = idle.gap[each.first], idle.activity[each.first]
    order = np.lexsort((-activity, spent_ns, gap))
    most = np.full(gaps, NONE, np.int64)
    most[gap[order]] = activity[order]
    return most


def step_at(steps: Steps, time_ns: Ints) -> Codes:
    """Return the step that holds each instant; -1 none."""
    row = np.searchsorted(steps.start_ns, time_ns, side="right") - 1
    return np.where((row >= 0) & (time_ns < np.append(steps.end_ns, NONE)[row]), row, NONE)


def by_step(
    idle: AttributedIdle,
    busy: intervals.Intervals,
    steps: Steps,
    span_ns: tuple[int, int],
    names: Sequence[str],
) -> tuple[StepIdle, ...]:
    """Return the steps of a rank, and the time outside of them.

    Args:
        idle: attributed idle time of the rank.
        busy: when it was busy.
        steps: of its process.
        span_ns: from its first work to the end of its last.
        names: of activities.
    """
    low_ns, high_ns = (np.clip(column, *span_ns) for column in (steps.start_ns, steps.end_ns))
    busy_ns = intervals.measure_within(busy, low_ns, high_ns)
    points = distinct(low_ns, high_ns)
    row, start_ns, end_ns = split(idle.start_ns, idle.end_ns, points)
    step = step_at(steps, start_ns)
    each = groups_of(step, idle.activity[row])
    spent_ns = intervals.group_sum(each.of_row, len(each), end_ns - start_ns)
    owner, activity = step[each.first], idle.activity[row][each.first]
    bounds = np.searchsorted(owner, np.arange(-1, len(steps) + 1)).tolist()

    def activities(number: int) -> tuple[tuple[str, int], ...]:
        rows = slice(bounds[number + 1], bounds[number + 2])
        pairs = zip(activity[rows].tolist(), spent_ns[rows].tolist(), strict=True)
        named = ((names[number], spent) for number, spent in pairs)
        return tuple(sorted(named, key=lambda pair: (-pair[1], pair[0])))

    columns = (steps.name_id, low_ns, high_ns, busy_ns)
    inside = [
        StepIdle(steps.names[name], start, end, busy, activities(number))
        for number, (name, start, end, busy) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]
    return (*inside, *_outside(inside, span_ns, intervals.measure(busy), activities(NONE)))


def _outside(
    steps: Sequence[StepIdle],
    span_ns: tuple[int, int],
    busy_ns: int,
    activities: tuple[tuple[str, int], ...],
) -> Iterator[StepIdle]:
    """Yield the time outside of all steps, if there is any."""
    rest_ns = span_ns[1] - span_ns[0] - sum(step.length_ns for step in steps)
    if rest_ns:
        rest_busy_ns = busy_ns - sum(step.busy_ns for step in steps)
        yield StepIdle(None, 0, rest_ns, rest_busy_ns, activities)


def strip_of(
    idle: AttributedIdle,
    exposed: tuple[intervals.Intervals, intervals.Intervals, intervals.Intervals],
    activities: Sequence[ActivityIdle],
    numbers: Numbering[str],
    span_ns: tuple[int, int],
) -> Strip:
    """Return a rank's time in slices.

    Args:
        idle: attributed idle time of the rank.
        exposed: when it computed, when it only communicated, when it only copied.
        activities: its idle time by activity.
        numbers: of the activities' names.
        span_ns: from its first work to the end of its last.
    """
    edges = span_ns[0] + (span_ns[1] - span_ns[0]) * np.arange(SLICES + 1) // SLICES
    sets = list(exposed)
    for total in activities:
        rows = idle.activity == numbers.number(total.activity)
        sets.append((idle.start_ns[rows], idle.end_ns[rows]))
    names = (*BUSY, *(total.activity for total in activities))
    spent_ns = [intervals.measure_within(part, edges[:-1], edges[1:]) for part in sets]
    return Strip(names, np.stack(spent_ns))


# Devices: when each device of a profile was busy, with what, and its idle gaps.


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
