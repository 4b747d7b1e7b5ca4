"""Planted runs: every operation, iteration and ratio equal to what was planted."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.model.phases import COMPUTE, Phase
from bubbleviz.report.report import Report
from tests.planting import plant
from tests.planting.truth import Truth
from tests.support.planted_runs import LABELS, RUNS, rank_numbers

WORK_LABELS = {phase.label for phase in COMPUTE}


@cache
def analysed(name: str) -> tuple[Report, Truth]:
    """Plant and analyse a run, once for all that is asked of it."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        truth = plant(RUNS[name], folder)
        return bubbleviz.analyze([folder / file.path for file in truth.files]), truth


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
