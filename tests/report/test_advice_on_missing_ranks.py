"""Advice on runs that lack ranks of some pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import count_incomplete_pipelines
from bubbleviz.report.sentences import (
    describe_first_steps,
    describe_further_steps,
)
from tests.planting import Planting, plant
from tests.planting.ranks.runs import Recipe
from tests.planting.ranks.runs import plant as plant_ranks
from tests.planting.ranks.tables import write_tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 64 pipelines of four stages, with eight pipelines per file, and return the folder."""
    folder = tmp_path_factory.mktemp("run")
    run = plant_ranks(Recipe(256, microbatches=8, stages=4, iterations=2))
    write_tables(
        run, folder, with_stages=True, transfers=False, collectives=False, clock_errors_ns=None
    )
    return folder


def analyze_without(folder: Path, *servers: int) -> Report:
    """Return the report on a run without the files of the given servers."""
    files = sorted(folder.glob("*.parquet"))
    return bubbleviz.analyze([str(file) for n, file in enumerate(files) if n not in servers])


def test_other_advice_remains_if_few_pipelines_lack_a_rank(folder: Path) -> None:
    report = analyze_without(folder, 1)
    advice = describe_first_steps(report)

    assert count_incomplete_pipelines(report.ranks) == (8, 64)
    assert advice is not None
    missing, _, other = advice.partition(". ")
    assert missing == (
        "Ranks are missing from 8 of 64 pipelines: analyze the profiles of all ranks together"
    )
    complete = analyze_without(folder)
    replayed = complete.explanation.changes[0].bubble_ratio or 0.0
    assert (
        other.partition(" from ")[0] == str(describe_first_steps(complete)).partition(" from ")[0]
    )
    assert f"from {100 * replayed:.2f} % to" in other


def test_there_is_no_other_advice_if_most_pipelines_lack_a_rank(folder: Path) -> None:
    report = analyze_without(folder, *range(9, 13))

    assert count_incomplete_pipelines(report.ranks) is None
    assert (describe_first_steps(report) or "").startswith(
        "Some ranks of the run are missing, so its bubble"
    )


def test_a_stage_that_every_pipeline_lacks_does_not_count_as_missing_in_few(folder: Path) -> None:
    report = analyze_without(folder, *range(8, 16))

    assert count_incomplete_pipelines(report.ranks) is None


@pytest.mark.parametrize("server", [0, 9, 31])
def test_pipelines_that_lack_a_stage_keep_their_schedule(folder: Path, server: int) -> None:
    schedule = analyze_without(folder, server).schedule

    assert schedule is not None
    assert (schedule.name, schedule.exact) == ("1f1b", True)


def test_there_is_no_other_advice_if_the_bubble_is_unknown(tmp_path: Path) -> None:
    plant(Planting(files="rank", slow_rank=0, absent=(2,)), tmp_path)
    report = bubbleviz.analyze(tmp_path)

    assert (describe_first_steps(report) or "").startswith(
        "Some ranks of the run are missing, so its bubble"
    )
    assert report.explanation.diagnosis is not None
    assert report.explanation.diagnosis.findings
    assert report.advice == ()
    assert describe_further_steps(report) == ()
