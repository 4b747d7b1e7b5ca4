"""Creates synthetic runs whose true results are known, and compares reports with the truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import bubbleviz
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.report.report import Report
from tests.planting import plant
from tests.planting.options import Planting
from tests.planting.truth import TrueOperation, Truth

LABELS = {phase.label: int(phase) for phase in Phase}

BASE = Planting(kernel_gap_ns=3_000, jitter=0.1, transfer_ns=20_000)

ZERO_BUBBLE = replace(BASE, schedule="zb-h1", iterations=3, autograd="named")

#: A small run that uses every feature of an nsys export.
FULL = replace(
    ZERO_BUBBLE,
    stages=2,
    microbatches=3,
    iterations=2,
    library_depth=2,
    text="mixed",
    ranges="mixed",
    watchdog=True,
    copies=True,
    double_calls=True,
    iteration_ranges=True,
    overhead=True,
)

RUNS = {
    "plain": BASE,
    "gpipe": replace(BASE, schedule="gpipe"),
    "interleaved": replace(BASE, schedule="interleaved-1f1b", chunks=2),
    "zb-h1": ZERO_BUBBLE,
    "zb-h2": replace(ZERO_BUBBLE, schedule="zb-h2", microbatches=12),
    "zb-v": replace(ZERO_BUBBLE, schedule="zb-v"),
    "zb-v on two servers": replace(ZERO_BUBBLE, schedule="zb-v", servers=2),
    "barrier": replace(BASE, barrier=True, iterations=3),
    "registered strings": replace(BASE, text="registered"),
    "mixed strings": replace(BASE, text="mixed", library_depth=3),
    "start/end ranges": replace(BASE, ranges="start_end"),
    "mixed ranges": replace(BASE, ranges="mixed", autograd="named"),
    "unnamed autograd thread": replace(BASE, autograd="unnamed", watchdog=True),
    "library ranges": replace(BASE, library_depth=4, text="registered"),
    "one file per rank": replace(BASE, files="rank", devices="zero"),
    "two servers": replace(BASE, servers=2, stages=8, devices="zero"),
    "two streams": replace(BASE, two_streams=True, kernels=5),
    "copies": replace(BASE, copies=True),
    "receive inside F": replace(BASE, nested_receive_ns=100_000, kernels=4),
    "receive inside F, backward thread": replace(
        BASE, nested_receive_ns=100_000, kernels=4, autograd="named"
    ),
    "constant names": replace(BASE, names="constant", iterations=3),
    "named iterations": replace(BASE, iteration_ranges=True, first_iteration=7),
    "no optimizer": replace(BASE, optimizer_ns=-1),
    "optimizer without work": replace(BASE, optimizer_ns=0),
    "no communication": replace(BASE, communication=False),
    "post-validation": replace(ZERO_BUBBLE, postponed_ns=300_000, iteration_ranges=True),
    "post-validation, no names": replace(ZERO_BUBBLE, postponed_ns=300_000),
    "evaluation": replace(BASE, evaluation_at=1, iterations=4),
    "inference": replace(BASE, inference=True, iterations=4, optimizer_ns=-1),
    "one window of inference": replace(
        BASE, inference=True, iterations=1, lengths=(1.0, 2.5, 1.0), slow_stage=2
    ),
    "stray while busy": replace(BASE, stray="busy"),
    "stray while idle": replace(BASE, stray="idle"),
    "stray in a receive": replace(BASE, stray="recv"),
    "missing calls": replace(BASE, drop_calls_every=5, kernels=4),
    "double calls": replace(BASE, double_calls=True),
    "late host": replace(BASE, late_stage=1, late_ns=400_000),
    "slow stage": replace(BASE, slow_stage=2),
    "W_clear": replace(ZERO_BUBBLE, w_clear=True),
    "W_clear, constant names": replace(ZERO_BUBBLE, w_clear=True, names="constant"),
    "cut mid-iteration": replace(BASE, iterations=3, cut_ns=70_000_000),
    "cut in the first iteration": replace(BASE, iterations=3, cut_ns=20_000_000),
    "cut, split backward": replace(ZERO_BUBBLE, cut_ns=65_000_000),
    "cut behind a host that runs ahead": Planting(run_ahead_ns=3_000_000, cut_ns=64_000_000),
    "cut backward behind such a host": Planting(run_ahead_ns=3_000_000, cut_ns=31_000_000),
    "cut optimizer behind such a host": Planting(run_ahead_ns=3_000_000, cut_ns=33_000_000),
    "cut in the last kernels": Planting(
        run_ahead_ns=500_000, kernels=5, barrier=True, optimizer_ns=0, jitter=0.1, cut_ns=65_000_000
    ),
    "a last Optimizer without its launching calls": Planting(
        schedule="gpipe",
        microbatches=4,
        backward_ns=1_500_001,
        weight_ns=700_003,
        transfer_ns=333_333,
        jitter=0.05,
        barrier=True,
        kernels=4,
        nested_receive_ns=100_000,
        drop_calls_every=5,
        watchdog=True,
        seed=436,
    ),
    "cut in the optimizer": Planting(cut_ns=33_000_000),
    "cut in an evaluation": Planting(
        schedule="gpipe",
        stages=3,
        forward_ns=500_000,
        backward_ns=700_000,
        weight_ns=300_000,
        barrier=True,
        evaluation_at=1,
        cut_ns=20_000_000,
        seed=3,
    ),
    "cut, two servers": replace(ZERO_BUBBLE, cut_ns=45_000_000, servers=2, iteration_ranges=True),
    "one microbatch": replace(BASE, microbatches=1, iterations=3),
    "one stage": replace(BASE, stages=1),
}


@cache
def analyze_planting(planting: Planting, **options: Any) -> bubbleviz.Report:
    """Simulate a run, and return its report. Reports are cached for all tests."""
    with TemporaryDirectory() as folder:
        plant(planting, Path(folder))
        return bubbleviz.analyze(folder, **options)


def rank_numbers(report: Report, truth: Truth) -> dict[int, int]:
    """Return the index that each true rank has in the report."""
    files = [file.path for file in truth.files]
    numbers = {(r.profile, r.pid, r.device_id): r.index for r in report.ranks}
    return {r.rank: numbers[files.index(r.file), r.pid, r.device_id] for r in truth.ranks}


#: (rank, start, end, phase, microbatch, kernels, active time, iteration) of an operation.
Row = tuple[int, ...]


def list_true_rows(
    report: Report, truth: Truth, operations: Iterable[TrueOperation], *, microbatch: bool = True
) -> list[Row]:
    """Return the simulated operations that have compute kernels, with the report's rank numbers."""
    ranks = rank_numbers(report, truth)
    files = {file.path: index for index, file in enumerate(truth.files)}
    offset = {r.rank: report.profiles[files[r.file]].clock_offset_ns for r in truth.ranks}
    return sorted(
        (
            ranks[o.rank],
            o.file_start_ns + offset[o.rank],
            o.file_end_ns + offset[o.rank],
            LABELS[o.phase],
            o.microbatch
            if microbatch and o.phase != "Optimizer" and o.microbatch is not None
            else -1,
            o.kernels,
            o.active_ns,
            o.iteration,
        )
        for o in operations
        if LABELS[o.phase] in COMPUTE and o.file_start_ns is not None and o.file_end_ns is not None
    )


def list_reported_rows(report: Report, *, microbatch: bool = True) -> list[Row]:
    """Return the operations of the report that have compute kernels.

    An Optimizer range with only communication kernels has a span but no true operation.
    """
    ran = report.operations
    compute = ran.take((ran.has_span == 1) & (ran.kernels > 0) & np.isin(ran.phase, COMPUTE))
    numbers = compute.microbatch if microbatch else np.full(len(compute), -1)
    columns = (
        compute.rank,
        compute.start_ns,
        compute.end_ns,
        compute.phase,
        numbers,
        compute.kernels,
        compute.active_ns,
        compute.iteration,
    )
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def check_ratios(report: Report, truth: Truth) -> None:
    """Check iterations against the truth. Ratios of complete iterations must agree to 1e-9."""
    assert len(report.iterations) == len(truth.iterations)
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        assert (iteration.kind, iteration.complete) == (true.kind, true.complete)
        if not iteration.complete:
            continue
        for ratio, value in true.bubble_ratio.items():
            assert iteration.ratios[ratio].value == pytest.approx(value, abs=1e-9), ratio
            assert iteration.ratios[ratio].low == pytest.approx(true.bubble_low[ratio], abs=1e-9), (
                ratio
            )
