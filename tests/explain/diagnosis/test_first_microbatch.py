"""A first microbatch that compiles on one stage after another is not reported as uneven."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from bubbleviz.report.summary import AdviceEntry
from tests.support.pipeline_jobs import Job, simulate_job


def get_first_advice(job: Job, slow: set[tuple[int, int]], folder: Path) -> AdviceEntry:
    """Return the first piece of advice if the microbatches in ``slow`` take 1.4 times as long.

    Args:
        job: The job. Its microbatch 0 is slow in every iteration.
        slow: (iteration, microbatch) pairs that stay slow.
        folder: Folder for the table of operations.
    """
    simulated = simulate_job(job)
    for row in simulated.rows:
        is_slow = (row["iteration"], row.get("microbatch")) in slow
        if row.get("microbatch") == 0 and not is_slow and row["phase"] in {"F", "BW"}:
            start_ns = int(row["start_ns"])
            row["end_ns"] = start_ns + round((int(row["end_ns"]) - start_ns) / 1.4)
    return write_all_advice(bubbleviz.analyze(simulated.written(folder / "operations.csv")))[0]


@pytest.mark.parametrize("replicas", [1, 2])
def test_stages_that_compile_one_after_another_warm_up(replicas: int, tmp_path: Path) -> None:
    job = Job(replicas=replicas, noise=0.002, microbatch={0: 1.4})
    first = get_first_advice(job, {(0, 0)}, tmp_path)

    assert (first.kind, first.place) == ("microbatch", "first-microbatch")
    assert first.action == "Warm up all stages at once, before iteration 0"
    assert "To exclude this iteration from averages, pass --skip 1" in first.text


def test_a_microbatch_that_is_slow_in_every_iteration_has_too_many_tokens(tmp_path: Path) -> None:
    job = Job(noise=0.002, microbatch={0: 1.4})
    first = get_first_advice(job, {(n, 0) for n in range(6)}, tmp_path)

    assert first.action.startswith("Spread tokens evenly over the microbatches: microbatch 0")


def test_a_first_iteration_that_is_left_out_does_not_warm_up(tmp_path: Path) -> None:
    """Microbatch 0 is slow in iteration 2 only, and earlier iterations are left out."""
    job = Job(noise=0.002, microbatch={0: 1.4})
    simulated = simulate_job(job)
    rows = [row for row in simulated.rows if int(row["iteration"]) >= 0]
    for row in rows:
        is_slow = row["iteration"] == 2
        if row.get("microbatch") == 0 and not is_slow and row["phase"] in {"F", "BW"}:
            start_ns = int(row["start_ns"])
            row["end_ns"] = start_ns + round((int(row["end_ns"]) - start_ns) / 1.4)
    path = simulated.written(tmp_path / "operations.csv")
    advice = write_all_advice(bubbleviz.analyze(path, skip=2))

    assert not [entry for entry in advice if entry.place == "first-microbatch"]
