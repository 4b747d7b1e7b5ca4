"""A fleet of Dask workers: profiles are read where they are, also beyond this machine.

``bubbleviz[dask]`` installs what this needs; nothing else loads it. Scheduler and workers need the
same version of bubbleviz. Dask gives the work of a worker that dies, or that is silent for longer
than its ``worker-ttl``, to another worker. This module detects three failures that Dask does not
report: a scheduler that no longer answers, files that no worker can read any more, and silent
workers that hold up the run. Silent workers are reported to the logger ``bubbleviz.dask``.
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
from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.interpret.fleet import run_recordings, unpickled
from bubbleviz.interpret.fleet.silence import SILENT_S, Patience
from bubbleviz.interpret.record import ReadOptions, rename_path
from bubbleviz.model.files import read_bounded
from bubbleviz.model.texts import list_and_count, make_natural_key
from bubbleviz.progress import Progress
from bubbleviz.sources.paths import InputFile, find_profiles

T = TypeVar("T")
R = TypeVar("R")
#: Work, its argument, and the hosts where it can be done; None for anywhere.
Task: TypeAlias = tuple[Callable[[Any], Any], Any, "frozenset[str] | None"]

#: Small files are one task: so many files and bytes at most, and so many tasks a worker at least.
_MOST_FILES, _MOST_BYTES, _TASKS = 128, 32 << 20, 4
#: So many parts of a run are on their way at once: what they take here does not grow with a run.
_AT_ONCE = 4
#: How long a scheduler may take for an answer, and the connection to close, seconds.
PATIENCE_S, _CLOSING_S = 7.0, 1.0
#: How often to look who is there, seconds.
LOOK_S = 1.0
_VERSION = "bubbleviz._version:__version__"
#: Loggers that would print tracebacks of what becomes one sentence here.
_LOGGERS = ("distributed", "tornado")
#: A scheduler file holds an address and what the workers are; any is smaller.
_MOST_FILE_BYTES = 64 << 20
#: Default of the maximum time to wait for silent workers, in seconds. Dask gives up a worker after
#: one to two times its ``worker-ttl`` of 300 s.
MAX_WAIT_S = 600.0
#: Logger of warnings for the user about silent workers.
_log = logging.getLogger("bubbleviz.dask")
_GIVE = "give the address of a scheduler, such as tcp://HOST:8786, or its scheduler file (.json)"


@contextmanager
def dask_fleet(address: str, max_wait_s: float = MAX_WAIT_S) -> Iterator[DaskFleet]:
    """Yield a fleet of the workers of a cluster.

    Args:
        address: of the scheduler, or the path of its scheduler file.
        max_wait_s: Maximum time to wait for workers that no longer answer, in seconds.

    Raises:
        InputError: There is no scheduler or no worker, Dask is not installed, or a worker was
            silent for too long.
        MismatchError: The scheduler or a worker has another version of bubbleviz, or none.
    """
    try:
        import dask
        from distributed import Client
        from distributed.utils import LoopRunner, sync
    except ImportError as error:
        raise InputError(
            "--dask needs Dask, which is not installed; install it with: pip install "
            "'bubbleviz[dask]'"
        ) from error
    place = _address_in(address) if address.endswith(".json") else address
    # Arguments of megabytes are no reason for a warning: few are on their way at a time.
    large = dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60})

    async def connected() -> Any:
        client: Any = Client(  # type: ignore[no-untyped-call]  # Dask annotates little
            place or "tcp://", timeout=PATIENCE_S, set_as_default=False, asynchronous=True
        )
        try:
            return await client
        except BaseException:
            # Else it closes when it is collected: a deadlock where another loop is just starting.
            await client.close(timeout=_CLOSING_S)
            raise

    with _quiet_loggers(), large:
        # Dask annotates little.
        runner: Any = LoopRunner()
        runner.start()
        try:
            # A client that starts its own loop would wait for a silent scheduler forever.
            client = sync(runner.loop, connected, callback_timeout=PATIENCE_S)
        except Exception as error:  # what Dask raises depends on what answers there
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            if isinstance(error, MemoryError):  # the length that its first bytes would be
                reason = "what answers speaks another protocol"
            raise InputError(
                f"--dask {address}: no scheduler answers there ({reason}); {_GIVE} of one that runs"
            ) from error
        try:
            fleet = DaskFleet(address, client, max_wait_s)
            fleet.check_versions()
            yield fleet
        finally:
            with suppress(Exception):  # of a connection that is lost already
                client.close(timeout=_CLOSING_S)
            runner.stop(_CLOSING_S)


def _address_in(file: str) -> str:
    """Return the address that a scheduler file holds.

    Raises:
        InputError: it holds none.
    """
    hint = "give the one that dask scheduler --scheduler-file wrote"
    content = read_bounded(file, _MOST_FILE_BYTES, "a scheduler file", hint)
    try:
        return str(json.loads(content)["address"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"--dask {file}: is not a readable scheduler file ({type(error).__name__}); {hint}"
        ) from error


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silence what would be logged; the report, or an error, has all of it.

    Dask itself stays silent, as it logs what the garbage collector does afterwards.
    """
    # Dask gives loggers below these levels of their own.
    names = [
        n for n in (*_LOGGERS, *logging.root.manager.loggerDict) if n.split(".")[0] in _LOGGERS
    ]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            if not name.startswith("distributed"):
                logging.getLogger(name).setLevel(level)


