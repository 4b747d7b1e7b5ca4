"""Other schedules in bytes: what their fullest device holds, and whether that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bubbleviz.explain.alternatives import Alternative, Alternatives
from bubbleviz.schedules.memory_limits import within
from bubbleviz.schedules.memory_use import MeasuredMemory


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
