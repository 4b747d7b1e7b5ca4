"""Time a plan: each device runs its order, and waits for inputs that have not arrived.

Inputs, for one microbatch of one iteration: F of virtual stage v needs F of v-1; B and BW need
F of v and B or BW of v+1; W needs B of v. An input from another device arrives ``transfer_ns``
after its producer ended, and the transfer keeps no device busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from bubbleviz.errors import MismatchError, UsageError
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.memory_sizes import memory_text
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.schedules.plan import Duration, Memory, Plan, Program, Task, program_of

#: When an Optimizer can start; see :func:`simulate`.
Gate = Callable[[int, int, Mapping[tuple[int, int], int]], "int | None"]


@dataclass(frozen=True)
class Simulation(Table):
    """When every task ran; in order of device, then of time.

    Attributes:
        device: device that ran it.
        virtual_stage: virtual stage; of an Optimizer, the device's first.
        phase: code of :class:`bubbleviz.model.phases.Phase`.
        microbatch: microbatch; of an Optimizer, ``STEP`` or ``POSTPONED``.
        iteration: iteration, from 0.
        start_ns: start.
        pause_ns: where a task waited for its input after a part that needs none, the start of
            that wait, else equal to ``start_ns``.
        resume_ns: the end of that wait, else equal to ``start_ns``.
        end_ns: end, exclusive.
        arrival_ns: when its last remote input arrived, or -1 where it has none.
        placement: device of each virtual stage.
        length: number of virtual stages of one pipeline.
    """

    device: Ints
    virtual_stage: Ints
    phase: Ints
    microbatch: Ints
    iteration: Ints
    start_ns: Ints
    pause_ns: Ints
    resume_ns: Ints
    end_ns: Ints
    arrival_ns: Ints
    placement: tuple[int, ...] = field(metadata={"shared": True})
    length: int = field(metadata={"shared": True})

    @property
    def busy_ns(self) -> Ints:
        """How long each task kept its device busy: its length less its wait."""
        return self.end_ns - self.start_ns - (self.resume_ns - self.pause_ns)


def _no_time(_: Task) -> int:
    return 0


class _Run:
    """The state of one simulation: what ended when, and how far each device is."""

    def __init__(
        self,
        program: Program,
        duration: Duration,
        transfer_ns: int | Duration = 0,
        barrier: bool = False,
        prelude: Duration | None = None,
        delay: Duration | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.program, self.duration = program, duration
        self.prelude, self.delay = prelude or _no_time, delay or _no_time
        self.transfer_ns = transfer_ns if callable(transfer_ns) else lambda _: transfer_ns
        self.gate = self._opens_when_all_are_done if barrier else gate
        #: Work tasks that have not run, by iteration and device; devices that have some left.
        self.left: dict[tuple[int, int], int] = {}
        self.done: dict[tuple[int, int], int] = {}  # when a device ended an iteration's work
        for device, tasks in enumerate(program.tasks):
            for task in tasks:
                if task.operation.phase in WORK:
                    own = task.iteration, device
                    self.left[own] = self.left.get(own, 0) + 1
        self.open: dict[int, int] = {}
        for iteration, _ in self.left:
            self.open[iteration] = self.open.get(iteration, 0) + 1
        self.free = [0] * len(program.tasks)
        self.next = [0] * len(program.tasks)
        #: By iteration, whether it is an F, virtual stage and microbatch.
        self.ended: dict[tuple[int, bool, int, int], int] = {}
        #: The columns of a simulation up to ``arrival_ns``, in the order in which tasks ran.
        self.rows: list[tuple[int, ...]] = []
        self._run()

    def _opens_when_all_are_done(
        self, iteration: int, _: int, done: Mapping[tuple[int, int], int]
    ) -> int | None:
        if self.open.get(iteration):
            return None
        devices = range(len(self.free))
        return max(done.get((iteration, device), 0) for device in devices)

    def _run(self) -> None:
        todo = list(range(len(self.program.tasks)))
        while todo:
            device = todo.pop()
            while tasks := self._step(device):
                for task in tasks:
                    todo += self._woken(task)
        for device, of_device in enumerate(self.program.tasks):
            if self.next[device] < len(of_device):
                stuck = of_device[self.next[device]]
                raise MismatchError(
                    f"the order deadlocks: device {device} waits for ever for the inputs of "
                    f"{stuck.operation} in iteration {stuck.iteration}"
                )

    def _step(self, device: int) -> tuple[Task, ...]:
        """Run the device's next task if its inputs are there, or the next two if they go together.

        Two are put down one after the other, so that each has its time::

            inputs of both   │
            put down         ├─F──┤├─B──────┤
            results                         │ of both

        Returns what has run.
        """
        group = self._next_group(device)
        if not group:
            return ()
        start, remotes = self.free[device], []
        for task in group:
            ready = self._ready(device, task)
            if ready is None:
                return ()
            start = max(start, ready[0])
            remotes.append(ready[1])
        alone = len(group) == 1 and remotes[0] != NONE
        ahead = self.prelude(group[0]) if alone else 0
        start = start if ahead else max(start, *remotes)
        start += self.delay(group[0])
        for task, remote in zip(group, remotes, strict=True):
            pause = start + ahead
            resume = max(pause, remote) if ahead else pause
            end = resume + self.duration(task) - ahead
            if resume == pause:
                pause = resume = start
            op, iteration = task.operation, task.iteration
            key = op.virtual_stage, int(op.phase), op.microbatch, iteration
            self.rows.append((device, *key, start, pause, resume, end, remote))
            if op.phase in WORK:
                self.left[iteration, device] -= 1
                if not self.left[iteration, device]:
                    self.open[iteration] -= 1
                    self.done[iteration, device] = end
            start = end
        for task in group:
            op = task.operation
            if op.phase in (Phase.F, Phase.B, Phase.BW):
                result = task.iteration, op.phase is Phase.F, op.virtual_stage, op.microbatch
                self.ended[result] = end
        self.free[device] = end
        self.next[device] += len(group)
        return group

    def _next_group(self, device: int) -> tuple[Task, ...]:
        """Return the device's next task, or the next two if they go together."""
        tasks, at = self.program.tasks[device], self.next[device]
        group = tasks[at : at + 1]
        if group and group[0].operation in self.program.together:
            # A forward of an evaluation has no backward beside it.
            group += tuple(t for t in tasks[at + 1 : at + 2] if t.operation.phase is not Phase.F)
        return group

    def _ready(self, device: int, task: Task) -> tuple[int, int] | None:
        """Return when the local and the remote inputs are there (-1: none), or None."""
        op, k, length = task.operation, task.iteration, self.program.length
        stage, phase = op.virtual_stage, op.phase
        local = remote = NONE
        if phase is Phase.OPTIMIZER:
            opens = self.gate(k, device, self.done) if self.gate else local
            return None if opens is None else (opens, remote)
        needs: list[tuple[bool, int]] = []
        if phase is Phase.F:
            needs = [(True, stage - 1)] if stage % length else []
        elif phase in (Phase.B, Phase.BW):
            needs = [(True, stage), *([(False, stage + 1)] if (stage + 1) % length else [])]
        elif phase is Phase.W:
            needs = [(False, stage)]
        for forward, source in needs:
            end = self.ended.get((k, forward, source, op.microbatch))
            if end is None:
                return None
            if self.program.placement[source] == device:
                local = max(local, end)
            else:
                remote = max(remote, end + self.transfer_ns(task))
        return local, remote

    def _woken(self, task: Task) -> list[int]:
        """Return the devices whose next task may have waited for this one."""
        op, length = task.operation, self.program.length
        neighbour = op.virtual_stage + (1 if op.phase is Phase.F else -1)
        if self.gate and not self.open.get(task.iteration):
            return list(range(len(self.program.tasks)))
        inside = neighbour // length == op.virtual_stage // length and op.phase is not Phase.W
        return [self.program.placement[neighbour]] if inside else []


