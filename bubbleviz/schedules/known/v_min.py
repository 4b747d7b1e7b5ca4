"""V-Min: two chunks per device in a V, with a third of the memory of 1F1B."""

from __future__ import annotations

from bubbleviz.progress import unwatched
from bubbleviz.schedules.known.zb_v import searched
from bubbleviz.schedules.plan import Plan, PlanSearch, Schedule, at_equal_times


def plan(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Return the plan at equal times.

    Raises:
        UsageError: the chunks are not two.
    """
    return at_equal_times(_SEARCHED, (stages, microbatches, chunks), unwatched)


_SEARCHED = PlanSearch(
    plan=lambda setting, watch: searched("v-min", setting, watch),
    limit=lambda stages: float((stages + 4) // 3),
)
SCHEDULE = Schedule(
    name="v-min",
    summary="Searched for the times given, two chunks in a V, in the memory of (p+4)/3 "
    "whole microbatches, a third of 1F1B's, or in --memory-limit.",
    source="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4",
    chunks=2,
    plan=plan,
    searched=_SEARCHED,
)
