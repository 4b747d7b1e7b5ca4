"""Ranks that begin iterations late are named even if no launch was recorded.

Each job is simulated with the late rank and with a rank that begins on time. bubbleviz reads only
the table of the faulty job, without launch times.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.needs import get_real_file
from tests.support.pipeline_jobs import Job, SimulatedJob, simulate_job

JOB = Job(launches=False, iterations=8)
BARE = replace(JOB, messages=False, only_computes=True)


def _advise(folder: Path, job: SimulatedJob) -> tuple[AdviceEntry, ...]:
    return write_all_advice(bubbleviz.analyze(job.written(folder / "operations.csv")))


@pytest.mark.parametrize("job", [JOB, BARE], ids=["all rows", "only F and B"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
def test_a_rank_that_begins_late_is_named_with_its_cost(
    schedule: str, job: Job, tmp_path: Path
) -> None:
    on_time = replace(job, schedule=schedule)
    late_job = simulate_job(replace(on_time, late={4: 60.0}))
    saved = 1 - simulate_job(on_time).length_ns / late_job.length_ns

    first = _advise(tmp_path, late_job)[0]

    assert (first.kind, first.place, first.ranks) == ("late-start", "late-start-4", (4,))
    assert first.saving_ratio == pytest.approx(saved, abs=0.02)
    assert first.text.startswith("Begin iterations earlier on rank 4 (-")
    assert "It starts 60.0" in first.text
    assert "after the first rank, in 8 of 8 iterations" in first.text


def test_several_late_ranks_are_named_together(tmp_path: Path) -> None:
    job = replace(JOB, replicas=3)
    late_job = simulate_job(replace(job, late={4: 60.0, 8: 60.0}))

    first = _advise(tmp_path, late_job)[0]

    assert (first.kind, first.ranks) == ("late-start", (4, 8))
    assert "They start 60.0" in first.text


def test_a_rank_that_is_late_every_second_time_is_named_for_these_iterations(
    tmp_path: Path,
) -> None:
    late_job = simulate_job(replace(JOB, late={4: 60.0}, late_every=2))

    first = _advise(tmp_path, late_job)[0]

    assert (first.place, first.iterations) == ("late-start-4", 4)


def test_no_rank_is_late_in_a_healthy_job(tmp_path: Path) -> None:
    assert "late-start" not in {entry.kind for entry in _advise(tmp_path, simulate_job(JOB))}


def test_recorded_launches_are_used_instead(tmp_path: Path) -> None:
    late_job = simulate_job(replace(JOB, launches=True, late={4: 60.0}))

    first = _advise(tmp_path, late_job)[0]

    assert (first.kind, first.ranks) == ("launch", (4,))


def test_clocks_of_several_hosts_show_no_late_start(tmp_path: Path) -> None:
    late_job = simulate_job(replace(JOB, of_host=4, late={4: 60.0}))

    assert "late-start" not in {entry.kind for entry in _advise(tmp_path, late_job)}


def test_pipelines_that_do_not_wait_for_each_other_are_not_late(tmp_path: Path) -> None:
    job = simulate_job(BARE)
    for row in job.rows:
        # The second replica runs half an iteration later in all iterations.
        delay_ns = round(job.period_ns / 2) if row["pipeline"] else 0
        row["start_ns"] = int(row["start_ns"]) + delay_ns
        row["end_ns"] = int(row["end_ns"]) + delay_ns

    assert "late-start" not in {entry.kind for entry in _advise(tmp_path, job)}


@pytest.mark.real_files
def test_the_late_loader_of_a_table_with_only_forwards_and_backwards_comes_first() -> None:
    report = bubbleviz.analyze(get_real_file("cases/loader-F-B-only.csv.gz"))
    first = write_all_advice(report)[0]

    assert (first.kind, first.rank_numbers) == ("late-start", (1,))
    assert first.saving_ratio == pytest.approx(0.224, abs=0.01)
