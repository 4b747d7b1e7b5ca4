"""A fleet of Dask workers that read profiles on the machines where the files are.

The extra ``dask`` installs the requirements. No other module imports this one. The scheduler and
all workers need the same version of bubbleviz. If a worker dies or is silent for longer than its
``worker-ttl``, Dask gives its tasks to another worker. This module detects three failures that Dask
does not report: a scheduler that stops responding, files that no remaining worker can read, and
silent workers that delay the run. Silent workers are reported to the logger ``bubbleviz.dask``.
"""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias, TypeVar

from bubbleviz._version import __version__
from bubbleviz.errors import (
    BubblevizError,
    InputError,
    MismatchError,
    ProfileError,
    describe_installation,
)
from bubbleviz.interpret.fleet import run_pickled, run_recordings
from bubbleviz.interpret.fleet.silence import SILENT_S, Patience
from bubbleviz.interpret.record import ReadOptions, rename_path
from bubbleviz.model.files import read_bounded
from bubbleviz.model.texts import list_and_count, make_natural_key
from bubbleviz.progress import Progress
from bubbleviz.sources.paths import InputFile, find_profiles

T = TypeVar("T")
R = TypeVar("R")
#: A task: a function, its argument, and the hosts on which it may run, or None for any host.
Task: TypeAlias = tuple[Callable[[Any], Any], Any, "frozenset[str] | None"]

#: Several small files are read in one task. These are the maximum number of files and of bytes per
#: task, and the minimum number of tasks per worker.
_MAX_FILES, _MAX_BYTES, _MIN_TASKS = 128, 32 << 20, 4
#: Maximum number of unfinished tasks of :meth:`DaskFleet.map`. It limits memory use.
_MAX_PENDING = 4
#: Timeouts in seconds for the scheduler's answers and for closing the connection.
PATIENCE_S, _CLOSE_TIMEOUT_S = 7.0, 1.0
#: Interval between worker checks, in seconds.
POLL_S = 1.0
_VERSION = "bubbleviz._version:__version__"
#: Loggers that print error tracebacks. This module reports these errors in one sentence.
_LOGGERS = ("distributed", "tornado")
#: Maximum size of a scheduler file in bytes. The file contains an address and a description of the
#: workers.
_MAX_SCHEDULER_FILE_BYTES = 64 << 20
#: Default maximum time to wait for silent workers, in seconds. Dask gives up on a worker after one
#: to two times its ``worker-ttl`` of 300 s.
MAX_WAIT_S = 600.0
#: Logger that warns the user about silent workers.
_log = logging.getLogger("bubbleviz.dask")
_ADDRESS_HINT = (
    "pass the address of a running scheduler, such as tcp://HOST:8786, or its scheduler file "
    "(.json)"
)


