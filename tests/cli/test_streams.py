"""Missing, closed or full standard streams lead to an exit code and a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import run_program
from tests.support.places import CHECKOUT, FIXTURES

EXAMPLE = str(FIXTURES / "1f1b")
COMMANDS = [
    ["schedules"],
    ["conventions"],
    ["--help"],
    ["--version"],
    ["analyze", EXAMPLE],
    ["analyze", EXAMPLE, "--json", "-"],
    ["inspect", EXAMPLE],
    ["idle", EXAMPLE],
    ["guide", "ratios"],
]


def run(arguments: list[str], redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose streams a shell redirects."""
    command = f'exec "$0" -m bubbleviz "$@" {redirection}'
    return run_program(["sh", "-c", command, sys.executable, *arguments])


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_closed_output_is_reported_in_a_sentence(arguments: list[str]) -> None:
    done = run(arguments, ">&-")

    assert done.returncode == 1
    assert done.stderr == (
        "bubbleviz: standard output is closed; redirect it to a file or to /dev/null\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", COMMANDS[:5], ids=" ".join)
def test_full_output_is_reported_in_a_sentence(arguments: list[str]) -> None:
    done = run(arguments, ">/dev/full")

    assert done.returncode == 1
    assert done.stderr == (
        "bubbleviz: stopped (No space left on device); fix the problem and run the command again\n"
    )


def test_files_are_written_although_output_is_closed(tmp_path: Path) -> None:
    report = tmp_path / "report.json"

    done = run(["analyze", EXAMPLE, "--json", str(report)], ">&-")

    assert done.returncode == 1
    assert report.read_text().startswith("{")


@pytest.mark.parametrize("redirection", ["2>&-", "<&- 2>&-", "2>/dev/full"])
def test_the_exit_code_needs_no_standard_error(redirection: str) -> None:
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")

    assert run(["nosuch"], redirection).returncode == 2
    assert run(["analyze", "nosuch.sqlite"], redirection).returncode == 1
    assert run(["schedules"], redirection).returncode == 0


def without_reader(arguments: list[str]) -> tuple[int, bytes]:
    """Run a command into a pipe whose reader has exited; return its exit code and stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bubbleviz", *arguments],
            cwd=CHECKOUT,
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_reader_that_stops_early_is_no_error(arguments: list[str]) -> None:
    assert without_reader(arguments) == (0, b"")
