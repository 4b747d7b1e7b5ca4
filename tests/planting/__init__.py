"""Plant a pipeline run of known spans into exports that look like those of Nsight Systems.

``plant(Planting(...), directory)`` simulates a schedule, records it as a profiler would, writes
one ``.sqlite`` a server or a rank and ``truth.json`` beside them, and returns the truth. The same
planting gives the same bytes. Nothing of it is measured, and none of the data is anyone's::

    options     what can be planted           recorder  what a profiler sees of one rank
    units       the operations of a run       export    the tables of one file, on its clock
    reductions  collectives before optimizers layout    nsys's tables, written to SQLite
    host        calls and ranges in time
    truth       what is true of it, and the ratios by slow exact code
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.phases import Phase
from tests.planting.export import (
    Clock,
    Place,
    Recording,
    clock_of,
    export_of,
    places_of,
    recording_of,
)
from tests.planting.layout import write_export
from tests.planting.options import Planting
from tests.planting.recorder import COMMUNICATION, COPIED, FILLED, KERNEL, Recorder
from tests.planting.truth import (
    Interval,
    TrueFile,
    TrueOperation,
    TrueRank,
    Truth,
    Unattributed,
    clip,
    iterations_of,
    read_truth,
)
from tests.planting.units import TRAINING_STARTS_NS, Unit, plan_of, simulation_of, units_of

__all__ = ["Planting", "Truth", "plant", "read_truth"]


def plant(planting: Planting, directory: Path) -> Truth:
    """Write the exports and ``truth.json`` into the directory, and return the truth.

    Args:
        planting: what to plant.
        directory: made if it does not exist; files of the same names are replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plan, simulation = plan_of(planting), simulation_of(planting)
    cut = TRAINING_STARTS_NS + planting.cut_ns if planting.cut_ns else None
    recordings: list[Recording] = []
    operations: list[TrueOperation] = []
    captured: list[TrueOperation] = []
    unattributed: list[Unattributed] = []
    for place in places_of(planting):
        units = units_of(planting, plan, simulation, place.simulated)
        recorder = Recorder(planting, place.rank)
        recorder.record(units)
        recording = recording_of(planting, recorder, place, cut)
        own = _operations(recorder, recording, units, clock_of(planting, place))
        operations += own
        times = recorder.host.times()
        begun = [cut is None or times[push] <= cut for push, _ in recorder.span]
        captured += [op for op, seen in zip(own, begun, strict=True) if seen]
        unattributed += _unattributed(recording)
        recordings.append(recording)
    names = _file_names(planting, [recording.place for recording in recordings])
    files = []
    for file, name in enumerate(names):
        if file in planting.absent:
            continue
        of_file = [recording for recording in recordings if recording.place.file == file]
        clock = clock_of(planting, of_file[0].place)
        tables = export_of(planting, of_file, clock)
        write_export(directory / name, tables)
        files.append(_true_file(name, of_file, clock))
    seen = {op.iteration for op in captured}
    iterations = iterations_of([op for op in operations if op.iteration in seen], unattributed)
    truth = Truth(
        planting=asdict(planting),
        files=tuple(files),
        ranks=tuple(_true_rank(recording.place, names) for recording in recordings),
        operations=tuple(captured),
        unattributed=tuple(unattributed),
        overheads=tuple((r.place.rank, *bounds) for r in recordings for bounds in r.overheads),
        iterations=iterations,
    )
    (directory / "truth.json").write_text(truth.to_json(), encoding="utf-8")
    return truth


def _file_names(planting: Planting, places: list[Place]) -> list[str]:
    """Return the names of the exports, in the order of their numbers."""
    by_file = {place.file: place for place in places}
    return [
        f"node{place.host}.sqlite" if planting.files == "server" else f"rank{place.rank}.sqlite"
        for _, place in sorted(by_file.items())
    ]


