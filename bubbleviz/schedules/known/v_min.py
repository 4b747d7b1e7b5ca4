"""V-Min: two chunks per device in a V, with a third of the memory of 1F1B."""

from __future__ import annotations

from bubbleviz.schedules.known.zb_1p import searched
from bubbleviz.schedules.plan import Schedule, plan_at_equal_times

# Searched within whole microbatches; the paper's orders hold half of one more at some p.
_SEARCHED = searched("v-min", 2, lambda p: (p + 4) / 3, lambda p: float((p + 4) // 3))
SCHEDULE = Schedule(
    name="v-min",
    summary="Searched for the times given, two chunks in a V, in the memory of (p+4)/3 "
    "whole microbatches, a third of 1F1B's, or in --memory-limit.",
    source="Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362, section 4",
    chunks=2,
    plan=plan_at_equal_times(_SEARCHED),
    searched=_SEARCHED,
)
