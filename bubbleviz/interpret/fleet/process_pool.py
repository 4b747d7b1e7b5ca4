"""Process pool: worker processes beside this one that end when it ends, at once.

On the way out, by Ctrl-C too, all of them are killed; and they end by themselves when this process
has gone. ``ProcessPoolExecutor`` would wait for what its workers are doing, and offers
``kill_workers`` from Python 3.14 only.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import struct
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from shutil import rmtree
from time import monotonic, sleep
from typing import Any, TypeVar, cast

from bubbleviz.errors import ProfileError
from bubbleviz.progress import Progress

Task = TypeVar("Task")
Result = TypeVar("Result")

#: How long a process that is ended may take to tidy up, seconds.
_GRACE_S = 0.5
#: Signals that end a process; they are held back while workers are started.
_ENDING = {getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)}
#: How many processes may die over one file.
_DEATHS = 3
#: What a process reports of a file: its number, and how much of it has been read.
_SHARE = struct.Struct("<qd")
#: How often the progress of the processes is looked at, seconds.
_LOOK_S = 0.1
#: Where a worker reports how much of a file it has read.
_progress_senders: list[Connection] = []


class WorkerPool:
    """Some worker processes; :func:`worker_pool` starts them.

    Tasks and results travel in files. The workers share the pipes of the pool: one that dies in
    the middle of a longer message would leave its reader waiting forever.
    """

    def __init__(self, executor: ProcessPoolExecutor, folder: Path) -> None:
        self._executor, self._folder = executor, folder
        self._count = 0
        self._files: dict[Future[None], Path] = {}

    def submit(self, work: Callable[[Task], Any], task: Task) -> Future[None]:
        """Have a worker do a task.

        Raises:
            BrokenProcessPool: a worker has died.
            OSError: no process can be started.
        """
        self._count += 1
        file = self._folder / str(self._count)
        file.write_bytes(pickle.dumps((work, task)))
        with _signals_held():
            future = self._executor.submit(_do, file)
        self._files[future] = file
        return future

    def result(self, future: Future[None]) -> Any:
        """Wait for the result of a task and return it; what the work raised is raised.

        Raises:
            BrokenProcessPool: a worker has died.
        """
        future.result()
        file = self._files.pop(future)
        with file.open("rb") as content:
            result = pickle.load(content)
        file.unlink()
        return result


def _do(file: Path) -> None:
    """Do the task in a file, and replace it by its result."""
    work, task = pickle.loads(file.read_bytes())
    result = work(task)
    with file.open("wb") as place:
        pickle.dump(result, place, pickle.HIGHEST_PROTOCOL)


class _Context:
    """A context of ``multiprocessing`` that keeps the processes that it makes."""

    def __init__(self, method: str) -> None:
        self._context = multiprocessing.get_context(method)
        self.processes: list[BaseProcess] = []

    def Process(self, *args: Any, **options: Any) -> BaseProcess:  # noqa: N802  # a context's name
        process: BaseProcess = self._context.Process(*args, **options)  # type: ignore[attr-defined]  # every context has it
        self.processes.append(process)
        return process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@contextmanager
def worker_pool(count: int, begin: Callable[..., None], *arguments: object) -> Iterator[WorkerPool]:
    """Yield a pool of ``count`` workers, each of which calls ``begin(*arguments)`` first.

    They are forked where that is safe, as it is quick; a program that runs threads, which may hold
    locks, has them started afresh.
    """
    afresh = not _single_threaded()
    if afresh:
        # It lets signals through again once it runs, and must not do so in between.
        ensure_running()
    context = _Context("spawn" if afresh else "fork")
    with tempfile.TemporaryDirectory(prefix="bubbleviz-", ignore_cleanup_errors=True) as folder:
        executor = ProcessPoolExecutor(
            count,
            cast(BaseContext, context),
            initializer=_begin,
            initargs=(folder, begin, arguments),
        )
        try:
            yield WorkerPool(executor, Path(folder))
        finally:
            _end([process for process in context.processes if process.pid is not None])
            executor.shutdown(wait=True)


def _end(processes: Sequence[BaseProcess]) -> None:
    """End processes at once, whatever they are doing.

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
def _signals_held() -> Iterator[None]:
    """Hold signals back while workers are started, which inherit that until they are ready.

    A signal in between would leave a worker that nobody knows of.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(folder: str, begin: Callable[..., None], arguments: tuple[object, ...]) -> None:
    try:
        # Ctrl-C reaches every process of a terminal; the one that has the pool ends it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
        begin(*arguments)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    except SystemExit:
        # The pool would log a traceback of a worker that is ended this early.
        os._exit(1)


def _end_with(parent: BaseProcess, folder: str) -> None:
    parent.join()
    rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(_GRACE_S)
    os._exit(1)


def in_processes(
    work: Callable[..., Result],
    paths: Sequence[str],
    order: Sequence[int],
    jobs: int,
    progress: Progress,
) -> Iterator[tuple[int, Result | ProfileError]]:
    """Yield (number, result) of some work on files, done by several processes.

    Files that were in hand when a process died are done again, each by one process alone, so that
    it shows which of them it dies of.

    Args:
        work: on a path; ``watch`` takes how much of it has been read.
        paths: of the files.
        order: numbers of the files, in the order in which they are begun.
        jobs: how many processes are at work at once.
        progress: takes how much of each file has been read.
    """
    deaths: Counter[int] = Counter()
    waiting = list(order)
    while waiting:
        others = [number for number in waiting if not deaths[number]]
        batch = others or waiting[:1]
        waiting = [number for number in waiting if number not in batch]
        yield from _in_pool(work, paths, batch, min(jobs, len(batch)), progress, deaths)
        # What the batch still holds was not done, as a process died.
        for number in batch:
            if deaths[number] < _DEATHS:
                waiting.append(number)
            else:
                reason = (
                    f"{paths[number]}: {_DEATHS} processes died while they read it; if there was "
                    "too little memory, give a smaller --jobs"
                )
                yield number, ProfileError(reason)


def _in_pool(
    work: Callable[..., Result],
    paths: Sequence[str],
    batch: list[int],
    jobs: int,
    progress: Progress,
    deaths: Counter[int],
) -> Iterator[tuple[int, Result]]:
    """Yield what gets done until a process dies, and take it from the batch."""
    in_hand: dict[Future[None], int] = {}
    try:
        receiver, sender = Pipe(duplex=False)
        with receiver, sender, worker_pool(jobs, _report_to, sender) as pool:
            waiting = deque(batch)
            while batch:
                while waiting and len(in_hand) < jobs:
                    number = waiting.popleft()
                    future = pool.submit(_watched, (work, number, paths[number]))
                    in_hand[future] = number
                finished = wait(in_hand, _LOOK_S, FIRST_COMPLETED).done
                while receiver.poll():
                    number, share = _SHARE.unpack(receiver.recv_bytes())
                    progress.read(paths[number], share)
                for future in finished:
                    result = pool.result(future)
                    number = in_hand.pop(future)
                    batch.remove(number)
                    progress.read(paths[number], 1.0)
                    yield number, result
    except BrokenProcessPool:
        deaths.update(in_hand.values())
    except OSError:
        # No process can be started.
        while batch:
            number = batch.pop(0)
            yield number, work(paths[number], watch=partial(progress.read, paths[number]))
            progress.read(paths[number], 1.0)


def _report_to(sender: Connection) -> None:
    _progress_senders.append(sender)


def _watched(task: tuple[Callable[..., Result], int, str]) -> Result:
    """Do some work on a file, and report how much of it has been read."""
    work, number, path = task

    def watch(share: float) -> None:
        # So short a message is written at once or not at all, whoever else writes.
        _progress_senders[-1].send_bytes(_SHARE.pack(number, share))

    return work(path, watch=watch)
