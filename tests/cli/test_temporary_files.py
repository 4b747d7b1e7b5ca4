"""No temporary file remains after a signal."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.command_line import run_program
from tests.support.places import FIXTURES

#: Program that runs the command line, and gets a signal just before it renames a complete file.
PROGRAM = """
import os, sys
from bubbleviz.render import files as outputs
from bubbleviz.cli.app import main

def interrupt(*_, **__):
    os.kill(os.getpid(), {number})

outputs._rename_to_output = interrupt
sys.exit(main(sys.argv[1:]))
"""


def run_with_signal(number: signal.Signals, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that is killed by a signal while it writes into the folder."""
    program, report = PROGRAM.format(number=int(number)), str(folder / "report.json")
    return run_program(["-c", program, "analyze", str(FIXTURES / "1f1b"), "--json", report])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_file(number: signal.Signals, tmp_path: Path) -> None:
    done = run_with_signal(number, tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert done.stderr == (
        "bubbleviz: interrupted, so the results are incomplete; run the command again\n"
    )
    assert done.returncode == 128 + number
