"""Merged memory: what the profiles of a run tell of it, by the report's ranks and stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from bubbleviz.align.run import Run
from bubbleviz.align.stage_layers import stages_of_chunks
from bubbleviz.explain.what_if import WhatIf
from bubbleviz.interpret.memory import OperationMemory
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.report.memory import PhaseMemory, RankPeak, RunMemory, measured_memory
from bubbleviz.report.report import Report
from bubbleviz.schedules.plan_memory import within


def memory_of(recordings: Sequence[Recording], run: Run) -> RunMemory | None:
    """Return the memory of a run; None where no profile recorded any.

    Args:
        recordings: read with memory events.
        run: these, merged.
    """
    ranks: list[RankPeak] = []
    kinds: dict[tuple[int, Phase], list[tuple[OperationMemory, int]]] = {}
    for recording, local in zip(recordings, run.rank_of_local, strict=True):
        if (use := recording.memory) is None:
            continue
        columns = (use.ranks.rank, use.ranks.peak, use.ranks.resident)
        for rank, peak, resident in zip(*(column.tolist() for column in columns), strict=True):
            index, known = int(local[rank]), None if resident == NONE else resident
            ranks.append(RankPeak(index, peak, known, run.ranks[index].stage))
        table = use.operations.take(among(use.operations.phase, (*COUNTED, Phase.R)))
        stage_of = stages_of_chunks(table.rank, table.chunk, run.operations, local)
        # A row a chunk and phase: a few a rank.
        for row, key in enumerate(zip(table.rank.tolist(), table.chunk.tolist(), strict=True)):
            kind = stage_of.get(key, NONE), Phase(int(table.phase[row]))
            kinds.setdefault(kind, []).append((table, row))
    if not ranks:
        return None
    return RunMemory(
        tuple(sorted(ranks, key=lambda peak: peak.rank)),
        tuple(_kind(*key, kinds[key]) for key in sorted(kinds)),
    )


def _kind(stage: int, phase: Phase, rows: Sequence[tuple[OperationMemory, int]]) -> PhaseMemory:
    def of(name: str) -> float:
        return float(median(float(getattr(table, name)[row]) for table, row in rows))

    return PhaseMemory(
        virtual_stage=None if stage == NONE else stage,
        phase=phase.label,
        n=sum(int(table.count[row]) for table, row in rows),
        net_bytes=of("net"),
        above_bytes=of("above"),
        held_bytes=of("held"),
        kept_bytes=of("kept"),
    )


def add_peak_bytes(
    what_if: WhatIf, memory: RunMemory, report: Report, limit_bytes: float | None
) -> WhatIf:
    """Return other schedules with the bytes of their fullest device, and whether they fit.

    A device holds its resident memory, and for each microbatch the activations of all its chunks.

    Args:
        what_if: Other schedules at the times of the run.
        memory: Memory of the run.
        report: Report of the run.
        limit_bytes: Memory of a device, or None to compare with the run alone.

    Returns:
        The schedules, unchanged if the memory of a stage is unknown.
    """
    kinds = report.explanation.phase_times.kinds
    stages = {kind.virtual_stage: kind.stage for kind in kinds}
    measured = measured_memory(memory, stages)
    if measured is None:
        return what_if
    held = dict.fromkeys(sorted(stages[number] for number in range(len(measured.held))), 0.0)
    for number, held_bytes in enumerate(measured.held):
        held[stages[number]] += held_bytes
    run_bytes = float(max(rank.peak_bytes for rank in memory.ranks))
    rows = []
    for row in what_if.rows:
        if row.is_measured_order:
            peak_bytes = run_bytes
        elif len(row.peaks) == len(measured.resident):
            devices = zip(measured.resident, row.peaks, held.values(), strict=True)
            peak_bytes = max(resident + peak * each for resident, peak, each in devices)
        else:
            rows.append(row)
            continue
        fits = row.fits
        if limit_bytes is not None:
            is_held_once = row.is_measured_order or row.replicas == 1
            fits = is_held_once and within(peak_bytes, limit_bytes)
        rows.append(replace(row, peak_bytes=peak_bytes, fits=fits))
    return replace(what_if, rows=tuple(rows), limit_bytes=limit_bytes)