# What workers do.


def _check_version(who: str, answer: object) -> None:
    """Raise MismatchError unless the answer, which may be an error, is the version here."""
    if answer != __version__:
        reason = " ".join(str(answer).split())[:200]
        failed = isinstance(answer, BaseException)
        has = f"cannot load bubbleviz ({reason})" if failed else f"has bubbleviz {reason}"
        raise MismatchError(f"{who} {has}, not {__version__}; install the same version everywhere")


#: A file that one host sees, with what tells whether another one sees the same: its size and when
#: it was changed, ns.
_Sighting: TypeAlias = tuple[InputFile, int, int]


def _sightings(paths: Sequence[str]) -> list[list[_Sighting] | str]:
    """Return the files of each path on this host, or why there are none."""
    seen: list[list[_Sighting] | str] = []
    for path in paths:
        try:
            files = find_profiles([path])
            stats = [(file, Path(file.path).stat()) for file in files]
            seen.append([(file, s.st_size, s.st_mtime_ns) for file, s in stats])
        except (BubblevizError, OSError) as error:
            seen.append(str(error))
    return seen


def _outcome(path: str, shown: str, options: ReadOptions) -> run_recordings.Outcome:
    outcome = run_recordings.outcome_of(path, options)
    if isinstance(outcome, ProfileError):
        return type(outcome)(str(outcome).replace(path, shown))
    recordings, steps = outcome
    return rename_path(recordings, path, shown), steps


def _files_read(options: ReadOptions, given: Sequence[tuple[str, str]]) -> run_recordings.FilesRead:
    """Return what reading some files gave, by their paths and what is shown of these."""
    return run_recordings.files_read(
        range(len(given)), [_outcome(*paths, options) for paths in given]
    )


def _of_each(work: Callable[[str], T], given: Sequence[tuple[str, str]]) -> list[T | ProfileError]:
    """Return what some work returns of each of some files, or why it cannot."""
    return [run_recordings.of_file(work, path) for path, _ in given]


