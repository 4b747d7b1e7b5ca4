"""A workload: what every virtual stage of a run takes, and plans timed and weighed by it.

Times are whole nanoseconds of one microbatch; memory is in any one unit. Where
:class:`bubbleviz.schedules.plan.Setting` has one time a device and one transfer for all, a workload
has them by virtual stage, and by edge and direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Plan, Task
from bubbleviz.schedules.simulation import (
    Simulation,
    cost,
    makespan,
    schedule_ratio,
    simulate,
    stage_ratio,
)

#: Memory is a sum of floats: what exceeds a limit by less, as a share, fits.
ROUNDING = 1e-9


@frozen
class Workload:
    """What the virtual stages of a run take; all tuples are by virtual stage if not said otherwise.

    Attributes:
        placement: device of each virtual stage.
        microbatches: m.
        forward_ns: T_F of one microbatch.
        backward_ns: T_B, the backward for the input alone.
        weight_ns: T_W, the backward for the weights.
        fused_ns: the whole backward in one operation.
        down_ns: from the end of F to its arrival at the next virtual stage; 0 on the same device,
            and for the last.
        up_ns: from the end of B to its arrival at the virtual stage before; 0 on the same device,
            and for the first.
        activation: what one microbatch holds from F to the end of B.
        kept: the part of it that is held on to the end of W.
        limit: by device, what activations may take, in the unit of ``activation``; None for no
            limit.
        split: whether the run's backward was measured in its two halves. If not, half of the whole
            is assumed for each, and W can be moved only if the framework learns to split.
    """

    placement: tuple[int, ...]
    microbatches: int
    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    weight_ns: tuple[int, ...]
    fused_ns: tuple[int, ...]
    down_ns: tuple[int, ...]
    up_ns: tuple[int, ...]
    activation: tuple[float, ...]
    kept: tuple[float, ...]
    limit: tuple[float, ...] | None = None
    split: bool = True

    def __post_init__(self) -> None:
        """Refuse tuples of other lengths, and devices without a virtual stage.

        Raises:
            UsageError: they are of different pipelines.
        """
        count = len(self.placement)
        operations = (self.forward_ns, self.backward_ns, self.weight_ns, self.fused_ns)
        of_stages = (*operations, self.down_ns, self.up_ns)
        of_memory = (self.activation, self.kept)
        wrong = any(len(each) != count for each in (*of_stages, *of_memory))
        wrong |= sorted(set(self.placement)) != list(range(self.devices))
        wrong |= self.limit is not None and len(self.limit) != self.devices
        if not count or wrong:
            raise UsageError("times, memory and placement are of different stages; give all of one")
        if self.microbatches < 1 or any(time < 0 for each in of_stages for time in each):
            raise UsageError("times are from 0 on, and microbatches from 1; give others")

    @property
    def devices(self) -> int:
        """Number of devices, p."""
        return max(self.placement, default=-1) + 1

    @property
    def virtual_stages(self) -> int:
        """Number of virtual stages."""
        return len(self.placement)

    @property
    def chunks(self) -> int:
        """Virtual stages of the device that has most, v."""
        return max(self.placement.count(device) for device in range(self.devices))

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the virtual stages of a device."""
        return tuple(s for s, at in enumerate(self.placement) if at == device)


@frozen
class Outcome:
    """A plan at a workload.

    Attributes:
        plan: what each device runs.
        simulation: when, in nanoseconds.
        makespan_ns: the window of all devices.
        cost_ns: the longest of the devices' own windows.
        schedule_ratio: bubble ratio in the former; None where nothing takes time.
        stage_ratio: bubble ratio in the latter.
        peak_memory: by device, in the unit of the workload's ``activation``.
        fits: whether no device exceeds its limit.
    """

    plan: Plan
    simulation: Simulation
    makespan_ns: int
    cost_ns: int
    schedule_ratio: float | None
    stage_ratio: float | None
    peak_memory: tuple[float, ...]
    fits: bool


def phase_times(workload: Workload) -> dict[Phase, tuple[int, ...]]:
    """Return how long operations take, by phase and virtual stage."""
    return {
        Phase.F: workload.forward_ns,
        Phase.B: workload.backward_ns,
        Phase.W: workload.weight_ns,
        Phase.BW: workload.fused_ns,
    }


