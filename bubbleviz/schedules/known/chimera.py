"""Chimera: two replicas fed from both ends, whose 1F1B orders fit into each other."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import (
    Order,
    Plan,
    PlannedOperation,
    Schedule,
    refuse_chunks,
    v_placement,
)


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan of two replicas, each with half of the microbatches.

    Stage s of the first is on device s, of the second on device p-1-s; the virtual stages of the
    second follow those of the first. Groups of p microbatches, p/2 for each direction, follow each
    other without a flush (the paper's direct concatenation, section 3.5).

    Raises:
        UsageError: more than one chunk a device, an odd number of stages, or microbatches that do
            not fill groups of p.
    """
    refuse_chunks("chimera", chunks, 1, "a device and direction")
    if stages % 2 or microbatches % stages:
        raise UsageError(
            "chimera needs an even number of stages and microbatches in groups of them, "
            f"not {stages} and {microbatches}"
        )
    orders = tuple(_order(stages, microbatches, device) for device in range(stages))
    return Plan("chimera", stages, microbatches, 1, v_placement(stages), orders, replicas=2)


def _order(stages: int, microbatches: int, device: int) -> Order:
    """Return the order of a device: both directions by the slots of a 1F1B of single slots.

    ::

        slot      0   1   2   3   4   5   6   7   8   9       p = 4, device 0
        down      F0      F1                  B0      B1      s + 2i and 2p-1-s + 2i
        up                    F0  B0  F1  B1                  the same with s = p-1

    Down and up take turns in slots of either parity, so that no two are in one slot; the next
    group begins 2p slots later, in what the one before leaves free.
    """
    slots: list[tuple[int, PlannedOperation]] = []
    for stage, first in ((device, 0), (stages - 1 - device, stages)):
        for number in range(microbatches // 2):
            group, place = divmod(number, stages // 2)
            begin = 2 * stages * group + 2 * place
            for phase, slot in ((Phase.F, stage), (Phase.BW, 2 * stages - 1 - stage)):
                operation = PlannedOperation(first + stage, phase, number)
                slots.append((begin + slot, operation))
    return tuple(operation for _, operation in sorted(slots))


SCHEDULE = Schedule(
    name="chimera",
    summary="Two replicas fed from both ends; bubble (p-2)/(3m/2+p-2) of one group of m = p.",
    source="Li and Hoefler, Chimera, arXiv 2107.06925, section 3 and figure 2",
    chunks=1,
    plan=plan,
    replicas=2,
)
