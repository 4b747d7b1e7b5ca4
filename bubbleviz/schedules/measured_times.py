"""Measured times: the phase times of a run as what schedules are simulated and planned with."""

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

# Stage times: what operations take on each stage, in milliseconds and in whole ticks.


#: Times are whole nanoseconds; one beyond the longest is a slip of the unit (115 days in ms).
_SHORTEST_MS, _LONGEST_MS = 1e-6, 1e10


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds for one microbatch: one value for all stages, or one per stage.

    A model chunk takes its share of its stage's time, 1/v. Where a schedule does not split the
    backward, it takes ``backward_ms`` and ``weight_ms`` together.

    Attributes:
        forward_ms: T_F.
        backward_ms: T_B, the backward for the input alone.
        weight_ms: T_W, the backward for the weights.
        transfer_ms: T_comm, latency of every edge between two devices.
        measured: what the virtual stages of a run take, for plans that place them as the run does;
            None where times are given.
        lengths: how many times as long as their mean each microbatch takes; empty for all alike.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    weight_ms: tuple[float, ...]
    transfer_ms: float = 0.0
    measured: Workload | None = None
    lengths: tuple[float, ...] = ()


def of_stages(times: StageTimes, stages: int) -> StageTimes:
    """Return the times of so many stages, which share the work evenly where others were given."""
    parts = (times.forward_ms, times.backward_ms, times.weight_ms)
    if all(len(each) in {1, stages} for each in parts):
        return times
    forward, backward, weight = (
        each if len(each) == 1 else (sum(each) / stages,) for each in parts
    )
    return StageTimes(forward, backward, weight, times.transfer_ms)


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
    transfer = _of_stages("--tcomm", (times.transfer_ms,), 1)[0] * chunks
    longest = max(forward) + max(backward) + max(weight) + 2 * transfer
    if longest * stages * microbatches > MAX_TOTAL_NS:
        raise UsageError(
            "the times of all operations add up to more than 64 bits of nanoseconds; times are "
            "milliseconds, give shorter ones or fewer microbatches"
        )
    return forward, backward, weight, transfer


