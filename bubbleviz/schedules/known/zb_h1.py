"""ZB-H1: 1F1B with the weight gradients split off and put where the bubble was."""

from __future__ import annotations

from collections.abc import Sequence

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import (
    Order,
    Plan,
    PlannedOperation,
    Schedule,
    line_plan,
    refuse_chunks,
)


def plan(stages: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the plan: every device holds at most p microbatches, until their W.

    The paper draws it for m >= 2p; with fewer microbatches the same rule gives a valid order, which
    may idle longer than one that is searched: zb-1p is never worse.

    Raises:
        UsageError: more than one chunk a device.
    """
    refuse_chunks("zb-h1", chunks, 1)
    return line_plan(
        "zb-h1",
        stages,
        microbatches,
        lambda stage: one_chunk(stage, microbatches, ahead=stages - stage, lag=stage),
    )


def one_chunk(
    stage: int, microbatches: int, *, ahead: int, lag: int = 0, backward: Phase = Phase.B
) -> Order:
    """Return the order of one stage that is its device's only one; see :func:`delayed_weights`.

    Args:
        stage: its number.
        microbatches: m.
        ahead: forwards before the first backward.
        lag: by how many operations W is behind B.
        backward: B, or BW without any W.
    """
    forwards, backwards, weights = (
        [PlannedOperation(stage, phase, microbatch) for microbatch in range(microbatches)]
        for phase in (Phase.F, backward, Phase.W)
    )
    split = backward is Phase.B
    return delayed_weights(forwards, backwards, weights if split else (), ahead=ahead, lag=lag)


def delayed_weights(
    forwards: Sequence[PlannedOperation],
    backwards: Sequence[PlannedOperation],
    weights: Sequence[PlannedOperation],
    *,
    ahead: int,
    lag: int,
) -> Order:
    """Return one device's order: forwards ahead of B, W behind it.

    ::

        ahead 3, lag 1      F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 ... B4 W3 W4

    Args:
        forwards: those of the device, in order.
        backwards: as many.
        weights: as many, or none.
        ahead: forwards before the first B.
        lag: by how many operations W is behind B until the last B.
    """
    order = list(forwards[:ahead])
    for n, backward in enumerate(backwards):
        order.append(backward)
        order += weights[n - lag : n - lag + 1] if n >= lag else ()
        order += forwards[n + ahead : n + ahead + 1]
    order += weights[max(0, len(weights) - lag) :]
    return tuple(order)


SCHEDULE = Schedule(
    name="zb-h1",
    summary="Weight gradients fill a part of 1F1B's bubble at 1F1B's memory.",
    source="Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 2.1",
    chunks=1,
    plan=plan,
)
