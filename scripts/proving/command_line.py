"""Runs bubbleviz in the same way as a user."""

from __future__ import annotations

import subprocess
import sys


def run_bubbleviz(*arguments: object) -> None:
    """Run a command of bubbleviz.

    Raises:
        CalledProcessError: The command failed.
    """
    command = [sys.executable, "-m", "bubbleviz", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
