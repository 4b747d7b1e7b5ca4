"""Simulation of consecutive iterations in which each device runs its operations in order.

The inputs of an operation belong to the same microbatch and iteration. F of virtual stage v needs F
of v-1. B and BW need F of v, and B or BW of v+1. W needs B of v. An input from another device
arrives ``transfer_ns`` after its producer ended. Transfers occupy no device.
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


#: A function that returns the time for which a task occupies its device, in ns.
Duration = Callable[[Task], int]
#: Microbatch number of the optimizer task that ends an iteration.
#: The other number marks its second part, which runs in the next iteration.
STEP, POSTPONED = 0, 1


def _list_tasks(
    plans: Sequence[Plan], device: int, *, optimizer: bool, postponed: bool
) -> list[Task]:
    """Return the tasks of a device, in order; see :func:`simulate`.

    Only iterations that contain backwards have an Optimizer. The second part of an Optimizer runs
    after the first operation of the next iteration.
    """
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


#: A function that returns when an Optimizer can start; see :func:`simulate`.
Gate = Callable[[int, int, Mapping[tuple[int, int], int]], "int | None"]


@dataclass(frozen=True)
class Simulation(Table):
    """Times of all tasks, sorted by (device, start).

    Attributes:
        device, virtual_stage, phase, microbatch, iteration: Identity of the task. An Optimizer has
            the device's first virtual stage, and microbatch ``STEP`` or ``POSTPONED``.
        start_ns, end_ns: Half-open interval in which the task ran.
        pause_ns, resume_ns: Interval in which the task waited for its input, after a part that
            needs no input. Both equal ``start_ns`` if the task did not wait.
        arrival_ns: Arrival time of the task's last remote input, or -1 if it has none.
        placement: Device of each virtual stage.
        length: Number of virtual stages of one pipeline.
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


def _take_no_time(_: Task) -> int:
    return 0


class _Run:
    """State of a simulation: the results so far and the progress of each device."""

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
        #: Number of tasks of the work phases that have not run yet, keyed by (iteration, device).
        #: ``done`` is the end of the last task, set once all of these tasks have run.
        self.left = Counter(
            (task.iteration, device)
            for device, own in enumerate(tasks)
            for task in own
            if task.operation.phase in WORK
        )
        self.done: dict[tuple[int, int], int] = {}
        #: Virtual stages that run any operation, for each iteration.
        self.active_stages = [
            {op.virtual_stage for order in plan.orders for op in order} for plan in plans
        ]
        #: End time of each result, keyed by (iteration, is F, virtual stage, microbatch).
        self.ended: dict[tuple[int, bool, int, int], int] = {}
        #: Columns of the simulation up to ``arrival_ns``, in the order in which tasks ran.
        self.rows: list[tuple[int, ...]] = []

    def get_group(self, device: int) -> Sequence[Task]:
        """Return the device's next task, or the next two if they overlap."""
        tasks, index = self.tasks[device], self.next[device]
        group = tasks[index : index + 1]
        if group and group[0].operation in self.together:
            # In an evaluation, a forward does not overlap a backward.
            group = [
                *group,
                *(t for t in tasks[index + 1 : index + 2] if t.operation.phase is not Phase.F),
            ]
        return group

    def find_ready_ns(self, device: int, task: Task) -> tuple[int, int] | None:
        """Return when the local and the remote inputs are ready, or None if that is still unknown.

        The times are (local, remote). A time is -1 if the task has no input of that kind.
        """
        op, k, length = task.operation, task.iteration, self.length
        stage, phase = op.virtual_stage, op.phase
        local = remote = NONE
        if phase is Phase.OPTIMIZER:
            opens = self.gate(k, device, self.done) if self.gate else local
            return None if opens is None else (opens, remote)
        if phase is Phase.F:
            inputs = [(True, stage - 1)] if stage % length else []
        elif phase is Phase.W:
            inputs = [(False, stage)]
        else:
            inputs = [(True, stage), *([(False, stage + 1)] if (stage + 1) % length else [])]
        for forward, source in inputs:
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

    def record(self, device: int, task: Task, times: tuple[int, ...]) -> None:
        """Store the times of a task: start, pause, resume, end and arrival."""
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

    def run_next(self, device: int) -> bool:
        """Run a device's next task or pair of tasks if it is ready, and return whether it ran.

        A pair is recorded as two consecutive tasks, and both results are ready at the end of the
        pair::

            inputs of both   │
            recorded         ├─F──┤├─B──────┤
            results                         │ of both
        """
        group = self.get_group(device)
        inputs = [(task, self.find_ready_ns(device, task)) for task in group]
        ready = [(task, when) for task, when in inputs if when is not None]
        if not group or len(ready) < len(group):
            return False
        remotes = [remote for _, (_, remote) in ready]
        ahead = self.prelude(group[0]) if len(group) == 1 and remotes[0] != NONE else 0
        start = max(self.free[device], *(local for _, (local, _) in ready))
        start = (start if ahead else max(start, *remotes)) + self.delay(group[0])
        for task, (_, remote) in ready:
            pause = start + ahead
            resume = max(pause, remote) if ahead else pause
            end = resume + self.duration(task) - ahead
            if resume == pause:
                pause = resume = start
            self.record(device, task, (start, pause, resume, end, remote))
            start = end
        for task in group:
            op = task.operation
            if op.phase in (Phase.F, Phase.B, Phase.BW):
                result = task.iteration, op.phase is Phase.F, op.virtual_stage, op.microbatch
                self.ended[result] = end
        return True


