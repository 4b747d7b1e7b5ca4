"""Looped BFS: all microbatches through one chunk of every device, then through the next."""

from __future__ import annotations

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Plan, PlannedOperation, Schedule, looped_placement


def plan(stages: int, microbatches: int, chunks: int) -> Plan:
    """Return the plan; the backwards go the way of the forwards, back to front."""
    orders = []
    for device in range(stages):
        there = [
            (chunk * stages + device, microbatch)
            for chunk in range(chunks)
            for microbatch in range(microbatches)
        ]
        order = [PlannedOperation(stage, Phase.F, microbatch) for stage, microbatch in there]
        back = reversed(there)
        order += [PlannedOperation(stage, Phase.BW, microbatch) for stage, microbatch in back]
        orders.append(tuple(order))
    placement = looped_placement(stages, chunks)
    return Plan("looped-bfs", stages, microbatches, chunks, placement, tuple(orders))


SCHEDULE = Schedule(
    name="looped-bfs",
    summary="GPipe over v chunks per device, one chunk after the other.",
    source="Lamy-Poirier, Breadth-First Pipeline Parallelism, arXiv 2211.05953, section 4",
    chunks=2,
    plan=plan,
    # GPipe's backwards may go either way: torchgpipe runs the last microbatch's first
    # (torchgpipe/pipeline.py, where batches[i-1] depends on batches[i] in backpropagation).
    with_one_chunk="gpipe",
)
