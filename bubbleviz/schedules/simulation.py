"""Time a plan: each device runs its order, and waits for inputs that have not arrived.

Inputs, for one microbatch: F of virtual stage v needs F of v-1; B and BW need F of v and B or BW of
v+1; W needs B of v. An input from another device arrives some time after its producer ended, and
the transfer keeps no device busy.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.columns import Floats, Ints, Table
from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import MeasuredMemory, Memory, Order, Plan, PlannedOperation


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(Table):
    """When every operation ran; in order of device, then of time.

    Attributes:
        device: device that ran it.
        virtual_stage: virtual stage.
        phase: code of :class:`bubbleviz.model.phases.Phase`.
        microbatch: microbatch.
        start_ns: start.
        end_ns: end, exclusive.
    """

    device: Ints
    virtual_stage: Ints
    phase: Ints
    microbatch: Ints
    start_ns: Ints
    end_ns: Ints

    @property
    def makespan_ns(self) -> int:
        """The length of one window over all devices."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    @property
    def cost_ns(self) -> int:
        """The longest of the devices' own windows (arXiv 2401.10241, section 5.3)."""
        first = np.flatnonzero(np.diff(self.device, prepend=-1))
        last = np.append(first[1:], len(self)) - 1
        return int((self.end_ns[last] - self.start_ns[first]).max()) if len(first) else 0

    @property
    def schedule_ratio(self) -> float | None:
        """The bubble ratio in the window of all devices, or None without work."""
        return self._ratio(self.makespan_ns)

    @property
    def stage_ratio(self) -> float | None:
        """The bubble ratio in the longest of the devices' own windows, or None."""
        return self._ratio(self.cost_ns)

    def _ratio(self, window_ns: int) -> float | None:
        whole_ns = len(np.unique(self.device)) * window_ns
        return 1 - int((self.end_ns - self.start_ns).sum()) / whole_ns if whole_ns else None


#: A result: whether it is that of an F, its virtual stage and microbatch.
_Result = tuple[bool, int, int]


def _needs(operation: PlannedOperation, length: int) -> list[_Result]:
    """Return the results that an operation takes, in pipelines of so many virtual stages."""
    stage, phase, microbatch = operation.virtual_stage, operation.phase, operation.microbatch
    if phase is Phase.F:
        return [(True, stage - 1, microbatch)] if stage % length else []
    if phase is Phase.W:
        return [(False, stage, microbatch)]
    behind = [(False, stage + 1, microbatch)] if (stage + 1) % length else []
    return [(True, stage, microbatch), *behind]


def simulate(plan: Plan, workload: Workload) -> Simulation:
    """Return when a plan runs at a workload.

    Two operations that run together are put down one after the other, so that each has its time::

        inputs of both   │
        put down         ├─F──┤├─B──────┤
        results                         │ of both

    Raises:
        MismatchError: an operation waits for ever for another.
    """
    times = phase_times(workload)

    def lasting_ns(op: PlannedOperation) -> int:
        return workload.lasting_ns(times[op.phase][op.virtual_stage], op.microbatch)

    ran = timed(plan, workload, lasting_ns, 0, max)
    ran.sort(key=lambda row: row[0])
    columns = np.array(ran, np.int64).reshape(-1, 6).T
    return Simulation(*map(np.ascontiguousarray, columns))


def in_turn(
    plan: Plan, ended: Container[_Result]
) -> Iterator[tuple[int, Order, list[_Result], list[_Result]]]:
    """Yield what devices run, each behind what it needs.

    An operation, or two that run together, between its device and the results that it takes, then
    those that it gives.

    Args:
        plan: what each device runs.
        ended: the results that are there, to which the caller adds those that are given.

    Raises:
        MismatchError: an operation waits for ever for another.
    """
    length = plan.virtual_stages // plan.replicas
    reached, todo = [0] * plan.stages, list(range(plan.stages))
    while todo:
        device = todo.pop()
        order = plan.orders[device]
        while reached[device] < len(order):
            at = reached[device]
            group = order[at : at + 1 + (order[at] in plan.together)]
            taken = [result for operation in group for result in _needs(operation, length)]
            if any(result not in ended for result in taken):
                break
            given = []
            for op in group:
                if op.phase is not Phase.W:
                    given.append((op.phase is Phase.F, op.virtual_stage, op.microbatch))
                    if 0 <= op.receiver < plan.virtual_stages:
                        todo.append(plan.placement[op.receiver])
            yield device, group, taken, given
            reached[device] = at + len(group)
    stuck = [(d, o[n]) for d, (o, n) in enumerate(zip(plan.orders, reached, strict=True)) if o[n:]]
    if stuck:
        raise MismatchError(
            f"the order deadlocks: device {stuck[0][0]} waits forever for the inputs of "
            f"{stuck[0][1]}"
        )


#: Nanoseconds: of one simulation, or of many side by side, shape (simulations,).
_Time = TypeVar("_Time", int, Floats)


