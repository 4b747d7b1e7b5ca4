"""Stage times: what operations take on each stage, in milliseconds and in whole ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bubbleviz.errors import UsageError
from bubbleviz.model.texts import counted
from bubbleviz.model.values import frozen

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
