"""What only a terminal shows: progress while profiles are read, and verdicts in colour."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from bubbleviz.cli.app import main
from bubbleviz.cli.terminal import ReadingBars, reading_columns
from tests.support.command_line import on_terminal
from tests.support.places import FIXTURES


def lines_of(bars: Progress) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=100).print(bars.get_renderable())
    return out.getvalue().splitlines()


def progress(clock: list[float]) -> Progress:
    quiet = Console(file=io.StringIO(), width=100)
    return Progress(
        *reading_columns(), console=quiet, get_time=lambda: clock[0], auto_refresh=False
    )


def test_the_bar_never_stands_full_while_the_rest_goes_on() -> None:
    clock = [0.0]
    bars = progress(clock)
    watched = ReadingBars(bars)
    watched.files({"a.sqlite": 4_000_000, "b.sqlite": 6_000_000})
    for seconds, file, share in ((1, "a.sqlite", 0.5), (2, "a.sqlite", 1.0), (3, "b.sqlite", 0.5)):
        clock[0] = float(seconds)
        watched.read(file, share)

    reading = lines_of(bars)[0]
    assert "2 profiles" in reading
    assert "70 % of 10 MB read, about" in reading
    assert "s left" in reading

    watched.read("b.sqlite", 1.0)
    (done,) = lines_of(bars)
    assert "linking, aligning, counting" in done
    assert "%" not in done
    assert "left" not in done


def test_failed_is_red(tmp_path: Path) -> None:
    report = str(tmp_path / "report.json")
    assert main(["analyze", str(FIXTURES / "1f1b"), "--json", report]) == 0

    failed = on_terminal("gate", report, "--max-bubble", "schedule=12%")
    passed = on_terminal("gate", report, "--max-bubble", "schedule=30%")

    assert "\x1b[1;31mFAILED\x1b[0m: schedule 27.27 % is above 12%" in failed
    assert "\x1b[32mok\x1b[0m: schedule" in passed
    assert "\x1b[" not in on_terminal("gate", report, "--max-bubble", "schedule=30%", NO_COLOR="1")


@pytest.mark.parametrize("words", [["-h"], ["gate", "-h"]])
def test_help_on_a_terminal_is_in_panels(words: list[str]) -> None:
    shown = on_terminal(*words)

    assert "╭" in shown
    assert "Usage: " in shown
