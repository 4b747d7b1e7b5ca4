"""A workload: what every virtual stage of a run takes, and plans timed and weighed by it.

Times are whole nanoseconds of one microbatch; memory is in any one unit. Where
:class:`bubbleviz.schedules.plan.Setting` has one time a device and one transfer for all, a workload
has them by virtual stage, and by edge and direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.grouping import distinct
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.measured_times import OperationTimes
from bubbleviz.schedules.memory_limits import within
from bubbleviz.schedules.plan import Duration, Memory, Plan, Task
from bubbleviz.schedules.simulation import Simulation, simulate

# Metrics of a simulation: makespan, cost, bubble ratios, activations and memory.


def work_of(simulation: Simulation, iteration: int = 0) -> Simulation:
    """Return the F, B, W and BW of one iteration."""
    rows = np.isin(simulation.phase, WORK) & (simulation.iteration == iteration)
    return simulation.take(rows)


def makespan(simulation: Simulation, iteration: int = 0) -> int:
    """Return the length of one window over all devices, optimizer excluded, in nanoseconds."""
    work = work_of(simulation, iteration)
    return int(work.end_ns.max() - work.start_ns.min()) if len(work) else 0


def cost(simulation: Simulation, iteration: int = 0) -> int:
    """Return the longest of the devices' own windows, optimizer excluded, in nanoseconds.

    That is the cost of arXiv 2401.10241, section 5.3.
    """
    work = work_of(simulation, iteration)
    windows = [
        int(work.end_ns[rows].max() - work.start_ns[rows].min())
        for rows in (work.device == device for device in distinct(work.device))
    ]
    return max(windows, default=0)


def schedule_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the window of all devices, or None without work."""
    return _ratio(work_of(simulation, iteration), makespan(simulation, iteration))


def stage_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the longest of the devices' own windows, or None."""
    return _ratio(work_of(simulation, iteration), cost(simulation, iteration))


def _ratio(work: Simulation, window_ns: int) -> float | None:
    devices = len(distinct(work.device))
    if not devices or not window_ns:
        return None
    return 1 - int(work.busy_ns.sum()) / (devices * window_ns)


def peak_activations(
    simulation: Simulation, iteration: int = 0, *, until: Phase = Phase.W
) -> float:
    """Return the most activations that one device holds; see :func:`peaks_of_devices`."""
    return max(peaks_of_devices(simulation, iteration, until=until), default=0)


def peaks_of_devices(
    simulation: Simulation, iteration: int = 0, *, until: Phase = Phase.W
) -> tuple[float, ...]:
    """Return the most activations that each device holds, in microbatches of a whole stage.

    Args:
        simulation: what ran.
        iteration: the iteration to look at.
        until: an activation is held from its F to the end of its W (a BW ends it too), or only
            to its B.
    """
    work = work_of(simulation, iteration)
    frees = (Phase.BW, until)
    step = np.where(work.phase == Phase.F, 1, np.where(np.isin(work.phase, frees), -1, 0))
    return tuple(int(most) / _chunks(simulation) for most in _highest(work, step))


def memory_of_devices(
    simulation: Simulation, memory: Memory, iteration: int = 0
) -> tuple[float, ...]:
    """Return the most memory that activations of each device take, in the unit of ``memory``."""
    work = work_of(simulation, iteration)
    step = np.zeros(len(work))
    for phase, change in (
        (Phase.F, memory.backward),
        (Phase.B, memory.weight - memory.backward),
        (Phase.W, -memory.weight),
        (Phase.BW, -memory.backward),
    ):
        step[work.phase == phase] = change
    return tuple(float(most) / _chunks(simulation) for most in _highest(work, step))


def _chunks(simulation: Simulation) -> float:
    pipeline = simulation.placement[: simulation.length]
    return len(pipeline) / max(1, len(set(pipeline)))


