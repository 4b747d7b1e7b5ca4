"""At common terminal widths, each command prints one screen without long lines or broken words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bubbleviz.render.text.first_screen import MAX_LINES
from bubbleviz.render.wrapping import measure_cells
from tests.support.command_line import CommandLine
from tests.support.idle_runs import plant_idle
from tests.support.nccl_runs import write_ring
from tests.support.places import CHECKOUT

pytestmark = pytest.mark.thorough

TIMES = ("--tf", "1", "--tb", "1", "--tw", "1")
COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "analyze": lambda _: ["analyze", "fixtures/zb-v"],
    "inspect": lambda _: ["inspect", "fixtures/1f1b"],
    "simulate": lambda _: ["simulate", "--schedule", "zb-h1", "-p", "64", "-m", "256", *TIMES],
    "idle": lambda folder: ["idle", str(plant_idle(folder))],
    "nccl": lambda folder: ["nccl", *write_ring(folder)],
}
NOTE = "no room for in columns; COLUMNS= shows it them left"


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_output_of_a_command_fits_the_terminal(
    command: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.chdir(CHECKOUT)
    arguments = COMMANDS[command](tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli.printed(*arguments).splitlines()
    monkeypatch.setenv("COLUMNS", "1000")
    wide_words = set(f"{cli.printed(*arguments)} {NOTE}".split())

    # A path may be longer than a line.
    lines_without_path = [line for line in lines if command != "nccl" or str(tmp_path) not in line]
    assert max(map(measure_cells, lines_without_path)) <= width
    assert width < 80 or len(lines) <= MAX_LINES
    if command != "nccl":
        words = {word for line in lines for word in line.split() if word.strip(";:,.").islower()}
        complete_words = {word for word in words if "…" not in word}
        assert {
            word
            for word in complete_words
            if word not in wide_words and word[:-1] not in wide_words
        } == set()


def test_text_without_room_next_to_its_lead_continues_below(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    printed = cli.printed(*COMMANDS["simulate"](Path()))

    assert max(map(measure_cells, printed.splitlines())) <= 40
    assert "  cost 831.000 ms the longest stage\n      window\n" in printed


@pytest.mark.parametrize("runs", [2, 20])
@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_output_of_compare_fits_the_terminal(
    width: int, runs: int, saved: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))

    lines = cli.printed("compare", *[str(saved)] * runs).splitlines()

    assert max(map(measure_cells, lines)) <= width
    assert len(lines) <= MAX_LINES or width < 80
    assert "More: -v" in lines[-1]
