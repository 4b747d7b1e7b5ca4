"""In a single pipeline, the advice gives the savings from moving layers and from a repaired GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps, write_all_advice
from tests.support.pipeline_jobs import Job, SimulatedJob, simulate_job

#: A slow GPU may exceed the promised saving by half a percentage point of the iteration.
TOLERANCE = 0.005
HEALTHY = Job(replicas=1, noise=0.002)


def analyze(job: SimulatedJob, directory: Path) -> Report:
    return bubbleviz.analyze(job.written(directory / "operations.csv"))


def compute_saving(slow: Job, repaired: Job) -> float:
    """Return the saving as a fraction of the iteration, according to the simulator."""
    return 1 - simulate_job(repaired).length_ns / simulate_job(slow).length_ns


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_both_savings_are_those_of_the_simulated_jobs(
    schedule: str, rank: int, tmp_path: Path
) -> None:
    slow = replace(HEALTHY, schedule=schedule, microbatches=4, rank={rank: 1.3})
    report = analyze(simulate_job(slow), tmp_path)
    first = write_all_advice(report)[0]
    even = replace(slow, rank={}, stage={rank: 1.3}, even_stages=True)

    assert (first.kind, first.place, first.ranks) == ("stage", f"stage-{rank}", (rank,))
    assert first.repaired_saving_ratio is not None
    saving = compute_saving(slow, replace(slow, rank={}))
    assert first.repaired_saving_ratio == pytest.approx(saving, abs=TOLERANCE)
    assert first.saving_ratio == pytest.approx(max(compute_saving(slow, even), 0), abs=TOLERANCE)
    assert f"find out why rank {rank} is slow" in first.action.lower()
    text = f"{100 * first.repaired_saving_ratio:.2f} % ± "
    assert text in (describe_first_steps(report) or "")
    assert "if a slow GPU is the cause" in first.text


def test_a_stage_from_which_no_layers_should_move_may_have_a_slow_gpu(tmp_path: Path) -> None:
    """With few microbatches, the first stage determines only a small part of the iteration."""
    slow = replace(HEALTHY, microbatches=4, rank={0: 1.3}, noise=0.0)
    (only,) = write_all_advice(analyze(simulate_job(slow), tmp_path))

    assert only.saving_ratio == 0
    assert only.action == "Find out why rank 0 is slow"
    assert "moving layers to other stages would save nothing" in only.text


def test_several_slow_gpus_are_an_alternative_to_moving_layers(tmp_path: Path) -> None:
    slow = replace(HEALTHY, stages=6, rank={1: 1.3, 3: 1.3})
    first = write_all_advice(analyze(simulate_job(slow), tmp_path))[0]

    assert first.action == "Move layers off stages 1, 3, or find out why ranks 1, 3 are slow"
    saving = compute_saving(slow, replace(slow, rank={}))
    assert first.repaired_saving_ratio == pytest.approx(saving, abs=TOLERANCE)


def test_advice_is_sorted_by_the_larger_saving(tmp_path: Path) -> None:
    job = replace(HEALTHY, microbatches=4, rank={1: 1.4}, iteration={3: 1.4})
    first, second = write_all_advice(analyze(simulate_job(job), tmp_path))[:2]

    assert (first.kind, second.kind) == ("stage", "iteration")
    assert (first.saving_ns or 0) < (second.saving_ns or 0) < (first.repaired_saving_ns or 0)


@pytest.mark.parametrize(("n_kernels", "is_gpu"), [(9, True), (12, False)])
def test_kernels_show_which_saving_is_promised(
    n_kernels: int, is_gpu: bool, tmp_path: Path
) -> None:
    slow = replace(HEALTHY, rank={2: 1.3})
    job = simulate_job(slow)
    for row in job.rows:
        if row["phase"] in {"F", "BW"}:
            row["kernels"] = n_kernels if row["stage"] == 2 else 9
            row["active_ns"] = int(row["end_ns"]) - int(row["start_ns"])
    first = write_all_advice(analyze(job, tmp_path))[0]
    even = replace(slow, rank={}, stage={2: 1.3}, even_stages=True)
    saving = compute_saving(slow, replace(slow, rank={}) if is_gpu else even)

    assert first.place == "stage-2"
    assert first.saving_ratio == pytest.approx(saving, abs=TOLERANCE)
    assert ("if a slow GPU is the cause" in first.text) == is_gpu
    assert ("up to" in first.sentence) != is_gpu


@pytest.mark.parametrize("stage", [0, 3])
def test_a_slightly_longer_stage_does_not_have_a_slow_gpu(stage: int, tmp_path: Path) -> None:
    """The embedding and the output layer make the first and the last stage slightly longer."""
    job = replace(HEALTHY, microbatches=4, stage={stage: 1.03}, noise=0.001)
    report = analyze(simulate_job(job), tmp_path)

    assert all(entry.repaired_saving_ratio is None for entry in write_all_advice(report))
    assert (describe_first_steps(report) or "").startswith("The schedule itself")