def timed(
    plan: Plan,
    workload: Workload,
    lasting_ns: Callable[[PlannedOperation], _Time],
    zero: _Time,
    latest: Callable[[Sequence[_Time]], _Time],
) -> list[tuple[int, int, Phase, int, _Time, _Time]]:
    """Return the rows of a simulation as of :class:`Simulation`, each behind what it needs.

    Args:
        plan: what each device runs.
        workload: how long transfers take.
        lasting_ns: how long an operation takes.
        zero: when all begins.
        latest: the last of some times.

    Raises:
        MismatchError: an operation waits for ever for another.
    """
    rows: list[tuple[int, int, Phase, int, _Time, _Time]] = []
    ended: dict[_Result, _Time] = {}
    free_ns = [zero] * plan.stages
    for device, group, taken, given in in_turn(plan, ended):
        ready_ns = [free_ns[device]]
        for result in taken:
            forward, stage, _ = result
            away = plan.placement[stage] != device
            on_its_way = workload.down_ns if forward else workload.up_ns
            ready_ns.append(ended[result] + (on_its_way[stage] if away else 0))
        now_ns = latest(ready_ns)
        for op in group:
            end_ns = now_ns + lasting_ns(op)
            rows.append((device, op.virtual_stage, op.phase, op.microbatch, now_ns, end_ns))
            now_ns = end_ns
        for result in given:
            ended[result] = now_ns
        free_ns[device] = now_ns
    return rows


# A workload: what every virtual stage of a run takes, and plans timed and weighed by it.
#
# Times are whole nanoseconds of one microbatch; memory is in any one unit. A workload has times by
# virtual stage, and transfers by edge and direction, while
# :class:`bubbleviz.schedules.measured_times.StageTimes` has one time per device and one transfer.


#: Memory is a sum of floats: what exceeds a limit by less, as a share, fits.
ROUNDING = 1e-9


@dataclass(frozen=True)
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
        lengths: how many times as long as their mean each microbatch takes; empty for all alike.
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
    lengths: tuple[float, ...] = ()

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

    def lasting_ns(self, usual_ns: int, microbatch: int) -> int:
        """Return what a microbatch takes where the mean of all takes so long."""
        return round(usual_ns * self.lengths[microbatch]) if self.lengths else usual_ns

    def stages_of(self, device: int) -> tuple[int, ...]:
        """Return the virtual stages of a device."""
        return tuple(s for s, at in enumerate(self.placement) if at == device)


def device_workload(
    placement: tuple[int, ...],
    microbatches: int,
    times_ns: Sequence[Sequence[int]],
    transfer_ns: int = 0,
    memory: Memory | None = None,
    replicas: int = 1,
) -> Workload:
    """Return the workload of virtual stages that take what their devices do.

    Args:
        placement: device of each virtual stage.
        microbatches: m.
        times_ns: of F, B and W of a chunk, by device.
        transfer_ns: of every edge between two devices.
        memory: of a whole stage; None counts microbatches.
        replicas: how many pipelines there are; one of another direction has each stage on another
            device.
    """
    length, memory = len(placement) // replicas, memory or Memory()
    chunks = length // (max(placement) + 1)
    forward, backward, weight = (
        tuple(each[placement[s % length]] for s in range(len(placement))) for each in times_ns
    )
    crossed = tuple(transfer_ns if a != b else 0 for a, b in pairwise(placement))
    return Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=forward,
        backward_ns=backward,
        weight_ns=weight,
        fused_ns=tuple(map(sum, zip(backward, weight, strict=True))),
        down_ns=(*crossed, 0),
        up_ns=(0, *crossed),
        activation=(memory.backward / chunks,) * len(placement),
        kept=(memory.weight / chunks,) * len(placement),
        limit=None if memory.limit is None else (memory.limit,) * (max(placement) + 1),
    )


@dataclass(frozen=True)
class Outcome:
    """A plan at a workload.

    Attributes:
        plan: what each device runs.
        simulation: when, in nanoseconds.
        peak_memory: by device, in the unit of the workload's ``activation``.
        fits: whether no device exceeds its limit.
        allowed: whether it fits, and needs no split backward where there is none.
    """

    plan: Plan
    simulation: Simulation
    peak_memory: tuple[float, ...]
    fits: bool
    allowed: bool = True

    @cached_property
    def makespan_ns(self) -> int:
        """The window of all devices."""
        return self.simulation.makespan_ns


def phase_times(workload: Workload) -> dict[Phase, tuple[int, ...]]:
    """Return how long operations take, by phase and virtual stage."""
    return {
        Phase.F: workload.forward_ns,
        Phase.B: workload.backward_ns,
        Phase.W: workload.weight_ns,
        Phase.BW: workload.fused_ns,
    }


def outcome_of(plan: Plan, workload: Workload) -> Outcome:
    """Return what a plan takes at a workload.

    Raises:
        MismatchError: an operation waits for ever for another.
        UsageError: the plan places its virtual stages otherwise.
    """
    if plan.placement != workload.placement:
        raise UsageError(
            f"{plan.name} places {plan.virtual_stages} virtual stages on other devices than the "
            "run; give a plan with the same placement"
        )
    peaks = peak_memory(plan, workload.activation, workload.kept)
    return Outcome(plan, simulate(plan, workload), peaks, fits(peaks, workload.limit))


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


def with_memory(
    workload: Workload, memory: MeasuredMemory, limit_bytes: float | Sequence[float] | None
) -> Workload:
    """Return a workload whose activations, and limit, are in bytes.

    Args:
        workload: of the same virtual stages.
        memory: of the run.
        limit_bytes: what a device has, or each one; None for no limit.

    Raises:
        UsageError: what a device always holds exceeds it.
    """
    limit: tuple[float, ...] | None = None
    if limit_bytes is not None:
        each = (
            limit_bytes if isinstance(limit_bytes, Sequence) else (limit_bytes,) * workload.devices
        )
        limit = tuple(most - taken for most, taken in zip(each, memory.resident, strict=True))
        if min(limit) < 0:
            device = limit.index(min(limit))
            raise UsageError(
                f"--memory-limit {memory_text(each[device])}: device {device} always holds "
                f"{memory_text(memory.resident[device])}; give more"
            )
    return replace(workload, activation=memory.held, kept=memory.kept, limit=limit)