class DaskFleet(run_recordings.Fleet):
    """The workers of a cluster; each file is read on a host that sees it."""

    strict = False

    def __init__(self, address: str, client: Any, max_wait_s: float) -> None:
        super().__init__()
        self._patience = Patience(max_wait_s)
        #: Whether the versions of all workers are being checked, so that every silent worker holds
        #: up the run.
        self._is_checking = True
        # Of distributed, which annotates little.
        self._address, self._client = address, client
        self._executor = client.get_executor(pure=False)
        self._hosts: dict[str, set[str]] = {}
        self._bytes: dict[str, int] = {}

    def _gone(self, error: BaseException) -> InputError:
        """Return the error of a scheduler that was there."""
        return InputError(
            f"--dask {self._address}: the scheduler has gone or no longer answers "
            f"({type(error).__name__}); start it and run again"
        )

    def _ask_scheduler(self, question: Callable[[], Any]) -> Any:
        """Return the scheduler's answer to a question.

        Raises:
            InputError: the scheduler does not answer.
        """
        try:
            return self._client.sync(question, callback_timeout=PATIENCE_S)
        except Exception as error:  # a lost connection shows in many ways, none of them ours
            raise self._gone(error) from error

    def _workers(self) -> list[str]:
        """Return the addresses of all workers.

        Raises:
            InputError: The scheduler does not answer, or a worker was silent for too long.
        """
        workers = self._ask_scheduler(self._client.scheduler.identity)["workers"]
        stamps = {worker: float(facts["last_seen"]) for worker, facts in workers.items()}
        silent = self._patience.note_heartbeats(stamps, time.monotonic())
        if silent:
            self._report_silent(silent)
        return sorted(stamps)

    def _report_silent(self, silent: Sequence[str]) -> None:
        """Report silent workers that hold up the run, and give up after the maximum wait.

        Args:
            silent: Addresses of workers without heartbeats.

        Raises:
            InputError: A worker was silent for too long, or the scheduler does not answer.
        """
        if not self._is_checking:
            # Workers without tasks or results do not hold up the run.
            tasks = self._ask_scheduler(self._client.scheduler.processing)
            results = self._ask_scheduler(self._client.scheduler.has_what)
            silent = [worker for worker in silent if tasks.get(worker) or results.get(worker)]
        limit = f"{self._patience.max_wait_s:g} s"
        if self._patience.is_over(silent, time.monotonic()):
            raise InputError(
                f"--dask {self._address}: {_workers_have(silent)} not answered for {limit}; "
                "restart or end it and run again, or wait longer with --dask-timeout",
                hosts=[_host_of(worker) for worker in silent],
            )
        for worker in self._patience.take_unreported(silent):
            _log.warning(
                "%s not answered for %g s; waiting for it, at most %s (--dask-timeout); if you end "
                "it, another worker does its work",
                _workers_have([worker]),
                SILENT_S,
                limit,
                extra={"hosts": [_host_of(worker)]},
            )

    def _wait_for(self, call: Callable[[], T]) -> T:
        """Run a call that has no timeout, and watch for silent workers until it returns.

        Raises:
            InputError: A worker was silent for too long, or the scheduler does not answer.
        """
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        # The call cannot be cancelled. A daemon thread ends with the process.
        threading.Thread(target=run, daemon=True).start()
        self._patience.note_result(time.monotonic())
        while not wait([answer], LOOK_S).done:
            self._workers()
        return answer.result()

    def check_versions(self) -> None:
        """Check that the scheduler and all workers have this version of bubbleviz.

        Raises:
            InputError: There is no worker, or the scheduler or a worker does not answer.
            MismatchError: The scheduler or a worker has another version of bubbleviz, or none.
        """
        run = partial(self._client.run, resolve_name, _VERSION, on_error="return")
        versions: Mapping[str, object] = self._wait_for(run)
        self._is_checking = False
        if not versions:
            raise InputError(f"--dask {self._address}: the cluster has no worker; start some first")
        for worker, version in sorted(versions.items()):
            if not isinstance(version, OSError):  # it has left
                _check_version(f"--dask {self._address}: worker {worker}", version)
        run = partial(self._client.run_on_scheduler, resolve_name, _VERSION)
        try:
            answer: object = self._wait_for(run)
        except BubblevizError:  # the scheduler does not answer
            raise
        except Exception as error:  # whatever it raises instead of an answer
            answer = error
        _check_version(f"--dask {self._address}: the scheduler", answer)

    def _done(self, tasks: Iterable[Task], at_once: int | None = None) -> Iterator[tuple[int, Any]]:
        """Yield (number, result or ProfileError) of each task, in the order that they are done.

        Args:
            tasks: numbered from 0; each is asked for when it is submitted.
            at_once: how many are submitted at once; None for all.
        """
        waiting = enumerate(tasks)
        self._patience.note_result(time.monotonic())
        left: dict[Future[Any], tuple[int, frozenset[str] | None]] = {}
        while True:
            room = None if at_once is None else at_once - len(left)
            for number, (work, argument, hosts) in islice(waiting, room):
                call = pickle.dumps((__version__, work, argument))
                workers = None if hosts is None else sorted(hosts)
                left[self._executor.submit(unpickled, call, workers=workers)] = number, hosts
            if not left:
                return
            finished = wait(left, LOOK_S, FIRST_COMPLETED).done
            if finished:
                self._patience.note_result(time.monotonic())
            for future in finished:
                number, _ = left.pop(future)
                yield number, self._result(future)
            if not finished:
                there = {_host_of(worker) for worker in self._workers()}
                for future, (number, hosts) in list(left.items()):
                    if not (there if hosts is None else there & hosts):
                        del left[future]
                        future.cancel()
                        yield number, ProfileError("no worker that sees it is left; restart it")

    def _result(self, future: Future[Any]) -> Any:
        """Return the result of a task; the death of workers as an error of the file."""
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            return future.result()
        if isinstance(error, BubblevizError):
            raise error
        if isinstance(error, CancelledError) or self._client.status != "running":
            raise self._gone(error) from error
        if type(error).__name__ == "KilledWorker":
            return ProfileError(
                "every worker that read it died; if there was too little memory, start workers "
                "with more"
            )
        # Whatever else a worker raises must not lose the other files.
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return ProfileError(f"no worker could read it ({what})")

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files that paths stand for on the hosts of the workers.

        Raises:
            InputError: a path leads to no profile on any of them.
            MismatchError: two hosts have different files under one path.
        """
        # Workers run in directories of their own.
        there = [_absolute(path) for path in paths]
        hosts = sorted({_host_of(worker) for worker in self._workers()})
        answers = dict(self._done([(_sightings, there, frozenset([host])) for host in hosts]))
        files: list[InputFile] = []
        for number, path in enumerate(paths):
            seen: dict[str, _Sighting] = {}
            why = ""
            for place, host in enumerate(hosts):
                answer = answers[place]
                found = str(answer) if isinstance(answer, ProfileError) else answer[number]
                if isinstance(found, str):
                    why = found
                    continue
                for sighting in found:
                    self._see(host, sighting, seen)
            if not seen:
                raise InputError(f"{why} (no worker sees it)" if why else f"{path}: not found")
            files.extend(
                replace(seen[name][0], path=_as_given(name, path))
                for name in sorted(seen, key=make_natural_key)
            )
        return tuple(files)

    def _see(self, host: str, sighting: _Sighting, seen: dict[str, _Sighting]) -> None:
        path = sighting[0].path
        first = seen.setdefault(path, sighting)
        if first[1:] != sighting[1:]:
            others = ", ".join(sorted(self._hosts[path]))
            raise MismatchError(
                f"{path}: is another file on host {host} than on {others}; give each file a "
                "name of its own",
                hosts=[host, *self._hosts[path]],
            )
        self._hosts.setdefault(path, set()).add(host)

    def of_files(self, work: Callable[[str], T], paths: Sequence[str]) -> list[T | ProfileError]:
        """Return what some work, a function of a module, returns of each file, or why it cannot."""
        results: dict[int, T | ProfileError] = {}
        for batch, found in self._over(paths, partial(_of_each, work)):
            each = [found] if isinstance(found, ProfileError) else found
            results.update(zip(batch, each, strict=True))
        for number, seen in results.items():
            if isinstance(seen, tuple):
                self._bytes[paths[number]] = seen[0]
        return [results[number] for number in range(len(paths))]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[run_recordings.FilesRead]:
        """Yield what was read, some files or one, in the order in which that is done."""
        for batch, read in self._over(paths, partial(_files_read, replace(options, jobs=1))):
            for number in batch:
                progress.read(paths[number], 1.0)
            some = (
                run_recordings.files_read(batch, [read]) if isinstance(read, ProfileError) else read
            )
            yield replace(some, numbers=tuple(batch))

    def each(self, work: Callable[[T], R], given: Iterable[T]) -> list[R]:
        """Return what some work returns of each of some arguments, in their order.

        What no worker returns, since they die of it or leave, is done here.
        """
        arguments: dict[int, T] = {}

        def tasks() -> Iterator[Task]:
            for number, argument in enumerate(given):
                arguments[number] = argument
                yield work, argument, None

        results: dict[int, R] = {}
        for number, result in self._done(tasks(), _AT_ONCE):
            argument = arguments.pop(number)
            results[number] = work(argument) if isinstance(result, ProfileError) else result
        return [results[number] for number in range(len(results))]

    def _over(
        self, paths: Sequence[str], work: Callable[[Sequence[tuple[str, str]]], T]
    ) -> Iterator[tuple[Sequence[int], T | ProfileError]]:
        """Yield (numbers, result) of some work on files together, or (number, error) of one.

        Small files are one task; where one of these takes its worker with it, each is its own.

        Args:
            paths: of all files.
            work: on pairs of a path, as workers see it, and what is shown of it.
        """
        batches = self._batches(paths)
        while batches:
            again: list[list[int]] = []
            tasks = []
            for batch in batches:
                given = [(_absolute(paths[number]), paths[number]) for number in batch]
                tasks.append((work, given, self._seen_on(paths[batch[0]])))
            for number, result in self._done(tasks):
                batch = batches[number]
                if not isinstance(result, ProfileError):
                    yield batch, result
                elif len(batch) == 1:
                    yield batch, ProfileError(f"{paths[batch[0]]}: {result}")
                else:
                    again.extend([file] for file in batch)
            batches = again

    def _batches(self, paths: Sequence[str]) -> list[list[int]]:
        """Return numbers of files that are read together: small ones that the same hosts see."""
        most = min(_MOST_FILES, -(-len(paths) // (_TASKS * max(len(self._workers()), 1))))
        batches: list[list[int]] = []
        room = 0
        hosts: frozenset[str] | None = None
        for number, path in enumerate(paths):
            size, seen = self._bytes.get(path, 0), self._seen_on(path)
            if not batches or seen != hosts or size > room or len(batches[-1]) == most:
                batches.append([])
                room, hosts = _MOST_BYTES, seen
            batches[-1].append(number)
            room -= size
        return batches

    def _seen_on(self, path: str) -> frozenset[str] | None:
        """Return the hosts that see a file; None if it was not looked for."""
        seen = self._hosts.get(_absolute(path))
        return None if seen is None else frozenset(seen)


def _host_of(worker: str) -> str:
    """Return the host in a worker's address (``tcp://10.0.0.1:40000``, ``tcp://[::1]:40000``)."""
    return worker.partition("://")[2].rpartition(":")[0].strip("[]")


def _workers_have(workers: Sequence[str]) -> str:
    """Return the workers as a subject with a verb, such as ``worker tcp://10.0.0.1:40000 has``."""
    is_one = len(workers) == 1
    noun, verb = ("worker", "has") if is_one else ("workers", "have")
    return f"{noun} {list_and_count(workers, 3)} {verb}"


def _absolute(path: str) -> str:
    return str(Path.cwd() / path) if path else path


def _as_given(path: str, given: str) -> str:
    """Return an absolute path as it would be found here: relative, if it was so given."""
    return path if Path(given).is_absolute() else str(Path(path).relative_to(Path.cwd()))
