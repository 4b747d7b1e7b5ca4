"""Ctrl-C during the import of any module ends a command with one line and exit code 130."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import run_program
from tests.support.places import FIXTURES

#: Program that runs a command like the console script does.
#: It interrupts the command when the command looks for a module.
PROGRAM = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
from bubbleviz.__main__ import main
sys.exit(main())
"""


def run_interrupted(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command, and interrupt it when it first looks for a module."""
    return run_program(["-c", PROGRAM.format(module=module), *arguments])


@pytest.mark.parametrize(
    "module",
    [
        "resource",
        "bubbleviz.signals",
        "bubbleviz.cli.app",
        "bubbleviz.cli.terminal",
        "typer",
        "bubbleviz.cli.private_names",
        "bubbleviz.cli.commands.analyze",
        "numpy",
        "numpy._core._multiarray_umath",
        "numpy.linalg",
        "bubbleviz.api.analysis",
        "bubbleviz.render.text.report",
    ],
)
def test_an_interrupt_while_a_module_loads_is_one_line(module: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"

    done = run_interrupted(module, "analyze", str(FIXTURES / "1f1b"), "--json", str(report))

    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.startswith("bubbleviz: interrupted")
    assert done.stderr.count("\n") == 1
    # If the output file exists, it is complete.
    assert {path.name for path in tmp_path.iterdir()} <= {report.name}


def test_a_command_that_loads_another_module_is_not_interrupted() -> None:
    done = run_interrupted("bubbleviz.cli.serving", "guide", "ratios")

    assert (done.returncode, done.stderr) == (0, "")


def test_ignored_interrupts_stay_ignored() -> None:
    program = PROGRAM.format(module="typer").replace("default_int_handler", "SIG_IGN")
    done = run_program(["-c", program, "--version"])

    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_else_loads_before_interrupts_are_taken() -> None:
    """The imports of the console script itself run before our code can handle an interrupt."""
    program = (
        "import sys; before = set(sys.modules); import bubbleviz.__main__; "
        "print(*sorted(set(sys.modules) - before))"
    )

    assert run_program(["-c", program]).stdout.split() == [
        "__future__",
        "bubbleviz",
        "bubbleviz.__main__",
        "bubbleviz._version",
        "bubbleviz.errors",
    ]
