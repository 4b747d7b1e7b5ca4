"""Stages and pipelines of runs whose replicas differ in speed, compared with planted truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bubbleviz
from bubbleviz.align.stages.stage_order import has_uneven_sizes
from bubbleviz.report.report import Report
from bubbleviz.report.sentences import describe_first_steps
from tests.planting import Planting, Truth, plant
from tests.support.notes import find_limitation
from tests.support.planted_runs import analyze_planting

pytestmark = pytest.mark.thorough

PIPELINES = Planting(
    stages=4, microbatches=8, replicas=3, iterations=3, barrier=True, jitter=0.03, transfer_ns=20000
)
SCHEDULES = ("1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v")
SLOW_RANK: dict[str, Any] = {"slow_rank": 5, "slow_rank_factor": 1.5}
PAUSE: dict[str, Any] = {"pause_device": 7, "pause_every": 2, "pause_ns": 8_000_000}


def _is_right(report: Report, truth: Truth) -> bool:
    """Return whether the stages, and the ranks of each pipeline, are as planted."""
    true = {(rank.host, rank.pid): (rank.stage, rank.pipeline) for rank in truth.ranks}
    planted = [true[rank.host, rank.pid] for rank in report.ranks]
    pairs = {(rank.pipeline, of[1]) for rank, of in zip(report.ranks, planted, strict=True)}
    return [rank.stage for rank in report.ranks] == [stage for stage, _ in planted] and (
        len(pairs) == len({pipeline for _, pipeline in planted})
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("trouble", "servers"), [(SLOW_RANK, 4), (PAUSE, 1), ({"slow_pipeline": 1}, 4)], ids=str
)
def test_stages_and_pipelines_are_found_despite_a_slow_rank(
    tmp_path: Path, schedule: str, trouble: dict[str, Any], servers: int
) -> None:
    planting = replace(PIPELINES, schedule=schedule, servers=servers, **trouble)
    if schedule == "gpipe" and "slow_pipeline" in trouble:
        planting = replace(planting, microbatches=12)
    truth = plant(planting, tmp_path)

    report = bubbleviz.analyze(tmp_path)

    assert _is_right(report, truth)
    assert report.schedule is not None
    assert report.schedule.name == schedule


def test_the_slow_rank_in_two_pipelines_is_the_first_advice(tmp_path: Path) -> None:
    truth = plant(
        Planting(
            stages=8,
            microbatches=16,
            replicas=2,
            iterations=3,
            barrier=True,
            jitter=0.03,
            slow_rank=10,
            slow_rank_factor=1.15,
        ),
        tmp_path,
    )

    report = bubbleviz.analyze(tmp_path)

    assert _is_right(report, truth)
    # Simulated device 10 is stage 2 of the second of two pipelines.
    assert (describe_first_steps(report) or "").startswith(
        "Find out why node0 GPU 5 (pipeline order 10) is slow"
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_replicas_of_one_stage_are_no_pipeline_however_slow_one_of_them_is(schedule: str) -> None:
    report = analyze_planting(
        replace(PIPELINES, schedule=schedule, stages=1, slow_rank=1, slow_rank_factor=2.4)
    )

    assert {rank.stage for rank in report.ranks} <= {None, 0}


def test_gpipe_orders_without_transfers_show_no_split_into_pipelines() -> None:
    silent = replace(PIPELINES, schedule="gpipe", communication=False)
    report = analyze_planting(replace(silent, slow_rank=5, slow_rank_factor=1.5))

    assert {rank.stage for rank in report.ranks} == {None}


def test_many_replicas_are_distinguished(tmp_path: Path) -> None:
    planting = replace(PIPELINES, stages=2, replicas=70, iterations=2, servers=10)
    truth = plant(planting, tmp_path)

    report = bubbleviz.analyze(tmp_path)

    assert _is_right(report, truth)
    assert len({rank.pipeline for rank in report.ranks}) == 70


#: (schedule, folder of its run, truth).
Whole = tuple[str, Path, Truth]
#: Ranks are numbered stage by stage, as in Megatron; each host has two replicas of a stage.
RUN = Planting(
    stages=4, microbatches=8, replicas=12, iterations=3, jitter=0.03, transfer_ns=20000, servers=24
)


@pytest.fixture(scope="module", params=["1f1b", "zb-h1", "zb-v"])
def complete_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    return request.param, folder, plant(replace(RUN, schedule=request.param), folder)


@pytest.mark.parametrize("absent", [(0,), (23,), (7, 14), (8, 14)], ids=str)
def test_pipelines_with_missing_ranks_do_not_affect_other_pipelines(
    absent: tuple[int, ...], complete_run: Whole
) -> None:
    schedule, folder, truth = complete_run
    true = {(rank.host, rank.pid): rank for rank in truth.ranks}

    report = bubbleviz.analyze(
        [folder / file.path for n, file in enumerate(truth.files) if n not in absent]
    )

    planted = [true[rank.host, rank.pid] for rank in report.ranks]
    assert [rank.stage for rank in report.ranks] == [rank.stage for rank in planted]
    pipelines = {rank.pipeline for rank in report.ranks}
    pairs = {(r.pipeline, own.pipeline) for r, own in zip(report.ranks, planted, strict=True)}
    # Zero-bubble schedules hide waits, so several assignments may be consistent.
    assert len(pairs) == 12 or (pipelines == {None} and schedule != "1f1b")
    assert pipelines == {None} or report.iterations[1].ratios["stage"].value is not None
    note = find_limitation(report, "ranks without a profile")
    assert note.count == 2 * len(absent)


@pytest.mark.parametrize(
    ("is_uneven", "sizes"),
    [
        (False, ([0], [1], [8, 8, 8, 8], [8, 6, 8, 8], [8, 5, 8, 8], [8, 7, 7, 8], [8, 8, 7])),
        # Differences in time may have split a stage.
        (True, ([], [8, 4, 8, 8], [8, 9, 7, 8], [8, 7])),
        # Most of the large stages lack some ranks.
        (False, ([512, 488, 496, 472, 504],)),
        (True, ([512, 488, 496, 440, 504], [56, 48, 49, 50, 51])),
    ],
)
def test_a_few_ranks_may_be_missing(is_uneven: bool, sizes: Sequence[list[int]]) -> None:
    assert {has_uneven_sizes(size) for size in sizes} == {is_uneven}
