"""Interleaved zero bubble: interleaved 1F1B with the weight gradients split off."""

from __future__ import annotations

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known.interleaved_1f1b import in_groups, nth
from bubbleviz.schedules.known.zb_h1 import delayed_weights
from bubbleviz.schedules.plan import Plan, Schedule, looped_placement


def plan(stages: int, microbatches: int, chunks: int) -> Plan:
    """Return the plan: W is as many operations behind B as there are devices before this one.

    Raises:
        UsageError: the microbatches do not fill groups of p.
    """
    in_groups("interleaved-zb", stages, microbatches)
    total = microbatches * chunks
    orders = []
    for device in range(stages):
        forwards, backwards, weights = (
            [nth(stages, chunks, device, n, phase) for n in range(total)]
            for phase in (Phase.F, Phase.B, Phase.W)
        )
        ahead = chunks * stages - device
        orders.append(delayed_weights(forwards, backwards, weights, ahead=ahead, lag=device))
    placement = looped_placement(stages, chunks)
    return Plan("interleaved-zb", stages, microbatches, chunks, placement, tuple(orders))


SCHEDULE = Schedule(
    name="interleaved-zb",
    summary="Interleaved 1F1B whose bubble is partly filled with weight gradients.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241; order as "
    "torch.distributed.pipelining's ScheduleInterleavedZeroBubble",
    chunks=2,
    plan=plan,
)
