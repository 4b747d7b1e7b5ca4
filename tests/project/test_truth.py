"""Analyses of planted runs find the planted operations, iterations and ratios."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.report import Report
from tests.planting import plant
from tests.planting.truth import Truth
from tests.support.planted_runs import (
    RUNS,
    check_ratios,
    list_reported_rows,
    list_true_rows,
    rank_numbers,
)


@cache
def analyze_run(name: str) -> tuple[Report, Truth]:
    """Plant and analyze a run. The result is cached for all tests."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        truth = plant(RUNS[name], folder)
        return bubbleviz.analyze([folder / file.path for file in truth.files]), truth


@pytest.mark.parametrize("name", RUNS)
def test_operations_equal_the_truth(name: str) -> None:
    report, truth = analyze_run(name)
    reported_rows = list_reported_rows(report)

    assert len(reported_rows) > 2 * len(report.ranks)
    assert reported_rows == list_true_rows(report, truth, truth.operations)


@pytest.mark.parametrize("name", RUNS)
def test_ratios_equal_the_truth(name: str) -> None:
    report, truth = analyze_run(name)

    check_ratios(report, truth)
    for iteration, true in zip(report.iterations, truth.iterations, strict=True):
        assert not iteration.complete or iteration.microbatches == true.microbatches


@pytest.mark.parametrize("name", RUNS)
def test_the_parts_of_every_window_add_up(name: str) -> None:
    report, _ = analyze_run(name)

    for iteration in report.iterations:
        for rank in iteration.ranks:
            for account in rank.accounts.values():
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
    report, truth = analyze_run(name)
    ranks = rank_numbers(report, truth)

    assert {ranks[r.rank]: r.stage for r in truth.ranks} == {
        rank.index: rank.stage for rank in report.ranks
    }
