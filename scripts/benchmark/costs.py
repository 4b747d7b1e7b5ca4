"""Wall time, CPU time and memory of commands, and the machine on which they run."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[2]
#: Commands run in this folder so that Python imports the installed bubbleviz. Otherwise, Python
#: would import the checkout.
_FOLDER = Path(sys.prefix)


class BenchmarkError(Exception):
    """Raised if the benchmark cannot continue. The message gives the reason."""


@dataclass(frozen=True)
class Cost:
    """The cost of one run of a command.

    Attributes:
        wall_s: Time from the start of the process to its end.
        cpu_s: User and system time of the process, including child processes that it waited for.
        peak_bytes: Peak resident memory of the process, without its children.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int


def measure_command(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Cost:
    """Run a command and measure it.

    Args:
        command: The program and its arguments.
        variables: Environment variables to set in addition to this process's variables.

    Raises:
        BenchmarkError: The command fails or cannot be started.
    """
    with tempfile.TemporaryFile() as errors:
        start_s = perf_counter()
        try:
            process = subprocess.Popen(
                command,
                cwd=_FOLDER,
                env=_build_environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        except OSError as error:
            raise BenchmarkError(f"cannot start {command[0]}: {error.strerror}") from error
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            _raise_failure(command, process.returncode, errors.read().decode(errors="replace"))
    # macOS reports bytes, and Linux reports kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, unit * usage.ru_maxrss)


def read_output(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output.

    Raises:
        BenchmarkError: The command fails.
    """
    run = subprocess.run(
        command,
        cwd=_FOLDER,
        env=_build_environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        _raise_failure(command, run.returncode, run.stderr)
    return run.stdout


def _build_environment(variables: Mapping[str, str] | None) -> Mapping[str, str]:
    # Without cached bytecode, every process would compile all modules when it starts.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, **(variables or {})}


def _raise_failure(command: Sequence[str], code: int, errors: str) -> None:
    last_line = (errors.strip().splitlines() or ["no message"])[-1]
    raise BenchmarkError(f"{Path(command[0]).name} failed with exit code {code}: {last_line}")


def describe_environment() -> str:
    """Return the date, commit, machine, load and Python version."""
    date = datetime.now(timezone.utc).date().isoformat()
    git = ("git", "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty= with changes")
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return (
        f"{date}, commit {commit.strip() or 'unknown'}, {os.cpu_count()} cores of "
        f"{_read_processor_name()}, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}"
    )


def _read_processor_name() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
