"""Merged memory: what the profiles of a run tell of it, by the report's ranks and stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from bubbleviz.align.run import Run, stages_of_chunks
from bubbleviz.explain.alternatives import Alternative, Alternatives
from bubbleviz.interpret.memory import MemoryUse, OperationMemory
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.report.memory import PhaseMemory, RankPeak, RunMemory, measured_memory
from bubbleviz.report.report import Report
from bubbleviz.schedules.simulation import MeasuredMemory, within

# Other schedules in bytes: what their fullest device holds, and whether that fits.


def with_bytes(
    others: Alternatives,
    memory: MeasuredMemory,
    stage_of_virtual: Sequence[int],
    measured_bytes: int,
    limit_bytes: float | None,
) -> Alternatives:
    """Return other schedules with the bytes of their fullest device.

    A device holds what it always does, and for each microbatch what all of its chunks hold.

    Args:
        others: at the times of the run.
        memory: of the run.
        stage_of_virtual: device of each virtual stage.
        measured_bytes: the run's own peak.
        limit_bytes: what a device has; None to compare with the run alone.
    """
    devices = range(len(memory.resident))
    pairs = list(zip(stage_of_virtual, memory.held, strict=True))
    held = [sum(bytes_ for at, bytes_ in pairs if at == device) for device in devices]

    def of(row: Alternative) -> Alternative:
        if row.name in {"measured", "no-delay"}:
            peak = float(measured_bytes)
        elif len(row.peaks) == len(held):
            rows = zip(memory.resident, row.peaks, held, strict=True)
            peak = max(taken + most * bytes_ for taken, most, bytes_ in rows)
        else:
            return row
        if limit_bytes is None:
            return replace(row, peak_bytes=peak)
        once = row.name in {"measured", "no-delay"} or row.replicas == 1
        fits = within(peak, limit_bytes) and once
        return replace(row, peak_bytes=peak, fits=fits)

    return replace(others, rows=tuple(map(of, others.rows)), limit_bytes=limit_bytes)


def memory_of(recordings: Sequence[Recording], run: Run) -> RunMemory | None:
    """Return the memory of a run; None where no profile recorded any.

    Args:
        recordings: read with memory events.
        run: these, merged.
    """
    ranks: list[RankPeak] = []
    kinds: dict[tuple[int, Phase], list[tuple[OperationMemory, int]]] = {}
    for number, recording in enumerate(recordings):
        use, local = recording.memory, run.rank_of_local[number]
        if use is not None:
            ranks.extend(_peaks(use, local))
            _collect(use, run, local, kinds)
    if not ranks:
        return None
    return RunMemory(
        tuple(sorted(ranks, key=lambda peak: peak.rank)),
        tuple(_kind(*key, kinds[key]) for key in sorted(kinds)),
    )


def _peaks(use: MemoryUse, local: Ints) -> list[RankPeak]:
    rows = zip(use.ranks.rank.tolist(), use.ranks.peak.tolist(), use.ranks.resident.tolist(),
               strict=True)  # fmt: skip
    return [
        RankPeak(int(local[rank]), peak, None if resident == NONE else resident)
        for rank, peak, resident in rows
    ]


def _collect(
    use: MemoryUse,
    run: Run,
    local: Ints,
    kinds: dict[tuple[int, Phase], list[tuple[OperationMemory, int]]],
) -> None:
    """Add the operations of a profile by virtual stage and phase."""
    table = use.operations
    counted = table.take(among(table.phase, (*COUNTED, Phase.R)))
    stage_of: Mapping[tuple[int, int], int] = stages_of_chunks(
        counted.rank, counted.chunk, run, local
    )
    # A row a chunk and phase: a few a rank.
    for row, key in enumerate(zip(counted.rank.tolist(), counted.chunk.tolist(), strict=True)):
        stage = stage_of.get(key, NONE)
        kinds.setdefault((stage, Phase(int(counted.phase[row]))), []).append((counted, row))


def _kind(stage: int, phase: Phase, rows: Sequence[tuple[OperationMemory, int]]) -> PhaseMemory:
    def of(name: str) -> float:
        return float(median(float(getattr(table, name)[row]) for table, row in rows))

    return PhaseMemory(
        virtual_stage=stage,
        phase=phase,
        n=sum(int(table.count[row]) for table, row in rows),
        net_bytes=of("net"),
        above_bytes=of("above"),
        held_bytes=of("held"),
        kept_bytes=of("kept"),
    )


def others_in_bytes(
    others: Alternatives, memory: RunMemory, report: Report, limit_bytes: float | None
) -> Alternatives:
    """Return other schedules in bytes; as they are where not all stages have their memory.

    Args:
        others: at the times of the run.
        memory: of the run.
        report: on the run.
        limit_bytes: what a device has; None to compare with the run alone.
    """
    ranks = {r.index: NONE if r.stage is None else r.stage for r in report.ranks}
    kinds = report.explanation.phase_times.kinds
    stages = {kind.virtual_stage: kind.stage for kind in kinds}
    known = measured_memory(memory, ranks, stages)
    if known is None:
        return others
    devices = {stage: number for number, stage in enumerate(sorted(set(stages.values()) - {NONE}))}
    placement = [devices[stages[number]] for number in range(len(known.held))]
    peak = max(rank.peak_bytes for rank in memory.ranks)
    return with_bytes(others, known, placement, peak, limit_bytes)
