"""Fixed orders: every schedule with one order that a run's placement allows."""

from __future__ import annotations

from dataclasses import replace

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known import known_plans
from bubbleviz.schedules.known.interleaved_1f1b import nth
from bubbleviz.schedules.known.zb_h1 import delayed_weights
from bubbleviz.schedules.plan import Order, Plan, looped_placement
from bubbleviz.schedules.workload import Workload


def fixed_plans(workload: Workload) -> list[Plan]:
    """Return the plans of all schedules with one order at the placement of a workload.

    Orders that two schedules share stand there once, under the name of the one that is made for so
    many chunks. Two operations that run together do so one after the other.
    """
    placement, m = workload.placement, workload.microbatches
    plans = [*known_plans(placement, m), *_in_other_groups(placement, m)]
    # Interleaved schedules have the orders of others where a device has one chunk.
    plans.sort(key=lambda plan: workload.chunks == 1 and plan.name.startswith("interleaved"))
    unique: dict[tuple[tuple[tuple[int, Phase], ...], ...], Plan] = {}
    for plan in plans:
        # Microbatches are alike: which of them comes first changes no time.
        key = tuple(tuple((op.virtual_stage, op.phase) for op in order) for order in plan.orders)
        unique.setdefault(key, replace(plan, together=frozenset()))
    return sorted(unique.values(), key=lambda plan: plan.name)


def splits(plan: Plan) -> bool:
    """Return whether a plan runs the backward in two halves somewhere."""
    return any(op.phase is Phase.W for order in plan.orders for op in order)


def _in_other_groups(placement: tuple[int, ...], microbatches: int) -> list[Plan]:
    """Return interleaved plans where microbatches do not fill groups of p, as PyTorch has them.

    It divides them into m // p equal rounds (torch.distributed.pipelining.schedules,
    ``ScheduleInterleaved1F1B`` and ``ScheduleInterleavedZeroBubble``).
    """
    stages = max(placement) + 1
    chunks = len(placement) // stages
    group, rest = divmod(microbatches, max(1, microbatches // stages))
    if rest or group == stages or chunks == 1 or placement != looped_placement(stages, chunks):
        return []
    orders: dict[str, list[Order]] = {"interleaved-1f1b": [], "interleaved-zb": []}
    for device in range(stages):
        forwards, whole, backwards, weights = (
            [
                nth(stages, chunks, device, n, phase, group=group)
                for n in range(microbatches * chunks)
            ]
            for phase in (Phase.F, Phase.BW, Phase.B, Phase.W)
        )
        first = (chunks - 1) * group + 1
        ahead = first + 2 * (stages - device - 1)
        fused = delayed_weights(forwards, whole, (), ahead=ahead, lag=0)
        orders["interleaved-1f1b"].append(fused)
        ahead = first + stages - device - 1
        split = delayed_weights(forwards, backwards, weights, ahead=ahead, lag=device)
        orders["interleaved-zb"].append(split)
    return [
        Plan(name, stages, microbatches, chunks, placement, tuple(each))
        for name, each in orders.items()
    ]