def _highest(
    work: Simulation, step: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> list[np.int64 | np.float64]:
    """Return the highest sum of the steps so far, by device; never below 0."""
    return [
        np.cumsum(step[work.device == device]).max(initial=0) for device in distinct(work.device)
    ]


def idle_ns(simulation: Simulation) -> int:
    """Return the time that devices idle between their first and their last task."""
    rows = np.isin(simulation.phase, COMPUTE)
    compute = simulation.take(rows)
    total = 0
    for device in distinct(compute.device):
        tasks = compute.take(compute.device == device)
        total += int(tasks.end_ns.max() - tasks.start_ns.min() - tasks.busy_ns.sum())
    return total


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


def durations_of(workload: Workload) -> Duration:
    """Return how long each operation takes, as :func:`.simulation.simulate` takes it."""
    times = {
        Phase.F: workload.forward_ns,
        Phase.B: workload.backward_ns,
        Phase.W: workload.weight_ns,
        Phase.BW: workload.fused_ns,
    }

    def duration(task: Task) -> int:
        return times[task.operation.phase][task.operation.virtual_stage]

    return duration


def transfers_of(workload: Workload) -> Duration:
    """Return how long the input of a task that waits for another device is on its way."""

    def transfer(task: Task) -> int:
        stage = task.operation.virtual_stage
        if task.operation.phase is Phase.F:
            return workload.down_ns[stage - 1]
        return workload.up_ns[stage + 1]

    return transfer


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
    simulation = simulate(plan, durations_of(workload), transfer_ns=transfers_of(workload))
    peaks = peak_memory(plan, workload)
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


def peak_memory(plan: Plan, workload: Workload) -> tuple[float, ...]:
    """Return the most that activations of each device take, in the unit of the workload."""
    activation, kept = np.array(workload.activation), np.array(workload.kept)
    change = np.zeros((max(Phase) + 1, workload.virtual_stages))
    change[Phase.F] = activation
    change[Phase.B] = kept - activation
    change[Phase.W] = -kept
    change[Phase.BW] = -activation
    peaks = []
    for order in plan.orders:
        phase = np.array([operation.phase for operation in order], np.int64)
        stage = np.array([operation.virtual_stage for operation in order], np.int64)
        peaks.append(float(np.cumsum(change[phase, stage]).max(initial=0.0)))
    return tuple(peaks)


def fits(peaks: tuple[float, ...], limit: tuple[float, ...] | None) -> bool:
    """Return whether no device exceeds its limit; None for none."""
    return limit is None or all(within(peak, most) for peak, most in zip(peaks, limit, strict=True))


# The workload of a run: its phase times, by virtual stage, and its transfers, by edge.


_UNKNOWN = -1


class PlacedTimes(OperationTimes, Protocol):
    """Times of operations whose place in the model is known."""

    @property
    def virtual_stage(self) -> int:
        """Place of the model chunk in the model's order; -1 unknown."""

    @property
    def gap_ns(self) -> float | None:
        """Median time from the operation before to one that waited for nothing; None unknown."""


def measured_workload(
    kinds: Sequence[PlacedTimes], transfer_ns: float | None, microbatches: int | None
) -> Workload:
    """Return the workload of a run; every microbatch holds 1/v of a stage from F to W.

    A transfer is the median of the receives of its edge and direction that waited for their input;
    where none did, that of the other direction, else that of all edges, else 0. What is computed
    again belongs to the backward that needs it. What passes between operations that wait for
    nothing (the host, launches) belongs to each of them.

    Args:
        kinds: how long operations take, and transfers under the phases of receives.
        transfer_ns: of all edges; None where none was recorded.
        microbatches: of an iteration.

    Raises:
        MismatchError: they lack a time of a virtual stage.
    """
    if microbatches is None:
        raise _lacks("its microbatches are unknown; name them in ranges")
    if any(kind.phase is Phase.FB for kind in kinds):
        raise _lacks("forwards and backwards overlap under one name")
    placement = _placement(kinds)
    stages = range(len(placement))
    gaps = _gaps(kinds)
    times = {
        (kind.virtual_stage, kind.phase): kind.median_ns + gaps.get(kind.phase, 0.0)
        for kind in kinds
    }

    def of(stage: int, phase: Phase) -> int:
        return round(times.get((stage, phase), 0.0))

    again = [of(s, Phase.R) for s in stages]
    # Where a chunk runs its backward both ways, what was recorded apart tells more.
    apart = [(s, Phase.B) in times for s in stages]
    for s in stages:
        if not of(s, Phase.F) or not (of(s, Phase.B) or of(s, Phase.BW)):
            raise _lacks(f"virtual stage {s} has no forward or no backward of its own")
    weight = [of(s, Phase.W) if apart[s] else of(s, Phase.BW) // 2 for s in stages]
    inner = [of(s, Phase.B) if apart[s] else of(s, Phase.BW) - weight[s] for s in stages]
    fused = [of(s, Phase.BW) or inner[s] + weight[s] for s in stages]
    cut = [placement[s] != placement[s + 1] for s in stages[:-1]]
    usual = round(transfer_ns or 0.0)
    down = [_transfer(times, s, usual) if cut[s] else 0 for s in stages[:-1]]
    up = [_transfer(times, s, usual, back=True) if cut[s] else 0 for s in stages[:-1]]
    held = tuple(1 / placement.count(placement[s]) for s in stages)
    return Workload(
        placement=placement,
        microbatches=microbatches,
        forward_ns=tuple(of(s, Phase.F) for s in stages),
        backward_ns=tuple(inner[s] + again[s] for s in stages),
        weight_ns=tuple(weight),
        fused_ns=tuple(fused[s] + again[s] for s in stages),
        down_ns=(*down, 0),
        up_ns=(0, *up),
        activation=held,
        kept=held,
        split=any(weight[s] for s in stages if apart[s]),
    )


def _gaps(kinds: Sequence[PlacedTimes]) -> dict[Phase, float]:
    """Return the gap before operations of each phase: the median of virtual stages.

    One virtual stage may show few, in which a transfer waited for others.
    """
    known = [kind for kind in kinds if kind.gap_ns is not None]
    of_all = [kind.gap_ns or 0.0 for kind in known]
    gaps = {}
    for phase in WORK:
        of_phase = [kind.gap_ns or 0.0 for kind in known if kind.phase is phase]
        gaps[phase] = median_low(of_phase or of_all or [0.0])
    return gaps


def _placement(kinds: Sequence[PlacedTimes]) -> tuple[int, ...]:
    """Return the device of each virtual stage; devices are numbered in the order of stages.

    Raises:
        MismatchError: it is unknown.
    """
    holder = {kind.virtual_stage: kind.stage for kind in kinds if kind.phase is Phase.F}
    if not holder or _UNKNOWN in holder or _UNKNOWN in holder.values():
        raise _lacks("its stages are unknown; set --order")
    absent = next((s for s in range(max(holder) + 1) if s not in holder), None)
    if absent is not None:
        raise _lacks(f"virtual stage {absent} of {max(holder) + 1} is missing; give all ranks")
    number = {stage: device for device, stage in enumerate(sorted(set(holder.values())))}
    return tuple(number[holder[s]] for s in range(len(holder)))


def _transfer(
    times: Mapping[tuple[int, Phase], float], edge: int, usual: int, *, back: bool = False
) -> int:
    """Return the transfer between a virtual stage and the next, or back."""
    there = times.get((edge + 1, Phase.RECV_F))
    home = times.get((edge, Phase.RECV_B))
    first, second = (home, there) if back else (there, home)
    known = second if first is None else first
    return usual if known is None else round(known)


def _lacks(what: str) -> MismatchError:
    return MismatchError(f"the run does not show the times of its schedule: {what}")
