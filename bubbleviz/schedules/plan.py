"""A plan: which device runs which operation of one iteration, and in which order.

A plan holds no times. ``bubbleviz.schedules.known`` builds plans,
``bubbleviz.schedules.simulation`` times them; ``bubbleviz.schedules.search`` finds plans for given
times. Those of a run's operations are the last thing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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
        in_bytes: whether all three are bytes.
    """

    limit: float | None = None
    backward: float = 1.0
    weight: float = 1.0
    in_bytes: bool = False


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
        with_one_chunk: name of the schedule that this is with one chunk per device; None where it
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


# Measured times, with which plans are timed: of operations of one kind.


@dataclass(frozen=True)
class OperationTimes:
    """Times of operations of one kind, or of transfers under the phases of receives, in ns.

    Attributes:
        phase: what they do.
        median_ns: median of their busy time; of transfers the lower one.
        stage: stage of the rank; -1 unknown.
        chunk: model chunk; -1 none.
        virtual_stage: place of the model chunk in the model's order; -1 unknown.
        gap_ns: median time from the operation before to one that waited for nothing; None unknown.
        pipeline_ns: mean in the slowest pipeline of the typical iteration; None unknown.
        mean_ns: mean; 0 unknown.
        std_ns: standard deviation (n - 1); None unknown.
    """

    phase: Phase
    median_ns: float
    stage: int = -1
    chunk: int = -1
    virtual_stage: int = -1
    gap_ns: float | None = None
    pipeline_ns: float | None = None
    mean_ns: float = 0.0
    std_ns: float | None = None


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
