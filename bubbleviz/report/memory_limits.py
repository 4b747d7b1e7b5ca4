"""Merge the memory measurements from all profiles of a run, by rank and by virtual stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from bubbleviz.align.run import Run
from bubbleviz.align.stage_layers import find_chunk_stages
from bubbleviz.explain.phase_times import PhaseTime
from bubbleviz.interpret.memory import OperationMemory, RankMemory
from bubbleviz.interpret.recording import Recording
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COUNTED, Phase
from bubbleviz.report.memory import PhaseMemory, RankPeak, RunMemory, measure_memory
from bubbleviz.schedules.choices import DeviceMemory


def collect_memory(recordings: Sequence[Recording], run: Run) -> RunMemory | None:
    """Return the memory use of a run, or None if no profile recorded memory.

    Args:
        recordings: Recordings, which must have been read with their memory events.
        run: The run that the recordings were merged into.
    """
    ranks: list[RankPeak] = []
    kinds: dict[tuple[int, Phase], list[tuple[OperationMemory, int]]] = {}
    for recording, local in zip(recordings, run.rank_of_local, strict=True):
        if (memory := recording.memory) is None:
            continue
        ranks += _list_rank_peaks(memory.ranks, local, run)
        table = memory.operations.take(mask_phases(memory.operations.phase, (*COUNTED, Phase.R)))
        stage_of = find_chunk_stages(table.rank, table.chunk, run.operations, local)
        # The table has one row per chunk and phase of a rank, so this loop is short.
        for row, key in enumerate(zip(table.rank.tolist(), table.chunk.tolist(), strict=True)):
            kind = stage_of.get(key, NONE), Phase(int(table.phase[row]))
            kinds.setdefault(kind, []).append((table, row))
    if not ranks:
        return None
    return RunMemory(
        tuple(sorted(ranks, key=lambda peak: peak.rank)),
        tuple(_summarize_kind(*key, kinds[key]) for key in sorted(kinds)),
    )


def _list_rank_peaks(memory: RankMemory, local: Ints, run: Run) -> Iterator[RankPeak]:
    """Yield the peak memory of the ranks in one profile.

    Args:
        memory: Memory use of the ranks.
        local: For each rank of the profile, the index of the rank in the run.
        run: The run.
    """
    columns = (memory.rank, memory.peak, memory.resident)
    for rank, peak, resident in zip(*(column.tolist() for column in columns), strict=True):
        index = int(local[rank])
        resident_bytes = None if resident == NONE else resident
        yield RankPeak(index, peak, resident_bytes, run.ranks[index].stage)


def _summarize_kind(
    stage: int, phase: Phase, rows: Sequence[tuple[OperationMemory, int]]
) -> PhaseMemory:
    """Return the median memory use of the operations of a virtual stage and phase.

    Args:
        stage: Virtual stage, or -1 if unknown.
        phase: Phase of the operations.
        rows: (table, row index) pairs of the operations.
    """

    def median_of(name: str) -> float:
        return float(median(float(getattr(table, name)[row]) for table, row in rows))

    return PhaseMemory(
        virtual_stage=None if stage == NONE else stage,
        phase=phase.label,
        n=sum(int(table.count[row]) for table, row in rows),
        net_bytes=median_of("net"),
        above_bytes=median_of("above_start"),
        held_bytes=median_of("activation"),
        kept_bytes=median_of("weight_activation"),
    )


def find_device_memory(
    memory: RunMemory, kinds: Sequence[PhaseTime], limit_bytes: float | None
) -> DeviceMemory | None:
    """Return the memory use of a run's devices, or None if the memory of any stage is unknown.

    Args:
        memory: The run's memory use.
        kinds: Phase times of the run, which contain the stage of each virtual stage.
        limit_bytes: Memory limit per device, or None to compare schedules with the run's memory
            use.
    """
    stages = {kind.virtual_stage: kind.stage for kind in kinds}
    measured = measure_memory(memory, stages)
    if measured is None:
        return None
    microbatch = {stages[number]: 0.0 for number in range(len(measured.activation))}
    for number, held_bytes in enumerate(measured.activation):
        microbatch[stages[number]] += held_bytes
    return DeviceMemory(
        measured.resident,
        tuple(microbatch[stage] for stage in sorted(microbatch)),
        float(max(rank.peak_bytes for rank in memory.ranks)),
        limit_bytes,
    )
