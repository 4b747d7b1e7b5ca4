"""The order that ran: what each device of one pipeline ran in an iteration, as a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bubbleviz.model.columns import Ints
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.schedules.plan import Order, Plan, PlannedOperation


def order_that_ran(
    columns: Mapping[str, Ints], iteration: int, placement: tuple[int, ...], name: str
) -> Plan | None:
    """Return the plan that an iteration ran; None where it is no whole one.

    Of replicas, the first rank of each device is taken.

    Args:
        columns: of operations: rank, iteration, phase, microbatch, virtual_stage, start_ns.
        iteration: its number.
        placement: device of each virtual stage.
        name: of the plan.
    """
    worked = np.isin(columns["phase"], WORK) & (columns["iteration"] == iteration)
    worked &= columns["virtual_stage"] >= 0
    rows = np.flatnonzero(worked)
    rows = rows[np.lexsort((columns["start_ns"][rows], columns["rank"][rows]))]
    rank, stage = columns["rank"][rows], columns["virtual_stage"][rows]
    if not len(rows) or stage.max() >= len(placement):
        return None
    device = np.array(placement)[stage]
    phase, microbatch = columns["phase"][rows], columns["microbatch"][rows]
    numbers = np.unique(microbatch)
    if numbers[0] < 0 or not np.isin(phase, (Phase.F, Phase.B, Phase.W, Phase.BW)).all():
        return None
    orders = []
    for own in range(max(placement) + 1):
        mine = np.flatnonzero(device == own)
        if not len(mine):
            return None
        mine = mine[rank[mine] == rank[mine[0]]]
        cells = zip(
            stage[mine].tolist(),
            phase[mine].tolist(),
            np.searchsorted(numbers, microbatch[mine]).tolist(),
            strict=True,
        )
        orders.append(tuple(PlannedOperation(s, Phase(f), mb) for s, f, mb in cells))
    plan = Plan(
        name,
        len(orders),
        len(numbers),
        len(placement) // len(orders),
        placement,
        tuple(map(_with_whole_backwards, orders)),
    )
    return plan if _is_whole(plan) else None


def _with_whole_backwards(order: Order) -> Order:
    """Return an order in which a B without W is the whole backward."""
    weights = {(op.virtual_stage, op.microbatch) for op in order if op.phase is Phase.W}
    return tuple(
        replace(op, phase=Phase.BW)
        if op.phase is Phase.B and (op.virtual_stage, op.microbatch) not in weights
        else op
        for op in order
    )


def _is_whole(plan: Plan) -> bool:
    """Return whether each virtual stage runs F and a backward of each microbatch, once."""
    phases: dict[tuple[int, int], list[Phase]] = {}
    for order in plan.orders:
        for op in order:
            phases.setdefault((op.virtual_stage, op.microbatch), []).append(op.phase)
    good = ([Phase.F, Phase.BW], [Phase.F, Phase.B, Phase.W])
    return len(phases) == plan.virtual_stages * plan.microbatches and all(
        each in good for each in phases.values()
    )
