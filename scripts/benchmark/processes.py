"""Run a command as a user would, and tell what it cost: time, processor time, memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from scripts.benchmark.failures import BenchmarkError

ROOT = Path(__file__).parents[2]
#: Where measured commands run: here no checkout stands before the bubbleviz that is installed.
_AWAY = Path(sys.prefix)
#: How often memory is looked at, in seconds.
SAMPLE_S = 0.02
_PROC = Path("/proc")
#: Keeps Python from writing what it compiles.
_UNCOMPILED = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True)
class Cost:
    """What one run of a command cost.

    Attributes:
        wall_s: from before it is started until it has ended.
        cpu_s: user and system time of it and of the children it waited for.
        peak_bytes: most memory at once; see :func:`memory_note`.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int


def memory_note() -> str:
    """Return what the peak of a run means on this machine."""
    if _samples():
        return (
            f"peak: sum of Pss over the process and all its descendants, every "
            f"{1000 * SAMPLE_S:.0f} ms, or the main process's ru_maxrss where that is more; "
            "measured in a run of its own, which is not timed"
        )
    return "peak: ru_maxrss of the main process alone (no /proc here)"


def timed(
    command: Sequence[str], limit_s: float | None = None, variables: Mapping[str, str] | None = None
) -> Cost | None:
    """Run a command and return its cost, its memory by ``ru_maxrss``; None past the limit.

    Args:
        command: program and arguments; files are named from the root, for it runs anywhere.
        limit_s: after so many seconds it is ended, with all processes of its group.
        variables: of the environment, beside those of this process.

    Raises:
        BenchmarkError: it fails, or cannot be started.
    """
    return _run(command, limit_s, variables, sampled=False)


def whole(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end and return its cost; see :func:`timed`.

    Raises:
        BenchmarkError: it fails, is ended, or cannot be started.
    """
    return _ended(command, timed(command, None, variables))


def sampled(command: Sequence[str], variables: Mapping[str, str] | None = None) -> Cost:
    """Run a command and return its cost, its memory that of all its processes.

    Raises:
        BenchmarkError: it fails, is ended, or cannot be started.
    """
    return _ended(command, _run(command, None, variables, sampled=True))


def output_of(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints to standard output, and to standard error.

    Raises:
        BenchmarkError: it fails, or cannot be started.
    """
    try:
        run = subprocess.run(
            command, cwd=_AWAY, env=_environment(variables), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        raise BenchmarkError(f"cannot start {command[0]}: {error.strerror}") from error
    if run.returncode:
        _fail(command, run.returncode, run.stderr)
    return run.stdout + run.stderr


def _ended(command: Sequence[str], cost: Cost | None) -> Cost:
    if cost is None:
        raise BenchmarkError(f"{command[0]} was ended")
    return cost


def _environment(variables: Mapping[str, str] | None) -> Mapping[str, str]:
    # Without what the run before compiled, each start would compile all modules again.
    given = {name: value for name, value in os.environ.items() if name != _UNCOMPILED}
    return {**given, **(variables or {})}


def _samples() -> bool:
    """Return whether this machine tells the memory of running processes."""
    return (_PROC / "self" / "smaps_rollup").exists()


def _run(
    command: Sequence[str],
    limit_s: float | None,
    variables: Mapping[str, str] | None,
    *,
    sampled: bool,
) -> Cost | None:
    with tempfile.TemporaryFile() as errors:
        start = perf_counter()
        try:
            process = subprocess.Popen(
                command, cwd=_AWAY, env=_environment(variables), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise BenchmarkError(f"cannot start {command[0]}: {error.strerror}") from error
        watch = _Watch(process.pid) if sampled and _samples() else None
        status, usage, ended = _wait(process.pid, limit_s)
        wall_s = perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen waits no more
        peak = max(_own_peak_bytes(usage), watch.stop() if watch else 0)
        if ended:
            return None
        if process.returncode:
            errors.seek(0)
            _fail(command, process.returncode, errors.read().decode(errors="replace"))
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, peak)


def _wait(pid: int, limit_s: float | None) -> tuple[int, resource.struct_rusage, bool]:
    """Wait for a process; return its status, what it used, and whether it met its limit."""
    ended = threading.Event()
    timer = threading.Timer(limit_s or 0, _end, (pid, ended))
    if limit_s is not None:
        timer.start()
    try:
        _, status, usage = os.wait4(pid, 0)
    except BaseException:  # somebody interrupts the benchmark
        _end(pid, ended)
        raise
    finally:
        timer.cancel()
    return status, usage, ended.is_set()


def _end(group: int, ended: threading.Event) -> None:
    """End all processes of a group that this module started."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
        ended.set()


def _fail(command: Sequence[str], status: int, errors: str) -> None:
    lines = errors.strip().splitlines() or ["it says nothing"]
    name = Path(command[0]).name
    raise BenchmarkError(f"{name} failed with status {status}: {lines[-1]}")


def _own_peak_bytes(usage: resource.struct_rusage) -> int:
    """Return ``ru_maxrss``, or 0 where it may be what the process inherited from this one.

    A process starts as a copy of its parent, and Linux keeps what that had used by then.
    """
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if _samples() and usage.ru_maxrss <= inherited:
        return 0
    # macOS gives bytes, others kilobytes.
    return usage.ru_maxrss if sys.platform == "darwin" else 1024 * usage.ru_maxrss


class _Watch:
    """Looks at the memory of a process and its descendants until it is stopped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self) -> None:
        while not self.done.wait(SAMPLE_S):
            self.peak = max(self.peak, sum(_pss_bytes(pid) for pid in _tree(self.pid)))

    def stop(self) -> int:
        """Return the most bytes seen."""
        self.done.set()
        self.thread.join()
        return self.peak


def _tree(pid: int) -> list[int]:
    """Return a process and its descendants, so far as they still run."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*/stat"):
        fields = _text(entry).rpartition(")")[2].split()  # behind the name, which may hold spaces
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def _pss_bytes(pid: int) -> int:
    """Return the proportional share of memory: pages that n processes share count 1/n in each."""
    for line in _text(_PROC / str(pid) / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended meanwhile
        return ""
