"""Simulation: when the operations of a plan run, and what the plan needs.

An input from another device arrives some time after its producer ended; the transfer keeps no
device busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from bubbleviz.errors import UsageError
from bubbleviz.model.columns import Ints, Table
from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.operation_graph import OperationGraph, build_operation_graph
from bubbleviz.schedules.plan import MeasuredMemory, Memory, Plan
from bubbleviz.schedules.timing import compute_ends


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


def simulate(plan: Plan, workload: Workload) -> Simulation:
    """Return when each operation of a plan runs.

    Of two operations that run together the second one starts after the first one, so that each has
    its time::

        inputs of both   │
        operations       ├─F──┤├─B──────┤
        results                         │ of both

    Raises:
        MismatchError: The plan deadlocks.
    """
    graph = build_operation_graph(plan)
    lengths_ns = list_lengths(graph, workload)
    ends_ns = compute_ends(graph.edges, lengths_ns, list_lags(workload))
    columns = (
        graph.device,
        (operation.virtual_stage for operation in graph.operations),
        (operation.phase for operation in graph.operations),
        (operation.microbatch for operation in graph.operations),
        (end_ns - length_ns for end_ns, length_ns in zip(ends_ns, lengths_ns, strict=True)),
        ends_ns,
    )
    by_device = np.argsort(graph.device, kind="stable")
    return Simulation(*(np.fromiter(column, np.int64)[by_device] for column in columns))


def list_lengths(graph: OperationGraph, workload: Workload) -> list[int]:
    """Return the length of each operation of a plan, in ns."""
    times = phase_times(workload)
    return [
        workload.lasting_ns(times[op.phase][op.virtual_stage], op.microbatch)
        for op in graph.operations
    ]


def list_lags(workload: Workload) -> tuple[int, ...]:
    """Return the times of transfers in the order of the lags of an :class:`OperationGraph`."""
    return *workload.down_ns, *workload.up_ns


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
