"""DualPipe: microbatches enter at both ends of the pipeline, forwards run beside backwards."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.schedules.known.dualpipe_v import TwoWays, enough
from bubbleviz.schedules.plan import Plan, Schedule, refuse_chunks, v_placement


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
    written = []
    for device in range(stages):
        down, up = device, 2 * stages - 1 - device
        first = device < stages // 2
        before = min(device, stages - 1 - device)
        writer = TwoWays((down, up) if first else (up, down), microbatches // 2)
        written.append(writer.written(before, stages // 2, apart=before == stages // 2 - 1))
    return Plan(
        "dualpipe",
        stages,
        microbatches,
        1,
        v_placement(stages),
        tuple(tuple(writer.order) for writer in written),
        replicas=2,
        together=frozenset(forward for writer in written for forward in writer.together),
    )


SCHEDULE = Schedule(
    name="dualpipe",
    summary="Two replicas fed from both ends; bubble (p/2-1)(F&B + B - 3W).",
    source="DeepSeek-AI, DeepSeek-V3, arXiv 2412.19437, section 3.2.1",
    chunks=1,
    plan=plan,
    replicas=2,
)
