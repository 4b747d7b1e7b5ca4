"""Memory of a run: its ranks' peaks, and what operations of each virtual stage hold, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from bubbleviz.model.phases import Phase
from bubbleviz.schedules.plan import MeasuredMemory

#: Unknown number, as in columns.
UNKNOWN = -1
#: No ratio, time or amount is beyond this, and its square is still finite.
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
Positive = Annotated[float, Meta(ge=0, le=1e30)]
Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class RankPeak:
    """Memory of a rank, in bytes.

    Attributes:
        rank: of the report.
        peak_bytes: most that was allocated at once.
        resident_bytes: what is allocated when an iteration begins; None unknown.
        stage: of the rank; None unknown.
    """

    rank: int
    peak_bytes: Count
    resident_bytes: Count | None = None
    stage: int | None = None


@dataclass(frozen=True)
class PhaseMemory:
    """Memory of the operations of one virtual stage and phase: medians, in bytes.

    Attributes:
        virtual_stage: place of the chunk in the model's order; None unknown.
        phase: label of that of the operations.
        n: how many there are, over all replicas.
        net_bytes: how much more is allocated after one than before it.
        above_bytes: how much more at its fullest moment than before it.
        held_bytes: what an F allocates that its backward frees: the activations of a microbatch.
        kept_bytes: the part of them that W frees; all where a backward is one operation.
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
    """Memory of a run.

    Attributes:
        ranks: by number.
        operations: by virtual stage and phase.
    """

    ranks: tuple[RankPeak, ...]
    operations: tuple[PhaseMemory, ...]


def measured_memory(
    memory: RunMemory, stage_of_virtual: Mapping[int, int]
) -> MeasuredMemory | None:
    """Return memory by virtual stage and device; None where a stage lacks its own.

    Beside activations a device holds what is there when an iteration begins, and the most that any
    of its operations needs for itself: a forward above what it leaves, a backward above what was
    there before it.

    Args:
        memory: of the run.
        stage_of_virtual: stage of the ranks that hold each virtual stage.
    """
    forwards = {k.virtual_stage: k for k in memory.operations if k.phase == Phase.F.label}
    stages = range(len(stage_of_virtual.keys() - {UNKNOWN}))
    if not stages or any(
        s not in forwards or stage_of_virtual.get(s, UNKNOWN) == UNKNOWN for s in stages
    ):
        return None
    devices = sorted({stage_of_virtual[s] for s in stages})
    resident = []
    for device in devices:
        known = [
            peak.resident_bytes
            for peak in memory.ranks
            if peak.stage == device and peak.resident_bytes is not None
        ]
        if not known:
            return None
        own = [
            kind.above_bytes - (max(kind.net_bytes, 0.0) if kind.phase == Phase.F.label else 0.0)
            for kind in memory.operations
            if kind.virtual_stage is not None and stage_of_virtual.get(kind.virtual_stage) == device
        ]
        resident.append(max(known) + max(0.0, *own))
    return MeasuredMemory(
        held=tuple(forwards[s].held_bytes for s in stages),
        kept=tuple(forwards[s].kept_bytes for s in stages),
        resident=tuple(resident),
    )
