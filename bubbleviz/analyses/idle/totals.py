"""Sums attributed idle time by activity and by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bubbleviz.analyses.idle import report
from bubbleviz.analyses.idle.gaps import Device
from bubbleviz.conventions import host_activities
from bubbleviz.explain.idle import IdleIntervals, split_idle
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.intervals import Intervals
from bubbleviz.report.idle_summary import GapExample


def sum_by_activity(
    idle: IdleIntervals,
    device: Device,
    busy: Intervals,
    names: Sequence[str],
    example: Callable[[int, int], GapExample | None],
) -> tuple[report.ActivityIdle, ...]:
    """Sum the idle time of a device by activity, longest total first.

    Args:
        idle: Attributed idle time of the device. All other idle time is in short gaps, and is
            added to the kernel-to-kernel gaps.
        device: The device.
        busy: Times during which any kernel or copy ran on the device.
        names: Names of the activities, indexed by activity id.
        example: Function that takes a gap's row and an activity id, and describes the gap as the
            one in which the activity took longest.
    """
    pairs = group_rows(idle.activity, idle.interval)
    spent_ns = intervals.group_sum(pairs.of_row, len(pairs), idle.end_ns - idle.start_ns)
    activity, gap = idle.activity[pairs.first], idle.interval[pairs.first]
    totals = []
    # There are few activities, so the loop is short.
    for number in find_distinct(activity).tolist():
        rows = np.flatnonzero(activity == number)
        longest = rows[spent_ns[rows].argmax()]
        totals.append(
            report.ActivityIdle(
                activity=names[number],
                idle_ns=int(spent_ns[rows].sum()),
                gaps=len(rows),
                longest_ns=int(spent_ns[longest]),
                example=example(int(gap[longest]), number),
            )
        )
    span_ns = device.span_ns[1] - device.span_ns[0]
    short_ns = span_ns - intervals.measure(busy) - int(spent_ns.sum())
    return _add_short_gaps(totals, device, short_ns)


def _add_short_gaps(
    totals: Sequence[report.ActivityIdle], device: Device, short_ns: int
) -> tuple[report.ActivityIdle, ...]:
    """Add the short gaps without rows to the activity totals, and sort by descending idle time.

    Args:
        totals: Totals over the gaps that have rows.
        device: The device.
        short_ns: Total length of the short gaps without rows.
    """
    by_name = {total.activity: total for total in totals}
    if short_ns:
        name = host_activities.SHORT
        recorded_total = by_name.get(name, report.ActivityIdle(name, 0, 0, 0, None))
        by_name[name] = report.ActivityIdle(
            activity=name,
            idle_ns=recorded_total.idle_ns + short_ns,
            gaps=recorded_total.gaps + len(device.after_short),
            longest_ns=max(recorded_total.longest_ns, device.longest_short_ns),
            example=None,
        )
    return tuple(sorted(by_name.values(), key=report.ActivityIdle.order))


def sum_by_step(
    idle: IdleIntervals,
    device: Device,
    busy: Intervals,
    steps: Steps,
    names: Sequence[str],
) -> tuple[report.StepIdle, ...]:
    """Sum the idle time of a device by step.

    The last entry is the time outside of all steps, if there is any.

    Args:
        idle: Attributed idle time of the device. All other idle time is in short gaps.
        device: The device.
        busy: Times during which any kernel or copy ran on the device.
        steps: Steps of the device's process. The function clips them to the device's span.
        names: Names of the activities, indexed by activity id.
    """
    low_ns, high_ns = (
        np.clip(column, *device.span_ns) for column in (steps.start_ns, steps.end_ns)
    )
    busy_ns = intervals.measure_within(busy, low_ns, high_ns)
    spent = _sum_by_step_and_activity(split_idle(idle, low_ns, high_ns), steps, names)
    columns = (steps.name_id, low_ns, high_ns, busy_ns)
    rows = enumerate(zip(*(column.tolist() for column in columns), strict=True))
    step_totals = [
        _make_step(
            steps.names[name], (start_ns, end_ns), end_ns - start_ns, step_busy_ns, spent[number]
        )
        for number, (name, start_ns, end_ns, step_busy_ns) in rows
    ]
    span_ns = device.span_ns[1] - device.span_ns[0]
    rest_ns = span_ns - sum(step.length_ns for step in step_totals)
    if not rest_ns:
        return tuple(step_totals)
    rest_busy_ns = intervals.measure(busy) - sum(step.busy_ns for step in step_totals)
    return (*step_totals, _make_step(None, (None, None), rest_ns, rest_busy_ns, spent[NONE]))


def _sum_by_step_and_activity(
    pieces: IdleIntervals, steps: Steps, names: Sequence[str]
) -> defaultdict[int, dict[str, int]]:
    """Sum idle time by step and activity.

    Args:
        pieces: Idle intervals with an activity, each completely inside or outside of a step.
        steps: The steps.
        names: Names of the activities, indexed by activity id.

    Returns:
        ``result[step][activity]`` is the idle time in ns, where ``step`` is a row of ``steps``, or
        -1 for the time outside of all steps.
    """
    step = intervals.find_covering(steps.start_ns, steps.end_ns, pieces.start_ns)
    pairs = group_rows(step, pieces.activity)
    spent_ns = intervals.group_sum(pairs.of_row, len(pairs), pieces.end_ns - pieces.start_ns)
    sums = step[pairs.first], pieces.activity[pairs.first], spent_ns
    by_step: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for index, activity, activity_ns in zip(*(column.tolist() for column in sums), strict=True):
        by_step[index][names[activity]] = activity_ns
    return by_step


def _make_step(
    name: str | None,
    times_ns: tuple[int | None, int | None],
    length_ns: int,
    busy_ns: int,
    spent_ns: Mapping[str, int],
) -> report.StepIdle:
    """Make the totals of a step. Idle time without an activity is attributed to short gaps.

    Args:
        name: Name of the step, or None for the time outside of all steps.
        times_ns: Start and end of the step, or (None, None) for the time outside of all steps.
        length_ns: Length of the step.
        busy_ns: Time in the step during which any kernel or copy ran.
        spent_ns: Idle time in ns, keyed by activity.
    """
    short_ns = length_ns - busy_ns - sum(spent_ns.values())
    totals_ns = dict(spent_ns)
    if short_ns:
        totals_ns[host_activities.SHORT] = totals_ns.get(host_activities.SHORT, 0) + short_ns
    activities = tuple(sorted(totals_ns.items(), key=lambda pair: (-pair[1], pair[0])))
    return report.StepIdle(name, *times_ns, length_ns, busy_ns, activities, short_ns)
