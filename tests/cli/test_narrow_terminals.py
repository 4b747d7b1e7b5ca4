"""Every command at the widths of terminals: one screen, no line too wide, no word broken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bubbleviz.cli.app import main
from bubbleviz.render.text.report import MOST_LINES
from bubbleviz.render.text.terminal import cell_width
from tests.support.idle_runs import planted
from tests.support.nccl_runs import ring
from tests.support.places import CHECKOUT

TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")
COMMANDS = {
    "analyze": ("analyze", "fixtures/zb-v"),
    "inspect": ("inspect", "fixtures/1f1b"),
    "simulate": ("simulate", "--schedule", "zb-h1", "-p", "64", "-m", "256", *TIMES),
}


def printed(
    arguments: Sequence[str],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """Return the lines that a command prints at a width."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(CHECKOUT)
    assert main(list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def check(
    arguments: Sequence[str],
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check a command's first screen against what it prints where there is room."""
    lines = printed(arguments, width, monkeypatch, capsys)
    room = printed(arguments, 1_000, monkeypatch, capsys)
    known = {word for line in room for word in line.split()} | set(NOTE.split())

    assert max(map(cell_width, lines)) <= width
    assert width < 80 or len(lines) <= MOST_LINES
    words = {word for line in lines for word in line.split() if word.strip(";:,.").islower()}
    shortened = {word for word in words if "…" in word}
    assert words - shortened <= known | {f"{word}," for word in known} | {
        f"{word}:" for word in known
    }


NOTE = "no room for in columns; COLUMNS= shows it them left"


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_fits(
    command: str,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(COMMANDS[command], width, monkeypatch, capsys)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_idle_fits(
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(["idle", str(planted(tmp_path))], width, monkeypatch, capsys)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_nccl_fits(
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(["nccl", *ring(tmp_path)], width, monkeypatch, capsys)

    paths = [line for line in lines if str(tmp_path) in line]
    assert max(map(cell_width, {*lines} - {*paths})) <= width
    assert len(lines) <= MOST_LINES or width < 80


@pytest.mark.parametrize("runs", [2, 20])
@pytest.mark.parametrize("width", [60, 80, 160])
def test_compare_fits(
    width: int,
    runs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "report.json"
    assert main(["analyze", str(CHECKOUT / "fixtures/1f1b"), "--json", str(report)]) == 0
    capsys.readouterr()

    lines = printed(["compare", *[str(report)] * runs], width, monkeypatch, capsys)

    assert max(map(cell_width, lines)) <= width
    assert len(lines) <= MOST_LINES or width < 80
    assert ("More: -v" in lines[-1]) == (runs == 20)
