"""ZB-V: two chunks per device placed in a V, no bubble at 1F1B's memory."""

from __future__ import annotations

from functools import partial

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.progress import Watch
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.plan import (
    Order,
    Plan,
    PlannedOperation,
    PlanSearch,
    Schedule,
    Setting,
    v_placement,
)
from bubbleviz.schedules.search import search

_F, _B, _W = Phase.F, Phase.B, Phase.W


def plan(stages: int, microbatches: int, chunks: int = 2) -> Plan:
    """Return the plan: virtual stage v of 2p is on device v on the way down, 2p-1-v on the way up.

    Raises:
        UsageError: the chunks are not two.
    """
    if chunks != 2:
        raise UsageError(f"zb-v has two chunks per device, not {chunks}")
    orders = tuple(_order(stages, microbatches, device) for device in range(stages))
    return Plan("zb-v", stages, microbatches, 2, v_placement(stages), orders)


def searched(name: str, setting: Setting, watch: Watch) -> Plan:
    """Return the plan with two chunks per device in a V that was found for a setting.

    Raises:
        UsageError: the chunks are not two, or there is memory for less than one microbatch.
    """
    if setting.chunks != 2:
        raise UsageError(f"{name} has two chunks per device, not {setting.chunks}")
    placement = v_placement(setting.stages)
    return search(name, setting, placement, partial(known_plans, placement), watch)


class _OrderWriter:
    """Writes one device's order: each step takes the next microbatch of its chunk and phase."""

    def __init__(self, microbatches: int) -> None:
        self.microbatches = microbatches
        self.order: list[PlannedOperation] = []
        self.taken: dict[tuple[int, Phase], int] = {}

    def write(self, times: int, *steps: tuple[int, Phase]) -> None:
        """Repeat the steps; a step without a microbatch left is passed over."""
        for _ in range(times):
            for stage, phase in steps:
                microbatch = self.taken.get((stage, phase), 0)
                if microbatch < self.microbatches:
                    self.taken[stage, phase] = microbatch + 1
                    self.order.append(PlannedOperation(stage, phase, microbatch))


def _order(stages: int, microbatches: int, device: int) -> Order:
    """Return the order; with few microbatches it is that of 2p-1, less what does not exist."""
    total = max(microbatches, 2 * stages - 1)
    down, up = device, 2 * stages - 1 - device
    writer = _OrderWriter(total)
    writer.write(2 * (stages - device) - 1, (down, _F))
    writer.write(device, (up, _F), (down, _F))
    writer.write(stages - device, (up, _F), (up, _B), (up, _W))
    steady = ((down, _F), (down, _B), (down, _W), (up, _F), (up, _B), (up, _W))
    writer.write(total - stages, *steady)
    writer.write(device, (down, _B), (up, _B))
    writer.write(stages - device, (down, _B), (down, _W))
    writer.write(total, (up, _W))
    writer.write(total, (down, _W))
    return tuple(op for op in writer.order if op.microbatch < microbatches)


SCHEDULE = Schedule(
    name="zb-v",
    summary="Two chunks per device in a V; no bubble at equal times, with 1F1B's memory; "
    "searched for the times given where there is a --memory-limit.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6",
    chunks=2,
    plan=plan,
    searched=PlanSearch(
        plan=lambda setting, watch: searched("zb-v", setting, watch), limit=None, peak=float
    ),
)
