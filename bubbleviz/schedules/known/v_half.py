"""V-Half: two chunks per device in a V, with half of the memory of 1F1B."""

from __future__ import annotations

from bubbleviz.schedules.known.zb_1p import searched
from bubbleviz.schedules.plan import Schedule, plan_at_equal_times

_SEARCHED = searched("v-half", 2, lambda p: (p + 2) / 2, lambda p: (p + 2) / 2)
SCHEDULE = Schedule(
    name="v-half",
    summary="Searched for the times given, two chunks in a V, in the memory of (p+2)/2 "
    "microbatches, half of 1F1B's, or in --memory-limit.",
    source="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4",
    chunks=2,
    plan=plan_at_equal_times(_SEARCHED),
    searched=_SEARCHED,
)
