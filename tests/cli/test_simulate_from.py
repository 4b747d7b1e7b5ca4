"""``simulate --from``: a report gives what is not given, and only what lacks is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from tests.support.places import FIXTURES


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "report.json"
    assert main(["analyze", str(FIXTURES / "1f1b"), "--json", str(file)]) == 0
    return file


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["simulate", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


def test_a_report_alone_gives_schedule_sizes_and_times(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--from", str(report), "--json", "-"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main(["simulate", "--from", str(report), "--schedule", "1f1b", "--json", "-"]) == 0
    assert alone == json.loads(capsys.readouterr().out)


def test_a_report_of_an_unknown_schedule_lacks_its_name_alone(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(report.read_text())
    document["schedule"]["name"] = None
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps(document))

    said = refused(capsys, "--from", str(unknown))

    assert "give --schedule NAME, or --plan FILE; the report names no schedule" in said
    assert main(["simulate", "--from", str(unknown), "--schedule", "gpipe"]) == 0


def test_only_what_lacks_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give --tf, --tb and --tw, or a report with --from" in refused(capsys)
    assert "give --tw, or a report" in refused(capsys, "--tf", "1", "--tb", "1")
    times = ("--tf", "1", "--tb", "1", "--tw", "1")
    assert "give --schedule NAME, -p P and -m M, or --plan FILE" in refused(capsys, *times)
    assert "give -m M, or" in refused(capsys, *times, "--schedule", "1f1b", "-p", "2")


def test_a_mistyped_schedule_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("-p", "2", "-m", "2", "--tf", "1", "--tb", "1", "--tw", "1")

    assert "did you mean zb-h1?" in refused(capsys, *sizes, "--schedule", "zbh1")
    assert "did you mean" not in refused(capsys, *sizes, "--schedule", "q")
