"""ZB-2p: the order that idles least at given times with twice the memory of 1F1B."""

from __future__ import annotations

from bubbleviz.schedules.known.zb_1p import KEPT, searched
from bubbleviz.schedules.plan import Schedule, plan_at_equal_times

_SEARCHED = searched("zb-2p", 1, lambda p: 2.0 * p, lambda p: 2.0 * p, KEPT)
SCHEDULE = Schedule(
    name="zb-2p",
    summary="Searched for the times given, in the memory of 2p microbatches, or in --memory-limit.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, sections 3 and 5",
    chunks=1,
    plan=plan_at_equal_times(_SEARCHED),
    searched=_SEARCHED,
)
