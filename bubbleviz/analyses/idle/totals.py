"""Totals: attributed idle time summed by activity, by step, and by slice of a strip."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bubbleviz.analyses.idle.attribution import AttributedIdle
from bubbleviz.analyses.idle.gaps import Device, holding, split
from bubbleviz.analyses.idle.report import BUSY, ActivityIdle, Example, StepIdle, Strip
from bubbleviz.interpret.iterations import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import Numbering, distinct, groups_of

#: Slices of a strip: about as many as a picture has pixels.
SLICES = 960


def by_activity(
    idle: AttributedIdle,
    gaps: int,
    names: Sequence[str],
    example: Callable[[int, int], Example | None],
) -> tuple[tuple[ActivityIdle, ...], Ints]:
    """Return the idle time of a rank by activity, the longest first, and what each gap is mostly.

    Args:
        idle: of the rank.
        gaps: how many it has.
        names: of activities.
        example: describes a gap of which an activity (its number) took most.

    Returns:
        The activities; and the number of the one with most of each gap, shape (gaps,), of equal
        ones the lower number.
    """
    each = groups_of(idle.activity, idle.gap)
    spent_ns = intervals.group_sum(each.of_row, len(each), idle.end_ns - idle.start_ns)
    activity, gap = idle.activity[each.first], idle.gap[each.first]
    order = np.lexsort((-activity, spent_ns, gap))
    main = np.full(gaps, NONE, np.int64)
    main[gap[order]] = activity[order]
    totals = []
    # Few: as many as there are names.
    for number in distinct(activity).tolist():
        rows = np.flatnonzero(activity == number)
        longest = rows[spent_ns[rows].argmax()]
        totals.append(
            ActivityIdle(
                activity=names[number],
                idle_ns=int(spent_ns[rows].sum()),
                gaps=len(rows),
                longest_ns=int(spent_ns[longest]),
                example=example(int(gap[longest]), number),
            )
        )
    return tuple(sorted(totals, key=ActivityIdle.order)), main


def by_step(
    idle: AttributedIdle, device: Device, steps: Steps, names: Sequence[str]
) -> tuple[StepIdle, ...]:
    """Return the steps of a rank, and the time outside of them.

    Args:
        idle: attributed idle time of the rank.
        device: that was idle.
        steps: of its process.
        names: of activities.
    """
    busy, span_ns = device.times["busy"], device.span_ns
    low_ns, high_ns = (np.clip(column, *span_ns) for column in (steps.start_ns, steps.end_ns))
    busy_ns = intervals.measure_within(busy, low_ns, high_ns)
    row, start_ns, end_ns = split(idle.start_ns, idle.end_ns, distinct(low_ns, high_ns))
    step = holding(steps.start_ns, steps.end_ns, start_ns)
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
    rest_ns = span_ns[1] - span_ns[0] - sum(step.length_ns for step in inside)
    if not rest_ns:
        return tuple(inside)
    rest_busy_ns = intervals.measure(busy) - sum(step.busy_ns for step in inside)
    return (*inside, StepIdle(None, 0, rest_ns, rest_busy_ns, activities(NONE)))


def strip_of(
    idle: AttributedIdle,
    device: Device,
    activities: Sequence[ActivityIdle],
    numbers: Numbering[str],
) -> Strip:
    """Return a rank's time in slices.

    Args:
        idle: attributed idle time of the rank.
        device: that was idle.
        activities: its idle time by activity.
        numbers: of the activities' names.
    """
    start_ns, end_ns = device.span_ns
    edges = start_ns + (end_ns - start_ns) * np.arange(SLICES + 1) // SLICES
    shown = ("compute", "exposed_communication", "exposed_copy")
    sets = [device.times[name] for name in shown]
    for total in activities:
        rows = idle.activity == numbers.number(total.activity)
        sets.append((idle.start_ns[rows], idle.end_ns[rows]))
    spent_ns = [intervals.measure_within(part, edges[:-1], edges[1:]) for part in sets]
    return Strip((*BUSY, *(total.activity for total in activities)), np.stack(spent_ns))