def simulate_workload(plan: Plan, workload: Workload) -> Simulation:
    """Return when a plan runs at a workload.

    Raises:
        MismatchError: an operation waits for ever for another.
    """
    times = phase_times(workload)

    def duration(task: Task) -> int:
        return times[task.operation.phase][task.operation.virtual_stage]

    def transfer(task: Task) -> int:
        stage = task.operation.virtual_stage
        if task.operation.phase is Phase.F:
            return workload.down_ns[stage - 1]
        return workload.up_ns[stage + 1]

    return simulate(plan, duration, transfer_ns=transfer)


def outcome_of(plan: Plan, workload: Workload) -> Outcome:
    """Return what a plan takes at a workload.

    Raises:
        MismatchError: an operation waits for ever for another.
        UsageError: the plan places its virtual stages otherwise.
    """
    if plan.placement != workload.placement:
        raise UsageError(
            f"{plan.name} places {plan.virtual_stages} virtual stages otherwise than the run; "
            "give a plan of the same placement"
        )
    simulation = simulate_workload(plan, workload)
    peaks = peak_memory(plan, workload.activation, workload.kept)
    return Outcome(
        plan,
        simulation,
        makespan(simulation),
        cost(simulation),
        schedule_ratio(simulation),
        stage_ratio(simulation),
        peaks,
        fits(peaks, workload.limit),
    )


def peak_memory(
    plan: Plan, activation: Sequence[float], kept: Sequence[float]
) -> tuple[float, ...]:
    """Return the most that activations of each device take.

    Args:
        plan: what runs.
        activation: by virtual stage, what one microbatch holds from F to the end of B.
        kept: the part of it that is held on to the end of W.
    """
    held, late = np.array(activation), np.array(kept)
    change = np.zeros((max(Phase) + 1, plan.virtual_stages))
    change[Phase.F], change[Phase.B], change[Phase.W], change[Phase.BW] = (
        held,
        late - held,
        -late,
        -held,
    )
    peaks = []
    for order in plan.orders:
        phase = np.array([operation.phase for operation in order], np.int64)
        stage = np.array([operation.virtual_stage for operation in order], np.int64)
        peaks.append(float(np.cumsum(change[phase, stage]).max(initial=0.0)))
    return tuple(peaks)


def within(peak: float, limit: float) -> bool:
    """Return whether a peak fits a limit, in the same unit."""
    return peak <= limit * (1 + ROUNDING)


def fits(peaks: tuple[float, ...], limit: tuple[float, ...] | None) -> bool:
    """Return whether no device exceeds its limit; None for none."""
    return limit is None or all(within(peak, most) for peak, most in zip(peaks, limit, strict=True))


@frozen
class MeasuredMemory:
    """What the virtual stages of a run hold, in bytes.

    Attributes:
        held: by virtual stage: activations of one microbatch, from F to the end of B.
        kept: by virtual stage: the part of them that is held on to the end of W.
        resident: by device: what is taken beside activations, whatever the order: weights,
            gradients, states of the optimizer, and what an operation needs while it runs.
    """

    held: tuple[float, ...]
    kept: tuple[float, ...]
    resident: tuple[float, ...]


def with_memory(
    workload: Workload, memory: MeasuredMemory, limit_bytes: float | Sequence[float] | None
) -> Workload:
    """Return a workload whose activations, and limit, are in bytes.

    Args:
        workload: of the same virtual stages.
        memory: of the run.
        limit_bytes: what a device has, or each one; None for no limit.

    Raises:
        UsageError: the memory is of other stages, or what a device always holds exceeds it.
    """
    stages, devices = workload.virtual_stages, workload.devices
    if (len(memory.held), len(memory.kept)) != (stages, stages) or (
        len(memory.resident) != devices
    ):
        raise UsageError(
            f"memory of {len(memory.held)} virtual stages for a run of {stages}; measure both of "
            "one run"
        )
    limit: tuple[float, ...] | None = None
    if limit_bytes is not None:
        each = limit_bytes if isinstance(limit_bytes, Sequence) else (limit_bytes,) * devices
        limit = tuple(most - taken for most, taken in zip(each, memory.resident, strict=True))
        if min(limit) < 0:
            from bubbleviz.model.memory_sizes import memory_text

            device = limit.index(min(limit))
            raise UsageError(
                f"--memory-limit {memory_text(each[device])}: device {device} always holds "
                f"{memory_text(memory.resident[device])}; give more"
            )
    return replace(workload, activation=memory.held, kept=memory.kept, limit=limit)
