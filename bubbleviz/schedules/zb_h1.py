"""ZB-H1: 1F1B with the weight gradients split off and put where the bubble was."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.phases import Phase
from bubbleviz.plan import Order, Plan, PlannedOperation, Schedule, looped_placement


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan: every device holds at most p microbatches, until their W.

    The paper draws it for m >= 2p; with fewer microbatches the same rule gives a valid order.

    Raises:
        UsageError: more than one chunk a device.
    """
    if chunks != 1:
        raise UsageError(f"zb-h1 has one chunk a device, not {chunks}")
    orders = tuple(
        delayed_weights(stage, microbatches, ahead=stages - stage, lag=stage)
        for stage in range(stages)
    )
    return Plan("zb-h1", stages, microbatches, 1, looped_placement(stages, 1), orders)


def delayed_weights(stage: int, microbatches: int, *, ahead: int, lag: int) -> Order:
    """Return one stage's order: forwards ahead of B, W behind it.

    Args:
        stage: the stage, which is also the device.
        microbatches: number of microbatches.
        ahead: forwards before the first B.
        lag: how many microbatches W is behind B until the last B.
    """
    ahead = min(ahead, microbatches)
    order = [PlannedOperation(stage, Phase.F, microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches):
        order.append(PlannedOperation(stage, Phase.B, microbatch))
        if microbatch >= lag:
            order.append(PlannedOperation(stage, Phase.W, microbatch - lag))
        if microbatch + ahead < microbatches:
            order.append(PlannedOperation(stage, Phase.F, microbatch + ahead))
    left = range(max(0, microbatches - lag), microbatches)
    order += [PlannedOperation(stage, Phase.W, microbatch) for microbatch in left]
    return tuple(order)


SCHEDULE = Schedule(
    name="zb-h1",
    summary="Weight gradients fill a part of 1F1B's bubble at 1F1B's memory.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1",
    chunks=1,
    plan=plan,
)
