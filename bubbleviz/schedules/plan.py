"""A plan: which device runs which operation of one iteration, and in which order.

A plan holds no times. ``bubbleviz.schedules.known`` builds plans,
``bubbleviz.schedules.simulation`` times them; ``bubbleviz.schedules.search`` finds plans for given
times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bubbleviz.errors import MismatchError
from bubbleviz.model.phases import Phase


@dataclass(frozen=True, order=True)
class PlannedOperation:
    """One operation of a plan.

    Attributes:
        virtual_stage: place of its model chunk in the model's order.
        phase: F, B (for the input alone), W (for the weights) or BW (both fused).
        microbatch: microbatch number, from 0.
    """

    virtual_stage: int
    phase: Phase
    microbatch: int

    @property
    def receiver(self) -> int:
        """Virtual stage that needs the result of an F or a B, where there is one."""
        return self.virtual_stage + (1 if self.phase is Phase.F else -1)

    def __str__(self) -> str:
        return f"{self.virtual_stage}{self.phase.label}{self.microbatch}"


Order = tuple[PlannedOperation, ...]


@dataclass(frozen=True)
class Plan:
    """The operations of one iteration, in the order in which each device runs them.

    Attributes:
        name: name of the schedule.
        stages: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: model chunks per device, v.
        placement: device of each of the p v virtual stages.
        orders: one order per device.
        replicas: how many pipelines with all this the plan holds, one after the other.
        together: forwards that run beside the backward that follows them in the order: both
            begin when the inputs of both are there, and both results are there when both ended.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    placement: tuple[int, ...]
    orders: tuple[Order, ...]
    replicas: int = 1
    together: frozenset[PlannedOperation] = frozenset()
    _chunk: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Number the chunks of each device in the order of their virtual stages."""
        seen = [0] * self.stages
        chunks = []
        for device in self.placement:
            chunks.append(seen[device])
            seen[device] += 1
        object.__setattr__(self, "_chunk", tuple(chunks))

    @property
    def virtual_stages(self) -> int:
        """Number of virtual stages, p v."""
        return len(self.placement)

    @property
    def splits(self) -> bool:
        """Whether it needs the backward in two halves."""
        return any(op.phase is Phase.W for order in self.orders for op in order)

    def device_of(self, virtual_stage: int) -> int:
        """Return the device that holds that virtual stage."""
        return self.placement[virtual_stage]

    def chunk_of(self, virtual_stage: int) -> int:
        """Return the index of the virtual stage among its device's, in the model's order."""
        return self._chunk[virtual_stage]


@dataclass(frozen=True)
class Memory:
    """Activation memory of one microbatch on one whole stage, and how much a device has.

    F takes ``backward``, B gives back all but ``weight``, W the rest (arXiv 2401.10241, section
    3.1); one of v chunks takes 1/v of it. Any unit, the same for all three.

    Attributes:
        limit: what a device has; None for no limit.
        backward: M_B, held from F to the end of B.
        weight: M_W, what is held of it until the end of W.
    """

    limit: float | None = None
    backward: float = 1.0
    weight: float = 1.0


@dataclass(frozen=True)
class PlanSearch:
    """The memory of a schedule whose plan is searched for given times.

    Attributes:
        limit: memory limit by p, in units of M_B, where the caller gives none; None where the
            schedule then has a fixed order.
        peak: most microbatches that a device holds from F to its backward, by p, in the orders of
            the schedule's own paper; measured orders are recognised by it.
        kept: M_W, in units of M_B, where the caller gives none.
    """

    limit: Callable[[int], float] | None
    peak: Callable[[int], float]
    kept: float = 1.0


@dataclass(frozen=True)
class Schedule:
    """A rule that makes plans.

    Attributes:
        name: what users call it, for example ``"1f1b"``.
        summary: one sentence for people.
        source: paper and section that define it.
        chunks: model chunks per device by default.
        plan: plan for (stages p, microbatches m, chunks v), of a searched schedule the one at
            equal times. It raises :class:`bubbleviz.errors.UsageError` for sizes that the
            schedule does not allow.
        searched: the memory of plans that are searched for given times; None where the order is
            always the same.
        with_one_chunk: name of the schedule that this is with one chunk a device; None where it
            keeps its own.
        replicas: how many pipelines, each with microbatches of its own, its plans hold.
    """

    name: str
    summary: str
    source: str
    chunks: int
    plan: Callable[[int, int, int], Plan]
    searched: PlanSearch | None = None
    with_one_chunk: str | None = None
    replicas: int = 1

    @property
    def has_one_order(self) -> bool:
        """Whether its order is the same at all times where there is no memory limit."""
        return self.searched is None or self.searched.limit is None


def looped_placement(stages: int, chunks: int) -> tuple[int, ...]:
    """Return the placement of interleaved schedules: 0 1 .. p-1 0 1 .. p-1, v times."""
    return tuple(range(stages)) * chunks


def v_placement(stages: int) -> tuple[int, ...]:
    """Return the placement of V schedules: 0 1 .. p-1 and back, p-1 .. 1 0."""
    return (*range(stages), *reversed(range(stages)))


# A program: iterations of plans back to back, and how long each of its tasks takes.


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

    Raises:
        MismatchError: the plans differ in their placement.
    """
    if len({plan.placement for plan in plans}) != 1:
        raise MismatchError("the plans of a program place their virtual stages differently")
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
