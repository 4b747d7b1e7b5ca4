"""A simulated program: iterations of plans back to back, each device running its order.

Inputs, for one microbatch of one iteration: F of virtual stage v needs F of v-1; B and BW need
F of v and B or BW of v+1; W needs B of v. An input from another device arrives ``transfer_ns``
after its producer ended, and the transfer keeps no device busy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bubbleviz.errors import MismatchError
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.schedules.plan import Plan, PlannedOperation


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
    placement = plans[0].placement
    first = {device: stage for stage, device in reversed(list(enumerate(placement)))}
    tasks: list[tuple[Task, ...]] = []
    for device in range(plans[0].stages):
        own: list[Task] = []
        pending: int | None = None
        for iteration, plan in enumerate(plans):
            work = [Task(iteration, operation) for operation in plan.orders[device]]
            trains = any(task.operation.phase is not Phase.F for task in work)
            if pending is not None:
                late = PlannedOperation(first[device], Phase.OPTIMIZER, POSTPONED)
                work.insert(1, Task(pending, late))
                pending = None
            own += work
            if optimizer and trains:
                step = PlannedOperation(first[device], Phase.OPTIMIZER, STEP)
                own.append(Task(iteration, step))
                pending = iteration if postponed else None
        tasks.append(tuple(own))
    together = frozenset().union(*(plan.together for plan in plans))
    return Program(placement, tuple(tasks), len(placement) // plans[0].replicas, together)


#: When an Optimizer can start; see :func:`simulate`.
Gate = Callable[[int, int, Mapping[tuple[int, int], int]], "int | None"]


@dataclass(frozen=True)
class Simulation(Table):
    """When every task ran; in order of device, then of time.

    Attributes:
        device, virtual_stage, phase, microbatch, iteration: of the task; of an Optimizer, the
            virtual stage is the device's first and the microbatch ``STEP`` or ``POSTPONED``.
        start_ns, end_ns: when it ran, end exclusive.
        pause_ns, resume_ns: when it waited for its input after a part that needs none, else equal
            to ``start_ns``.
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


def _no_time(_: Task) -> int:
    return 0


class _Run:
    """The state of one simulation: what ended when, and how far each device is."""

    def __init__(
        self,
        program: Program,
        duration: Duration,
        transfer_ns: Duration,
        prelude: Duration,
        delay: Duration,
    ) -> None:
        self.program, self.duration, self.transfer_ns = program, duration, transfer_ns
        self.prelude, self.delay = prelude, delay
        self.gate: Gate | None = None
        self.devices = range(len(program.tasks))
        self.free, self.next = [0 for _ in self.devices], [0 for _ in self.devices]
        #: Work tasks that have not run, and when the last one ended, by iteration and device.
        self.left = Counter(
            (task.iteration, device)
            for device in self.devices
            for task in program.tasks[device]
            if task.operation.phase in WORK
        )
        self.done: dict[tuple[int, int], int] = {}
        #: By iteration, whether it is an F, virtual stage and microbatch.
        self.ended: dict[tuple[int, bool, int, int], int] = {}
        #: The columns of a simulation up to ``arrival_ns``, in the order in which tasks ran.
        self.rows: list[tuple[int, ...]] = []

    def all_done(self, iteration: int, _: int, done: Mapping[tuple[int, int], int]) -> int | None:
        """Return when all devices ended an iteration's work; None where some have not."""
        if any(self.left[iteration, device] for device in self.devices):
            return None
        return max(done.get((iteration, device), 0) for device in self.devices)

    def group(self, device: int) -> tuple[Task, ...]:
        """Return the device's next task, or the next two if they go together."""
        tasks, at = self.program.tasks[device], self.next[device]
        group = tasks[at : at + 1]
        if group and group[0].operation in self.program.together:
            # A forward of an evaluation has no backward beside it.
            group += tuple(t for t in tasks[at + 1 : at + 2] if t.operation.phase is not Phase.F)
        return group

    def ready(self, device: int, task: Task) -> tuple[int, int] | None:
        """Return when the local and the remote inputs are there (-1: none), or None."""
        op, k, length = task.operation, task.iteration, self.program.length
        stage, phase = op.virtual_stage, op.phase
        local = remote = NONE
        if phase is Phase.OPTIMIZER:
            opens = self.gate(k, device, self.done) if self.gate else local
            return None if opens is None else (opens, remote)
        if phase is Phase.F:
            needs = [(True, stage - 1)] if stage % length else []
        elif phase is Phase.W:
            needs = [(False, stage)]
        else:
            needs = [(True, stage), *([(False, stage + 1)] if (stage + 1) % length else [])]
        for forward, source in needs:
            end = self.ended.get((k, forward, source, op.microbatch))
            if end is None:
                return None
            if self.program.placement[source] == device:
                local = max(local, end)
            else:
                remote = max(remote, end + self.transfer_ns(task))
        return local, remote

    def put(self, device: int, task: Task, times: tuple[int, ...]) -> None:
        """Note when a task ran: start, pause, resume, end and arrival."""
        op, iteration = task.operation, task.iteration
        self.rows.append(
            (device, op.virtual_stage, int(op.phase), op.microbatch, iteration, *times)
        )
        self.next[device] += 1
        self.free[device] = times[3]
        if op.phase in WORK:
            self.left[iteration, device] -= 1
            if not self.left[iteration, device]:
                self.done[iteration, device] = times[3]

    def step(self, device: int) -> bool:
        """Run what the device has next if its inputs are there.

        Two tasks are put down one after the other, so that each has its time::

            inputs of both   │
            put down         ├─F──┤├─B──────┤
            results                         │ of both
        """
        group = self.group(device)
        inputs = [(task, self.ready(device, task)) for task in group]
        known = [(task, when) for task, when in inputs if when is not None]
        if not group or len(known) < len(group):
            return False
        remotes = [remote for _, (_, remote) in known]
        ahead = self.prelude(group[0]) if len(group) == 1 and remotes[0] != NONE else 0
        start = max(self.free[device], *(local for _, (local, _) in known))
        start = (start if ahead else max(start, *remotes)) + self.delay(group[0])
        for task, (_, remote) in known:
            pause = start + ahead
            resume = max(pause, remote) if ahead else pause
            end = resume + self.duration(task) - ahead
            if resume == pause:
                pause = resume = start
            self.put(device, task, (start, pause, resume, end, remote))
            start = end
        for task in group:
            op = task.operation
            if op.phase in (Phase.F, Phase.B, Phase.BW):
                result = task.iteration, op.phase is Phase.F, op.virtual_stage, op.microbatch
                self.ended[result] = end
        return True


def simulate(
    program: Program | Plan,
    duration: Duration,
    *,
    transfer_ns: int | Duration = 0,
    barrier: bool = False,
    prelude: Duration = _no_time,
    delay: Duration = _no_time,
    gate: Gate | None = None,
) -> Simulation:
    """Return when every task runs: each device does what it can, until none can do anything.

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
    transfer = transfer_ns if callable(transfer_ns) else lambda _: transfer_ns
    run = _Run(program, duration, transfer, prelude, delay)
    run.gate = run.all_done if barrier else gate
    while sum(run.step(device) for device in run.devices):
        pass
    if stuck := [str(task.operation) for device in run.devices for task in run.group(device)]:
        raise MismatchError(f"the order deadlocks before {', '.join(stuck)}")
    names = Simulation.column_names()
    table = np.array(run.rows, dtype=np.int64).reshape(-1, len(names))
    table = table[np.argsort(table[:, 0], kind="stable")]
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    return Simulation(**columns, placement=program.placement, length=program.length)