@contextmanager
def dask_fleet(address: str, max_wait_s: float = MAX_WAIT_S) -> Iterator[DaskFleet]:
    """Connect to a cluster and yield a fleet of its workers.

    Args:
        address: Address of the scheduler, or path of its scheduler file.
        max_wait_s: Maximum time to wait for unresponsive workers, in seconds.

    Raises:
        InputError: There is no scheduler or no worker, Dask is not installed, or a worker was
            silent for too long.
        MismatchError: The scheduler or a worker has a different version of bubbleviz, or none.
    """
    try:
        import dask
        from distributed import Client
        from distributed.utils import LoopRunner, sync
    except ImportError as error:
        raise InputError(
            f"--dask needs Dask, which is not installed; {describe_installation('dask')}"
        ) from error
    scheduler_address = _read_scheduler_address(address) if address.endswith(".json") else address
    # Arguments of several megabytes are fine, because only a few tasks are submitted at once.
    no_size_warning = dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60})

    async def connect() -> Any:
        client: Any = Client(  # type: ignore[no-untyped-call]  # Dask annotates little
            scheduler_address or "tcp://",
            timeout=PATIENCE_S,
            set_as_default=False,
            asynchronous=True,
        )
        try:
            return await client
        except BaseException:
            # Otherwise, the garbage collector closes the client, which deadlocks if another event
            # loop is just starting.
            await client.close(timeout=_CLOSE_TIMEOUT_S)
            raise

    with _quiet_loggers(), no_size_warning:
        # Dask annotates little.
        runner: Any = LoopRunner()
        runner.start()
        try:
            # A client that starts its own loop would wait for a silent scheduler forever.
            client = sync(runner.loop, connect, callback_timeout=PATIENCE_S)
        except Exception as error:  # the exception depends on what answers at the address
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            if isinstance(error, MemoryError):  # its first bytes were read as a message length
                reason = "the server there speaks another protocol"
            raise InputError(
                f"--dask {address}: no scheduler answers there ({reason}); {_ADDRESS_HINT}"
            ) from error
        try:
            fleet = DaskFleet(address, client, max_wait_s)
            fleet.check_versions()
            yield fleet
        finally:
            with suppress(Exception):  # the connection may be lost already
                client.close(timeout=_CLOSE_TIMEOUT_S)
            runner.stop(_CLOSE_TIMEOUT_S)


