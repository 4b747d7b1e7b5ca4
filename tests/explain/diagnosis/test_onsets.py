"""Faults that begin during a run are reported with their first iteration and their cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from tests.support.pipeline_jobs import Job, Row, SimulatedJob, simulate_job

JOB = Job(iterations=10, noise=0.005)
#: Time between two iterations, in ns.
APART_NS = 50_000


def join_jobs(before: SimulatedJob, after: SimulatedJob, since: int) -> SimulatedJob:
    """Return a job that changes during the run.

    Iterations before ``since`` come from ``before``, and later iterations from ``after``.
    """
    rows: list[Row] = []
    lengths_ns = []
    start_ns = 10**9
    for iteration in range(JOB.iterations):
        source = before if iteration < since else after
        selected = [row for row in source.rows if row["iteration"] == iteration]
        first_ns = min(int(row["start_ns"]) for row in selected)
        last_ns = max(int(row["end_ns"]) for row in selected)
        for row in selected:
            moved = {name: int(row[name]) - first_ns + start_ns for name in row if "_ns" in name}
            rows.append({**row, **moved})
        lengths_ns.append(last_ns - first_ns)
        start_ns += last_ns - first_ns + APART_NS
    return SimulatedJob(rows, [float(length) for length in lengths_ns], 0.0)


FAULTS = {
    "slow all-reduce": ({"reduce": 40.0}, "collective", "AllReduce has been slow since iteration "),
    "garbage collection": ({"pause": {5: 40.0}}, "iteration", "rank 5 have been slow since "),
    "late launches": ({"late": {5: 40.0}}, "launch", "input is ready, since iteration "),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("since", [2, 5, 8])
def test_a_fault_is_reported_with_its_onset_and_its_cost(
    name: str, since: int, tmp_path: Path
) -> None:
    fault, kind, words = FAULTS[name]
    healthy = simulate_job(JOB, 1)
    job = join_jobs(healthy, simulate_job(replace(JOB, **fault), 1), since)  # type: ignore[arg-type]  # of each field its own
    first = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))[0]

    assert (first.kind, first.since_iteration) == (kind, since)
    assert first.saving_ratio == pytest.approx(1 - healthy.length_ns / job.length_ns, abs=0.01)
    assert words in first.text


@pytest.mark.parametrize("late_every", [1, 2])
def test_a_fault_that_did_not_begin_during_the_run_has_no_onset(
    late_every: int, tmp_path: Path
) -> None:
    job = simulate_job(replace(JOB, late={5: 40.0}, late_every=late_every))
    first = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))[0]

    assert first.kind == "launch"
    assert first.since_iteration is None


def test_a_collective_that_was_always_slow_is_a_bound(tmp_path: Path) -> None:
    job = simulate_job(replace(JOB, reduce=40.0))
    first = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))[0]

    assert first.action.startswith("Overlap AllReduce with compute")
    # A table of operations contains no kernels, so it cannot show what was queued.
    assert "bubbleviz idle" not in first.text
    assert first.since_iteration is None


def test_a_replica_that_becomes_slow_has_no_long_microbatches(tmp_path: Path) -> None:
    replica_1 = dict.fromkeys(range(4, 8), (1.4, 6))
    job = simulate_job(replace(JOB, slows=replica_1))
    advice = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))

    assert (advice[0].kind, advice[0].since_iteration) == ("slowed", 6)
    assert advice[0].ranks == (4, 5, 6, 7)
    assert not [entry for entry in advice if entry.kind == "microbatch"]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_drift_is_worth_all_that_it_costs_and_makes_its_stage_no_slower(
    schedule: str, seed: int, tmp_path: Path
) -> None:
    healthy = replace(JOB, schedule=schedule, replicas=1)
    job = simulate_job(replace(healthy, drift={3: 0.75}), seed)
    entries = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))

    saved = 1 - simulate_job(healthy, seed).length_ns / job.length_ns
    assert entries[0].kind == "drift"
    assert entries[0].saving_ratio == pytest.approx(saved, abs=0.005)
    assert entries[0].error_ratio is not None
    assert entries[0].error_ratio < 0.04
    assert "stage" not in [entry.kind for entry in entries]


@pytest.mark.parametrize("missing", [(), (4,), (2, 6)])
def test_a_drift_is_compared_with_the_last_iteration_if_others_are_missing(
    missing: tuple[int, ...], tmp_path: Path
) -> None:
    job = simulate_job(replace(JOB, drift={3: 0.75}))
    rows = [row for row in job.rows if row["rank"] != 3 or row["iteration"] not in missing]
    report = bubbleviz.analyze(replace(job, rows=rows).written(tmp_path / "operations.csv"))
    diagnosis = report.explanation.diagnosis
    assert diagnosis is not None
    fault = diagnosis.findings[0].faults[0]

    assert fault.kind == "drift"
    assert fault.phases[0][1] == pytest.approx(1.75, abs=0.03)


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_a_rank_that_became_slower_did_not_pause_in_every_iteration(
    noise: float, tmp_path: Path
) -> None:
    slowed = replace(JOB, noise=noise, slows={5: (1.7, 4)})
    job = simulate_job(slowed, 3)
    entries = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))

    assert entries[0].kind == "slowed"
    assert "iteration" not in [entry.kind for entry in entries]
