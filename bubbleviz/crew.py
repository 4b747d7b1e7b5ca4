"""Crew: processes beside this one that do what they are handed, and leave nothing behind.

On the way out, by Ctrl-C too, all of them are killed at once; and they end by themselves when this
process has gone. One that dies breaks the crew, which says so: what was in hand is done elsewhere.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: How long a process that is ended may take to tidy up, seconds.
_GRACE_S = 0.5
#: What a future raises, or handing out does, where a process of the crew has died.
Broken = BrokenProcessPool


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Crew:
    """Some processes; :func:`crew` makes one."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def hand(self, work: Callable[[Task], Result], task: Task) -> Future[Result]:
        """Hand out a task.

        Raises:
            Broken: a process of the crew has died.
            OSError: no process can be started.
        """
        return self._pool.submit(work, task)


@contextmanager
def crew(count: int, begin: Callable[..., None], *given: object) -> Iterator[Crew]:
    """Yield a crew of ``count`` processes, each of which calls ``begin(*given)`` first.

    They are forked where that is safe, as it is quick; a program that runs threads, which may hold
    locks, has them started afresh.
    """
    pool = ProcessPoolExecutor(
        count,
        multiprocessing.get_context("fork" if _single_threaded() else "spawn"),
        initializer=_begin,
        initargs=(begin, given),
    )
    try:
        yield Crew(pool)
    finally:
        _end(list((pool._processes or {}).values()))
        pool.shutdown(wait=True)


def _end(processes: Sequence[BaseProcess]) -> None:
    """End processes at once, whatever they have in hand.

    One that has an export made, in a folder that is to be removed, gets a moment to do so.
    """
    for process in processes:
        process.terminate()
    patience = monotonic() + _GRACE_S
    for process in processes:
        process.join(max(patience - monotonic(), 0.0))
        process.kill()


def _single_threaded() -> bool:
    """Tell whether this process runs one thread for certain, libraries' own included."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:
        return False


def _begin(begin: Callable[..., None], given: tuple[object, ...]) -> None:
    # Ctrl-C reaches every process of a terminal; the one that has the crew ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    begin(*given)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(_GRACE_S)
    os._exit(1)
