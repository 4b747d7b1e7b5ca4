"""ZB-V: two chunks per device placed in a V, no bubble at 1F1B's memory."""

from __future__ import annotations

from collections import Counter

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known.zb_1p import searched
from bubbleviz.schedules.plan import (
    Order,
    Plan,
    PlannedOperation,
    Schedule,
    refuse_chunks,
    v_placement,
)

_F, _B, _W = Phase.F, Phase.B, Phase.W


def plan(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Return the plan: virtual stage v of 2p is on device v on the way down, 2p-1-v on the way up.

    Raises:
        UsageError: the chunks are not two.
    """
    refuse_chunks("zb-v", chunks, 2, "per device")
    orders = tuple(_order(stages, microbatches, device) for device in range(stages))
    return Plan("zb-v", stages, microbatches, 2, v_placement(stages), orders)


def _order(stages: int, microbatches: int, device: int) -> Order:
    """Return the order; with few microbatches it is that of 2p-1, less what does not exist."""
    total = max(microbatches, 2 * stages - 1)
    down, up = device, 2 * stages - 1 - device
    order: list[PlannedOperation] = []
    taken: Counter[tuple[int, Phase]] = Counter()

    def write(times: int, *steps: tuple[int, Phase]) -> None:
        """Repeat the steps, each with its next microbatch; one that has none is passed over."""
        for stage, phase in steps * times:
            microbatch = taken[stage, phase]
            if microbatch < total:
                taken[stage, phase] += 1
                order.append(PlannedOperation(stage, phase, microbatch))

    write(2 * (stages - device) - 1, (down, _F))
    write(device, (up, _F), (down, _F))
    write(stages - device, (up, _F), (up, _B), (up, _W))
    steady = ((down, _F), (down, _B), (down, _W), (up, _F), (up, _B), (up, _W))
    write(total - stages, *steady)
    write(device, (down, _B), (up, _B))
    write(stages - device, (down, _B), (down, _W))
    write(total, (up, _W))
    write(total, (down, _W))
    return tuple(op for op in order if op.microbatch < microbatches)


SCHEDULE = Schedule(
    name="zb-v",
    summary="Two chunks per device in a V; no bubble at equal times, with 1F1B's memory; "
    "searched for the times given where there is a --memory-limit.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6",
    chunks=2,
    plan=plan,
    searched=searched("zb-v", 2, float, None),
)
