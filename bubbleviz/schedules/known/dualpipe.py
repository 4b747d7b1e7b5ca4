"""DualPipe: microbatches enter at both ends of the pipeline, forwards run beside backwards."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.schedules.known.dualpipe_v import enough, two_way_plan, two_ways
from bubbleviz.schedules.plan import Plan, Schedule, refuse_chunks


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan of two replicas, each with half of the microbatches.

    Stage s of the first is on device s, of the second on device p-1-s; the virtual stages of the
    second follow those of the first.

    Raises:
        UsageError: more than one chunk a device, an odd number of stages or of microbatches, or
            fewer than 2p of these.
    """
    refuse_chunks("dualpipe", chunks, 1, "a device and direction")
    if stages % 2 or microbatches % 2:
        raise UsageError(
            "dualpipe needs an even number of stages and of microbatches, "
            f"not {stages} and {microbatches}"
        )
    enough("dualpipe", stages, microbatches)
    orders = []
    for device in range(stages):
        ways = device, 2 * stages - 1 - device
        before = min(device, stages - 1 - device)
        ways = ways if device < stages // 2 else ways[::-1]
        apart = before == stages // 2 - 1
        orders.append(two_ways(ways, microbatches // 2, before, stages // 2, apart=apart))
    return two_way_plan("dualpipe", stages, microbatches, 1, orders, replicas=2)


SCHEDULE = Schedule(
    name="dualpipe",
    summary="Two replicas fed from both ends; bubble (p/2-1)(F&B + B - 3W).",
    source="DeepSeek-AI, DeepSeek-V3, arXiv 2412.19437, section 3.2.1",
    chunks=1,
    plan=plan,
    replicas=2,
)
