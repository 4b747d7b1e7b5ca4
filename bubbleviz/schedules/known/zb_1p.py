"""ZB-1p: the order that idles least at given times with the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bubbleviz.progress import Watch
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.plan import (
    Plan,
    PlanSearch,
    Schedule,
    Setting,
    looped_placement,
    plan_at_equal_times,
    refuse_chunks,
    v_placement,
)
from bubbleviz.schedules.search import search

#: M_W over M_B of the paper's models, 32 h / (34 h + 5 a s), with h = 128 a and s = 1024.
KEPT = 32 / 74


def searched(
    name: str,
    chunks: int,
    peak: Callable[[int], float],
    limit: Callable[[int], float] | None,
    kept: float = 1.0,
) -> PlanSearch:
    """Return the search for plans with one chunk a device, or with two in a V.

    Plans raise :class:`bubbleviz.errors.UsageError` for another number of chunks, and for memory
    of less than one microbatch.
    """

    def plan(setting: Setting, watch: Watch) -> Plan:
        refuse_chunks(name, setting.chunks, chunks, "a device" if chunks == 1 else "per device")
        stages = setting.stages
        placement = looped_placement(stages, 1) if chunks == 1 else v_placement(stages)
        return search(name, setting, placement, partial(known_plans, placement), watch)

    return PlanSearch(plan, limit, peak, kept)


_SEARCHED = searched("zb-1p", 1, float, float, KEPT)
SCHEDULE = Schedule(
    name="zb-1p",
    summary="Searched for the times given, in the memory of p microbatches, or in --memory-limit.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, sections 3 and 5",
    chunks=1,
    plan=plan_at_equal_times(_SEARCHED),
    searched=_SEARCHED,
)
