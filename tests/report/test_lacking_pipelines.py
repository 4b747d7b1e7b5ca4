"""Pipelines that lack ranks: what is advised where few do, and where none can stand for them."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.report.advice import first_thing
from bubbleviz.report.methods import few_lacking
from bubbleviz.report.report import Report
from scripts.benchmark.ranks.planting import Recipe, plant
from scripts.benchmark.ranks.tables import write_tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write four stages of 64 pipelines, eight of each a file."""
    folder = tmp_path_factory.mktemp("run")
    run = plant(Recipe(256, microbatches=8, stages=4, iterations=2))
    write_tables(run, folder, told=True, transfers=False, collectives=False, clock_errors_ns=None)
    return folder


def lacking(folder: Path, *servers: int) -> Report:
    """Return the report of a run that lacks the files of some servers."""
    files = sorted(folder.glob("*.parquet"))
    return bubbleviz.analyze([str(file) for n, file in enumerate(files) if n not in servers])


def test_advice_on_the_others_stands_where_few_pipelines_lack_a_rank(folder: Path) -> None:
    report = lacking(folder, 1)
    advice = first_thing(report)

    assert few_lacking(report) == (8, 64)
    assert advice is not None
    missing, _, other = advice.partition(". ")
    assert missing == (
        "Ranks of 8 of 64 pipelines are missing: analyze the profiles of all ranks together"
    )
    assert other == first_thing(lacking(folder))


def test_no_other_advice_where_most_pipelines_lack_one(folder: Path) -> None:
    report = lacking(folder, *range(9, 13))

    assert few_lacking(report) is None
    assert (first_thing(report) or "").startswith("Ranks of the run are missing, so its bubble")


def test_a_stage_that_every_pipeline_lacks_is_none_of_few(folder: Path) -> None:
    report = lacking(folder, *range(8, 16))

    assert few_lacking(report) is None


@pytest.mark.parametrize("server", [0, 9, 31])
def test_pipelines_that_lack_a_stage_keep_their_schedule(folder: Path, server: int) -> None:
    schedule = lacking(folder, server).schedule

    assert schedule is not None
    assert (schedule.name, schedule.exact) == ("1f1b", True)
