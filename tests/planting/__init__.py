"""Plant a pipeline run of known spans into exports that look like those of Nsight Systems.

``plant(Planting(...), directory)`` simulates a schedule, records it as a profiler would, writes
one ``.sqlite`` a server or a rank, and returns the truth. The same planting gives the same bytes.
Nothing of it is measured, and none of the data is anyone's::

    options      what can be planted           recorder  what a profiler sees of one rank
    orders       orders of schedules           programs  when each operation of a run starts
    units        the operations of a run       export    the tables of one file, on its clock
    reductions   collectives before optimizers layout    nsys's tables, written to SQLite
    host         calls and ranges in time      places    hosts, files and clocks
    host_tables  hosts, processes and GPUs
    truth        what is true of it, and the ratios by slow exact code

Larger runs have planters of their own: ``kernels`` writes one profile of millions of kernels, and
``ranks`` runs of thousands of ranks. Nothing here uses ``bubbleviz.schedules``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from tests.planting.export import Recording, export_of, recording_of
from tests.planting.layout import write_export
from tests.planting.options import Planting
from tests.planting.places import TRAINING_STARTS_NS, Clock, Place, clock_of, places_of
from tests.planting.recorder import COMMUNICATION, KERNEL, Recorder
from tests.planting.truth import TrueFile, TrueOperation, TrueRank, Truth, iterations_of, read_truth
from tests.planting.units import Unit, plan_of, simulation_of, units_of
from tests.support.exact import Span, clip

__all__ = ["Planting", "Truth", "plant", "read_truth"]


def plant(planting: Planting, directory: Path) -> Truth:
    """Write the exports into the directory, and return the truth.

    Args:
        planting: what to plant.
        directory: made if it does not exist; files of the same names are replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plan, simulation = plan_of(planting), simulation_of(planting)
    cut = TRAINING_STARTS_NS + planting.cut_ns if planting.cut_ns else None
    by_file: dict[int, list[Recording]] = {}
    operations: list[TrueOperation] = []
    captured: list[TrueOperation] = []
    ranks: list[TrueRank] = []
    unattributed: dict[int, list[Span]] = {}
    for place in places_of(planting):
        units = units_of(planting, plan, simulation, place.simulated)
        recorder = Recorder(planting, place.rank)
        recorder.record(units)
        recording = recording_of(planting, recorder, place, cut)
        rank_operations = _operations(recording, units, clock_of(planting, place))
        operations += rank_operations
        times = recorder.host.times()
        begun = [cut is None or times[push] <= cut for push, _ in recorder.span]
        captured += [op for op, seen in zip(rank_operations, begun, strict=True) if seen]
        unattributed[place.rank] = _unattributed(recording)
        by_file.setdefault(place.file, []).append(recording)
        ranks.append(_true_rank(planting, place))
    files = []
    for file, recordings in sorted(by_file.items()):
        if file not in planting.absent:
            place = recordings[0].place
            clock = clock_of(planting, place)
            name = _file_name(planting, place)
            write_export(directory / name, export_of(planting, recordings, clock))
            kernels = sum(
                int((r.kept & np.isin(r.device["kind"], (KERNEL, COMMUNICATION))).sum())
                for r in recordings
            )
            files.append(TrueFile(name, place.hostname, clock, kernels))
    seen = {op.iteration for op in captured}
    whole = [op for op in operations if op.iteration in seen]
    iterations = iterations_of(whole, unattributed)
    return Truth(planting, tuple(files), tuple(ranks), tuple(captured), unattributed, iterations)


def _file_name(planting: Planting, place: Place) -> str:
    named = f"node{place.host}" if planting.files == "server" else f"rank{place.rank}"
    return f"{named}.sqlite"


def _operations(recording: Recording, units: list[Unit], clock: Clock) -> list[TrueOperation]:
    """Return a rank's operations with what the capture holds of them."""
    device = recording.device
    is_kernel = (device["kind"] == KERNEL) & (device["operation"] != NONE)
    seen = is_kernel & recording.linked
    starts, ends, counts, active = _spans(device, seen, len(units))
    lost = np.bincount(device["operation"][is_kernel & ~recording.kept], minlength=len(units))
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


def _busy(unit: Unit, span: Span | None) -> tuple[Span, ...]:
    """Return the span, but for the wait of a unit that waits in the middle."""
    if span is None or unit.resume_ns == unit.pause_ns:
        return () if span is None else (span,)
    return tuple(clip([(unit.start_ns, unit.pause_ns), (unit.resume_ns, unit.end_ns)], span))


def _unattributed(recording: Recording) -> list[Span]:
    """Return the compute kernels of no operation that the capture holds."""
    device = recording.device
    rows = (device["kind"] == KERNEL) & (device["operation"] == NONE) & recording.kept
    return list(zip(*(device[name][rows].tolist() for name in ("start", "end")), strict=True))


def _true_rank(planting: Planting, place: Place) -> TrueRank:
    return TrueRank(
        rank=place.rank,
        file=_file_name(planting, place),
        host=place.hostname,
        pid=place.pid,
        device_id=place.device,
        uuid=place.uuid,
        stage=place.stage,
        pipeline=place.pipeline,
    )
