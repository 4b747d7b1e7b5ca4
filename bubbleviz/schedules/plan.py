"""Plans: which operations each device runs in an iteration, and in what order.

A plan contains no times. :mod:`bubbleviz.schedules.known` builds the plans of known schedules,
:mod:`bubbleviz.schedules.search` searches for plans for given times, and
:mod:`bubbleviz.schedules.simulation` computes when the operations of a plan run. This module also
defines the measured times of a run's operations (:class:`OperationTimes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bubbleviz.model.phases import Phase


@dataclass(frozen=True, order=True)
class PlannedOperation:
    """One operation in a plan.

    Attributes:
        virtual_stage: Zero-based position in the model of the chunk that the operation belongs to.
        phase: F, B (gradient of the input), W (gradient of the weights) or BW (B and W fused).
        microbatch: Zero-based index of the microbatch.
    """

    virtual_stage: int
    phase: Phase
    microbatch: int

    @property
    def receiver(self) -> int:
        """The virtual stage that needs the result of an F or B. It may be outside the model."""
        return self.virtual_stage + (1 if self.phase is Phase.F else -1)

    def __str__(self) -> str:
        return f"{self.virtual_stage}{self.phase.label}{self.microbatch}"


Order = tuple[PlannedOperation, ...]


@dataclass(frozen=True)
class Plan:
    """The operations in one iteration, in the order in which each device runs them.

    Attributes:
        name: Name of the schedule.
        stages: Number of devices, p.
        microbatches: Number of microbatches, m.
        chunks: Number of model chunks per device, v.
        placement: Device index of each virtual stage.
        orders: Operations of each device, in the order in which they run.
        replicas: Number of pipelines in the plan. Virtual stages are numbered pipeline by pipeline.
        together: Forwards that overlap with the next operation in the order, which is a backward.
            Both operations start once the inputs of both have arrived. The results of both are
            available once both have ended.
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
        """Number of virtual stages in all pipelines: p v times the number of replicas."""
        return len(self.placement)

    @property
    def splits(self) -> bool:
        """Whether the plan splits the backward into B and W."""
        return any(op.phase is Phase.W for order in self.orders for op in order)

    def device_of(self, virtual_stage: int) -> int:
        """Return the device that runs a virtual stage."""
        return self.placement[virtual_stage]

    def chunk_of(self, virtual_stage: int) -> int:
        """Return the chunk index of a virtual stage on its device."""
        return self._chunk[virtual_stage]


@dataclass(frozen=True)
class Memory:
    """Activation memory of one microbatch on a whole stage, and a device's memory limit.

    F allocates ``backward``, B frees all but ``weight``, and W frees the rest (arXiv 2401.10241,
    section 3.1). If a stage has v chunks, each chunk takes 1/v of each amount. All three amounts
    are in the same (arbitrary) unit.

    Attributes:
        limit: Maximum activation memory on a device, or None if there is no limit.
        backward: M_B, the memory from F to the end of B.
        weight: M_W, the part of M_B that is kept until the end of W.
        in_bytes: Whether amounts are in bytes.
    """

    limit: float | None = None
    backward: float = 1.0
    weight: float = 1.0
    in_bytes: bool = False


@dataclass(frozen=True)
class PlanSearch:
    """Memory settings for a schedule whose plans are searched for with given times.

    Attributes:
        limit: Default memory limit as a function of p, in units of M_B, or None if the schedule has
            a fixed order without a limit.
        peak: Maximum number of microbatches whose activations a device stores at once, according to
            the schedule's paper, as a function of p. The number is used to recognize measured
            orders.
        weight_memory: Default of M_W, in units of M_B.
    """

    limit: Callable[[int], float] | None
    peak: Callable[[int], float]
    weight_memory: float = 1.0


@dataclass(frozen=True)
class Schedule:
    """A pipeline schedule, which is a rule for making plans of any size.

    Attributes:
        name: Name that users see, for example ``"1f1b"``.
        summary: A sentence that describes the schedule to users.
        source: The paper and the section that define the schedule.
        chunks: Default number of model chunks per device.
        plan: Function that makes the plan for (stages p, microbatches m, chunks v). For a searched
            schedule, the result is the plan at equal times. The function raises
            :class:`bubbleviz.errors.UsageError` for sizes that the schedule does not allow.
        searched: Memory settings for searching plans, or None if the order is always the same.
        with_one_chunk: Name of the equivalent schedule with one chunk per device, or None if the
            schedule keeps its own name.
        replicas: Number of pipelines in a plan. Each pipeline runs different microbatches.
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
        """Whether the order does not depend on operation times if there is no memory limit."""
        return self.searched is None or self.searched.limit is None


def make_looped_placement(stages: int, chunks: int) -> tuple[int, ...]:
    """Return the placement of interleaved schedules: 0 1 .. p-1, repeated v times."""
    return tuple(range(stages)) * chunks


def make_v_placement(stages: int) -> tuple[int, ...]:
    """Return the placement of V schedules: 0 1 .. p-1 and back, p-1 .. 1 0."""
    return make_wave_placement(stages, 1)


def make_wave_placement(stages: int, waves: int) -> tuple[int, ...]:
    """Return the placement of wave schedules: 0 1 .. p-1 and back, repeated for each wave."""
    return (*range(stages), *reversed(range(stages))) * waves


@dataclass(frozen=True)
class OperationTimes:
    """Measured times of one kind of operation (a phase of a model chunk), or of transfers.

    Transfers have the phase of their receive operation (``RECV_F`` or ``RECV_B``).

    Attributes:
        phase: Phase of the operations.
        median_ns: Median busy time. For transfers, the lower median of the transfer time.
        stage: The rank's stage, or -1 if unknown.
        chunk: Model chunk, or -1 if there are no chunks.
        virtual_stage: Position of the model chunk in the model, or -1 if unknown.
        gap_ns: Median time between the previous operation and an operation that did not have to
            wait, or None if unknown.
        pipeline_ns: Mean busy time in the slowest pipeline of the typical iteration, or None if
            unknown.
        mean_ns: Mean busy time, or 0 if unknown.
        std_ns: Standard deviation with n - 1 degrees of freedom, or None if unknown.
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
    """A run's measured memory, in bytes.

    Attributes:
        activation: Memory of one microbatch from F to the end of B, for each virtual stage.
        weight_activation: Part of ``activation`` that is kept until the end of W, for each virtual
            stage.
        resident: Memory of each device that does not depend on the order of operations: weights,
            gradients, optimizer states, and temporary memory used by operations.
    """

    activation: tuple[float, ...]
    weight_activation: tuple[float, ...]
    resident: tuple[float, ...]
