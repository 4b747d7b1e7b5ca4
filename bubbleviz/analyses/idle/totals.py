"""Totals: attributed idle time summed by activity, by step, and by slice of a strip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bubbleviz.analyses.idle.attribution import AttributedIdle
from bubbleviz.analyses.idle.gaps import split
from bubbleviz.analyses.idle.report import BUSY, ActivityIdle, Example, StepIdle, Strip
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.numbering import Numbering

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
