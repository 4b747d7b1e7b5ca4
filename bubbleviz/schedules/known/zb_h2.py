"""ZB-H2: more forwards ahead, so that weight gradients fill the whole bubble."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.schedules.known.zb_h1 import one_chunk
from bubbleviz.schedules.plan import Plan, Schedule, looped_placement


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan: every device holds at most 2p - 1 microbatches, until their W.

    The paper draws it for m >= 2p; with fewer microbatches the same rule gives a valid order, which
    may idle longer than one that is searched: zb-2p is never worse.

    Raises:
        UsageError: more than one chunk a device.
    """
    if chunks != 1:
        raise UsageError(f"zb-h2 has one chunk a device, not {chunks}")
    orders = tuple(
        one_chunk(stage, microbatches, ahead=2 * (stages - stage) - 1, lag=2 * stage)
        for stage in range(stages)
    )
    return Plan("zb-h2", stages, microbatches, 1, looped_placement(stages, 1), orders)


SCHEDULE = Schedule(
    name="zb-h2",
    summary="No bubble at equal times within each device's own window; 2p-1 activations.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.2",
    chunks=1,
    plan=plan,
)