def make_barrier(devices: int) -> Gate:
    """Return a gate that opens when all devices have ended the iteration, like a gradient norm."""

    def gate(iteration: int, _: int, done: Mapping[tuple[int, int], int]) -> int | None:
        end_ns = [
            done[iteration, device] for device in range(devices) if (iteration, device) in done
        ]
        return max(end_ns) if len(end_ns) == devices else None

    return gate


def simulate(
    plans: Sequence[Plan],
    duration: Duration,
    *,
    optimizer: bool = False,
    postponed: bool = False,
    transfer_ns: int | Duration = 0,
    prelude: Duration = _take_no_time,
    delay: Duration = _take_no_time,
    gate: Gate | None = None,
) -> Simulation:
    """Simulate consecutive iterations. Each device runs its next task as soon as possible.

    Args:
        plans: One plan per iteration, all with the same placement.
        duration: Function that returns the duration of a task, in nanoseconds.
        optimizer: Whether each training iteration ends with an Optimizer task.
        postponed: Whether a second part of each Optimizer runs after the first operation of the
            next iteration, as in post-validation (arXiv 2401.10241, section 4).
        transfer_ns: Latency of every transfer between two devices (T_comm): one number, or a
            function of the task that waits.
        prelude: Function that returns the length of the part of a task that needs no remote input.
            A task with such a part starts before the input arrives and waits in the middle.
        delay: Function that returns the time by which a task starts late because of a late launch.
        gate: Function of an iteration, a device and the ends of work so far. The function returns
            the earliest start of the Optimizer, or None if the start is still unknown. It must
            return a time once all devices have ended the iteration.

    Raises:
        MismatchError: The order deadlocks.
    """
    devices = range(plans[0].stages)
    tasks = [_list_tasks(plans, d, optimizer=optimizer, postponed=postponed) for d in devices]
    transfer = transfer_ns if callable(transfer_ns) else lambda _: transfer_ns
    run = _Run(plans, tasks, duration, transfer, prelude, delay, gate)
    while sum(run.run_next(device) for device in devices):
        pass
    if stuck := [str(task.operation) for device in devices for task in run.get_group(device)]:
        raise MismatchError(f"the order deadlocks before {', '.join(stuck)}")
    names = Simulation.column_names()
    table = np.array(run.rows, dtype=np.int64).reshape(-1, len(names))
    table = table[np.argsort(table[:, 0], kind="stable")]
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    return Simulation(**columns, placement=run.placement, length=run.length)
