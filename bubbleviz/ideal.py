"""The ideal: what a schedule takes at given times, with nothing else in the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bubbleviz.errors import UsageError
from bubbleviz.plan import Plan
from bubbleviz.schedules import schedule_named
from bubbleviz.simulate import (
    Simulation,
    cost,
    makespan,
    peaks_of_devices,
    schedule_ratio,
    simulate,
    stage_ratio,
    stage_times,
)

#: A time beyond this is a slip of the unit (115 days in ms).
_LONGEST_MS = 1e10
#: Ticks that all operations may take together, so that no sum of them leaves 64 bits.
_MOST_TICKS = 1 << 62
#: More operations than this take about a minute, at some 10 us each.
_MOST_OPERATIONS = 5_000_000


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds for one microbatch: one value for all stages, or one a stage.

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


@dataclass(frozen=True)
class Ideal:
    """What a schedule takes.

    Attributes:
        plan: what each device runs.
        simulation: when, in ticks of 1 ns / v, so that a chunk's share of a stage is exact.
        cost_ms: the longest of the devices' own windows (arXiv 2401.10241, section 5.3).
        makespan_ms: the window of all devices.
        stage_ratio: bubble ratio in the former; None where nothing takes time.
        schedule_ratio: bubble ratio in the latter.
        peak_activations: of each stage, the most microbatches whose F has run and whose W (or BW)
            has not; one of v chunks counts 1/v.
    """

    plan: Plan
    simulation: Simulation
    cost_ms: float
    makespan_ms: float
    stage_ratio: float | None
    schedule_ratio: float | None
    peak_activations: tuple[float, ...]


def ideal(
    schedule: str,
    stages: int,
    microbatches: int,
    times: StageTimes,
    chunks: int | None = None,
) -> Ideal:
    """Return what a schedule takes at these times.

    Args:
        schedule: its name; see :func:`bubbleviz.schedules.schedules`.
        stages: number of devices, p.
        microbatches: number of microbatches, m.
        times: of the stages.
        chunks: model chunks a device, v; None for the schedule's usual number.

    Raises:
        UsageError: there is no such schedule, it does not allow these sizes, or a time cannot be.
    """
    rule = schedule_named(schedule)
    v = rule.chunks if chunks is None else chunks
    _check_sizes(stages, microbatches, v)
    return ideal_of(rule.plan(stages, microbatches, v), times)


def ideal_of(plan: Plan, times: StageTimes) -> Ideal:
    """Return what a plan takes at these times.

    Raises:
        MismatchError: an operation waits for ever for another.
        UsageError: a time cannot be.
    """
    stages, microbatches, v = plan.stages, plan.microbatches, plan.chunks
    _check_sizes(stages, microbatches, v)
    forward, backward, weight = (
        _ticks(name, values, plan)
        for name, values in (
            ("--tf", times.forward_ms),
            ("--tb", times.backward_ms),
            ("--tw", times.weight_ms),
        )
    )
    transfer = _ns("--tcomm", times.transfer_ms) * v
    longest = max(forward) + max(backward) + max(weight) + 2 * transfer
    if longest * plan.virtual_stages * microbatches > _MOST_TICKS:
        raise UsageError(
            "the times of all operations add up to more than 64 bits of nanoseconds; times are "
            "milliseconds, give shorter ones or fewer microbatches"
        )
    simulation = simulate(plan, stage_times(forward, backward, weight), transfer_ns=transfer)
    return Ideal(
        plan,
        simulation,
        cost(simulation) / v / 1e6,
        makespan(simulation) / v / 1e6,
        stage_ratio(simulation),
        schedule_ratio(simulation),
        peaks_of_devices(simulation),
    )


def _check_sizes(stages: int, microbatches: int, chunks: int) -> None:
    sizes = {"stages": stages, "microbatches": microbatches, "chunks": chunks}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"{size} {name}: give at least one")
    count = 3 * stages * microbatches * chunks
    if count > _MOST_OPERATIONS:
        raise UsageError(
            f"{stages} stages with {microbatches} microbatches of {chunks} chunks are up to "
            f"{count:,} operations; at most {_MOST_OPERATIONS:,} are simulated, give fewer "
            "microbatches"
        )


def _ticks(name: str, values: Sequence[float], plan: Plan) -> tuple[int, ...]:
    """Return the ticks that each virtual stage takes.

    Raises:
        UsageError: there are neither one value nor one a stage, or a value cannot be a time.
    """
    if len(values) not in {1, plan.stages}:
        raise UsageError(
            f"{name}: {len(values)} times for {plan.stages} stages; give one for all, or one each"
        )
    each = tuple(values) * (plan.stages if len(values) == 1 else 1)
    # A stage's ns are a chunk's ticks: 1/v of the time, in ticks of 1/v ns.
    # The replica of another direction has each stage on another device.
    length = plan.virtual_stages // plan.replicas
    return tuple(_ns(name, each[plan.placement[v % length]]) for v in range(plan.virtual_stages))


def _ns(name: str, ms: float) -> int:
    if not (math.isfinite(ms) and 0 <= ms <= _LONGEST_MS):
        raise UsageError(f"{name}: {ms} is no time in milliseconds; give one from 0 on")
    return round(ms * 1e6)
