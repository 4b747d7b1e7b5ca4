"""What is asked of reports in Python works as it is typed first."""

from __future__ import annotations

from pathlib import Path

import pytest

import bubbleviz
from bubbleviz.render.formats import renderers
from tests.support.pipeline_jobs import Job, simulated
from tests.support.places import FIXTURES


def test_ratio_advice_and_worst_iteration_are_attributes(tmp_path: Path) -> None:
    table = simulated(Job(rank={6: 1.5}, iteration={2: 1.5})).written(tmp_path / "operations.csv")
    report = bubbleviz.analyze(table)

    assert report.bubble_ratio == report.summary.bubble_ratio[report.headline].mean
    assert report.advice[0].kind == "rank"
    assert report.worst_iteration is not None
    ratios = [own.ratios[report.headline].value for own in report.iterations]
    assert report.worst_iteration.ratios[report.headline].value == max(r for r in ratios if r)


@pytest.mark.parametrize("suffix", [s for own in renderers() for s in own.suffixes])
def test_a_report_is_saved_as_its_suffix_says(suffix: str, tmp_path: Path) -> None:
    report, file = bubbleviz.analyze(FIXTURES / "1f1b"), tmp_path / f"x{suffix}"
    report.save(file)

    assert file.stat().st_size > 0
    assert [own.name for own in tmp_path.iterdir()] == [file.name]


def test_reports_are_loaded_and_compared(tmp_path: Path) -> None:
    before, after = (
        bubbleviz.analyze(simulated(job).written(tmp_path / f"{number}.csv"))
        for number, job in enumerate((Job(rank={6: 1.5}), Job()))
    )
    before.save(tmp_path / "before.json")
    saved = bubbleviz.load(tmp_path / "before.json")
    compared = bubbleviz.compare(saved, after)

    assert saved.bubble_ratio == before.bubble_ratio
    assert compared.followed[1][0].verdict == "kept"
    with pytest.raises(bubbleviz.BubblevizError, match="two or more"):
        bubbleviz.compare(saved)
