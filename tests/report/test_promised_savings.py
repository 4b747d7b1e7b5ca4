"""Advice promises a saving only if the replay reproduces the measured iterations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.report.sentences import describe_first_steps, describe_further_steps
from tests.support.command_line import CommandLine
from tests.support.operation_tables import write_csv
from tests.support.pipeline_jobs import Job, simulate_job

COLUMNS = ("rank", "stage", "phase", "iteration", "microbatch", "start_ns", "end_ns")
WORK_NS, TRANSFER_NS = 4_000_000, 1_000_000
MISSED = "the replay differs from the measured iterations by"


def write_gpipe_table(path: Path, spacing_ns: int, transfer_ns: int = TRANSFER_NS) -> Path:
    """Write a GPipe run of two stages in which an operation starts every ``spacing_ns``.

    Args:
        path: Path of the CSV file.
        spacing_ns: Time between the starts of consecutive operations of a stage.
        transfer_ns: Transfer time between the stages.
    """
    step_ns = WORK_NS + transfer_ns
    last_backward_ns = 4 * spacing_ns + step_ns
    rows: list[tuple[Any, ...]] = []
    for iteration in range(3):
        for microbatch in range(4):
            forward_ns = iteration * 10 * spacing_ns + microbatch * spacing_ns
            backward_ns = forward_ns + last_backward_ns
            for phase, stage, start_ns in (
                ("F", 0, forward_ns),
                ("F", 1, forward_ns + step_ns),
                ("B", 1, backward_ns),
                ("B", 0, backward_ns + step_ns),
            ):
                row = (stage, stage, phase, iteration, microbatch, start_ns, start_ns + WORK_NS)
                rows.append(row)
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return write_csv(path, columns)


def test_nothing_is_promised_if_the_replay_misses_the_measurement(
    tmp_path: Path, cli: CommandLine
) -> None:
    table = write_gpipe_table(tmp_path / "operations.csv", 10_000_000)
    report = bubbleviz.analyze(table)
    screen = " ".join(cli.printed("analyze", str(table)).split())
    text = " ".join(cli.printed("analyze", str(table), "-v", "advice").split())

    # The replay removes the time by which each operation starts late without a known cause.
    assert report.summary.window_ns["step"].mean == 84_000_000
    assert report.explanation.diagnosis is not None
    assert report.explanation.diagnosis.missed_ratio == pytest.approx(36 / 84, abs=1e-3)
    assert report.advice
    for advice in report.advice:
        assert (advice.saving_ns, advice.saving_ratio, advice.error_ratio) == (None, None, None)
        assert f"(saving unknown: {MISSED} 42.86 %)" in advice.text
    assert f"(saving unknown: {MISSED} 42.86 %)" in screen
    assert "iterations would take" not in screen
    assert "misses the measured length by 42.86 %" in text
    assert "unknown Find out why operations start long after" in text
    assert describe_further_steps(report) == ()


def test_no_schedule_is_blamed_if_the_replay_misses_the_measurement(tmp_path: Path) -> None:
    table = write_gpipe_table(tmp_path / "operations.csv", 10_000_000, transfer_ns=0)
    text = describe_first_steps(bubbleviz.analyze(table)) or ""

    assert text.startswith("It is unknown what would shorten iterations: their replayed")
    assert "twice the microbatches" not in text


def test_unknown_savings_are_null_and_are_not_checked_later(
    tmp_path: Path, cli: CommandLine
) -> None:
    paths = []
    for name, spacing_ns in (("before", 10_000_000), ("after", 9_000_000)):
        table = write_gpipe_table(tmp_path / f"{name}.csv", spacing_ns)
        paths.append(tmp_path / f"{name}.json")
        cli.printed("analyze", str(table), "-o", str(paths[-1]))
    entry = json.loads(paths[0].read_text(encoding="utf-8"))["advice"][0]
    compared = cli.printed("compare", *map(str, paths))

    assert entry["saving_ratio"] is None
    assert entry["saving_ns"] is None
    assert "promised" not in compared
    assert "new advice" not in compared


def test_savings_are_promised_if_the_replay_is_exact(tmp_path: Path) -> None:
    # Operations follow each other without a delay, with 4 ms of work and 1 ms of transfer.
    report = bubbleviz.analyze(write_gpipe_table(tmp_path / "operations.csv", WORK_NS))

    assert report.explanation.diagnosis is not None
    assert report.explanation.diagnosis.missed_ratio < 0.1
    assert MISSED not in str(report.advice)


def test_time_between_iterations_is_a_share_of_the_printed_period(
    tmp_path: Path, cli: CommandLine
) -> None:
    table = simulate_job(Job(between=40.0)).written(tmp_path / "operations.csv")
    advice = bubbleviz.analyze(table).advice[0]
    text = " ".join(cli.printed("analyze", str(table), "-v", "advice").split())

    assert advice.place == "between-iterations"
    assert advice.saving_ns is not None
    assert advice.saving_ratio is not None
    period_ns = advice.saving_ns / advice.saving_ratio
    shorter_period, period = (
        f"{ns / 1e6:,.3f} ms" for ns in (period_ns - advice.saving_ns, period_ns)
    )
    assert f"{shorter_period} instead of {period} from one iteration to the next" in advice.text
    assert f"{advice.share} of {period}" in text
