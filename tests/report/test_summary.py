"""The summary of a report: its JSON, read again, is equal to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import json as msgspec_json

import bubbleviz
from bubbleviz.render.json_document import written
from bubbleviz.report.summarizing import summary_of
from bubbleviz.report.summary import RunSummary, values_of
from tests.support.pipeline_jobs import Job, simulated
from tests.support.places import FIXTURES


def read_again(report: bubbleviz.Report) -> tuple[RunSummary, RunSummary]:
    """Return the summary of a report, and the same read from its JSON."""
    summary = summary_of(report)
    text = written(values_of(summary))
    return summary, msgspec_json.decode(text, type=RunSummary)


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_json_of_a_fixture_is_read_as_its_summary(name: str) -> None:
    summary, again = read_again(bubbleviz.analyze(str(FIXTURES / name), what_if=True))

    assert again == summary
    assert written(values_of(again)) == written(values_of(summary))


def test_json_of_a_run_with_advice_is_read_as_its_summary(tmp_path: Path) -> None:
    table = simulated(Job(rank={6: 1.5}, iteration={2: 1.5})).written(tmp_path / "operations.csv")
    summary, again = read_again(bubbleviz.analyze(str(table)))

    assert summary.advice
    assert summary.slowdown is not None
    assert again == summary
