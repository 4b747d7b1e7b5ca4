"""Planted runs: every operation, iteration and ratio equal to what was planted."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.report.report import Report
from scripts.planting import plant
from scripts.planting.options import Planting
from scripts.planting.truth import Truth

LABELS = {phase.label: int(phase) for phase in Phase}
WORK_LABELS = {phase.label for phase in COMPUTE}

BASE = Planting(kernel_gap_ns=3_000, jitter=0.1, transfer_ns=20_000)
ZERO_BUBBLE = replace(BASE, schedule="zb-h1", iterations=3, autograd="named")
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
    "one file a rank": replace(BASE, files="rank", devices="zero"),
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
    "stray while busy": replace(BASE, stray="busy"),
    "stray while idle": replace(BASE, stray="idle"),
    "stray in a receive": replace(BASE, stray="recv"),
    "missing calls": replace(BASE, drop_calls_every=5, kernels=4),
    "double calls": replace(BASE, double_calls=True),
    "late host": replace(BASE, late_stage=1, late_ns=400_000),
    "slow stage": replace(BASE, slow_stage=2),
    "W_clear": replace(ZERO_BUBBLE, w_clear=True),
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
    "cut, two servers": replace(ZERO_BUBBLE, cut_ns=45_000_000, servers=2),
    "one microbatch": replace(BASE, microbatches=1, iterations=3),
    "one stage": replace(BASE, stages=1),
}


@cache
def analysed(name: str) -> tuple[Report, Truth]:
    """Plant and analyse a run, once for all that is asked of it."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        truth = plant(RUNS[name], folder)
        return bubbleviz.analyze([folder / file.path for file in truth.files]), truth


def rank_numbers(report: Report, truth: Truth) -> dict[int, int]:
    """Return the report's rank for each true rank."""
    files = [file.path for file in truth.files]
    own = {(r.profile, r.pid, r.device_id): r.index for r in report.ranks}
    return {r.rank: own[files.index(r.file), r.pid, r.device_id] for r in truth.ranks}


@pytest.mark.parametrize("name", RUNS)
def test_operations_equal_the_truth(name: str) -> None:
    report, truth = analysed(name)
    ranks = rank_numbers(report, truth)
    offsets = [profile.clock_offset_ns for profile in report.profiles]
    files = {file.path: index for index, file in enumerate(truth.files)}
    of_rank = {r.rank: offsets[files[r.file]] for r in truth.ranks}

    expected = sorted(
        (
            ranks[o.rank],
            o.file_start_ns + of_rank[o.rank],
            o.file_end_ns + of_rank[o.rank],
            LABELS[o.phase],
            -1 if o.phase == "Optimizer" or o.microbatch is None else o.microbatch,
            o.kernels,
            o.active_ns,
            o.iteration,
        )
        for o in truth.operations
        if o.phase in WORK_LABELS and o.file_start_ns is not None and o.file_end_ns is not None
    )
    t = report.operations
    rows = [
        i for i in range(len(t)) if t.has_span[i] and Phase(int(t.phase[i])).label in WORK_LABELS
    ]
    found = sorted(
        (
            int(t.rank[i]),
            int(t.start_ns[i]),
            int(t.end_ns[i]),
            int(t.phase[i]),
            int(t.microbatch[i]),
            int(t.kernels[i]),
            int(t.active_ns[i]),
            int(t.iteration[i]),
        )
        for i in rows
    )

    assert len(expected) > 2 * len(ranks)
    assert found == expected


@pytest.mark.parametrize("name", RUNS)
def test_ratios_equal_the_truth(name: str) -> None:
    report, truth = analysed(name)

    assert len(report.iterations) == len(truth.iterations)
    for own, true in zip(report.iterations, truth.iterations, strict=True):
        assert (own.kind, own.complete) == (true.kind, true.complete)
        if not own.complete:
            continue
        assert own.microbatches == true.microbatches
        for ratio, value in true.bubble_ratio.items():
            assert own.ratios[ratio].value == pytest.approx(value, abs=1e-9), ratio
            assert own.ratios[ratio].low == pytest.approx(true.bubble_low[ratio], abs=1e-9), ratio


@pytest.mark.parametrize("name", RUNS)
def test_the_parts_of_every_window_add_up(name: str) -> None:
    report, _ = analysed(name)

    for iteration in report.iterations:
        for own in iteration.ranks:
            for account in own.accounts.values():
                parts = (
                    account.compute_ns
                    + account.optimizer_ns
                    + account.overlap_ns
                    + account.unattributed_ns
                    + account.bubble_ns
                )

                assert parts == account.window_ns
                assert min(account.bubble_ns, account.unattributed_ns, account.overlap_ns) >= 0


@pytest.mark.parametrize("name", RUNS)
def test_stages_are_in_order(name: str) -> None:
    report, truth = analysed(name)
    ranks = rank_numbers(report, truth)

    assert {ranks[r.rank]: r.stage for r in truth.ranks} == {
        rank.index: rank.stage for rank in report.ranks
    }
