"""MeasuredTimes times: the phase times of a run as what schedules are simulated with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.stage_times import StageTimes


class OperationTimes(Protocol):
    """Times of operations of one kind; see :class:`~bubbleviz.explain.phase_times.PhaseTime`."""

    @property
    def stage(self) -> int:
        """Stage of the rank; -1 unknown."""

    @property
    def chunk(self) -> int:
        """Model chunk; -1 none."""

    @property
    def phase(self) -> Phase:
        """What they do."""

    @property
    def median_ns(self) -> float:
        """Median of their busy time."""


@frozen
class MeasuredTimes:
    """What schedules can be simulated with.

    Attributes:
        stages: number of stages, p.
        microbatches: number of microbatches, m.
        chunks: model chunks per stage, v.
        times: of the stages; those of a stage's chunks added up.
        split: whether both halves of the backward were measured; else each takes half of it.
    """

    stages: int
    microbatches: int
    chunks: int
    times: StageTimes
    split: bool


def measured_times(
    kinds: Sequence[OperationTimes], transfer_ns: float | None, microbatches: int | None
) -> MeasuredTimes:
    """Return the times of a run.

    Args:
        kinds: how long operations take.
        transfer_ns: how long an input is on its way; None where none was recorded.
        microbatches: of an iteration.

    Raises:
        MismatchError: they lack a time of a stage.
    """
    stages = sorted({kind.stage for kind in kinds})
    if not stages or stages != list(range(len(stages))):
        raise MismatchError(
            "the run does not show the times of its schedule: its stages are unknown; set --order"
        )
    if microbatches is None:
        raise MismatchError(
            "the run does not show the times of its schedule: its microbatches are unknown; "
            "name them in ranges"
        )
    forward, again = (_summed(kinds, stages, phase) for phase in (Phase.F, Phase.R))
    backward, weight = (_summed(kinds, stages, phase) for phase in (Phase.B, Phase.W))
    # Where a chunk runs its backward both ways, what was recorded apart tells more.
    apart = {(kind.stage, kind.chunk) for kind in kinds if kind.phase is Phase.B}
    fused = [kind for kind in kinds if (kind.stage, kind.chunk) not in apart]
    both = _summed(fused, stages, Phase.BW)
    lacking = [
        stage
        for stage, f, b, bw in zip(stages, forward, backward, both, strict=True)
        if not f or not (b or bw)
    ]
    if lacking or any(kind.phase is Phase.FB for kind in kinds):
        raise MismatchError(
            "the run does not show the times of its schedule: "
            + (
                f"stage {lacking[0]} has no forward or no backward of its own"
                if lacking
                else "forwards and backwards overlap under one name"
            )
        )
    halves = [bw / 2 for bw in both]
    # What is computed again belongs to the backward that needs it.
    inputs = [sum(parts) for parts in zip(backward, halves, again, strict=True)]
    weights = [sum(parts) for parts in zip(weight, halves, strict=True)]
    return MeasuredTimes(
        stages=len(stages),
        microbatches=microbatches,
        chunks=len({kind.chunk for kind in kinds if kind.phase is Phase.F}),
        times=StageTimes(_ms(forward), _ms(inputs), _ms(weights), round(transfer_ns or 0.0) / 1e6),
        split=any(weight),
    )


def _summed(kinds: Sequence[OperationTimes], stages: Sequence[int], phase: Phase) -> list[float]:
    """Return nanoseconds by stage, chunks added up."""
    total = dict.fromkeys(stages, 0.0)
    for kind in kinds:
        if kind.phase is phase:
            total[kind.stage] += kind.median_ns
    return list(total.values())


def _ms(times_ns: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(time_ns) / 1e6 for time_ns in times_ns)
