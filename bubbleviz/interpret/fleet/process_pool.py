"""A pool of worker processes that read files and end together with this process.

When this process finishes, even by Ctrl-C, it kills all workers. If this process dies, the workers
end by themselves. Each worker has its own pipe. If a worker dies, the pool therefore knows which
file it was reading, and the other workers continue. ``ProcessPoolExecutor`` would abandon all
files.
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

#: Time in seconds that a terminated process has to clean up.
_GRACE_S = 0.5
#: Signals that end a process. They are blocked while workers are started.
_END_SIGNALS = {getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)}
#: A file is given up after this many workers have died while reading it.
_MAX_DEATHS = 3


def run_in_processes(
    function: Callable[..., Result],
    paths: Sequence[str],
    order: Sequence[int],
    jobs: int,
    progress: Progress,
) -> Iterator[tuple[int, Result | ProfileError]]:
    """Call a function for each file in worker processes, and yield (file index, result or error).

    Results are yielded in order of completion. If a worker dies, its file is queued again for
    another worker. If ``_MAX_DEATHS`` workers die while reading the same file, the result for that
    file is an error. If no worker can be started, this process calls the function itself.

    Args:
        function: Function to call with a path. It also gets a keyword argument ``watch``, a
            callback to which it reports the fraction of the file that has been read.
        paths: Paths of the files.
        order: File indices, in the order in which the files are started.
        jobs: Maximum number of workers that run at the same time.
        progress: Object that is notified of the fraction of each file that has been read.

    Raises:
        Exception: Any exception that the function raised.
    """
    # Forking is fast but unsafe in a program with threads, which may hold locks.
    method = "fork" if _is_single_threaded() else "spawn"
    queue, deaths = deque(order), Counter[int]()
    workers: dict[Connection, BaseProcess] = {}
    idle: list[Connection] = []
    file_of_worker: dict[Connection, int] = {}
    try:
        while queue or file_of_worker:
            while queue and len(file_of_worker) < jobs:
                try:
                    connection = idle.pop() if idle else _start_worker(method, function, workers)
                except OSError:
                    break
                file_of_worker[connection] = number = queue.popleft()
                with suppress(OSError):  # if the worker died, recv() below raises
                    connection.send(paths[number])
            if not file_of_worker:
                number = queue.popleft()
                yield number, function(paths[number], watch=partial(progress.read, paths[number]))
                progress.read(paths[number], 1.0)
                continue
            for connection in cast(list[Connection], wait(list(file_of_worker))):
                number = file_of_worker[connection]
                try:
                    fraction, result = connection.recv()
                except (EOFError, OSError):
                    del file_of_worker[connection]
                    deaths[number] += 1
                    if deaths[number] < _MAX_DEATHS:
                        queue.append(number)
                    else:
                        error = ProfileError(
                            f"{paths[number]}: {_MAX_DEATHS} processes died while reading it; if "
                            "memory ran out, pass a smaller --jobs"
                        )
                        yield number, error
                    continue
                if fraction is None:
                    raise result
                progress.read(paths[number], fraction)
                if result is not None:
                    del file_of_worker[connection]
                    idle.append(connection)
                    yield number, result
    finally:
        _stop_processes(list(workers.values()))


def _start_worker(
    method: str, function: Callable[..., object], workers: dict[Connection, BaseProcess]
) -> Connection:
    """Start a worker, register it in ``workers``, and return the pipe to the worker.

    Args:
        method: Start method of ``multiprocessing``.
        function: Function that the worker calls for each path.
        workers: Registered workers, keyed by pipe. The new worker is added.

    Raises:
        OSError: The worker cannot be started.
    """
    context = multiprocessing.get_context(method)
    with _block_signals():
        if method == "spawn":
            # Starting the resource tracker unblocks signals, so it is started first.
            ensure_running()
        connection, worker_end = context.Pipe()
        with worker_end:
            process = context.Process(target=_serve_paths, args=(worker_end, function))  # type: ignore[attr-defined]  # every context has it
            process.start()
        workers[connection] = process
    return connection


def _serve_paths(connection: Connection, function: Callable[..., object]) -> None:
    """Run a worker process: call a function for each received path, until the parent process ends.

    The worker sends three kinds of pairs to the parent: (fraction of the file that has been read,
    None), (1.0, result), or (None, exception).
    """
    # Ctrl-C reaches all processes of a terminal; the parent terminates its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)

    def watch(share: float) -> None:
        connection.send((share, None))

    with suppress(EOFError, OSError):  # the parent has ended
        while True:
            path = connection.recv()
            try:
                answer: tuple[float | None, object] = 1.0, function(path, watch=watch)
            except Exception as error:  # raised again in the parent
                answer = None, error
            connection.send(answer)


def _exit_with_parent(parent: BaseProcess) -> None:
    """Wait until the parent process ends, then end this process."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(_GRACE_S)
    os._exit(1)


def _stop_processes(processes: Sequence[BaseProcess]) -> None:
    """Terminate processes, and kill the processes that have not ended after a grace period.

    The grace period lets a worker remove the temporary folder of an export.
    """
    for process in processes:
        process.terminate()
    deadline = monotonic() + _GRACE_S
    for process in processes:
        process.join(max(deadline - monotonic(), 0.0))
        process.kill()
        process.join()


def _is_single_threaded() -> bool:
    """Return whether this process certainly has a single thread.

    Threads of native libraries are also counted. The result is False if the number is unknown.
    """
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
    except OSError:
        return False


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block signals while a worker is started.

    Otherwise, a signal could leave behind a worker that is not registered yet. The worker inherits
    the signal mask, and unblocks the signals when it is ready.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
