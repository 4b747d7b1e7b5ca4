"""Worker processes beside this one, which read files and end when it ends, at once.

On the way out, by Ctrl-C too, all of them are killed; and they end by themselves when this process
has gone. Each has a pipe of its own, so that one that dies says of what, and disturbs no other:
``ProcessPoolExecutor`` would give up what all are doing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar, cast

from bubbleviz.errors import ProfileError
from bubbleviz.progress import Progress

Result = TypeVar("Result")

#: How long a process that is ended may take to tidy up, seconds.
_GRACE_S = 0.5
#: Signals that end a process; they are held back while workers are started.
_ENDING = {getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)}
#: How many processes may die over one file.
_DEATHS = 3


def in_processes(
    work: Callable[..., Result],
    paths: Sequence[str],
    order: Sequence[int],
    jobs: int,
    progress: Progress,
) -> Iterator[tuple[int, Result | ProfileError]]:
    """Yield (number, result) of some work on files, done by several processes.

    What a process was doing when it died is done again, last, by a new one. Where no process can
    be started, all is done here.

    Args:
        work: on a path; ``watch`` takes how much of it has been read.
        paths: of the files.
        order: numbers of the files, in the order in which they are begun.
        jobs: how many processes are at work at once.
        progress: takes how much of each file has been read.
    """
    # Fork is quick; a program that runs threads, which may hold locks, has workers started afresh.
    method = "fork" if _single_threaded() else "spawn"
    waiting, deaths = deque(order), Counter[int]()
    workers: dict[Connection, BaseProcess] = {}
    idle: list[Connection] = []
    in_hand: dict[Connection, int] = {}
    try:
        while waiting or in_hand:
            while waiting and len(in_hand) < jobs:
                try:
                    connection = idle.pop() if idle else _started(method, work, workers)
                except OSError:
                    break
                in_hand[connection] = number = waiting.popleft()
                with suppress(OSError):  # it has died, as its end of the pipe shows below
                    connection.send(paths[number])
            if not in_hand:
                number = waiting.popleft()
                yield number, work(paths[number], watch=partial(progress.read, paths[number]))
                progress.read(paths[number], 1.0)
                continue
            for connection in cast(list[Connection], wait(list(in_hand))):
                number = in_hand[connection]
                try:
                    share, result = connection.recv()
                except (EOFError, OSError):
                    del in_hand[connection]
                    deaths[number] += 1
                    if deaths[number] < _DEATHS:
                        waiting.append(number)
                    else:
                        error = ProfileError(
                            f"{paths[number]}: {_DEATHS} processes died while they read it; if "
                            "there was too little memory, give a smaller --jobs"
                        )
                        yield number, error
                    continue
                if share is None:
                    raise result
                progress.read(paths[number], share)
                if result is not None:
                    del in_hand[connection]
                    idle.append(connection)
                    yield number, result
    finally:
        _end(list(workers.values()))


def _started(
    method: str, work: Callable[..., object], workers: dict[Connection, BaseProcess]
) -> Connection:
    """Start a worker, add it to the others, and return the pipe to it.

    Raises:
        OSError: it cannot be started.
    """
    context = multiprocessing.get_context(method)
    with _signals_held():
        if method == "spawn":
            # It lets signals through again once it runs, and must not do so in between.
            ensure_running()
        here, there = context.Pipe()
        with there:
            process = context.Process(target=_serve, args=(there, work))  # type: ignore[attr-defined]  # every context has it
            process.start()
        workers[here] = process
    return here


def _serve(connection: Connection, work: Callable[..., object]) -> None:
    """Do some work on each path that comes through a pipe; ends with the process that started it.

    Answers are (share of the file that has been read, result or None), or (None, error).
    """
    # Ctrl-C reaches every process of a terminal; the one that started this ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def watch(share: float) -> None:
        connection.send((share, None))

    with suppress(EOFError, OSError):  # who asks has gone
        while True:
            path = connection.recv()
            try:
                answer: tuple[float | None, object] = 1.0, work(path, watch=watch)
            except Exception as error:  # whatever it is, it is raised where it is waited for
                answer = None, error
            connection.send(answer)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(_GRACE_S)
    os._exit(1)


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
        process.join()


def _single_threaded() -> bool:
    """Tell whether this process runs one thread for certain, libraries' own included."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:
        return False


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back while a worker is started, which inherits that until it is ready.

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
