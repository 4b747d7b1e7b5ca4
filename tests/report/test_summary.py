"""Summaries of reports survive a round trip through JSON that fits the JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec import Struct
from msgspec import json as msgspec_json

import bubbleviz
from bubbleviz.analyses.idle.outputs import as_json, summarize_idle
from bubbleviz.analyses.nccl import measure_communication
from bubbleviz.analyses.nccl import outputs as nccl_outputs
from bubbleviz.analyses.nccl.summary import NcclSummary
from bubbleviz.model.texts import format_json
from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.summarizing import summarize
from bubbleviz.report.summary import RunSummary, to_values
from scripts.json_schema import SCHEMA_FILES, schema_text
from tests.support.pipeline_jobs import Job, simulate_job
from tests.support.places import FIXTURES


def read_again(report: bubbleviz.Report) -> tuple[RunSummary, RunSummary]:
    """Return the summary of a report, and the summary that is read from its JSON."""
    summary = summarize(report)
    text = format_json(to_values(summary))
    return summary, msgspec_json.decode(text, type=RunSummary)


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_json_of_a_fixture_is_read_as_its_summary(name: str) -> None:
    summary, decoded = read_again(bubbleviz.analyze(str(FIXTURES / name), what_if=True))

    assert decoded == summary
    assert format_json(to_values(decoded)) == format_json(to_values(summary))


def test_json_of_a_run_with_advice_is_read_as_its_summary(tmp_path: Path) -> None:
    table = simulate_job(Job(rank={6: 1.5}, iteration={2: 1.5})).written(
        tmp_path / "operations.csv"
    )
    summary, decoded = read_again(bubbleviz.analyze(str(table)))

    assert summary.advice
    assert summary.slowdown is not None
    assert decoded == summary


@pytest.mark.parametrize("model", SCHEMA_FILES, ids=lambda model: model.__name__)
def test_json_schema_of_the_package_matches_the_model(model: type[Struct]) -> None:
    """To update the schema, run ``python -m scripts.json_schema``."""
    assert SCHEMA_FILES[model].read_text(encoding="utf-8") == schema_text(model)


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zb-v"])
def test_json_fits_the_json_schema(name: str) -> None:
    report = bubbleviz.analyze(str(FIXTURES / name), what_if=True)
    check_schema(RunSummary, json.loads(format_json(to_values(summarize(report)))))


def check_schema(model: type[Struct], document: dict[str, Any], array: str = "ranks") -> None:
    """Check that a document fits the JSON Schema of its model.

    Args:
        model: Model of the document.
        document: Values of the document.
        array: Key of an array. The schema must refuse a number in place of the array.
    """
    schema = json.loads(SCHEMA_FILES[model].read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)

    assert list(Draft202012Validator(schema).iter_errors(document)) == []
    wrong = {**document, array: 4}
    (error,) = Draft202012Validator(schema).iter_errors(wrong)
    assert list(error.absolute_path) == [array]


def test_json_on_idle_time_is_read_as_its_summary_and_fits_the_json_schema() -> None:
    report = bubbleviz.idle(str(FIXTURES / "1f1b"))
    summary = summarize_idle(report, top=12)
    text = as_json(report, top=12)

    decoded = msgspec_json.decode(text, type=IdleSummary)

    assert summary.ranks[0].longest_gaps
    assert decoded == summary
    assert format_json(to_values(decoded)) == text
    check_schema(IdleSummary, json.loads(text))


@pytest.mark.parametrize(
    "path",
    [
        ("slowdown", "by_rank", "number"),
        ("slowdown", "by_link", "target"),
        ("iterations", 0, "ranks", "rank"),
        ("iterations", 0, "ranks", "busy_ns", "F"),
        ("iterations", 0, "ranks", "windows", "schedule", "start_ns"),
    ],
    ids=lambda path: ".".join(map(str, path)),
)
def test_columns_of_different_lengths_are_refused(
    path: tuple[str | int, ...], tmp_path: Path
) -> None:
    summary = summarize(bubbleviz.analyze(str(FIXTURES / "1f1b")))
    document = json.loads(format_json(to_values(summary)))
    *parents, last = path
    table = document
    for key in parents:
        table = table[key]
    table[last] = [1] * (len(table[last]) + 1)
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document), encoding="utf-8")

    with pytest.raises(bubbleviz.BubblevizError, match="columns of one table have different"):
        bubbleviz.load(changed)


def test_json_on_communication_fits_the_json_schema_of_its_model() -> None:
    text = nccl_outputs.as_json(measure_communication(FIXTURES / "1f1b"))

    decoded = msgspec_json.decode(text, type=NcclSummary)

    assert decoded.totals
    assert format_json(to_values(decoded)) == text
    check_schema(NcclSummary, json.loads(text), "files")
