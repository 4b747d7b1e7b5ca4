"""MeasuredTimes times: the phase times of a run as what schedules are simulated with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen

# Stage times: what operations take on each stage, in milliseconds and in whole ticks.


#: Times are whole nanoseconds; one beyond the longest is a slip of the unit (115 days in ms).
_SHORTEST_MS, _LONGEST_MS = 1e-6, 1e10
#: Ticks that all operations may take together, so that no sum of them leaves 64 bits.
_MOST_TICKS = 1 << 62


@frozen
class StageTimes:
    """Milliseconds for one microbatch: one value for all stages, or one per stage.

    A model chunk takes its share of its stage's time, 1/v. Where a schedule does not split the
    backward, it takes ``backward_ms`` and ``weight_ms`` together.

    Attributes:
        forward_ms: T_F.
        backward_ms: T_B, the backward for the input alone.
        weight_ms: T_W, the backward for the weights.
        transfer_ms: T_comm, latency of every edge between two devices.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    weight_ms: tuple[float, ...]
    transfer_ms: float = 0.0


def ticks_of(
    stages: int, microbatches: int, times: StageTimes, chunks: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Return the ticks of F, B and W by device, and of a transfer.

    A stage's ns are a chunk's ticks: 1/v of the time, in ticks of 1/v ns.

    Args:
        stages: p.
        microbatches: how many operations of a kind each stage runs.
        times: in milliseconds.
        chunks: v.

    Raises:
        UsageError: there are neither one value nor one per stage, a value cannot be a time, or they
            are too long in sum.
    """
    forward = _of_stages("--tf", times.forward_ms, stages)
    backward = _of_stages("--tb", times.backward_ms, stages)
    weight = _of_stages("--tw", times.weight_ms, stages)
    transfer = _ns("--tcomm", times.transfer_ms) * chunks
    longest = max(forward) + max(backward) + max(weight) + 2 * transfer
    if longest * stages * microbatches > _MOST_TICKS:
        raise UsageError(
            "the times of all operations add up to more than 64 bits of nanoseconds; times are "
            "milliseconds, give shorter ones or fewer microbatches"
        )
    return forward, backward, weight, transfer


def _of_stages(name: str, values: Sequence[float], stages: int) -> tuple[int, ...]:
    if len(values) not in {1, stages}:
        raise UsageError(
            f"{name}: {counted(len(values), 'time')} for {counted(stages, 'stage')}; "
            "give one for all, or one each"
        )
    each = tuple(values) * (stages if len(values) == 1 else 1)
    return tuple(_ns(name, ms) for ms in each)


def _ns(name: str, ms: float) -> int:
    if not (math.isfinite(ms) and 0 <= ms <= _LONGEST_MS):
        raise UsageError(f"{name}: {ms} is no time in milliseconds; give one from 0 on")
    if 0 < ms < _SHORTEST_MS:
        raise UsageError(
            f"{name}: {ms} ms is less than a nanosecond; give 0, or {_SHORTEST_MS:f} or more"
        )
    return round(ms * 1e6)


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
