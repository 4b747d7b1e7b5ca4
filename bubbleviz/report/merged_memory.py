"""Merged memory: what the profiles of a run tell of it, by the report's ranks and stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from bubbleviz.align.local_stages import stages_of_chunks
from bubbleviz.align.run import Run
from bubbleviz.interpret.memory import MemoryUse, OperationMemory
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.report.memory import PhaseMemory, RankPeak, RunMemory


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
    counted = table.take(np.isin(table.phase, (*COUNTED, Phase.R)))
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
