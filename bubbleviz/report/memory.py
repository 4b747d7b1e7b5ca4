"""A run's memory use in bytes: the peak on each rank, and use by virtual stage and phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from bubbleviz.model.columns import NONE
from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import MeasuredMemory

#: Types for ratios, times and sizes. Values are limited so that their squares are finite.
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
Positive = Annotated[float, Meta(ge=0, le=1e30)]
Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class RankPeak:
    """A rank's memory use, in bytes.

    Attributes:
        rank: Index of the rank.
        peak_bytes: Maximum allocated memory.
        resident_bytes: Memory that is already allocated when an iteration begins, or None if
            unknown.
        stage: The rank's stage, or None if unknown.
    """

    rank: int
    peak_bytes: Count
    resident_bytes: Count | None = None
    stage: int | None = None


@dataclass(frozen=True)
class PhaseMemory:
    """Median memory use, in bytes, of operations with the same virtual stage and phase.

    Attributes:
        virtual_stage: Position of the chunk in the model, or None if it is unknown.
        phase: Phase of the operations.
        n: Number of operations in all replicas.
        net_bytes: Memory allocated after an operation minus the memory allocated before it.
        above_bytes: Peak during an operation minus the memory allocated before it.
        held_bytes: A microbatch's activation memory, which an F allocates and its backward frees.
        kept_bytes: Part of ``held_bytes`` that W frees, or all of it if the backward is a single
            operation.
    """

    virtual_stage: int | None
    phase: str
    n: Count
    net_bytes: Finite
    above_bytes: Positive
    held_bytes: Positive
    kept_bytes: Positive


@dataclass(frozen=True)
class RunMemory:
    """The memory use of a run.

    Attributes:
        ranks: Each rank's peak memory, sorted by index.
        operations: Memory of operations, sorted by virtual stage and phase.
    """

    ranks: tuple[RankPeak, ...]
    operations: tuple[PhaseMemory, ...]


def measure_memory(memory: RunMemory, stage_of_virtual: Mapping[int, int]) -> MeasuredMemory | None:
    """Return the activation memory of each virtual stage, and the resident memory of each device.

    The resident memory of a device is the sum of two parts. The first is the memory that is already
    allocated when an iteration begins (the maximum over the stage's ranks). The second is the
    largest temporary memory of any operation on the device.

    Args:
        memory: The run's memory use.
        stage_of_virtual: Maps each virtual stage to the stage of its ranks, or to -1 if unknown.

    Returns:
        The memory, or None if it is unknown for a virtual stage or device.
    """
    forwards = {op.virtual_stage: op for op in memory.operations if op.phase == Phase.F.label}
    virtual_stages = range(len(stage_of_virtual.keys() - {NONE}))
    is_known = all(
        stage in forwards and stage_of_virtual.get(stage, NONE) != NONE for stage in virtual_stages
    )
    if not virtual_stages or not is_known:
        return None
    resident = []
    for device in sorted({stage_of_virtual[stage] for stage in virtual_stages}):
        peaks = [peak for peak in memory.ranks if peak.stage == device]
        resident_sizes = [peak.resident_bytes for peak in peaks if peak.resident_bytes is not None]
        if not resident_sizes:
            return None
        temporary = [
            _measure_temporary_bytes(operations)
            for operations in memory.operations
            if operations.virtual_stage is not None
            and stage_of_virtual.get(operations.virtual_stage) == device
        ]
        resident.append(max(resident_sizes) + max(0.0, *temporary))
    return MeasuredMemory(
        activation=tuple(forwards[stage].held_bytes for stage in virtual_stages),
        weight_activation=tuple(forwards[stage].kept_bytes for stage in virtual_stages),
        resident=tuple(resident),
    )


def _measure_temporary_bytes(operations: PhaseMemory) -> float:
    """Return the memory that operations need only while they are running.

    - For a forward: its peak minus the memory that is still allocated after it.
    - For a backward: its peak minus the memory that was allocated before it.
    """
    if operations.phase == Phase.F.label:
        return operations.above_bytes - max(operations.net_bytes, 0.0)
    return operations.above_bytes
