"""Hosts whose clocks are wrong by up to seconds: no report on a sample of jobs is wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

import bubbleviz
from tests.planting import Planting, plant
from tests.support.host_clocks import MS, Job, find_outcome, generate_jobs

#: A sample of the jobs that ``python -m scripts.score_inference clocks`` runs.
JOBS = list(generate_jobs(24, 3))


@pytest.mark.parametrize("job", JOBS, ids=[str(job.planting.seed) for job in JOBS])
def test_iterations_are_paired_correctly_or_not_at_all(job: Job) -> None:
    outcome = find_outcome(job)

    assert outcome.kind != "wrong", f"{outcome.reason}: {job.name}"
    planting = job.planting
    varied = planting.jitter >= 0.02 and planting.iterations >= 8
    if varied and not job.held and planting.replicas == 1 and not any(planting.step_ns):
        assert outcome.kind == "right", f"{outcome.reason}: {job.name}"


#: All iterations are equal to the nanosecond, except for one evaluation.
#: UTC is correct.
_EXACT = Planting(stages=3, servers=2, iterations=5, evaluation_at=2, slow_microbatch=4)
_LONG = replace(_EXACT, forward_ns=7 * MS, backward_ns=7 * MS, weight_ns=7 * MS, transfer_ns=20_000)
_LATER = replace(_LONG, iterations=6, evaluation_at=3, slow_microbatch=-1)


@pytest.mark.parametrize(
    "planting",
    [
        _EXACT,
        replace(_EXACT, clock_error_ns=(0, 3 * MS)),
        _LATER,
        replace(_LATER, schedule="zb-h2"),
        replace(_EXACT, iterations=10, evaluation_at=8, clock_error_ns=(0, -30 * MS)),
    ],
)
def test_equal_iterations_prove_no_shift(planting: Planting) -> None:
    """If many steps have the same length, matching two of them proves little."""
    outcome = find_outcome(Job(planting))

    assert outcome.kind == "right", outcome.reason


_BIDIRECTIONAL = Planting(schedule="dualpipe", microbatches=8, iterations=4, jitter=0.02)
_COPIES = Planting(stages=4, tensor=2, replicas=2, slow_rank=5, iterations=6, jitter=0.02)


@pytest.mark.parametrize(
    "planting",
    [
        _BIDIRECTIONAL,
        replace(_BIDIRECTIONAL, schedule="chimera", evaluation_at=1, files="rank"),
        _COPIES,
        replace(_COPIES, files="rank", jitter=0.0),
    ],
)
def test_a_shared_clock_pairs_ranks_even_if_it_is_unknown_which_one_waits(
    planting: Planting,
) -> None:
    outcome = find_outcome(Job(planting))

    assert outcome.kind == "right", outcome.reason


def test_one_of_several_processes_of_a_host_may_have_cut_iterations() -> None:
    iteration_ranges = ((0, 6), (1, 6), (0, 6), (0, 5))
    job = Job(replace(_BIDIRECTIONAL, iterations=6, files="rank"), iteration_ranges)

    assert find_outcome(job).kind == "right"


_SLOW = Planting(stages=3, servers=2, iterations=8, slow_iteration=3)


@pytest.mark.parametrize(
    "planting",
    [
        replace(_SLOW, clock_error_ns=(0, -225 * MS)),
        replace(_SLOW, clock_error_ns=(0, 90 * MS), schedule="zb-h2"),
        replace(_SLOW, clock_error_ns=(-257 * MS, 134 * MS), microbatches=1, barrier=True),
    ],
)
def test_one_slow_iteration_shows_how_equal_iterations_pair(planting: Planting) -> None:
    assert find_outcome(Job(planting)).kind == "right"


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_bounds_do_not_depend_on_the_order_of_files(schedule: str, tmp_path: Path) -> None:
    planting = Planting(
        schedule=schedule,
        stages=6,
        servers=3,
        jitter=0.05,
        iterations=3,
        transfer_ns=20_000,
        transfer_jitter=0.5,
        clock_error_ns=(0, 1_000_000, -500_000),
    )
    plant(planting, tmp_path)
    bounds = set()
    for files in permutations(sorted(tmp_path.glob("*.sqlite"))):
        summary = bubbleviz.analyze(list(files)).summary
        ratios = (summary.bubble_ratio["schedule"].mean, summary.bubble_ratio["step"].mean)
        bounds.add((*ratios, summary.bubble_interval["schedule"], summary.bubble_interval["step"]))

    assert len(bounds) == 1