def _operations(
    recorder: Recorder, recording: Recording, units: list[Unit], clock: Clock
) -> list[TrueOperation]:
    """Return a rank's operations with what the capture holds of them."""
    device = recording.device
    own = (device["kind"] == KERNEL) & (device["operation"] != NONE)
    seen = own & recording.linked
    starts, ends, counts, active = _spans(device, seen, len(units))
    lost = np.bincount(device["operation"][own & ~recording.kept], minlength=len(units))
    crossing = recorder.planting.autograd != "none"
    operations = []
    for number, unit in enumerate(units):
        span = (int(starts[number]), int(ends[number])) if counts[number] else None
        operations.append(
            TrueOperation(
                rank=recording.place.rank,
                iteration=unit.iteration,
                phase=unit.phase.label,
                microbatch=unit.microbatch,
                chunk=unit.chunk,
                virtual_stage=unit.virtual_stage,
                name=unit.name,
                start_ns=span[0] if span else None,
                end_ns=span[1] if span else None,
                file_start_ns=clock.of_one(span[0]) if span else None,
                file_end_ns=clock.of_one(span[1]) if span else None,
                kernels=int(counts[number]),
                active_ns=int(active[number]),
                complete=not lost[number],
                cross_thread=crossing and unit.phase in (Phase.B, Phase.BW),
                busy=_busy(unit, span),
            )
        )
    return operations


def _spans(device: dict[str, Ints], rows: Ints, count: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return first start, last end, number and union of the kernels of each operation."""
    chosen = np.flatnonzero(rows)
    chosen = chosen[np.argsort(device["start"][chosen], kind="stable")]
    start, end = device["start"][chosen], device["end"][chosen]
    operation = device["operation"][chosen]
    first = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(count, NONE, dtype=np.int64)
    np.minimum.at(first, operation, start)
    np.maximum.at(last, operation, end)
    reached = np.concatenate([np.zeros(1, dtype=np.int64), np.maximum.accumulate(end)])[:-1]
    fresh = np.maximum(end - np.maximum(start, reached[: len(end)]), 0)
    active = np.zeros(count, dtype=np.int64)
    np.add.at(active, operation, fresh)
    return first, last, np.bincount(operation, minlength=count), active


def _busy(unit: Unit, span: Interval | None) -> tuple[Interval, ...]:
    """Return the busy intervals of a unit that waits in the middle, else nothing."""
    if span is None or unit.resume_ns == unit.pause_ns:
        return ()
    pieces = [(unit.start_ns, unit.pause_ns), (unit.resume_ns, unit.end_ns)]
    return tuple(clip(pieces, span))


def _unattributed(recording: Recording) -> list[Unattributed]:
    """Return the compute kernels of no operation that the capture holds."""
    device = recording.device
    rows = (device["kind"] == KERNEL) & (device["operation"] == NONE) & recording.kept
    columns = (device[name][rows].tolist() for name in ("start", "end", "ranged"))
    return [
        Unattributed(recording.place.rank, start, end, "receive" if ranged else "no range")
        for start, end, ranged in zip(*columns, strict=True)
    ]


def _true_file(name: str, recordings: list[Recording], clock: Clock) -> TrueFile:
    """Return the counts and sums of one export."""

    def total(kinds: tuple[int, ...], of: str) -> int:
        sums = 0
        for recording in recordings:
            device = recording.device
            rows = recording.kept & np.isin(device["kind"], kinds)
            length = device["end"] - device["start"]
            sums += {
                "rows": int(rows.sum()),
                "length": int(length[rows].sum()),
                "unlinked": int((rows & ~recording.linked).sum()),
                "crossed": int((rows & recording.linked & (device["thread"] != 0)).sum()),
                "unranged": int((rows & (device["ranged"] == 0)).sum()),
            }[of]
        return sums

    kernels = (KERNEL, COMMUNICATION)
    return TrueFile(
        path=name,
        host=recordings[0].place.hostname,
        session_start_ns=clock.session_start_ns,
        utc_epoch_ns=clock.utc_epoch_ns,
        clock_error_ns=clock.error_ns,
        drift_ppb=clock.drift_ppb,
        kernels=total(kernels, "rows"),
        unlinked_kernels=total(kernels, "unlinked"),
        cross_thread_kernels=total(kernels, "crossed"),
        unranged_kernels=total(kernels, "unranged"),
        gpu_ns=total((KERNEL,), "length"),
        comm_ns=total((COMMUNICATION,), "length"),
        copy_ns=total((COPIED, FILLED), "length"),
        calls=sum(len(recording.calls["start"]) for recording in recordings),
        ranges=sum(len(recording.ranges["start"]) for recording in recordings),
        step_ns=clock.step_ns,
        step_at_ns=clock.step_at_ns if clock.step_ns else 0,
    )


def _true_rank(place: Place, names: list[str]) -> TrueRank:
    return TrueRank(
        rank=place.rank,
        file=names[place.file],
        host=place.hostname,
        pid=place.pid,
        device_id=place.device,
        uuid=place.uuid,
        stage=place.stage,
        pipeline=place.pipeline,
    )
