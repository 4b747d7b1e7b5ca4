"""Idle parts: attributed idle time summed by activity and by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bubbleviz.analyses.idle.attribution import Attributed
from bubbleviz.analyses.idle.idle_gaps import split
from bubbleviz.analyses.idle.idle_time import (
    BUSY,
    Example,
    Part,
    StepIdle,
    Strip,
)
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import groups_of

#: A strip has so many slices: about as many as a picture has pixels.
SLICES = 960


def parts_of(
    found: Attributed, names: Sequence[str], example: Callable[[int, str], Example | None]
) -> tuple[Part, ...]:
    """Return what the idle time of a rank is put down to, the longest first.

    Args:
        found: its idle time.
        names: of activities.
        example: returns what is told of the gap in which an activity took most.
    """
    each = groups_of(found.activity, found.gap)
    spent_ns = intervals.group_sum(each.of_row, len(each), found.end_ns - found.start_ns)
    activity, gap = found.activity[each.first], found.gap[each.first]
    # Few: as many as there are names.
    return tuple(
        sorted(
            (
                _part(names[number], spent_ns[activity == number], gap[activity == number], example)
                for number in np.unique(activity).tolist()
            ),
            key=lambda part: (-part.idle_ns, part.activity),
        )
    )


def _part(
    name: str, spent_ns: Ints, gap: Ints, example: Callable[[int, str], Example | None]
) -> Part:
    longest = int(spent_ns.argmax())
    return Part(
        activity=name,
        idle_ns=int(spent_ns.sum()),
        gaps=len(spent_ns),
        longest_ns=int(spent_ns[longest]),
        example=example(int(gap[longest]), name),
    )


def main_activity(found: Attributed, gaps: int) -> Ints:
    """Return the activity that took most of each gap; of equal ones the lower number."""
    each = groups_of(found.gap, found.activity)
    spent_ns = intervals.group_sum(each.of_row, len(each), found.end_ns - found.start_ns)
    gap, activity = found.gap[each.first], found.activity[each.first]
    order = np.lexsort((-activity, spent_ns, gap))
    most = np.full(gaps, NONE, np.int64)
    most[gap[order]] = activity[order]
    return most


def step_at(steps: Steps, time_ns: Ints) -> Codes:
    """Return the step that each instant lies in; -1 none."""
    row = np.searchsorted(steps.start_ns, time_ns, side="right") - 1
    return np.where((row >= 0) & (time_ns < np.append(steps.end_ns, NONE)[row]), row, NONE)


def by_step(
    found: Attributed,
    busy: intervals.Intervals,
    steps: Steps,
    span_ns: tuple[int, int],
    names: Sequence[str],
) -> tuple[StepIdle, ...]:
    """Return the steps of a rank, and the time outside of them.

    Args:
        found: its idle time.
        busy: when it was busy.
        steps: of its process.
        span_ns: from its first work to the end of its last.
        names: of activities.
    """
    low_ns, high_ns = (np.clip(column, *span_ns) for column in (steps.start_ns, steps.end_ns))
    busy_ns = intervals.measure_within(busy, low_ns, high_ns)
    points = np.union1d(low_ns, high_ns)
    row, start_ns, end_ns = split(found.start_ns, found.end_ns, points)
    step = step_at(steps, start_ns)
    each = groups_of(step, found.activity[row])
    spent_ns = intervals.group_sum(each.of_row, len(each), end_ns - start_ns)
    owner, activity = step[each.first], found.activity[row][each.first]
    bounds = np.searchsorted(owner, np.arange(-1, len(steps) + 1)).tolist()

    def parts(number: int) -> tuple[tuple[str, int], ...]:
        own = slice(bounds[number + 1], bounds[number + 2])
        pairs = zip(activity[own].tolist(), spent_ns[own].tolist(), strict=True)
        told = ((names[number], spent) for number, spent in pairs)
        return tuple(sorted(told, key=lambda pair: (-pair[1], pair[0])))

    columns = (steps.name_id, low_ns, high_ns, busy_ns)
    told = [
        StepIdle(steps.names[name], start, end, busy, parts(number))
        for number, (name, start, end, busy) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]
    return (*told, *_outside(told, span_ns, intervals.measure(busy), parts(NONE)))


def _outside(
    told: Sequence[StepIdle],
    span_ns: tuple[int, int],
    busy_ns: int,
    parts: tuple[tuple[str, int], ...],
) -> Iterator[StepIdle]:
    """Yield the time outside of all steps, where there is some."""
    rest_ns = span_ns[1] - span_ns[0] - sum(step.length_ns for step in told)
    if rest_ns:
        yield StepIdle(None, 0, rest_ns, busy_ns - sum(step.busy_ns for step in told), parts)


def strip_of(
    found: Attributed,
    exposed: tuple[intervals.Intervals, intervals.Intervals, intervals.Intervals],
    parts: Sequence[Part],
    numbers: Mapping[str, int],
    span_ns: tuple[int, int],
) -> Strip:
    """Return a rank's time in slices.

    Args:
        found: its idle time.
        exposed: when it computed, communicated and nothing else, copied and nothing else.
        parts: of its idle time.
        numbers: of activities.
        span_ns: from its first work to the end of its last.
    """
    edges = span_ns[0] + (span_ns[1] - span_ns[0]) * np.arange(SLICES + 1) // SLICES
    sets = list(exposed)
    for part in parts:
        own = found.activity == numbers[part.activity]
        sets.append((found.start_ns[own], found.end_ns[own]))
    names = (*BUSY, *(part.activity for part in parts))
    return Strip(
        names, np.stack([intervals.measure_within(own, edges[:-1], edges[1:]) for own in sets])
    )
