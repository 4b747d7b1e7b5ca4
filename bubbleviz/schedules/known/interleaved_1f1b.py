"""Interleaved 1F1B: several model chunks per device, microbatches in groups of p."""

from __future__ import annotations

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.known.zb_h1 import delayed_weights
from bubbleviz.schedules.plan import Plan, PlannedOperation, Schedule, looped_placement


def plan(stages: int, microbatches: int, chunks: int) -> Plan:
    """Return the plan.

    Raises:
        UsageError: the microbatches do not fill groups of p.
    """
    refuse_rests("interleaved-1f1b", stages, microbatches)
    return in_rounds("interleaved-1f1b", stages, microbatches, chunks, stages, Phase.BW)


def in_rounds(
    name: str, stages: int, microbatches: int, chunks: int, group: int, backward: Phase
) -> Plan:
    """Return the plan of interleaved microbatches, with W or without.

    Args:
        name: of the plan.
        stages: p.
        microbatches: m.
        chunks: v.
        group: microbatches of a group, all of which run one chunk before the next.
        backward: BW, or B and W as many operations behind it as there are devices before this one.
    """
    orders = []
    for device in range(stages):
        forwards, backwards, weights = (
            [_nth(stages, chunks, device, n, phase, group) for n in range(microbatches * chunks)]
            for phase in (Phase.F, backward, Phase.W)
        )
        turns, lag = (1, device) if backward is Phase.B else (2, 0)
        ahead = (chunks - 1) * group + 1 + turns * (stages - device - 1)
        weights = weights if backward is Phase.B else []
        orders.append(delayed_weights(forwards, backwards, weights, ahead=ahead, lag=lag))
    placement = looped_placement(stages, chunks)
    return Plan(name, stages, microbatches, chunks, placement, tuple(orders))


def refuse_rests(name: str, stages: int, microbatches: int) -> None:
    """Refuse microbatches that do not fill groups of p, the number of stages.

    Raises:
        UsageError: they do not.
    """
    if microbatches % stages:
        raise UsageError(
            f"{name} needs microbatches in groups of the {stages} stages, not {microbatches}"
        )


def _nth(
    stages: int, chunks: int, device: int, n: int, phase: Phase, group: int
) -> PlannedOperation:
    """Return the n-th forward or backward of a device: a group of one chunk, then of the next."""
    number, place = divmod(n, group * chunks)
    chunk, microbatch = divmod(place, group)
    if phase is not Phase.F:
        chunk = chunks - 1 - chunk
    return PlannedOperation(chunk * stages + device, phase, number * group + microbatch)


SCHEDULE = Schedule(
    name="interleaved-1f1b",
    summary="1F1B over v chunks per device; bubble (p-1)/(v m+p-1).",
    source="Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters "
    "Using Megatron-LM, arXiv 2104.04473, section 2.2",
    chunks=2,
    plan=plan,
)