def run_order(plan: Plan) -> list[tuple[int, int, Phase, int]]:
    """Return operations in an order in which each comes behind what it needs.

    Each as device, virtual stage, phase and microbatch; what runs together follows each other.

    Raises:
        MismatchError: there is none.
    """
    rows = _Run(program_of([plan]), _no_time).rows
    return [(device, stage, Phase(phase), mb) for device, stage, phase, mb, *_ in rows]


def simulate(
    program: Program | Plan,
    duration: Duration,
    *,
    transfer_ns: int | Duration = 0,
    barrier: bool = False,
    prelude: Duration | None = None,
    delay: Duration | None = None,
    gate: Gate | None = None,
) -> Simulation:
    """Return when every task runs.

    Args:
        program: what runs; a plan stands for one iteration of it without Optimizer.
        duration: how long each task takes, in nanoseconds.
        transfer_ns: latency of every edge between two devices (T_comm), one number or one by the
            task that waits.
        barrier: an Optimizer waits until all devices ended the work of its iteration, as an
            all-reduce of the gradient norm makes it.
        prelude: the part of a task that runs before its remote input is needed; a task with
            such a part starts without it and waits in the middle.
        delay: how long after it could have started a task starts (a host that launches late).
        gate: gives for an iteration and a device when its Optimizer can start at the earliest, from
            when devices ended the iteration's work, by iteration and device; None where that is
            open yet. It opens at the latest once all have.

    Raises:
        MismatchError: the order deadlocks.
    """
    if isinstance(program, Plan):
        program = program_of([program])
    rows = _Run(program, duration, transfer_ns, barrier, prelude, delay, gate).rows
    names = Simulation.column_names()
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    table = table[np.argsort(table[:, 0], kind="stable")]
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    return Simulation(**columns, placement=program.placement, length=program.length)


