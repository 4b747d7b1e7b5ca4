"""Zero-bubble's orders: what its runtime takes in place of those of its own schedulers.

``local_order`` holds for each stage the fields of a ``ScheduledNode``, ``config`` those of a
``GraphConfig`` that its passes use, times in microseconds
(sail-sg/zero-bubble-pipeline-parallelism, commit 01537449,
megatron/core/pipeline_parallel/zerobubble/scheduler/graph.py and passes.py).
"""

from __future__ import annotations

from typing import Any

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import json_text
from bubbleviz.schedules.plan import Plan
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
