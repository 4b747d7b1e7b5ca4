"""Zero-bubble's orders: what its runtime takes in place of those of its own schedulers.

``local_order`` holds for each stage the fields of a ``ScheduledNode``, ``config`` those of a
``GraphConfig`` that its passes use, times in microseconds
(sail-sg/zero-bubble-pipeline-parallelism, commit 01537449,
megatron/core/pipeline_parallel/zerobubble/scheduler/graph.py and passes.py).
"""

from __future__ import annotations

from typing import Any

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import json_text
from bubbleviz.schedules.communication.lowered import STREAMS
from bubbleviz.schedules.communication.lowering import lowered
from bubbleviz.schedules.communication.reordering import Communication, communicated
from bubbleviz.schedules.communication.timing import timing_of
from bubbleviz.schedules.plan import Plan
from bubbleviz.schedules.planning import BestPlan, Candidate
from bubbleviz.schedules.workload import Workload

SCHEMA = "bubbleviz.zero-bubble/1"
_TYPES = {Phase.F: "F", Phase.B: "B", Phase.W: "W", Phase.BW: "BW"}


def as_zero_bubble(plan: Plan, workload: Workload) -> str:
    """Return a plan as JSON for zero-bubble.

    Raises:
        UsageError: some backwards are whole and others split, which its passes do not link.
    """
    phases = {op.phase for order in plan.orders for op in order}
    if {Phase.BW, Phase.W} <= phases:
        raise UsageError(
            "zero-bubble runs the backward whole everywhere or split everywhere, and this order "
            "has both; give --backward split, or fused"
        )
    return json_text(
        {
            "schema": SCHEMA,
            "config": _config(workload, fused=Phase.BW in phases),
            "local_order": [
                [
                    {
                        "type": _TYPES[op.phase],
                        "stage": device,
                        "microbatch": op.microbatch,
                        "chunk": plan.chunk_of(op.virtual_stage),
                        "seq_split_idx": 0,
                        "layer_group_idx": op.virtual_stage,
                    }
                    for op in order
                ]
                for device, order in enumerate(plan.orders)
            ],
        }
    )


def _config(workload: Workload, *, fused: bool) -> dict[str, Any]:
    devices = range(workload.devices)

    def mean_us(times_ns: tuple[int, ...], device: int) -> float:
        stages = workload.stages_of(device)
        return sum(times_ns[s] for s in stages) / len(stages) / 1e3

    weight_ns = workload.weight_ns
    backward_ns = workload.backward_ns
    if fused:
        pairs = zip(workload.fused_ns, weight_ns, strict=True)
        backward_ns = tuple(whole - weight for whole, weight in pairs)
    transfers = [ns for ns in (*workload.down_ns, *workload.up_ns) if ns]
    return {
        "n_stages": workload.devices,
        "n_micro": workload.microbatches,
        "max_chunks": workload.chunks,
        "cost_f": [mean_us(workload.forward_ns, device) for device in devices],
        "cost_b": [mean_us(backward_ns, device) for device in devices],
        "cost_w": [mean_us(weight_ns, device) for device in devices],
        "cost_comm": sum(transfers) / len(transfers) / 1e3 if transfers else 0.0,
        "mem_f": [],
        "mem_b": [],
        "mem_w": [],
    }


# Carried plans: the order that is best with its sends and receives.
#
# On GPUs transfers between two ranks run one after the other on a stream, so that one order may
# lose
# more by them than another. Orders are searched without that, and chosen with it.


#: Up to so many operations messages of each order are moved before orders are compared; else the
#: best few are compared as PyTorch lowers them. Larger ones keep that, unless it deadlocks.
_MOVED, _COMPARED, _LARGE = 800, 3, 5_000
#: Longer than any order.
_DEADLOCKED = 1 << 62


def carried(best: BestPlan, *, queued: bool) -> tuple[Candidate, Communication]:
    """Return the best allowed order, with its communication on streams.

    Args:
        best: orders, compared without their communication.
        queued: whether they are compared with it.
    """
    workload = best.workload
    operations = sum(map(len, best.best.outcome.plan.orders))
    allowed = [each for each in best.candidates if each.allowed]
    if not queued or operations > _MOVED:
        chosen = best.best
        if queued:
            chosen = min(allowed[:_COMPARED], key=lambda each: _usual_ns(best, each))
        usual_ns = _usual_ns(best, chosen) if operations > _LARGE else _DEADLOCKED
        if usual_ns < _DEADLOCKED:
            lines = lowered(chosen.outcome.plan)
            return chosen, Communication(lines, STREAMS, usual_ns, usual_ns)
        return chosen, communicated(chosen.outcome.plan, workload, STREAMS)
    rows: list[tuple[Candidate, Communication]] = []
    for each in allowed:
        # No communication makes an order shorter.
        if all(each.outcome.makespan_ns < found.makespan_ns for _, found in rows):
            rows.append((each, communicated(each.outcome.plan, workload, STREAMS)))
    return min(rows, key=lambda row: row[1].makespan_ns)


def _usual_ns(best: BestPlan, candidate: Candidate) -> int:
    """Return how long an order takes as PyTorch lowers it."""
    try:
        return timing_of(lowered(candidate.outcome.plan), best.workload, STREAMS).makespan_ns
    except MismatchError:
        return _DEADLOCKED
