"""Stage and operation times, given or measured, in the form needed for simulation and planning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median, median_low

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.texts import format_count
from bubbleviz.schedules.plan import OperationTimes
from bubbleviz.schedules.workload import MAX_TOTAL_NS, Workload, check_workload

#: Smallest positive and largest valid value of a time option, in ms. Times are whole nanoseconds. A
#: time of more than 115 days is probably given in the wrong unit.
_MIN_MS, _MAX_MS = 1e-6, 1e10


@dataclass(frozen=True)
class StageTimes:
    """Times of one microbatch in ms: a single value for all stages, or one value per stage.

    A model chunk takes 1/v of its stage's time. If a schedule does not split the backward, the
    backward takes ``backward_ms + weight_ms``.

    Attributes:
        forward_ms: T_F, the time of the forward pass.
        backward_ms: T_B, the time of the backward pass that computes the input gradient.
        weight_ms: T_W, the time of the backward pass that computes the weight gradients.
        transfer_ms: T_comm, the latency of every transfer between two devices.
        measured: Measured times of the virtual stages, used for plans that have the same placement
            as the run. None if the times were not measured.
        lengths: Each microbatch's time divided by the mean over all microbatches, or empty if all
            microbatches take equally long.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    weight_ms: tuple[float, ...]
    transfer_ms: float = 0.0
    measured: Workload | None = None
    lengths: tuple[float, ...] = ()


def resize_times(times: StageTimes, stages: int) -> StageTimes:
    """Adapt times to a different number of stages.

    If T_F, T_B and T_W each have a single value or one value per stage, the times are returned
    unchanged. Otherwise, several values are replaced with one value for all stages: their sum
    divided by the new number of stages. The total time stays the same. In that case, the times of
    measured virtual stages and the microbatch lengths are dropped.
    """
    all_values = (times.forward_ms, times.backward_ms, times.weight_ms)
    if all(len(values) in {1, stages} for values in all_values):
        return times
    forward, backward, weight = (
        values if len(values) == 1 else (sum(values) / stages,) for values in all_values
    )
    return StageTimes(forward, backward, weight, times.transfer_ms)