def _of_stages(name: str, values: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the nanoseconds of each stage."""
    if len(values) not in {1, stages}:
        raise UsageError(
            f"{name}: {format_count(len(values), 'time')} for {format_count(stages, 'stage')}; "
            "give one for all, or one each"
        )
    for ms in values:
        if not (math.isfinite(ms) and 0 <= ms <= _LONGEST_MS):
            raise UsageError(f"{name}: {ms} is not a time in milliseconds; give one from 0 on")
        if 0 < ms < _SHORTEST_MS:
            raise UsageError(
                f"{name}: {ms} ms is less than a nanosecond; give 0, or {_SHORTEST_MS:f} or more"
            )
    return tuple(round(ms * 1e6) for ms in values) * (stages // len(values))


@dataclass(frozen=True)
class MeasuredTimes:
    """What schedules can be simulated with.

    Attributes:
        stages: number of stages, p.
        microbatches: number of microbatches, m.
        chunks: model chunks per stage, v.
        times: of the stages; those of a stage's chunks added up.
        split: whether both halves of the backward were measured; else each takes half of it.
        spread: by phase, the standard deviation of operations as a share of their mean.
        schedule: name of the one that ran; empty where it is unknown.
        window_ns: mean, standard deviation and number of the windows of the ratio ``schedule``;
            None where these, or the schedule, are unknown.
        lengths: how many times as long as their mean the microbatches of some iterations take; none
            where all are alike.
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


def measured_times(
    kinds: Sequence[OperationTimes], transfer_ns: float | None, microbatches: int | None
) -> MeasuredTimes:
    """Return the times of a run by stage; see :func:`measured_workload`.

    Args:
        kinds: how long operations take.
        transfer_ns: how long an input is on its way; None where none was recorded.
        microbatches: of an iteration.

    Raises:
        MismatchError: they lack a time of a stage.
    """
    work = measured_workload(kinds, transfer_ns, microbatches)
    forward_ms, backward_ms, weight_ms = (
        tuple(sum(each[s] for s in work.stages_of(device)) / 1e6 for device in range(work.devices))
        for each in (work.forward_ns, work.backward_ns, work.weight_ns)
    )
    usual_ms = round(transfer_ns or 0.0) / 1e6
    return MeasuredTimes(
        stages=work.devices,
        microbatches=work.microbatches,
        chunks=work.chunks,
        times=StageTimes(forward_ms, backward_ms, weight_ms, usual_ms, work),
        split=work.split,
        spread=_spread(kinds),
    )


def _spread(kinds: Sequence[OperationTimes]) -> dict[Phase, float]:
    """Return the spread of operations by phase: the median of their kinds."""
    shares: dict[Phase, list[float]] = {}
    for kind in kinds:
        if kind.mean_ns:
            shares.setdefault(kind.phase, []).append((kind.std_ns or 0.0) / kind.mean_ns)
    spread = {phase: median(each) for phase, each in shares.items()}
    # Half a backward is about as long as a forward, and varies as that does, as a share.
    halves = dict.fromkeys((Phase.B, Phase.W), spread.get(Phase.F, 0.0))
    return halves | spread


def measured_workload(
    kinds: Sequence[OperationTimes],
    transfer_ns: float | None,
    microbatches: int | None,
    *,
    forward_only: bool = False,
) -> Workload:
    """Return the workload of a run; every microbatch holds 1/v of a stage from F to W.

    All that promises what another order or layout takes rests on it. Operations take their mean in
    the slowest pipeline of the typical iteration, so that the run's own order takes the time of the
    run: a slow rank is as slow in any order. A transfer is the median of the receives of its edge
    and direction that waited for their input; where none did, that of the other direction, else
    that of all edges, else 0. What is computed again belongs to the backward that needs it. What
    passes between operations that wait for nothing (the host, launches) belongs to each of them.

    Args:
        kinds: how long operations take, and transfers under the phases of receives.
        transfer_ns: of all edges; None where none was recorded.
        microbatches: of an iteration.
        forward_only: whether a run that never goes back is taken, too; nothing goes up then.

    Raises:
        MismatchError: they lack a time of a virtual stage, or are too long to be simulated.
    """
    if microbatches is None:
        raise _lacks("its microbatches are unknown; name them in ranges")
    if any(kind.phase is Phase.FB for kind in kinds):
        raise _lacks("forwards and backwards overlap under one name")
    placement = _placement(kinds)
    stages = range(len(placement))
    # One virtual stage may show few gaps, in which a transfer waited for others.
    gaps = [(kind.phase, kind.gap_ns) for kind in kinds if kind.gap_ns is not None]
    every = [ns for _, ns in gaps] or [0.0]
    usual = {phase: median_low([ns for own, ns in gaps if own is phase] or every) for phase in WORK}
    times = {
        (kind.virtual_stage, kind.phase): usual.get(kind.phase, 0.0)
        + (kind.median_ns if kind.pipeline_ns is None else kind.pipeline_ns)
        for kind in kinds
    }

    def of(phase: Phase) -> list[int]:
        return [round(times.get((stage, phase), 0.0)) for stage in stages]

    forward, again, whole = of(Phase.F), of(Phase.R), of(Phase.BW)
    inner, weight = of(Phase.B), of(Phase.W)
    # Where a chunk runs its backward both ways, what was recorded apart tells more.
    apart = [(s, Phase.B) in times for s in stages]
    forward_only = forward_only and not any(inner + whole)
    for s in stages:
        if not forward[s] or not (forward_only or inner[s] or whole[s]):
            raise _lacks(f"virtual stage {s} has no forward or no backward of its own")
        if not apart[s]:
            weight[s] = whole[s] // 2
            inner[s] = whole[s] - weight[s]
    # By edge: what waited there, either way.
    down, up = [0] * len(placement), [0] * len(placement)
    for s, (here, there) in enumerate(pairwise(placement)):
        if here != there:
            ways = times.get((s + 1, Phase.RECV_F)), times.get((s, Phase.RECV_B))
            known = [ns for ns in ways if ns is not None] or [round(transfer_ns or 0.0)]
            down[s], up[s + 1] = round(known[0]), 0 if forward_only else round(known[-1])
    held = tuple(1 / placement.count(device) for device in placement)
    workload = Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=tuple(forward),
        backward_ns=tuple(inner[s] + again[s] for s in stages),
        weight_ns=tuple(weight),
        fused_ns=tuple((whole[s] or inner[s] + weight[s]) + again[s] for s in stages),
        down_ns=tuple(down),
        up_ns=tuple(up),
        activation=held,
        kept=held,
        split=any(weight[s] for s in stages if apart[s]),
    )
    check_workload(workload)
    return workload


def _placement(kinds: Sequence[OperationTimes]) -> tuple[int, ...]:
    """Return the device of each virtual stage; devices are numbered in the order of stages.

    Raises:
        MismatchError: it is unknown.
    """
    holder = {kind.virtual_stage: kind.stage for kind in kinds if kind.phase is Phase.F}
    if not holder or NONE in holder or NONE in holder.values():
        raise _lacks("its stages are unknown; set --order")
    absent = next((s for s in range(max(holder) + 1) if s not in holder), None)
    if absent is not None:
        raise _lacks(f"virtual stage {absent} of {max(holder) + 1} is missing; give all ranks")
    number = {stage: device for device, stage in enumerate(sorted(set(holder.values())))}
    return tuple(number[holder[s]] for s in range(len(holder)))


def _lacks(what: str) -> MismatchError:
    return MismatchError(f"the run does not show the times of its schedule: {what}")
