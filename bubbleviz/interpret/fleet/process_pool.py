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
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from shutil import rmtree
from time import monotonic, sleep
from typing import Any, Generic, TypeVar, cast

from bubbleviz.model.files import temporary_folder

Task = TypeVar("Task")
Result = TypeVar("Result")

#: How long a process that is ended may take to tidy up, seconds.
_GRACE_S = 0.5
#: Signals that end a process; they are held back while workers are started.
_ENDING = {getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)}
#: Raised where a worker has died, by ``submit`` and by ``Job.result``.
BrokenPool = BrokenProcessPool


class Job(Generic[Result]):
    """A task submitted to a pool."""

    def __init__(self, future: Future[None], file: Path) -> None:
        self.future = future
        self._file = file

    def result(self) -> Result:
        """Wait for the result and return it; what the work raised is raised.

        Raises:
            BrokenPool: a worker has died.
        """
        self.future.result()
        with self._file.open("rb") as file:
            result: Result = pickle.load(file)
        self._file.unlink()
        return result


class WorkerPool:
    """Some worker processes; :func:`worker_pool` starts them.

    Tasks and results travel in files. The workers share the pipes of the pool: one that dies in
    the middle of a longer message would leave its reader waiting forever.
    """

    def __init__(self, executor: ProcessPoolExecutor, folder: Path) -> None:
        self._executor, self._folder = executor, folder
        self._count = 0

    def submit(self, work: Callable[[Task], Result], task: Task) -> Job[Result]:
        """Have a worker do a task.

        Raises:
            BrokenPool: a worker has died.
            OSError: no process can be started.
        """
        self._count += 1
        file = self._folder / str(self._count)
        file.write_bytes(pickle.dumps((work, task)))
        with _signals_held():
            return Job(self._executor.submit(_do, file), file)


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
    with temporary_folder() as folder:
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
