"""Reports that were not exported: through the user's nsys, or one sentence."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from bubbleviz.cli import main

FIXTURE = Path(__file__).parents[1] / "fixtures" / "1f1b" / "node0.sqlite"


def put_nsys(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program called nsys on the PATH, alone."""
    folder.mkdir()
    nsys = folder / "nsys"
    nsys.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "node0.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"not what SQLite writes")
    return path


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


COPIES = f'shift 4; test "$(dirname "$1")" != . && cp {FIXTURE} "$1"'


def test_without_nsys_the_command_is_told(
    report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", os.devnull)

    assert main(["analyze", str(report)]) == 1
    said = capsys.readouterr().err
    assert f"nsys export --type sqlite --output node0.sqlite {report}" in said
    assert said.count("\n") == 1


def test_the_user_s_nsys_exports_and_nothing_stays(
    report: Path,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_nsys(tmp_path / "bin", monkeypatch, COPIES)

    assert main(["analyze", str(report.parent), "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["profiles"][0]["path"] == str(report)
    assert list(temporary.iterdir()) == []
    assert [p.name for p in report.parent.iterdir()] == [report.name]


def test_an_export_is_kept_on_request_and_never_replaced(
    report: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_nsys(tmp_path / "bin", monkeypatch, COPIES)

    assert main(["analyze", str(report), "--keep-export"]) == 0
    kept = report.with_suffix(".sqlite")
    assert kept.read_bytes() == FIXTURE.read_bytes()
    assert main(["analyze", str(report), "--keep-export"]) == 1
    assert "exists already" in capsys.readouterr().err
    # In a directory, a report that was exported counts once.
    assert main(["analyze", str(report.parent)]) == 0


@pytest.mark.parametrize(("script", "said"), [("exit 3", "exit code 3"), ("exit 0", "exit code 0")])
def test_an_export_that_fails_is_told(
    script: str,
    said: str,
    report: Path,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_nsys(tmp_path / "bin", monkeypatch, script)

    assert main(["inspect", str(report)]) == 1
    assert said in capsys.readouterr().err
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("command", ["analyze", "inspect"])
def test_what_is_wrong_with_an_export_names_the_report(
    command: str,
    report: Path,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_nsys(tmp_path / "bin", monkeypatch, 'shift 4; echo nothing > "$1"')

    assert main([command, str(report)]) == 1
    said = capsys.readouterr().err
    assert str(report) in said
    assert str(temporary) not in said


def test_a_report_is_left_as_it_was(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nsys(tmp_path / "bin", monkeypatch, COPIES)
    before = shutil.copy(report, tmp_path / "before")

    assert main(["analyze", str(report)]) == 0
    assert report.read_bytes() == Path(before).read_bytes()
