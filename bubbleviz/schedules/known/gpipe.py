"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan, PlannedOperation, Schedule, line_plan, refuse_chunks


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan; the backwards go in the order of the microbatches.

    Raises:
        UsageError: more than one chunk a device.
    """
    refuse_chunks("gpipe", chunks, 1)
    return line_plan(
        "gpipe",
        stages,
        microbatches,
        lambda stage: (
            PlannedOperation(stage, phase, microbatch)
            for phase in (Phase.F, Phase.BW)
            for microbatch in range(microbatches)
        ),
    )


SCHEDULE = Schedule(
    name="gpipe",
    summary="All forwards, then all backwards; bubble (p-1)/(m+p-1).",
    source="Huang et al., GPipe, arXiv 1811.06965, section 2.3",
    chunks=1,
    plan=plan,
)
