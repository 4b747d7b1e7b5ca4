"""Commands refuse to run if the memory limit is too small for numpy, and run with larger limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.command_line import run_program
from tests.support.places import FIXTURES

pytest.importorskip("resource", reason="no limits of memory here")

EXAMPLE = str(FIXTURES / "1f1b")


def run(limit: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command under a limit that the shell sets."""
    script = f'ulimit {limit}; exec "$0" -m bubbleviz "$@"'
    return run_program(["sh", "-c", script, sys.executable, *arguments])


@pytest.mark.parametrize("limit", ["-v 100000", "-v 200000", "-v 300000", "-v 524287", "-d 100000"])
@pytest.mark.parametrize("command", ["analyze", "idle"])
def test_too_little_memory_is_reported_in_a_sentence(limit: str, command: str) -> None:
    done = run(limit, command, EXAMPLE)

    option, kibibytes = limit.split()
    min_mib = {"-v": 512, "-d": 256}[option]
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"bubbleviz: ulimit {option} allows {int(kibibytes) >> 10} MiB, but bubbleviz needs "
        f"{min_mib} MiB; raise the limit to {min_mib << 10} or more\n"
    )


@pytest.mark.parametrize("limit", ["-v 524288", "-d 262144", "-v unlimited"])
def test_commands_run_with_enough_memory(limit: str) -> None:
    done = run(limit, "analyze", EXAMPLE, "--jobs", "2")

    assert (done.returncode, done.stderr) == (0, "")
    assert "27.27 %" in done.stdout
