"""ZB-H2: more forwards ahead, so that weight gradients fill the whole bubble."""

from __future__ import annotations

from bubbleviz.schedules.known.zb_h1 import one_chunk
from bubbleviz.schedules.plan import Plan, Schedule, line_plan, refuse_chunks


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan: every device holds at most 2p - 1 microbatches, until their W.

    The paper draws it for m >= 2p; with fewer microbatches the same rule gives a valid order, which
    may idle longer than one that is searched: zb-2p is never worse.

    Raises:
        UsageError: more than one chunk a device.
    """
    refuse_chunks("zb-h2", chunks, 1)
    return line_plan(
        "zb-h2",
        stages,
        microbatches,
        lambda s: one_chunk(s, microbatches, ahead=2 * (stages - s) - 1, lag=2 * s),
    )


SCHEDULE = Schedule(
    name="zb-h2",
    summary="No bubble at equal times within each device's own window; 2p-1 activations.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.2",
    chunks=1,
    plan=plan,
)