def _read_scheduler_address(file: str) -> str:
    """Read the scheduler's address from a scheduler file.

    Raises:
        InputError: The file cannot be read or contains no address.
    """
    hint = "pass the file written by dask scheduler --scheduler-file"
    content = read_bounded(file, _MAX_SCHEDULER_FILE_BYTES, "a scheduler file", hint)
    try:
        return str(json.loads(content)["address"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"--dask {file}: not a valid scheduler file ({type(error).__name__}); {hint}"
        ) from error


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence Dask's loggers, because the report or an error already contains all information.

    The levels of the ``distributed`` loggers are not restored afterwards, because these loggers
    still print messages during later garbage collection.
    """
    # Dask sets the levels of child loggers separately.
    names = [
        n for n in (*_LOGGERS, *logging.root.manager.loggerDict) if n.split(".")[0] in _LOGGERS
    ]
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in levels.items():
            if not name.startswith("distributed"):
                logging.getLogger(name).setLevel(level)


def _check_version(subject: str, answer: object) -> None:
    """Check that the scheduler or a worker has the same version of bubbleviz.

    Args:
        subject: Name of the scheduler or worker, for the message.
        answer: Version that the scheduler or worker reported, or the exception that it raised.

    Raises:
        MismatchError: The answer is not the version of this process.
    """
    if answer != __version__:
        reason = " ".join(str(answer).split())[:200]
        is_error = isinstance(answer, BaseException)
        clause = f"cannot load bubbleviz ({reason})" if is_error else f"has bubbleviz {reason}"
        raise MismatchError(
            f"{subject} {clause}, but this process has {__version__}; install the same version "
            "everywhere"
        )


#: A file as a host sees it: the file, its size in bytes, and its modification time in ns. If two
#: hosts see the same size and time at a path, the files are considered the same.
_Sighting: TypeAlias = tuple[InputFile, int, int]


def _find_sightings(paths: Sequence[str]) -> list[list[_Sighting] | str]:
    """Find the profiles at each path on this host.

    Returns:
        For each path, the files with their sizes in bytes and modification times in ns, or the
        error message if the path cannot be read.
    """
    sightings: list[list[_Sighting] | str] = []
    for path in paths:
        try:
            files = find_profiles([path])
            stats = [(file, Path(file.path).stat()) for file in files]
            sightings.append([(file, s.st_size, s.st_mtime_ns) for file, s in stats])
        except (BubblevizError, OSError) as error:
            sightings.append(str(error))
    return sightings


def _record_file(path: str, display_path: str, options: ReadOptions) -> run_recordings.Outcome:
    """Record one file on a worker.

    Args:
        path: Absolute path of the file.
        display_path: Path that the recording and errors show instead of ``path``.
        options: Options for reading the file.
    """
    outcome = run_recordings.record_file(path, options)
    if isinstance(outcome, ProfileError):
        return type(outcome)(str(outcome).replace(path, display_path))
    recordings, steps = outcome
    return rename_path(recordings, path, display_path), steps


def _record_files(
    options: ReadOptions, files: Sequence[tuple[str, str]]
) -> run_recordings.FilesRead:
    """Record several files on a worker.

    Args:
        options: Options for reading the files.
        files: Pairs (absolute path, display path).
    """
    return run_recordings.collect_outcomes(
        range(len(files)), [_record_file(*paths, options) for paths in files]
    )


def _call_for_files(
    function: Callable[[str], T], files: Sequence[tuple[str, str]]
) -> list[T | ProfileError]:
    """Call a function for each file, and return the results or errors in the order of the files.

    Args:
        function: Function to call with an absolute path.
        files: Pairs (absolute path, display path).
    """
    return [run_recordings.call_for_file(function, path) for path, _ in files]


class DaskFleet(run_recordings.Fleet):
    """The workers of a Dask cluster. Each file is read on a host that sees it."""

    strict = False

    def __init__(self, address: str, client: Any, max_wait_s: float) -> None:
        super().__init__()
        self._patience = Patience(max_wait_s)
        #: Whether the versions are still being checked. Until then, any silent worker delays the
        #: run.
        self._is_checking = True
        # The client is untyped because distributed has few annotations.
        self._address, self._client = address, client
        self._executor = client.get_executor(pure=False)
        self._hosts: dict[str, set[str]] = {}
        self._bytes: dict[str, int] = {}

    def _describe_lost_scheduler(self, error: BaseException) -> InputError:
        """Return an error that reports that the connection to the scheduler was lost."""
        return InputError(
            f"--dask {self._address}: the scheduler stopped or no longer answers "
            f"({type(error).__name__}); start it and run again"
        )

    def _ask_scheduler(self, request: Callable[[], Any]) -> Any:
        """Return the scheduler's answer to a request.

        Raises:
            InputError: The scheduler does not respond.
        """
        try:
            return self._client.sync(request, callback_timeout=PATIENCE_S)
        except Exception as error:  # a lost connection raises many different exceptions
            raise self._describe_lost_scheduler(error) from error

    def _list_workers(self) -> list[str]:
        """Return the sorted addresses of all workers, and report workers that are silent.

        Raises:
            InputError: The scheduler does not respond, or a worker was silent for too long.
        """
        workers = self._ask_scheduler(self._client.scheduler.identity)["workers"]
        stamps = {worker: float(state["last_seen"]) for worker, state in workers.items()}
        silent = self._patience.update_heartbeats(stamps, time.monotonic())
        if silent:
            self._report_silent(silent)
        return sorted(stamps)

    def _report_silent(self, silent: Sequence[str]) -> None:
        """Report silent workers that delay the run, and give up after the maximum wait time.

        Args:
            silent: Addresses of workers that no longer send heartbeats.

        Raises:
            InputError: A worker was silent for too long, or the scheduler does not respond.
        """
        if not self._is_checking:
            # Workers without tasks or results do not delay the run.
            tasks = self._ask_scheduler(self._client.scheduler.processing)
            results = self._ask_scheduler(self._client.scheduler.has_what)
            silent = [worker for worker in silent if tasks.get(worker) or results.get(worker)]
        limit = f"{self._patience.max_wait_s:g} s"
        if self._patience.is_over(silent, time.monotonic()):
            raise InputError(
                f"--dask {self._address}: {_format_subject(silent)} not answered for {limit}; "
                "restart or stop silent workers and run again, or wait longer with --dask-timeout",
                hosts=[_parse_host(worker) for worker in silent],
            )
        for worker in self._patience.take_unreported(silent):
            _log.warning(
                "%s not answered for %g s; waiting up to %s for an answer (--dask-timeout); if you "
                "stop it, another worker takes over",
                _format_subject([worker]),
                SILENT_S,
                limit,
                extra={"hosts": [_parse_host(worker)]},
            )

    def _wait_for(self, call: Callable[[], T]) -> T:
        """Return the result of a call without a timeout, checking for silent workers meanwhile.

        Raises:
            InputError: A worker was silent for too long, or the scheduler does not respond.
        """
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        # The call cannot be cancelled. A daemon thread ends with the process.
        threading.Thread(target=run, daemon=True).start()
        self._patience.record_result(time.monotonic())
        while not wait([answer], POLL_S).done:
            self._list_workers()
        return answer.result()

    def check_versions(self) -> None:
        """Check that the scheduler and all workers have this version of bubbleviz.

        Raises:
            InputError: There is no worker, or the scheduler or a worker does not respond.
            MismatchError: The scheduler or a worker has a different version of bubbleviz, or none.
        """
        run = partial(self._client.run, resolve_name, _VERSION, on_error="return")
        versions: Mapping[str, object] = self._wait_for(run)
        self._is_checking = False
        if not versions:
            raise InputError(f"--dask {self._address}: the cluster has no workers; start one first")
        for worker, version in sorted(versions.items()):
            if not isinstance(version, OSError):  # an OSError means that the worker has left
                _check_version(f"--dask {self._address}: worker {worker}", version)
        run = partial(self._client.run_on_scheduler, resolve_name, _VERSION)
        try:
            answer: object = self._wait_for(run)
        except BubblevizError:  # the scheduler does not answer
            raise
        except Exception as error:  # whatever it raises instead of an answer
            answer = error
        _check_version(f"--dask {self._address}: the scheduler", answer)

    def _run_tasks(
        self, tasks: Iterable[Task], max_pending: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Run tasks on workers, and yield (index, result or ProfileError) in order of completion.

        A task also results in a ``ProfileError`` if no worker is left on the hosts where it may
        run.

        Args:
            tasks: Tasks to run. A task is taken from the iterable only when it is submitted.
            max_pending: Maximum number of unfinished tasks, or None for no limit.

        Raises:
            InputError: The scheduler or a worker does not respond.
        """
        unsubmitted = enumerate(tasks)
        self._patience.record_result(time.monotonic())
        pending: dict[Future[Any], tuple[int, frozenset[str] | None]] = {}
        while True:
            n_free = None if max_pending is None else max_pending - len(pending)
            for number, (function, argument, hosts) in islice(unsubmitted, n_free):
                call = pickle.dumps((__version__, function, argument))
                workers = None if hosts is None else sorted(hosts)
                pending[self._executor.submit(run_pickled, call, workers=workers)] = number, hosts
            if not pending:
                return
            finished = wait(pending, POLL_S, FIRST_COMPLETED).done
            if finished:
                self._patience.record_result(time.monotonic())
            for future in finished:
                number, _ = pending.pop(future)
                yield number, self._get_result(future)
            if not finished:
                live_hosts = {_parse_host(worker) for worker in self._list_workers()}
                for future, (number, hosts) in list(pending.items()):
                    if not (live_hosts if hosts is None else live_hosts & hosts):
                        del pending[future]
                        future.cancel()
                        yield (
                            number,
                            ProfileError(
                                "no worker that can read it is still running; restart one"
                            ),
                        )

    def _get_result(self, future: Future[Any]) -> Any:
        """Return the result of a finished task.

        If the workers that ran the task died, or if the task raised an unexpected exception, a
        ``ProfileError`` is returned.

        Raises:
            BubblevizError: The task raised this error, or the connection to the scheduler was lost.
        """
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            return future.result()
        if isinstance(error, BubblevizError):
            raise error
        if isinstance(error, CancelledError) or self._client.status != "running":
            raise self._describe_lost_scheduler(error) from error
        if type(error).__name__ == "KilledWorker":
            return ProfileError(
                "every worker that read it died; if memory ran out, start workers with more memory"
            )
        # An unexpected exception on a worker must not end the run.
        description = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return ProfileError(f"no worker could read it ({description})")

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Find the profiles at the given paths on the hosts of all workers.

        The profiles found at each path are sorted in natural order. Their paths are absolute if the
        given path is, otherwise relative.

        Raises:
            InputError: No host has a profile at one of the paths.
            MismatchError: Two hosts have different files at the same path.
        """
        # Workers may have different working directories from this process.
        absolute_paths = [_to_absolute(path) for path in paths]
        hosts = sorted({_parse_host(worker) for worker in self._list_workers()})
        answers = dict(
            self._run_tasks(
                [(_find_sightings, absolute_paths, frozenset([host])) for host in hosts]
            )
        )
        files: list[InputFile] = []
        for number, path in enumerate(paths):
            sighting_of_path: dict[str, _Sighting] = {}
            reason = ""
            for host_index, host in enumerate(hosts):
                answer = answers[host_index]
                sightings = str(answer) if isinstance(answer, ProfileError) else answer[number]
                if isinstance(sightings, str):
                    reason = sightings
                else:
                    self._add_sightings(host, sightings, sighting_of_path)
            if not sighting_of_path:
                raise InputError(
                    f"{reason} (no worker can see it)" if reason else f"{path}: not found"
                )
            files.extend(
                replace(sighting_of_path[name][0], path=_to_user_form(name, path))
                for name in sorted(sighting_of_path, key=make_natural_key)
            )
        return tuple(files)

    def _add_sightings(
        self, host: str, sightings: Iterable[_Sighting], sighting_of_path: dict[str, _Sighting]
    ) -> None:
        """Record that a host sees files, and check that they are the same as on other hosts.

        Args:
            host: Name of the host.
            sightings: The files as the host sees them.
            sighting_of_path: Each file as the first host sees it, keyed by path. New files are
                added.

        Raises:
            MismatchError: Another host sees a different file at the same path.
        """
        for sighting in sightings:
            path = sighting[0].path
            first = sighting_of_path.setdefault(path, sighting)
            if first[1:] != sighting[1:]:
                other_hosts = ", ".join(sorted(self._hosts[path]))
                raise MismatchError(
                    f"{path}: the file on host {host} differs from the one on {other_hosts}; give "
                    "each file its own name",
                    hosts=[host, *self._hosts[path]],
                )
            self._hosts.setdefault(path, set()).add(host)

    def call_for_files(
        self, function: Callable[[str], T], paths: Sequence[str]
    ) -> list[T | ProfileError]:
        """Call a module-level function for each file on workers.

        The results or errors are returned in the order of the files.
        """
        results: dict[int, T | ProfileError] = {}
        for batch, outcome in self._run_in_batches(paths, partial(_call_for_files, function)):
            outcomes = [outcome] if isinstance(outcome, ProfileError) else outcome
            results.update(zip(batch, outcomes, strict=True))
        for number, glance in results.items():
            if isinstance(glance, tuple):
                self._bytes[paths[number]] = glance[0]
        return [results[number] for number in range(len(paths))]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[run_recordings.FilesRead]:
        """Record files on workers, and yield results as soon as one or more files are read."""
        for batch, outcome in self._run_in_batches(
            paths, partial(_record_files, replace(options, jobs=1))
        ):
            for number in batch:
                progress.read(paths[number], 1.0)
            files_read = (
                run_recordings.collect_outcomes(batch, [outcome])
                if isinstance(outcome, ProfileError)
                else outcome
            )
            yield replace(files_read, numbers=tuple(batch))

    def map(self, function: Callable[[T], R], given: Iterable[T]) -> list[R]:
        """Call a module-level function on workers for each argument.

        If the workers that run a call die, or if no worker is left, this process makes the call
        itself.

        Returns:
            The results in the order of the arguments.
        """
        arguments: dict[int, T] = {}

        def tasks() -> Iterator[Task]:
            for number, argument in enumerate(given):
                arguments[number] = argument
                yield function, argument, None

        results: dict[int, R] = {}
        for number, result in self._run_tasks(tasks(), _MAX_PENDING):
            argument = arguments.pop(number)
            results[number] = function(argument) if isinstance(result, ProfileError) else result
        return [results[number] for number in range(len(results))]

    def _run_in_batches(
        self, paths: Sequence[str], function: Callable[[Sequence[tuple[str, str]]], T]
    ) -> Iterator[tuple[Sequence[int], T | ProfileError]]:
        """Run a function on batches of files.

        If a batch fails, for example because it kills its workers, each of its files is tried again
        separately.

        Args:
            paths: Paths of all files.
            function: Function to call with a batch, a list of (absolute path, display path) pairs.

        Yields:
            batch: File indices of the batch.
            result: Result of the function, or an error. Errors are yielded only for batches with a
                single file.
        """
        batches = self._make_batches(paths)
        while batches:
            retries: list[list[int]] = []
            tasks = []
            for batch in batches:
                files = [(_to_absolute(paths[number]), paths[number]) for number in batch]
                tasks.append((function, files, self._get_hosts(paths[batch[0]])))
            for number, result in self._run_tasks(tasks):
                batch = batches[number]
                if not isinstance(result, ProfileError):
                    yield batch, result
                elif len(batch) == 1:
                    yield batch, ProfileError(f"{paths[batch[0]]}: {result}")
                else:
                    retries.extend([file] for file in batch)
            batches = retries

    def _make_batches(self, paths: Sequence[str]) -> list[list[int]]:
        """Group consecutive files that the same hosts see into batches of file indices.

        A batch contains up to ``_MAX_FILES`` files and about ``_MAX_BYTES`` bytes. There are at
        least ``_MIN_TASKS`` batches per worker if there are enough files.
        """
        max_files = min(
            _MAX_FILES, -(-len(paths) // (_MIN_TASKS * max(len(self._list_workers()), 1)))
        )
        batches: list[list[int]] = []
        bytes_left = 0
        hosts: frozenset[str] | None = None
        for number, path in enumerate(paths):
            size, path_hosts = self._bytes.get(path, 0), self._get_hosts(path)
            if (
                not batches
                or path_hosts != hosts
                or size > bytes_left
                or len(batches[-1]) == max_files
            ):
                batches.append([])
                bytes_left, hosts = _MAX_BYTES, path_hosts
            batches[-1].append(number)
            bytes_left -= size
        return batches

    def _get_hosts(self, path: str) -> frozenset[str] | None:
        """Return the hosts that see a file, or None if :meth:`find` did not search for it."""
        hosts = self._hosts.get(_to_absolute(path))
        return None if hosts is None else frozenset(hosts)


def _parse_host(worker: str) -> str:
    """Return the host part of a worker address.

    Examples of addresses are ``tcp://10.0.0.1:40000`` and ``tcp://[::1]:40000``.
    """
    return worker.partition("://")[2].rpartition(":")[0].strip("[]")


def _format_subject(workers: Sequence[str]) -> str:
    """Format workers as a subject with a verb, for example ``worker tcp://10.0.0.1:40000 has``."""
    is_one = len(workers) == 1
    noun, verb = ("worker", "has") if is_one else ("workers", "have")
    return f"{noun} {list_and_count(workers, 3)} {verb}"


def _to_absolute(path: str) -> str:
    """Return the absolute form of a path, or "" for ""."""
    return str(Path.cwd() / path) if path else path


def _to_user_form(path: str, user_path: str) -> str:
    """Return an absolute path in the form that the user used: relative if ``user_path`` is."""
    return path if Path(user_path).is_absolute() else str(Path(path).relative_to(Path.cwd()))
