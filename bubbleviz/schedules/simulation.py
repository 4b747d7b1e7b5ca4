"""Time a plan: each device runs its order, and waits for inputs that have not arrived.

Inputs, for one microbatch of one iteration: F of virtual stage v needs F of v-1; B and BW need
F of v and B or BW of v+1; W needs B of v. An input from another device arrives ``transfer_ns``
after its producer ended, and the transfer keeps no device busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from bubbleviz.errors import MismatchError
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.phases import WORK, Phase
from bubbleviz.model.values import frozen
from bubbleviz.schedules.plan import Duration, Plan, Program, Task, program_of

#: When an Optimizer can start; see :func:`simulate`.
Gate = Callable[[int, int, Mapping[tuple[int, int], int]], "int | None"]


@frozen
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


def _key(task: Task) -> tuple[int, int, int, int]:
    """Return the columns that say which task it is."""
    op = task.operation
    return op.virtual_stage, int(op.phase), op.microbatch, task.iteration


class _Simulator:
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
        gate: Gate | None,
    ) -> None:
        self.program = program
        self.duration = duration
        self.transfer_ns = transfer_ns if callable(transfer_ns) else lambda _: transfer_ns
        self.barrier = barrier
        self.prelude = prelude
        self.delay = delay
        self.gate = gate
        self.left: dict[tuple[int, int], int] = {}  # the same of a device, by iteration
        self.done: dict[tuple[int, int], int] = {}  # when a device ended an iteration's work
        self.free = [0] * len(program.tasks)
        self.next = [0] * len(program.tasks)
        self.ended: dict[tuple[int, Phase, int, int], int] = {}
        self.open: dict[int, int] = {}  # work tasks of an iteration that have not run
        self.last: dict[int, int] = {}  # latest end of an iteration's work so far
        for device, tasks in enumerate(program.tasks):
            for task in tasks:
                if task.operation.phase in WORK:
                    self.open[task.iteration] = self.open.get(task.iteration, 0) + 1
                    own = task.iteration, device
                    self.left[own] = self.left.get(own, 0) + 1
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
        if self.gate and task.operation.phase is Phase.OPTIMIZER:
            opens = self.gate(task.iteration, device, self.done)
            if opens is None:
                return None
            local = max(local, opens)
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
            self.left[task.iteration, device] -= 1
            if not self.left[task.iteration, device]:
                self.done[task.iteration, device] = end
        if op.phase in (Phase.F, Phase.B, Phase.BW):
            kind = Phase.F if op.phase is Phase.F else Phase.B
            self.ended[task.iteration, kind, op.virtual_stage, op.microbatch] = end

    def wakes(self, task: Task) -> list[int]:
        """Return the devices whose next task may have waited for this one."""
        op, length = task.operation, self.program.length
        neighbour = op.virtual_stage + (1 if op.phase is Phase.F else -1)
        if (self.barrier or self.gate) and not self.open.get(task.iteration):
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
    run = _Simulator(
        program,
        duration,
        transfer_ns=transfer_ns,
        barrier=barrier,
        prelude=prelude,
        delay=delay,
        gate=gate,
    )
    run.all()
    names = Simulation.column_names()
    rows = [row for device in run.rows for row in device]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    columns = {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
    return Simulation(**columns, placement=program.placement, length=program.length)
