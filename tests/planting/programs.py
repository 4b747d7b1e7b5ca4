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
from tests.planting.orders import Operation, Plan


@dataclass(frozen=True, order=True)
class Task:
    """One operation of one iteration of a program."""

    iteration: int
    operation: Operation


#: How long a task keeps its device, in nanoseconds.
Duration = Callable[[Task], int]
#: Microbatch of the optimizer task that ends an iteration, and of the part of it that runs
#: inside the next iteration.
STEP, POSTPONED = 0, 1


def _tasks_of(
    plans: Sequence[Plan], device: int, *, optimizer: bool, postponed: bool
) -> list[Task]:
    """Return what a device runs, in order; see :func:`simulate`."""
    first = plans[0].placement.index(device)
    tasks: list[Task] = []
    pending: int | None = None
    for iteration, plan in enumerate(plans):
        work = [Task(iteration, operation) for operation in plan.orders[device]]
        trains = any(op.phase is not Phase.F for order in plan.orders for op in order)
        if pending is not None:
            work.insert(1, Task(pending, Operation(first, Phase.OPTIMIZER, POSTPONED)))
            pending = None
        tasks += work
        if optimizer and trains:
            tasks.append(Task(iteration, Operation(first, Phase.OPTIMIZER, STEP)))
            pending = iteration if postponed else None
    return tasks


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
        plans: Sequence[Plan],
        tasks: Sequence[Sequence[Task]],
        duration: Duration,
        transfer_ns: Duration,
        prelude: Duration,
        delay: Duration,
        gate: Gate | None,
    ) -> None:
        self.tasks, self.placement = tasks, plans[0].placement
        self.length = len(self.placement) // plans[0].replicas
        self.together = frozenset().union(*(plan.together for plan in plans))
        self.duration, self.transfer_ns = duration, transfer_ns
        self.prelude, self.delay, self.gate = prelude, delay, gate
        self.free, self.next = [0 for _ in tasks], [0 for _ in tasks]
        #: Work tasks that have not run, and when the last one ended, by iteration and device.
        self.left = Counter(
            (task.iteration, device)
            for device, own in enumerate(tasks)
            for task in own
            if task.operation.phase in WORK
        )
        self.done: dict[tuple[int, int], int] = {}
        #: Virtual stages that run anything, by iteration.
        self.active_stages = [
            {op.virtual_stage for order in plan.orders for op in order} for plan in plans
        ]
        #: By iteration, whether it is an F, virtual stage and microbatch.
        self.ended: dict[tuple[int, bool, int, int], int] = {}
        #: The columns of a simulation up to ``arrival_ns``, in the order in which tasks ran.
        self.rows: list[tuple[int, ...]] = []

    def group(self, device: int) -> Sequence[Task]:
        """Return the device's next task, or the next two if they go together."""
        tasks, at = self.tasks[device], self.next[device]
        group = tasks[at : at + 1]
        if group and group[0].operation in self.together:
            # A forward of an evaluation has no backward beside it.
            group = [
                *group,
                *(t for t in tasks[at + 1 : at + 2] if t.operation.phase is not Phase.F),
            ]
        return group

    def ready(self, device: int, task: Task) -> tuple[int, int] | None:
        """Return when the local and the remote inputs are there (-1: none), or None."""
        op, k, length = task.operation, task.iteration, self.length
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
            if source not in self.active_stages[k]:
                continue
            end = self.ended.get((k, forward, source, op.microbatch))
            if end is None:
                return None
            if self.placement[source] == device:
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


def all_done(devices: int) -> Gate:
    """Return the gate that opens when all devices ended an iteration's work, as a norm makes it."""

    def gate(iteration: int, _: int, done: Mapping[tuple[int, int], int]) -> int | None:
        ends = [done[iteration, device] for device in range(devices) if (iteration, device) in done]
        return max(ends) if len(ends) == devices else None

    return gate


def simulate(
    plans: Sequence[Plan],
    duration: Duration,
    *,
    optimizer: bool = False,
    postponed: bool = False,
    transfer_ns: int | Duration = 0,
    prelude: Duration = _no_time,
    delay: Duration = _no_time,
    gate: Gate | None = None,
) -> Simulation:
    """Return when every task runs: each device does what it can, until none can do anything.

    Args:
        plans: one plan an iteration, back to back, all with one placement.
        duration: how long each task takes, in nanoseconds.
        optimizer: end each iteration that trains with an Optimizer task.
        postponed: run a second part of each Optimizer after the first operation of the next
            iteration, as post-validation does (arXiv 2401.10241, section 4).
        transfer_ns: latency of every edge between two devices (T_comm), one number or one by the
            task that waits.
        prelude: the part of a task that runs before its remote input is needed; a task with
            such a part starts without it and waits in the middle.
        delay: how long after it could have started a task starts (a host that launches late).
        gate: gives for an iteration and a device when its Optimizer can start at the earliest, from
            when devices ended the iteration's work, by iteration and device; None where that is
            open yet. It opens at the latest once all have.

    Raises:
        MismatchError: the order deadlocks.
    """
    devices = range(plans[0].stages)
    tasks = [_tasks_of(plans, d, optimizer=optimizer, postponed=postponed) for d in devices]
    transfer = transfer_ns if callable(transfer_ns) else lambda _: transfer_ns
    run = _Run(plans, tasks, duration, transfer, prelude, delay, gate)
    while sum(run.step(device) for device in devices):
        pass
    if stuck := [str(task.operation) for device in devices for task in run.group(device)]:
        raise MismatchError(f"the order deadlocks before {', '.join(stuck)}")
    names = Simulation.column_names()
    table = np.array(run.rows, dtype=np.int64).reshape(-1, len(names))
    table = table[np.argsort(table[:, 0], kind="stable")]
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    return Simulation(**columns, placement=run.placement, length=run.length)
