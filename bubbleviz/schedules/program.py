"""A program: iterations of plans back to back, and how long each of its tasks takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase
from bubbleviz.model.values import frozen
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


@frozen
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


def stage_durations(
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

    Raises:
        MismatchError: the plans differ in their placement.
    """
    if len({plan.placement for plan in plans}) != 1:
        raise MismatchError("the plans of a program place their virtual stages differently")
    placement = plans[0].placement
    first = {device: stage for stage, device in reversed(list(enumerate(placement)))}
    tasks = tuple(
        tuple(_device_tasks(plans, device, first[device], optimizer, postponed))
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
