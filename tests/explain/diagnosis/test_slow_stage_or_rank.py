"""In a single pipeline, kernels distinguish a stage with too many layers from a slow GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.sentences import write_all_advice
from tests.support.pipeline_jobs import Job, simulate_job

JOB = Job(replicas=1, noise=0.002, stage={2: 1.5})
BOTH = "Move layers off stage 2, or find out why rank 2 is slow"


@pytest.mark.parametrize(
    ("n_kernels", "action", "reason"),
    [
        ({}, BOTH, "If stage 2 has no more layers than the others, its GPU is slow"),
        ({2: 9}, BOTH, "as many kernels as the other stages"),
        ({2: 13}, "Move layers off stage 2", "more kernels, so it has more layers"),
        ({2: 10}, BOTH, "If stage 2 has no more layers than the others"),
    ],
)
def test_both_explanations_are_named_unless_kernels_decide(
    n_kernels: dict[int, int], action: str, reason: str, tmp_path: Path
) -> None:
    job = simulate_job(JOB)
    for row in job.rows:
        if row["phase"] in {"F", "BW"} and n_kernels:
            row["kernels"] = n_kernels.get(int(row["stage"]), 9)
            row["active_ns"] = int(row["end_ns"]) - int(row["start_ns"])
    first = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))[0]

    assert first.kind == "stage"
    assert first.ranks == (2,)
    assert first.action == action
    assert reason in first.text


def test_copies_of_a_stage_show_that_it_has_too_many_layers(tmp_path: Path) -> None:
    job = simulate_job(replace(JOB, replicas=2))
    first = write_all_advice(bubbleviz.analyze(job.written(tmp_path / "operations.csv")))[0]

    assert first.action == "Move layers off stage 2"


@pytest.mark.parametrize(
    ("schedule", "stage", "is_last"),
    [("1f1b", 3, True), ("1f1b", 2, False), ("zb-v", 0, True), ("zb-v", 3, False)],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_output_layer_is_named_for_the_stage_that_runs_it(
    schedule: str, stage: int, is_last: bool, replicas: int, tmp_path: Path
) -> None:
    """In a V-shaped schedule, the last chunk is on the first stage."""
    job = Job(schedule=schedule, replicas=replicas, noise=0.002, stage={stage: 1.5})
    path = simulate_job(job).written(tmp_path / "operations.csv")
    first = write_all_advice(bubbleviz.analyze(path))[0]

    assert first.kind == "stage"
    assert ("also runs the output layer and the loss" in first.text) == is_last
