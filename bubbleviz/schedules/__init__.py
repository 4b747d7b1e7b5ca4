"""Pipeline schedules: each module exports one ``SCHEDULE``, and that is all it takes to add one."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.plan import Schedule
from bubbleviz.registry import discover


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
        raise UsageError(f"no schedule is called {name!r}; known are {', '.join(sorted(known))}")
    return known[name]
