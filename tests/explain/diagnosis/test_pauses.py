"""Pauses between iterations: their length, and the ranks that have to begin iterations earlier."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.pipeline_jobs import Job, SimulatedJob, simulate_job

JOB = Job(replicas=2, iterations=6, noise=0.002)
MS = 1_000_000


def _find_pause(folder: Path, job: SimulatedJob) -> AdviceEntry | None:
    advice = write_all_advice(bubbleviz.analyze(job.written(folder / "operations.csv")))
    return next((entry for entry in advice if entry.place == "between-iterations"), None)


def _delay_iteration(job: SimulatedJob, iteration: int, delay_ns: int) -> None:
    """Delay an iteration and all later ones."""
    for row in job.rows:
        if int(row["iteration"]) >= iteration:
            for name in {"start_ns", "end_ns", "launched_ns"} & row.keys():
                row[name] = int(row[name]) + delay_ns


def _launch_earlier(job: SimulatedJob, stages: tuple[int, ...], earlier_ns: int) -> None:
    """Move the launches of all operations on some stages, but not their starts."""
    for row in job.rows:
        if int(row["stage"]) in stages and "launched_ns" in row:
            row["launched_ns"] = int(row["launched_ns"]) - earlier_ns


@pytest.mark.parametrize(
    ("early_stages", "ranks"),
    [((), tuple(range(8))), ((1, 2), (0, 3, 4, 7)), ((1, 2, 3), (0, 4))],
)
def test_all_ranks_that_launch_late_in_the_pause_are_named(
    early_stages: tuple[int, ...], ranks: tuple[int, ...], tmp_path: Path
) -> None:
    job = simulate_job(replace(JOB, between=20.0))
    _launch_earlier(job, early_stages, 19 * MS)

    pause = _find_pause(tmp_path, job)

    assert pause is not None
    assert pause.ranks == ranks
    assert ("on all 8 ranks" in pause.text) == (len(ranks) == 8)
    assert "other ranks" not in pause.text


def test_ranks_that_wait_for_their_input_before_they_launch_are_not_named(tmp_path: Path) -> None:
    job = simulate_job(replace(JOB, between=20.0))
    for row in job.rows:
        row["launched_ns"] = int(row["start_ns"]) - 5_000

    pause = _find_pause(tmp_path, job)

    assert pause is not None
    assert pause.ranks == (0, 4)


def test_other_ranks_may_be_late_if_launches_are_unknown(tmp_path: Path) -> None:
    pause = _find_pause(tmp_path, simulate_job(replace(JOB, between=20.0, launches=False)))

    assert pause is not None
    assert set(pause.ranks) <= {0, 4}
    assert "Some launches are unknown, so other ranks may be late, too" in pause.text


@pytest.mark.parametrize(("iterations", "before"), [(3, 2), (3, 1), (6, 5), (12, 11)])
@pytest.mark.parametrize("fraction", [0.03, 0.08])
def test_a_single_pause_is_reported_if_it_is_long_on_average(
    iterations: int, before: int, fraction: float, tmp_path: Path
) -> None:
    job = simulate_job(replace(JOB, iterations=iterations))
    _delay_iteration(job, before, round(fraction * job.period_ns * (iterations - 1)))

    pause = _find_pause(tmp_path, job)

    assert (pause is not None) == (fraction > 0.05)
    if pause is not None:
        assert pause.iterations == 1
        assert pause.saving_ratio == pytest.approx(fraction / (1 + fraction), abs=0.002)
        assert pause.text.startswith(f"Begin iteration {before} earlier on ")
        assert f"No rank computes during a single pause, before iteration {before}" in pause.text


@pytest.mark.parametrize(("between_ms", "is_advised"), [(0.0, False), (5.0, False), (12.0, True)])
def test_a_short_time_between_iterations_is_no_advice(
    between_ms: float, is_advised: bool, tmp_path: Path
) -> None:
    job = simulate_job(replace(JOB, between=between_ms))
    report = bubbleviz.analyze(job.written(tmp_path / "operations.csv"))
    is_listed = any(entry.place == "between-iterations" for entry in write_all_advice(report))

    assert is_listed == is_advised
    diagnosis = report.explanation.diagnosis
    assert diagnosis is not None
    expected = between_ms * 1e6 / job.period_ns
    assert diagnosis.pause_ratio == pytest.approx(expected, abs=0.001)


def test_pauses_are_measured_between_iterations_in_order_of_time(tmp_path: Path) -> None:
    job = simulate_job(replace(JOB, iterations=3, between=12.0))
    expected = bubbleviz.analyze(job.written(tmp_path / "in-order.csv")).explanation.diagnosis
    number_of = {0: 2, 1: 0, 2: 1}
    for row in job.rows:
        row["iteration"] = number_of[int(row["iteration"])]
    diagnosis = bubbleviz.analyze(job.written(tmp_path / "operations.csv")).explanation.diagnosis

    assert diagnosis is not None
    assert expected is not None
    assert diagnosis.pause_ratio == pytest.approx(expected.pause_ratio)
    (pause,) = [finding for finding in diagnosis.findings if finding.is_of_period]
    assert 0.05 < pause.saving_ratio < 0.2
    # The iterations that begin after a pause have the numbers 0 and 1.
    assert pause.faults[0].iterations == (0, 1)


def test_a_single_pause_is_listed_after_a_smaller_fault_that_recurs(tmp_path: Path) -> None:
    job = simulate_job(replace(JOB, iterations=6, rank={1: 1.2}))
    _delay_iteration(job, 4, round(3 * job.period_ns))

    entries = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))

    assert [entry.place for entry in entries[:2]] == ["rank-1", "between-iterations"]
    assert (entries[0].saving_ratio or 1.0) < (entries[1].saving_ratio or 0.0)
