"""Generate synthetic pipeline runs whose true times are known, as Nsight Systems exports.

``plant(Planting(...), directory)`` simulates a schedule, records it as a profiler would, writes one
``.sqlite`` file per server or rank, and returns the truth. Equal plantings always give equal bytes.
All data is synthetic::

    options      parameters of a run           recorder  what a profiler records of one rank
    orders       orders of schedules           programs  when each operation of a run starts
    units        the operations of a run       export    the tables of one file, on its clock
    reductions   collectives before optimizers layout    nsys's tables, written to SQLite
    host         calls and ranges in time      places    hosts, files and clocks
    host_tables  hosts, processes and GPUs
    truth        the true operations, and ratios computed by slow exact code

Two subpackages plant larger runs: ``kernels`` writes one profile with millions of kernels, and
``ranks`` writes runs with thousands of ranks. None of these modules uses ``bubbleviz.schedules``,
so that planted runs are independent evidence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bubbleviz.model.columns import NONE, Ints
from tests.planting.export import Recording, make_recording, make_tables
from tests.planting.layout import write_export
from tests.planting.options import Planting
from tests.planting.places import TRAINING_STARTS_NS, Clock, Location, locate_ranks, make_clock
from tests.planting.recorder import COMMUNICATION, KERNEL, Recorder
from tests.planting.truth import (
    TrueFile,
    TrueOperation,
    TrueRank,
    Truth,
    compute_iterations,
    read_truth,
)
from tests.planting.units import Unit, list_units, make_plan_of_run, simulate_run
from tests.support.exact import Span, clip

__all__ = ["Planting", "Truth", "plant", "read_truth"]


def plant(planting: Planting, directory: Path) -> Truth:
    """Write the exports into a directory, and return the truth.

    Files in ``absent`` are not written, but their operations are part of the truth. The truth
    leaves out operations whose range starts after the end of the capture, and iterations without
    any captured operation.

    Args:
        planting: Parameters of the run.
        directory: Output directory, created if necessary. Files with the same names are replaced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plan, simulation = make_plan_of_run(planting), simulate_run(planting)
    cut = TRAINING_STARTS_NS + planting.cut_ns if planting.cut_ns else None
    by_file: dict[int, list[Recording]] = {}
    operations: list[TrueOperation] = []
    captured: list[TrueOperation] = []
    ranks: list[TrueRank] = []
    unattributed: dict[int, list[Span]] = {}
    for location in locate_ranks(planting):
        units = list_units(planting, plan, simulation, location.simulated)
        recorder = Recorder(planting, location.rank)
        recorder.record(units)
        recording = make_recording(planting, recorder, location, cut)
        rank_operations = _list_operations(recording, units, make_clock(planting, location))
        operations += rank_operations
        times = recorder.host.times()
        is_captured = [cut is None or times[push] <= cut for push, _ in recorder.span]
        captured += [
            op for op, is_seen in zip(rank_operations, is_captured, strict=True) if is_seen
        ]
        unattributed[location.rank] = _find_unattributed(recording)
        by_file.setdefault(location.file, []).append(recording)
        ranks.append(_describe_rank(planting, location))
    files = []
    for file, recordings in sorted(by_file.items()):
        if file not in planting.absent:
            location = recordings[0].location
            clock = make_clock(planting, location)
            file_name = _name_file(planting, location)
            write_export(directory / file_name, make_tables(planting, recordings, clock))
            kernels = sum(
                int((r.kept & np.isin(r.device["kind"], (KERNEL, COMMUNICATION))).sum())
                for r in recordings
            )
            files.append(TrueFile(file_name, location.hostname, clock, kernels))
    captured_iterations = {op.iteration for op in captured}
    operations_of_captured = [op for op in operations if op.iteration in captured_iterations]
    iterations = compute_iterations(operations_of_captured, unattributed)
    return Truth(planting, tuple(files), tuple(ranks), tuple(captured), unattributed, iterations)


def _name_file(planting: Planting, location: Location) -> str:
    stem = f"node{location.host}" if planting.files == "server" else f"rank{location.rank}"
    return f"{stem}.sqlite"


def _list_operations(recording: Recording, units: list[Unit], clock: Clock) -> list[TrueOperation]:
    """Return the operations of a rank, each with the span of its captured and linked kernels.

    Times are None if no kernel of the operation is linked to its launching call in the capture. An
    operation is complete if the capture lost none of its kernels.
    """
    device = recording.device
    is_kernel = (device["kind"] == KERNEL) & (device["operation"] != NONE)
    is_captured = is_kernel & recording.linked
    start_ns, end_ns, n_kernels, active_ns = _measure_spans(device, is_captured, len(units))
    n_lost = np.bincount(device["operation"][is_kernel & ~recording.kept], minlength=len(units))
    operations = []
    for number, unit in enumerate(units):
        span = (int(start_ns[number]), int(end_ns[number])) if n_kernels[number] else None
        operations.append(
            TrueOperation(
                rank=recording.location.rank,
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
                kernels=int(n_kernels[number]),
                active_ns=int(active_ns[number]),
                complete=not n_lost[number],
                busy=_find_busy(unit, span),
            )
        )
    return operations


def _measure_spans(
    device: dict[str, Ints], is_counted: Ints, n_operations: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the first start, last end, number and union length of each operation's kernels.

    Only the device rows in ``is_counted`` count as kernels. When kernels of several operations run
    at once, the time counts for the operation whose kernel started first.
    """
    row = np.flatnonzero(is_counted)
    row = row[np.argsort(device["start"][row], kind="stable")]
    start, end = device["start"][row], device["end"][row]
    operation = device["operation"][row]
    first = np.full(n_operations, np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(n_operations, NONE, dtype=np.int64)
    np.minimum.at(first, operation, start)
    np.maximum.at(last, operation, end)
    reached = np.concatenate([np.zeros(1, dtype=np.int64), np.maximum.accumulate(end)])[:-1]
    fresh = np.maximum(end - np.maximum(start, reached[: len(end)]), 0)
    active = np.zeros(n_operations, dtype=np.int64)
    np.add.at(active, operation, fresh)
    return first, last, np.bincount(operation, minlength=n_operations), active


def _find_busy(unit: Unit, span: Span | None) -> tuple[Span, ...]:
    """Return the busy parts of a span: all of it except the wait in the middle of the unit."""
    if span is None or unit.resume_ns == unit.pause_ns:
        return () if span is None else (span,)
    return tuple(clip([(unit.start_ns, unit.pause_ns), (unit.resume_ns, unit.end_ns)], span))


def _find_unattributed(recording: Recording) -> list[Span]:
    """Return the spans of captured compute kernels that are outside all operations."""
    device = recording.device
    rows = (device["kind"] == KERNEL) & (device["operation"] == NONE) & recording.kept
    return list(zip(*(device[name][rows].tolist() for name in ("start", "end")), strict=True))


def _describe_rank(planting: Planting, location: Location) -> TrueRank:
    """Return the true file, host, process, device, stage and pipeline of a rank."""
    return TrueRank(
        rank=location.rank,
        file=_name_file(planting, location),
        host=location.hostname,
        pid=location.pid,
        device_id=location.device,
        uuid=location.uuid,
        stage=location.stage,
        pipeline=location.pipeline,
    )
