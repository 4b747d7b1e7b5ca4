"""The summary of a report: its JSON, read again, is equal to it, and fits the JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from msgspec import json as msgspec_json

import bubbleviz
from bubbleviz.render.json_document import written
from bubbleviz.report.summarizing import summary_of
from bubbleviz.report.summary import RunSummary, values_of
from scripts.json_schema import FILE, schema_text
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


def test_json_schema_of_the_package_is_that_of_the_model() -> None:
    """If it is not, run ``python -m scripts.json_schema``."""
    assert FILE.read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_json_fits_the_json_schema(name: str) -> None:
    report = bubbleviz.analyze(str(FIXTURES / name), what_if=True)
    values = json.loads(written(values_of(summary_of(report))))
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)

    assert list(Draft202012Validator(schema).iter_errors(values)) == []
    wrong = {**values, "ranks": 4}
    (error,) = Draft202012Validator(schema).iter_errors(wrong)
    assert list(error.absolute_path) == ["ranks"]
