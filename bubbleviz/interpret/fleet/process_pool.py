"""Crew: processes beside this one that do what they are handed, and leave nothing behind.

On the way out, by Ctrl-C too, all of them are killed at once; and they end by themselves when this
process has gone. One that dies breaks the crew, which says so: what was in hand is done elsewhere.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Generic, TypeVar

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


class Handed(Generic[Result]):
    """A task that was handed out."""

    def __init__(self, future: Future[None], file: Path) -> None:
        self.future = future
        self._file = file

    def result(self) -> Result:
        """Wait for the result and return it; what the work raised is raised.

        Raises:
            Broken: a process of the crew has died.
        """
        self.future.result()
        with self._file.open("rb") as file:
            result, error = pickle.load(file)
        self._file.unlink()
        if error is not None:
            raise error
        done: Result = result
        return done


class Crew:
    """Some processes; :func:`crew` makes one.

    Tasks and results travel in files. Through the pipes of the pool goes what is written at once or
    not at all: a process that dies amidst a longer message would leave its reader waiting forever.
    """

    def __init__(self, pool: ProcessPoolExecutor, folder: Path) -> None:
        self._pool, self._folder = pool, folder
        self._count = 0

    def hand(self, work: Callable[[Task], Result], task: Task) -> Handed[Result]:
        """Hand out a task.

        Raises:
            Broken: a process of the crew has died.
            OSError: no process can be started.
        """
        self._count += 1
        file = self._folder / str(self._count)
        file.write_bytes(pickle.dumps((work, task)))
        with _undisturbed():
            return Handed(self._pool.submit(_do, str(file)), file)


def _do(name: str) -> None:
    """Do the task in a file, and put in its place the result and what was raised."""
    file = Path(name)
    work, task = pickle.loads(file.read_bytes())
    result, error = None, None
    try:
        result = work(task)
    except Exception as raised:  # whatever it is, who handed out the task is to have it
        error = raised
    with file.open("wb") as place:
        pickle.dump((result, error), place, pickle.HIGHEST_PROTOCOL)


@contextmanager
def crew(count: int, begin: Callable[..., None], *given: object) -> Iterator[Crew]:
    """Yield a crew of ``count`` processes, each of which calls ``begin(*given)`` first.

    They are forked where that is safe, as it is quick; a program that runs threads, which may hold
    locks, has them started afresh.
    """
    afresh = not _single_threaded()
    if afresh:
        # It lets signals through again once it runs, and must not do so in between.
        ensure_running()
    with TemporaryDirectory(prefix="bubbleviz-", ignore_cleanup_errors=True) as folder:
        pool = ProcessPoolExecutor(
            count,
            multiprocessing.get_context("spawn" if afresh else "fork"),
            initializer=_begin,
            initargs=(folder, begin, given),
        )
        try:
            yield Crew(pool, Path(folder))
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


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back while processes are started: they inherit that until they can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(folder: str, begin: Callable[..., None], given: tuple[object, ...]) -> None:
    # Ctrl-C reaches every process of a terminal; the one that has the crew ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
    begin(*given)


def _end_with(parent: BaseProcess, folder: str) -> None:
    parent.join()
    rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(_GRACE_S)
    os._exit(1)