def convert_to_ticks(
    stages: int, microbatches: int, times: StageTimes, chunks: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Convert times to integer ticks of 1/v ns.

    The time of a chunk in ticks then equals the time of its whole stage in ns.

    Args:
        stages: Number of devices, p.
        microbatches: Number of operations that a stage runs in each phase, m v.
        times: Times in milliseconds.
        chunks: Number of model chunks per device, v.

    Returns:
        (forward, backward, weight, transfer) in ticks. The first three contain the time of F, B or
        W of one chunk on each device.

    Raises:
        UsageError: An option has neither a single value nor one value per stage, a value is not a
            valid time, or the sum of all times may exceed ``MAX_TOTAL_NS``.
    """
    forward = _convert_option("--tf", times.forward_ms, stages)
    backward = _convert_option("--tb", times.backward_ms, stages)
    weight = _convert_option("--tw", times.weight_ms, stages)
    transfer = _convert_option("--tcomm", (times.transfer_ms,), 1)[0] * chunks
    longest = max(forward) + max(backward) + max(weight) + 2 * transfer
    if longest * stages * microbatches > MAX_TOTAL_NS:
        raise UsageError(
            "the total time of all operations is too long to simulate; check that the times are in "
            "milliseconds, or use fewer microbatches"
        )
    return forward, backward, weight, transfer


def _convert_option(name: str, values: Sequence[float], stages: int) -> tuple[int, ...]:
    """Convert an option's values from ms to ns, one per stage.

    Args:
        name: Name of the option, used in messages.
        values: One value for all stages, or one per stage.
        stages: Number of stages.

    Raises:
        UsageError: The number of values is wrong, or a value is not a valid time.
    """
    if len(values) not in {1, stages}:
        raise UsageError(
            f"{name}: {format_count(len(values), 'time')} for {format_count(stages, 'stage')}; "
            "pass a single time, or one per stage"
        )
    for ms in values:
        if not (math.isfinite(ms) and 0 <= ms <= _MAX_MS):
            raise UsageError(f"{name}: {ms} is not a valid time in milliseconds; pass 0 or more")
        if 0 < ms < _MIN_MS:
            raise UsageError(
                f"{name}: {ms} ms is less than a nanosecond; pass 0, or at least {_MIN_MS:f}"
            )
    return tuple(round(ms * 1e6) for ms in values) * (stages // len(values))


@dataclass(frozen=True)
class MeasuredTimes:
    """Sizes and times of a run, as needed to simulate other schedules.

    Attributes:
        stages: Number of stages, p.
        microbatches: Number of microbatches, m.
        chunks: Number of model chunks per stage, v.
        times: Times of the stages, each summed over the stage's chunks.
        split: Whether B and W were measured separately. If not, each is half of the backward.
        spread: For each phase, the standard deviation of the operation times divided by their mean.
        schedule: Name of the run's schedule, or "" if unknown.
        window_ns: Mean length, standard deviation and number of windows for the bubble ratio
            ``schedule``, or None if the windows or the schedule are unknown.
        lengths: The time of each microbatch divided by the mean, in several iterations. Empty if
            all microbatches take equally long.
    """

    stages: int
    microbatches: int
    chunks: int
    times: StageTimes
    split: bool
    spread: Mapping[Phase, float] = field(default_factory=dict)
    schedule: str = ""
    window_ns: tuple[float, float, int] | None = None
    lengths: tuple[tuple[float, ...], ...] = ()


def collect_times(
    kinds: Sequence[OperationTimes], transfer_ns: float | None, microbatches: int | None
) -> MeasuredTimes:
    """Return a run's sizes and stage times; see :func:`build_workload`.

    The time of a stage is the sum of the times of its chunks.

    Args:
        kinds: Times of each kind of operation, such as all F operations of a virtual stage.
        transfer_ns: Time of a transfer, or None if no transfer was recorded.
        microbatches: Number of microbatches in an iteration, or None if unknown.

    Raises:
        MismatchError: The number of microbatches or the time of a virtual stage is unknown, or the
            times are too long to be simulated.
    """
    workload = build_workload(kinds, transfer_ns, microbatches)
    forward_ms, backward_ms, weight_ms = (
        tuple(
            sum(stage_ns[stage] for stage in workload.stages_of(device)) / 1e6
            for device in range(workload.devices)
        )
        for stage_ns in (workload.forward_ns, workload.backward_ns, workload.weight_ns)
    )
    transfer_ms = round(transfer_ns or 0.0) / 1e6
    return MeasuredTimes(
        stages=workload.devices,
        microbatches=workload.microbatches,
        chunks=workload.chunks,
        times=StageTimes(forward_ms, backward_ms, weight_ms, transfer_ms, workload),
        split=workload.split,
        spread=_measure_spread(kinds),
    )


def _measure_spread(kinds: Sequence[OperationTimes]) -> dict[Phase, float]:
    """Return the relative standard deviation of the operation times in each phase.

    The result for a phase is the median of the values of all kinds of operations in that phase.
    Kinds whose mean is unknown are skipped, and an unknown standard deviation is 0. If B or W was
    not measured, it gets the value of F, because it takes about as long.
    """
    values: dict[Phase, list[float]] = {}
    for kind in kinds:
        if kind.mean_ns:
            values.setdefault(kind.phase, []).append((kind.std_ns or 0.0) / kind.mean_ns)
    spread = {phase: median(ratios) for phase, ratios in values.items()}
    halves = dict.fromkeys((Phase.B, Phase.W), spread.get(Phase.F, 0.0))
    return halves | spread


def build_workload(
    kinds: Sequence[OperationTimes],
    transfer_ns: float | None,
    microbatches: int | None,
    *,
    forward_only: bool = False,
) -> Workload:
    """Build a run's workload from its measured operation times.

    All predictions for other orders and layouts are based on the workload:

    - An operation takes its mean time in the slowest pipeline of the typical iteration. A slow rank
      is slow in any order, so a simulation of the run's own order takes as long as the run.
    - The usual gap before an operation that does not have to wait is added to each operation. Such
      gaps are caused by the host and by kernel launches.
    - Recomputation is added to the backward that requires it.
    - A transfer takes the median time of its edge and direction. If this time is unknown, the
      median of the other direction is used. If both are unknown, the transfer takes
      ``transfer_ns``, or 0 if that is None.
    - On a stage with v chunks, each microbatch takes 1/v of a unit of memory in each chunk, from F
      to the end of W.

    Args:
        kinds: Times of each kind of operation. Transfers have the phase of their receive.
        transfer_ns: Median transfer time of all edges, or None if no transfer was recorded.
        microbatches: Number of microbatches in an iteration, or None if unknown.
        forward_only: Whether to accept a run that has no backwards. In such a run, gradient
            transfers take no time.

    Raises:
        MismatchError: The number of microbatches or the time of a virtual stage is unknown, or the
            times are too long to be simulated.
    """
    if microbatches is None:
        raise _make_missing_time_error(
            "the microbatches are unknown; include their numbers in the range names"
        )
    if any(kind.phase is Phase.FB for kind in kinds):
        raise _make_missing_time_error(
            "a single range name covers overlapping forwards and backwards"
        )
    placement = _find_placement(kinds)
    times = _add_usual_gaps(kinds)

    def times_of(phase: Phase) -> list[int]:
        return [round(times.get((stage, phase), 0.0)) for stage in range(len(placement))]

    forward, recompute, fused = times_of(Phase.F), times_of(Phase.R), times_of(Phase.BW)
    backward, weight = times_of(Phase.B), times_of(Phase.W)
    # If a chunk runs both split and fused backwards, the times of the split backwards are used.
    is_split = [(stage, Phase.B) in times for stage in range(len(placement))]
    forward_only = forward_only and not any(backward + fused)
    for s in range(len(placement)):
        if not forward[s] or not (forward_only or backward[s] or fused[s]):
            raise _make_missing_time_error(f"virtual stage {s} has no forwards or no backwards")
        if not is_split[s]:
            weight[s] = fused[s] // 2
            backward[s] = fused[s] - weight[s]
    down, up = _find_transfer_times(placement, times, transfer_ns)
    activation = tuple(1 / placement.count(device) for device in placement)
    workload = Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=tuple(forward),
        backward_ns=tuple(map(sum, zip(backward, recompute, strict=True))),
        weight_ns=tuple(weight),
        fused_ns=tuple(
            (fused[s] or backward[s] + weight[s]) + recompute[s] for s in range(len(placement))
        ),
        down_ns=down,
        up_ns=(0,) * len(placement) if forward_only else up,
        activation=activation,
        weight_activation=activation,
        split=any(weight[s] for s in range(len(placement)) if is_split[s]),
    )
    check_workload(workload)
    return workload


def _add_usual_gaps(kinds: Sequence[OperationTimes]) -> dict[tuple[int, Phase], float]:
    """Return the time of an operation, including the usual gap before it, in ns.

    The keys are (virtual stage, phase). The time is the mean in the slowest pipeline, or the median
    if that mean is unknown.

    The gap of a phase is the lower median over all virtual stages. A single virtual stage may have
    only a few gaps, and some of them may be caused by transfers. A phase in which all gaps are
    unknown gets the lower median of all gaps, or 0 if no gap is known. Phases that are not work,
    for example transfers, get no gap.
    """
    gaps = [(kind.phase, kind.gap_ns) for kind in kinds if kind.gap_ns is not None]
    all_gaps = [gap_ns for _, gap_ns in gaps] or [0.0]
    usual_gap = {}
    for phase in WORK:
        phase_gaps = [gap_ns for gap_phase, gap_ns in gaps if gap_phase is phase]
        usual_gap[phase] = median_low(phase_gaps or all_gaps)
    return {
        (kind.virtual_stage, kind.phase): usual_gap.get(kind.phase, 0.0)
        + (kind.median_ns if kind.pipeline_ns is None else kind.pipeline_ns)
        for kind in kinds
    }


def _find_transfer_times(
    placement: tuple[int, ...],
    times: Mapping[tuple[int, Phase], float],
    transfer_ns: float | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the transfer times from each virtual stage to the next and to the previous one.

    The time is 0 between virtual stages on the same device. If only one direction of an edge was
    measured, its time is used for both directions.

    Args:
        placement: Device index of each virtual stage.
        times: Median transfer times in ns, keyed by the receiving virtual stage and the phase of
            the receive.
        transfer_ns: Time of a transfer over an edge that has no measured time in either direction.
    """
    down, up = [0] * len(placement), [0] * len(placement)
    for s, (device, next_device) in enumerate(pairwise(placement)):
        if device != next_device:
            directions = times.get((s + 1, Phase.RECV_F)), times.get((s, Phase.RECV_B))
            measured = [ns for ns in directions if ns is not None] or [round(transfer_ns or 0.0)]
            down[s], up[s + 1] = round(measured[0]), round(measured[-1])
    return tuple(down), tuple(up)


def _find_placement(kinds: Sequence[OperationTimes]) -> tuple[int, ...]:
    """Return the device index of each virtual stage. Devices are numbered by stage.

    Raises:
        MismatchError: A stage or virtual stage is unknown, or a virtual stage is missing.
    """
    stage_of = {kind.virtual_stage: kind.stage for kind in kinds if kind.phase is Phase.F}
    if not stage_of or NONE in stage_of or NONE in stage_of.values():
        raise _make_missing_time_error("the stages are unknown; pass --order")
    n_stages = max(stage_of) + 1
    missing = next((stage for stage in range(n_stages) if stage not in stage_of), None)
    if missing is not None:
        raise _make_missing_time_error(
            f"virtual stage {missing} of {n_stages} is missing; pass the profiles of all ranks"
        )
    device_of = {stage: device for device, stage in enumerate(sorted(set(stage_of.values())))}
    return tuple(device_of[stage_of[s]] for s in range(n_stages))


def _make_missing_time_error(problem: str) -> MismatchError:
    return MismatchError(f"the run does not contain all times of its schedule: {problem}")
