"""Progress bars and colored verdicts, which only terminals show."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from bubbleviz.cli.app import main
from bubbleviz.cli.terminal import ReadingBars, convert_to_rich, show_lines, write_content
from bubbleviz.render.document import Span
from bubbleviz.render.text.terminal import Display
from tests.support.command_line import run_on_terminal
from tests.support.places import FIXTURES


def test_the_bar_is_never_full_before_the_analysis_ends() -> None:
    clock = [0.0]
    bars = Progress(
        console=Console(file=io.StringIO()), get_time=lambda: clock[0], auto_refresh=False
    )
    watched = ReadingBars(bars)
    watched.files({"a.sqlite": 4_000_000, "b.sqlite": 6_000_000})
    for seconds, file, fraction in (
        (1, "a.sqlite", 0.5),
        (2, "a.sqlite", 1.0),
        (3, "b.sqlite", 0.5),
    ):
        clock[0] = float(seconds)
        watched.read(file, fraction)

    assert (bars.tasks[0].description, bars.tasks[0].percentage) == ("2 profiles, 10 MB", 70)

    watched.read("b.sqlite", 1.0)
    assert bars.tasks[0].description == "analyzing"
    assert bars.tasks[0].total is None


def test_the_word_failed_is_red(tmp_path: Path) -> None:
    report = str(tmp_path / "report.json")
    assert main(["analyze", str(FIXTURES / "1f1b"), "--json", report]) == 0

    failed_output = run_on_terminal("gate", report, "--max-bubble", "schedule=12%")
    passed_output = run_on_terminal("gate", report, "--max-bubble", "schedule=30%")

    assert (
        "\x1b[1;31mFAILED\x1b[0m: schedule 27.27 % is above 12 % (mean of 3 iterations)"
        in failed_output
    )
    assert "\x1b[32mok\x1b[0m: schedule" in passed_output
    assert "\x1b[" not in run_on_terminal(
        "gate", report, "--max-bubble", "schedule=30%", NO_COLOR="1"
    )


#: A name with control characters and a line break, and its printed form.
NAME, PRINTED = "a\x1b]0;t\x07\x9b2J\u202eb\nc", "a ]0;t  2J b c"


def test_a_name_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    line = (Span("rank 0 "), Span(NAME, "bold"))
    show_lines([line], Display())
    plain = capsys.readouterr().out

    assert plain == f"rank 0 {PRINTED}\n"
    assert convert_to_rich(line).plain == f"rank 0 {PRINTED}"


def test_a_file_is_piped_as_it_is_and_printed_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_content(f"{NAME}\n")
    piped = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    write_content(f"{NAME}\n")

    assert piped == f"{NAME}\n"
    assert capsys.readouterr().out == "a ]0;t  2J b\nc\n"
