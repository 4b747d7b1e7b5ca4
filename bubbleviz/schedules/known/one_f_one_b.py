"""1F1B: warm up with forwards, then one forward and one backward in turn."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, Schedule, looped_placement


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan: stage s holds at most p - s microbatches.

    Raises:
        UsageError: more than one chunk a device.
    """
    if chunks != 1:
        raise UsageError(f"1f1b has one chunk a device, not {chunks}; see interleaved-1f1b")
    orders = tuple(_order(stages, microbatches, stage) for stage in range(stages))
    return Plan("1f1b", stages, microbatches, 1, looped_placement(stages, 1), orders)


def _order(stages: int, microbatches: int, stage: int) -> Order:
    ahead = min(stages - stage - 1, microbatches)
    order = [PlannedOperation(stage, Phase.F, microbatch) for microbatch in range(ahead)]
    for microbatch in range(microbatches):
        if microbatch + ahead < microbatches:
            order.append(PlannedOperation(stage, Phase.F, microbatch + ahead))
        order.append(PlannedOperation(stage, Phase.BW, microbatch))
    return tuple(order)


SCHEDULE = Schedule(
    name="1f1b",
    summary="One forward, one backward in turn; bubble (p-1)/(m+p-1), p activations at most.",
    source="Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training (PipeDream-Flush), "
    "arXiv 2006.09503, section 3.2",
    chunks=1,
    plan=plan,
)
