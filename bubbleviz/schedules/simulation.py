"""Time a plan: each device runs its order, and waits for inputs that have not arrived.

Inputs, for one microbatch of one iteration: F of virtual stage v needs F of v-1; B and BW need
F of v and B or BW of v+1; W needs B of v. An input from another device arrives ``transfer_ns``
after its producer ended, and the transfer keeps no device busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bubbleviz.errors import MismatchError
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.phases import COMPUTE, WORK, Phase
from bubbleviz.schedules.plan import Memory, Plan, PlannedOperation


@dataclass(frozen=True, order=True)
class Task:
    """One operation of one iteration of a program."""

    iteration: int
    operation: PlannedOperation


#: How long a task keeps its device, in nanoseconds.
Duration = Callable[[Task], int]
#: Microbatch of the optimizer task that ends an iteration, and of the part of it that runs
#: inside the next iteration.
STEP, POSTPONED = 0, 1


@dataclass(frozen=True)
class Program:
    """Iterations back to back: what each device runs, in order.

    Attributes:
        placement: device of each virtual stage.
        tasks: one sequence a device.
        length: number of virtual stages of one pipeline.
        together: forwards that run beside the backward that follows them; see
            :class:`bubbleviz.schedules.plan.Plan`.
    """

    placement: tuple[int, ...]
    tasks: tuple[tuple[Task, ...], ...]
    length: int
    together: frozenset[PlannedOperation] = frozenset()


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


def stage_times(
    forward_ns: int | Sequence[int],
    backward_ns: int | Sequence[int],
    weight_ns: int | Sequence[int],
    optimizer_ns: int = 0,
) -> Duration:
    """Return durations by virtual stage; BW takes backward and weight together.

    Args:
        forward_ns: T_F, one number or one a virtual stage.
        backward_ns: T_B, the backward pass for the input alone.
        weight_ns: T_W, the backward pass for the weights.
        optimizer_ns: of every device.
    """

    def at(times: int | Sequence[int], stage: int) -> int:
        return times if isinstance(times, int) else times[stage]

    def duration(task: Task) -> int:
        stage, phase = task.operation.virtual_stage, task.operation.phase
        if phase is Phase.F:
            return at(forward_ns, stage)
        if phase is Phase.OPTIMIZER:
            return optimizer_ns
        both = phase is Phase.BW
        total = at(backward_ns, stage) if both or phase is Phase.B else 0
        return total + (at(weight_ns, stage) if both or phase is Phase.W else 0)

    return duration


def program_of(
    plans: Sequence[Plan], *, optimizer: bool = False, postponed: bool = False
) -> Program:
    """Return the program that runs one iteration a plan, back to back.

    Args:
        plans: one plan an iteration, all with one placement.
        optimizer: end each iteration that trains with an Optimizer task.
        postponed: run a second part of each Optimizer after the first operation of the next
            iteration, as post-validation does (arXiv 2401.10241, section 4).
    """
    if len({plan.placement for plan in plans}) != 1:
        raise MismatchError("the plans of a program place their virtual stages differently")
    placement = plans[0].placement
    tasks = tuple(
        tuple(_device_tasks(plans, device, placement.index(device), optimizer, postponed))
        for device in range(plans[0].stages)
    )
    together = frozenset().union(*(plan.together for plan in plans))
    return Program(placement, tasks, len(placement) // plans[0].replicas, together)


def _device_tasks(
    plans: Sequence[Plan], device: int, stage: int, optimizer: bool, postponed: bool
) -> list[Task]:
    tasks: list[Task] = []
    pending: int | None = None
    for iteration, plan in enumerate(plans):
        work = [Task(iteration, operation) for operation in plan.orders[device]]
        if pending is not None:
            late = Task(pending, PlannedOperation(stage, Phase.OPTIMIZER, POSTPONED))
            work.insert(1, late)
            pending = None
        tasks += work
        trains = any(operation.phase is not Phase.F for operation in plan.orders[device])
        if optimizer and trains:
            tasks.append(Task(iteration, PlannedOperation(stage, Phase.OPTIMIZER, STEP)))
            pending = iteration if postponed else None
    return tasks


def _key(task: Task) -> tuple[int, int, int, int]:
    """Return the columns that say which task it is."""
    op = task.operation
    return op.virtual_stage, int(op.phase), op.microbatch, task.iteration


class _Run:
    """The state of one simulation: what ended when, and how far each device is."""

    def __init__(
        self,
        program: Program,
        duration: Duration,
        *,
        transfer_ns: int | Duration,
        barrier: bool,
        prelude: Duration | None,
        delay: Duration | None,
    ) -> None:
        self.program = program
        self.duration = duration
        self.transfer_ns = transfer_ns if callable(transfer_ns) else lambda _: transfer_ns
        self.barrier = barrier
        self.prelude = prelude
        self.delay = delay
        self.free = [0] * len(program.tasks)
        self.next = [0] * len(program.tasks)
        self.ended: dict[tuple[int, Phase, int, int], int] = {}
        self.open: dict[int, int] = {}  # work tasks of an iteration that have not run
        self.last: dict[int, int] = {}  # latest end of an iteration's work so far
        for tasks in program.tasks:
            for task in tasks:
                if task.operation.phase in WORK:
                    self.open[task.iteration] = self.open.get(task.iteration, 0) + 1
        self.rows: list[list[tuple[int, ...]]] = [[] for _ in program.tasks]

    def inputs(self, task: Task) -> list[tuple[int, Phase, int, int]]:
        """Return the keys of what the task needs."""
        stage, phase, mb = (
            task.operation.virtual_stage,
            task.operation.phase,
            task.operation.microbatch,
        )
        k = task.iteration
        if phase is Phase.F:
            return [(k, Phase.F, stage - 1, mb)] if stage % self.program.length else []
        if phase in (Phase.B, Phase.BW):
            needs = [(k, Phase.F, stage, mb)]
            if (stage + 1) % self.program.length:
                needs.append((k, Phase.B, stage + 1, mb))
            return needs
        return [(k, Phase.B, stage, mb)] if phase is Phase.W else []

    def ready(self, device: int, task: Task) -> tuple[int, int] | None:
        """Return when the local and the remote inputs are there (-1: none), or None."""
        local = remote = NONE
        for key in self.inputs(task):
            end = self.ended.get(key)
            if end is None:
                return None
            if self.program.placement[key[2]] == device:
                local = max(local, end)
            else:
                remote = max(remote, end + self.transfer_ns(task))
        if self.barrier and task.operation.phase is Phase.OPTIMIZER:
            if self.open.get(task.iteration):
                return None
            local = max(local, self.last.get(task.iteration, 0))
        return local, remote

    def step(self, device: int) -> tuple[Task, ...]:
        """Run the device's next task if its inputs are there, or the next two if they go together.

        Returns what has run.
        """
        tasks, at = self.program.tasks[device], self.next[device]
        if at == len(tasks):
            return ()
        # A forward of an evaluation has no backward beside it.
        turned = at + 1 < len(tasks) and tasks[at + 1].operation.phase is not Phase.F
        if tasks[at].operation in self.program.together and turned:
            return self.beside(device, tasks[at], tasks[at + 1])
        task = tasks[at]
        ready = self.ready(device, task)
        if ready is None:
            return ()
        local, remote = ready
        length = self.duration(task)
        ahead = self.prelude(task) if self.prelude and remote != NONE else 0
        start = max(self.free[device], local) + (self.delay(task) if self.delay else 0)
        if ahead == 0:
            start = max(start, remote + (self.delay(task) if self.delay else 0))
        pause = start + ahead
        resume = max(pause, remote) if ahead else pause
        end = resume + length - ahead
        if resume == pause:
            pause = resume = start
        self.finish(device, task, end)
        self.rows[device].append((device, *_key(task), start, pause, resume, end, remote))
        return (task,)

    def beside(self, device: int, forward: Task, backward: Task) -> tuple[Task, ...]:
        """Run two tasks that go together, if the inputs of both are there.

        They are put down one after the other, so that each has its time::

            inputs of both   │
            put down         ├─F──┤├─B──────┤
            results                         │ of both
        """
        ready = [self.ready(device, task) for task in (forward, backward)]
        if ready[0] is None or ready[1] is None:
            return ()
        start = max(self.free[device], *ready[0], *ready[1])
        start += self.delay(forward) if self.delay else 0
        half = start + self.duration(forward)
        end = half + self.duration(backward)
        for task, (_, remote), begun, done in (
            (forward, ready[0], start, half),
            (backward, ready[1], half, end),
        ):
            self.finish(device, task, end)
            self.rows[device].append((device, *_key(task), begun, begun, begun, done, remote))
        return forward, backward

    def finish(self, device: int, task: Task, end: int) -> None:
        """Record that the task ended."""
        op = task.operation
        self.free[device] = end
        self.next[device] += 1
        if op.phase in WORK:
            self.open[task.iteration] -= 1
            self.last[task.iteration] = max(self.last.get(task.iteration, 0), end)
        if op.phase in (Phase.F, Phase.B, Phase.BW):
            kind = Phase.F if op.phase is Phase.F else Phase.B
            self.ended[task.iteration, kind, op.virtual_stage, op.microbatch] = end

    def wakes(self, task: Task) -> list[int]:
        """Return the devices whose next task may have waited for this one."""
        op, length = task.operation, self.program.length
        neighbour = op.virtual_stage + (1 if op.phase is Phase.F else -1)
        if self.barrier and not self.open.get(task.iteration):
            return list(range(len(self.program.tasks)))
        inside = neighbour // length == op.virtual_stage // length
        return [self.program.placement[neighbour]] if inside else []

    def all(self) -> None:
        """Run every task, or raise where none can run."""
        todo = list(range(len(self.program.tasks)))
        while todo:
            device = todo.pop()
            while tasks := self.step(device):
                for task in tasks:
                    todo += self.wakes(task)
        for device, tasks in enumerate(self.program.tasks):
            if self.next[device] < len(tasks):
                stuck = tasks[self.next[device]]
                raise MismatchError(
                    f"the order deadlocks: device {device} waits for ever for the inputs of "
                    f"{stuck.operation} in iteration {stuck.iteration}"
                )


def simulate(
    program: Program | Plan,
    duration: Duration,
    *,
    transfer_ns: int | Duration = 0,
    barrier: bool = False,
    prelude: Duration | None = None,
    delay: Duration | None = None,
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

    Raises:
        MismatchError: the order deadlocks.
    """
    if isinstance(program, Plan):
        program = program_of([program])
    run = _Run(
        program,
        duration,
        transfer_ns=transfer_ns,
        barrier=barrier,
        prelude=prelude,
        delay=delay,
    )
    run.all()
    names = Simulation.column_names()
    rows = [row for device in run.rows for row in device]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    return Simulation(**columns, placement=program.placement, length=program.length)


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
        for rows in (work.device == device for device in np.unique(work.device))
    ]
    return max(windows, default=0)


def schedule_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the window of all devices, or None without work."""
    return _ratio(work_of(simulation, iteration), makespan(simulation, iteration))


def stage_ratio(simulation: Simulation, iteration: int = 0) -> float | None:
    """Return the bubble ratio in the longest of the devices' own windows, or None."""
    return _ratio(work_of(simulation, iteration), cost(simulation, iteration))


def _ratio(work: Simulation, window_ns: int) -> float | None:
    devices = len(np.unique(work.device))
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
        np.cumsum(step[work.device == device]).max(initial=0) for device in np.unique(work.device)
    ]


def idle_ns(simulation: Simulation) -> int:
    """Return the time that devices idle between their first and their last task."""
    rows = np.isin(simulation.phase, COMPUTE)
    compute = simulation.take(rows)
    total = 0
    for device in np.unique(compute.device):
        own = compute.take(compute.device == device)
        total += int(own.end_ns.max() - own.start_ns.min() - own.busy_ns.sum())
    return total
