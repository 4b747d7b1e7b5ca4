"""Pipeline schedules: each module exports one ``SCHEDULE``, and that is all it takes to add one."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import suggestion
from bubbleviz.registry import discover
from bubbleviz.schedules.plan import Plan, Schedule


def schedules() -> tuple[Schedule, ...]:
    """Return every schedule, in order of the module names."""
    return discover(__name__, "SCHEDULE", Schedule)


def schedule_named(name: str) -> Schedule:
    """Return the schedule of that name.

    Raises:
        UsageError: there is none.
    """
    known = {schedule.name: schedule for schedule in schedules()}
    if name not in known:
        raise unknown_schedule(name, sorted(known))
    return known[name]


def unknown_schedule(name: str, known: Sequence[str]) -> UsageError:
    """Return the refusal of a name that no schedule has."""
    near = suggestion(name, known)
    return UsageError(f"no schedule is called {name[:60]!r}; known are {', '.join(known)}{near}")


def known_plans(placement: tuple[int, ...], microbatches: int) -> list[Plan]:
    """Return the plans of one pipeline with that placement, of every schedule with one order.

    Args:
        placement: device of each virtual stage.
        microbatches: m; a schedule that does not allow as many is left out.
    """
    stages = max(placement) + 1
    plans = []
    for rule in schedules():
        if rule.searched is not None and rule.searched.limit is not None:
            continue
        try:
            plan = rule.plan(stages, microbatches, len(placement) // stages)
        except UsageError:
            continue
        if plan.placement == placement and plan.replicas == 1:
            plans.append(plan)
    return plans
