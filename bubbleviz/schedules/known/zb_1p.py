"""ZB-1p: the order that idles least at given times with the memory of 1F1B."""

from __future__ import annotations

from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.progress import Watch
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.plan import (
    Plan,
    PlanSearch,
    Schedule,
    Setting,
    looped_placement,
    plan_at_equal_times,
)
from bubbleviz.schedules.search import search

#: M_W over M_B of the paper's models, 32 h / (34 h + 5 a s), with h = 128 a and s = 1024.
KEPT = 32 / 74


def searched(name: str, setting: Setting, watch: Watch) -> Plan:
    """Return the plan with one chunk a device that was found for a setting.

    Raises:
        UsageError: more than one chunk a device, or memory for less than one microbatch.
    """
    if setting.chunks != 1:
        raise UsageError(f"{name} has one chunk a device, not {setting.chunks}")
    placement = looped_placement(setting.stages, 1)
    return search(name, setting, placement, partial(known_plans, placement), watch)


_SEARCHED = PlanSearch(
    plan=lambda setting, watch: searched("zb-1p", setting, watch),
    limit=float,
    peak=float,
    kept=KEPT,
)
SCHEDULE = Schedule(
    name="zb-1p",
    summary="Searched for the times given, in the memory of p microbatches, or in --memory-limit.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, sections 3 and 5",
    chunks=1,
    plan=plan_at_equal_times(_SEARCHED),
    searched=_SEARCHED,
)