# Metrics of one iteration: makespan, cost and bubble ratios, the optimizer excluded.


def makespan(simulation: Simulation, iteration: int = 0) -> int:
    """Return the length of one window over all devices, in nanoseconds."""
    work = _work_of(simulation, iteration)
    return int(work.end_ns.max() - work.start_ns.min()) if len(work) else 0


def cost(simulation: Simulation, iteration: int = 0) -> int:
    """Return the longest of the devices' own windows, in nanoseconds.

    That is the cost of arXiv 2401.10241, section 5.3.
    """
    work = _work_of(simulation, iteration)
    first = np.flatnonzero(np.diff(work.device, prepend=NONE))
    if not len(first):
        return 0
    ends, starts = (
        np.maximum.reduceat(work.end_ns, first),
        np.minimum.reduceat(work.start_ns, first),
    )
    return int((ends - starts).max())


def schedule_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the window of all devices, or None without work."""
    return _ratio(_work_of(simulation, iteration), makespan(simulation, iteration))


def stage_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the longest of the devices' own windows, or None."""
    return _ratio(_work_of(simulation, iteration), cost(simulation, iteration))


def _work_of(simulation: Simulation, iteration: int) -> Simulation:
    """Return the F, B, W and BW of one iteration."""
    rows = np.isin(simulation.phase, WORK) & (simulation.iteration == iteration)
    return simulation.take(rows)


def _ratio(work: Simulation, window_ns: int) -> float | None:
    devices = len(np.unique(work.device))
    if not devices or not window_ns:
        return None
    return 1 - int(work.busy_ns.sum()) / (devices * window_ns)


# A workload: what every virtual stage of a run takes, and plans timed and weighed by it.
#
# Times are whole nanoseconds of one microbatch; memory is in any one unit. Where
# :class:`bubbleviz.schedules.plan.Setting` has one time a device and one transfer for all, a
# workload
# has them by virtual stage, and by edge and direction.


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
        makespan_ns: the window of all devices.
        cost_ns: the longest of the devices' own windows.
        schedule_ratio: bubble ratio in the former; None where nothing takes time.
        stage_ratio: bubble ratio in the latter.
        peak_memory: by device, in the unit of the workload's ``activation``.
        fits: whether no device exceeds its limit.
        allowed: whether it fits, and needs no split backward where there is none.
    """

    plan: Plan
    simulation: Simulation
    makespan_ns: int
    cost_ns: int
    schedule_ratio: float | None
    stage_ratio: float | None
    peak_memory: tuple[float, ...]
    fits: bool
    allowed: bool = True


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


@dataclass(frozen=True)
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
