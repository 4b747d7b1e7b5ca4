"""Interleaved zero bubble: interleaved 1F1B with the weight gradients split off."""

from __future__ import annotations

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known.interleaved_1f1b import in_rounds, refuse_rests
from bubbleviz.schedules.plan import Plan, Schedule


def plan(stages: int, microbatches: int, chunks: int) -> Plan:
    """Return the plan: W is as many operations behind B as there are devices before this one.

    Raises:
        UsageError: the microbatches do not fill groups of p.
    """
    refuse_rests("interleaved-zb", stages, microbatches)
    return in_rounds("interleaved-zb", stages, microbatches, chunks, stages, Phase.B)


SCHEDULE = Schedule(
    name="interleaved-zb",
    summary="Interleaved 1F1B whose bubble is partly filled with weight gradients.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241; order as "
    "torch.distributed.pipelining's ScheduleInterleavedZeroBubble",
    chunks=2,
    plan=plan,
)
