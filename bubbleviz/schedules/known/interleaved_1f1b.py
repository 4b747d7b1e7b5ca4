"""Interleaved 1F1B: several model chunks per device, microbatches in groups of p."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation, Schedule, looped_placement


def plan(stages: int, microbatches: int, chunks: int) -> Plan:
    """Return the plan.

    Raises:
        UsageError: the microbatches do not fill groups of p.
    """
    in_groups("interleaved-1f1b", stages, microbatches)
    placement = looped_placement(stages, chunks)
    orders = tuple(_order(stages, microbatches, chunks, device) for device in range(stages))
    return Plan("interleaved-1f1b", stages, microbatches, chunks, placement, orders)


def in_groups(name: str, stages: int, microbatches: int) -> None:
    """Check that the microbatches fill groups of p, the number of stages.

    Raises:
        UsageError: they do not.
    """
    if microbatches % stages:
        raise UsageError(
            f"{name} needs microbatches in groups of the {stages} stages, not {microbatches}"
        )


def _order(stages: int, microbatches: int, chunks: int, device: int) -> Order:
    total = microbatches * chunks
    forwards = [nth(stages, chunks, device, n, Phase.F) for n in range(total)]
    backwards = [nth(stages, chunks, device, n, Phase.BW) for n in range(total)]
    ahead = min(2 * (stages - device - 1) + (chunks - 1) * stages, total)
    order = forwards[:ahead]
    for n in range(total):
        order += forwards[n + ahead : n + ahead + 1]
        order.append(backwards[n])
    return tuple(order)


def nth(
    stages: int, chunks: int, device: int, n: int, phase: Phase, *, group: int | None = None
) -> PlannedOperation:
    """Return the n-th forward or backward of a device: a group of one chunk, then of the next.

    Args:
        stages: p.
        chunks: v.
        device: its number.
        n: from 0.
        phase: of the operation.
        group: microbatches of a group; None for p.
    """
    size = group or stages
    number, place = divmod(n, size * chunks)
    chunk, microbatch = divmod(place, size)
    if phase is not Phase.F:
        chunk = chunks - 1 - chunk
    return PlannedOperation(chunk * stages + device, phase, number * size + microbatch)


SCHEDULE = Schedule(
    name="interleaved-1f1b",
    summary="1F1B over v chunks per device; bubble (p-1)/(v m+p-1).",
    source="Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters "
    "Using Megatron-LM, arXiv 2104.04473, section 2.2",
    chunks=2,
    plan=plan,
)
