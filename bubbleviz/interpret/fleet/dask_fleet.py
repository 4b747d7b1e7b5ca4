"""A fleet of Dask workers: profiles are read where they are, also beyond this machine.

``bubbleviz[dask]`` installs what this needs; nothing else loads it. Scheduler and workers need the
same version of bubbleviz. What a worker was to do that dies Dask gives to another; what one has
that no longer answers is submitted again, to others that see the files. The client runs in the
event loop of another thread, where every question has its limit of time: a scheduler that dies or
freezes is one sentence, soon.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.interpret.fleet.run_recordings import (
    FilesRead,
    Fleet,
    Glance,
    Outcome,
    files_read,
    glance,
    of_file,
    outcome_of,
)
from bubbleviz.interpret.record import ReadOptions, renamed
from bubbleviz.model.files import read_bounded
from bubbleviz.model.texts import natural_key
from bubbleviz.progress import Progress
from bubbleviz.sources.paths import InputFile, find_profiles

T = TypeVar("T")
R = TypeVar("R")
#: ``distributed.Client``, which annotates little, and some of that for other uses.
Client: TypeAlias = Any

#: Small files are one task: so many files and bytes at most, and so many tasks a worker at least.
_MOST_FILES, _MOST_BYTES, _TASKS = 128, 32 << 20, 4
#: So many parts of a run are on their way at once: what they take here does not grow with a run.
_AT_ONCE = 4
#: So many files are looked at together, which takes a moment each.
_MOST_GLANCES = 1024
#: How long a scheduler may take for an answer, and the connection to close, seconds.
PATIENCE_S, _CLOSING_S = 7.0, 1.0
#: How often to look who is alive, seconds.
LOOK_S = 1.0
#: A worker without a heartbeat for so long does nothing any more; Dask asks for two a second.
_SILENCE_S = 7.0
#: Workers that Dask allows a second of heartbeats each, in clusters of thousands.
_HEARTBEATS_PER_S = 200
#: How long a worker with a heartbeat may take to load bubbleviz, seconds.
_LOADING_S = 120.0
#: The question for the version; a thread loads bubbleviz, so that the heartbeat goes on.
_VERSION = (
    asyncio.to_thread,
    resolve_name,
    "bubbleviz.interpret.fleet.dask_fleet:DaskFleet.version",
)
NEWCOMER = "a worker that joined during the run"
#: How often a task is submitted because the workers that had it are silent or left.
_ATTEMPTS = 5
#: Loggers that would print tracebacks of what becomes one sentence here.
_LOGGERS = ("distributed", "tornado")
#: A scheduler file holds an address and what the workers are; any is smaller.
_MOST_FILE_BYTES = 64 << 20
_GIVE = "give the address of a scheduler, such as tcp://HOST:8786, or its scheduler file (.json)"


# The connection to a scheduler.


@contextmanager
def dask_fleet(address: str) -> Iterator[DaskFleet]:
    """Yield a fleet of the workers of a cluster.

    Args:
        address: of the scheduler, or the path of its scheduler file.

    Raises:
        InputError: there is no scheduler, no worker that answers, or no Dask here.
        MismatchError: the scheduler or a worker has another version of bubbleviz, or none.
    """
    try:
        import dask
        import distributed  # noqa: F401  # all that it shows is whether it is there
    except ImportError as error:
        raise InputError(
            "--dask needs Dask, which is not installed; install it with: pip install "
            "'bubbleviz[dask]'"
        ) from error
    place = _address_in(address) if address.endswith(".json") else address
    # Arguments of megabytes are no reason for a warning: few are on their way at a time.
    large = dask.config.set({"distributed.admin.large-graph-warning-threshold": 1 << 60})
    with _quiet_loggers(), large, _running_loop() as loop:
        try:
            client = asyncio.run_coroutine_threadsafe(_connected(place), loop).result()
        except Exception as error:  # what Dask raises depends on what answers there
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            if isinstance(error, MemoryError):  # the length that its first bytes would be
                reason = "what answers speaks another protocol"
            raise InputError(
                f"--dask {address}: no scheduler answers there ({reason}); {_GIVE} of one that runs"
            ) from error
        try:
            fleet = DaskFleet(address, loop, client)
            fleet.check_versions()
            yield fleet
        finally:
            with suppress(Exception):  # of a connection that is lost already
                closing = _within(_CLOSING_S, client.close(timeout=_CLOSING_S))
                asyncio.run_coroutine_threadsafe(closing, loop).result()


async def _connected(place: str) -> Client:
    """Return a client of the scheduler at an address; raise whatever shows that there is none."""
    import distributed

    client: Client = distributed.Client(  # type: ignore[no-untyped-call]  # as said above
        place, timeout=PATIENCE_S, set_as_default=False, asynchronous=True
    )
    try:
        started: Client = await _within(PATIENCE_S, client)
        identity = await _within(PATIENCE_S, started.scheduler.identity())
        if "workers" not in identity:
            raise ValueError(f"a {identity.get('type', 'server')} of Dask does")
    except BaseException:
        with suppress(Exception):
            await _within(_CLOSING_S, client.close(timeout=_CLOSING_S))
        raise
    return started


async def _within(patience_s: float, answer: Awaitable[T]) -> T:
    """Return an answer; raise TimeoutError where there is none within a time.

    What is waited for may take no notice of being cancelled, and is then left alone.
    """
    question = asyncio.ensure_future(answer)
    done, _ = await asyncio.wait({question}, timeout=patience_s)
    if not done:
        question.cancel()
        raise TimeoutError(f"no answer within {patience_s:g} s")
    return question.result()


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
            f"--dask {file}: is no scheduler file that can be read ({type(error).__name__}); {hint}"
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


@contextmanager
def _running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    # It would print the errors of what nobody waits for any more.
    loop.set_exception_handler(lambda *_: None)
    thread = threading.Thread(target=loop.run_forever, name="bubbleviz-dask", daemon=True)
    thread.start()

    async def end_tasks() -> None:
        # What is pending when the loop closes would be logged.
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=_CLOSING_S)

    try:
        yield loop
    finally:
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(end_tasks(), loop).result(2 * _CLOSING_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSING_S)
        if not thread.is_alive():
            loop.close()


# What workers do.


@dataclass
class Task:
    """What a worker is to do.

    Attributes:
        place: what it is about, for messages.
        work: what to do.
        arguments: of the work.
        hosts: where it can be done; None for anywhere.
        where: workers or hosts that it was last submitted to; None for anywhere.
        attempts: how often it was submitted.
        future: of Dask, of the last submission.
        arrival: ends when its result is here.
    """

    place: str
    work: Callable[..., Any]
    arguments: tuple[object, ...]
    hosts: frozenset[str] | None
    where: Collection[str] | None = None
    attempts: int = 0
    future: Any = None
    arrival: asyncio.Task[Any] | None = None


def host_of(worker: str) -> str:
    """Return the host in a worker's address (``tcp://10.0.0.1:40000``, ``tcp://[::1]:40000``)."""
    return worker.partition("://")[2].rpartition(":")[0].strip("[]")


def check_version(who: str, answer: object) -> None:
    """Raise MismatchError unless the answer is the version that runs here."""
    if answer == __version__:
        return
    if isinstance(answer, BaseException):
        reason = " ".join(str(answer).split())[:200]
        missing = lacks_bubbleviz(answer)
        has = "has no bubbleviz" if missing else f"cannot load its bubbleviz ({reason})"
    else:
        has = f"has bubbleviz {answer}"
    raise MismatchError(f"{who} {has}, not {__version__}; install the same version everywhere")


def lacks_bubbleviz(error: BaseException) -> bool:
    """Tell whether a worker's error is that it has no bubbleviz."""
    # Dask quotes the error of an import in the text of its own.
    return "No module named 'bubbleviz'" in str(error)


def _unpickled(call: bytes) -> Any:
    """Do the work of a task, on a worker that may have joined after versions were compared."""
    version, work, arguments = pickle.loads(call)
    if version != __version__:
        raise MismatchError(
            f"--dask: {NEWCOMER} has bubbleviz {__version__}, not {version}; install the same "
            "version everywhere"
        )
    return work(*arguments)


class _Call:
    """A call that is made where it is unpickled: a worker loads its module as a part of the task.

    So its event loop, and its heartbeat, go on meanwhile.
    """

    def __init__(self, call: bytes) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return _unpickled, (self._call,)


@dataclass(frozen=True)
class _Sighting:
    """A file that one host sees, with what tells whether another one sees the same."""

    file: InputFile
    size: int
    changed_ns: int


def _sightings(paths: Sequence[str]) -> list[list[_Sighting] | str]:
    """Return the files of each path on this host, or why there are none."""
    seen: list[list[_Sighting] | str] = []
    for path in paths:
        try:
            files = find_profiles([path])
            stats = [(file, Path(file.path).stat()) for file in files]
            seen.append([_Sighting(file, s.st_size, s.st_mtime_ns) for file, s in stats])
        except (BubblevizError, OSError) as error:
            seen.append(str(error))
    return seen


def _outcome(path: str, shown: str, options: ReadOptions) -> Outcome:
    outcome = outcome_of(path, options)
    if isinstance(outcome, ProfileError):
        return type(outcome)(str(outcome).replace(path, shown))
    recordings, steps = outcome
    return renamed(recordings, path, shown), steps


def _files_read(options: ReadOptions, given: Sequence[tuple[str, str]]) -> FilesRead:
    """Return what reading some files gave, by their paths and what is shown of these."""
    return files_read(range(len(given)), [_outcome(*paths, options) for paths in given])


def _of_each(work: Callable[[str], T], given: Sequence[tuple[str, str]]) -> list[T | ProfileError]:
    """Return what some work returns of each of some files, or why it cannot."""
    return [of_file(work, path) for path, _ in given]


class DaskFleet(Fleet):
    """The workers of a cluster; each file is read on a host that sees it."""

    strict = False
    #: Who loads this can do all that workers are asked for.
    version = __version__

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop, client: Client) -> None:
        super().__init__()
        self._address, self._loop, self._client = address, loop, client
        self._hosts: dict[str, set[str]] = {}
        self._bytes: dict[str, int] = {}
        # The heartbeats of the workers that are there, and when those of any were seen to change.
        self._beats: dict[str, float] = {}
        self._changed: dict[str, float] = {}
        self._looked = float("-inf")

    # Questions to the cluster.

    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine in the loop.

        Raises:
            InputError: the scheduler does not answer.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except Exception as error:  # a lost connection shows in many ways, none of them ours
            raise self._gone(error) from error

    def _gone(self, error: BaseException) -> InputError:
        """Return the error of a scheduler that was there."""
        return InputError(
            f"--dask {self._address}: the scheduler has gone or no longer answers "
            f"({type(error).__name__}); start it and run again"
        )

    def check_versions(self) -> None:
        """Hold the versions of the scheduler and of all workers that answer against this one.

        Raises:
            InputError: no worker answers, or the scheduler does not.
            MismatchError: one has another version of bubbleviz, or none.
        """
        self._do(self._look())
        if not self._beats:
            raise InputError(f"--dask {self._address}: the cluster has no worker; start some first")
        workers = list(self._beats)
        versions, scheduler = self._do(self._versions(workers))
        if not versions:
            raise InputError(
                f"--dask {self._address}: no worker of {len(workers)} answers; restart them and "
                "run again"
            )
        for worker, version in sorted(versions.items()):
            check_version(f"--dask {self._address}: worker {worker}", version)
        check_version(f"--dask {self._address}: the scheduler", scheduler)

    async def _versions(self, workers: Iterable[str]) -> tuple[dict[str, object], object]:
        """Return the versions of the workers that answer, errors included, and the scheduler's.

        They may take their time to load bubbleviz as long as their heartbeats go on.
        """

        async def version_of(worker: str) -> object:
            answers = await self._client.run(*_VERSION, workers=[worker], on_error="return")
            if isinstance(answers[worker], OSError):  # it has left
                raise answers[worker]
            return answers[worker]

        async def version_of_scheduler() -> object:
            try:
                return await self._client.run_on_scheduler(*_VERSION)
            except OSError:
                raise
            except Exception as error:  # whatever it raises instead of an answer
                return error

        scheduler = asyncio.ensure_future(version_of_scheduler())
        asked = {worker: asyncio.ensure_future(version_of(worker)) for worker in workers}
        deadline = monotonic() + _LOADING_S
        while monotonic() < deadline:
            living = self._living()
            pending = [a for w, a in asked.items() if w in living and not a.done()]
            if scheduler.done() and not pending:
                break
            await asyncio.wait([*pending, scheduler], timeout=LOOK_S, return_when="FIRST_COMPLETED")
            await self._look()
        if not scheduler.done():
            raise TimeoutError(f"no answer within {_LOADING_S:g} s")
        answered = {w: a for w, a in asked.items() if a.done() and a.exception() is None}
        for question in asked.values():
            question.cancel()
        return {worker: answer.result() for worker, answer in answered.items()}, scheduler.result()

    async def _look(self) -> bool:
        """Ask for all heartbeats, unless that was a moment ago; tell whether it was done."""
        if monotonic() - self._looked < LOOK_S * self._pace:
            return False
        identity = await _within(PATIENCE_S, self._client.scheduler.identity())
        beats = {w: float(s.get("last_seen", 0)) for w, s in identity["workers"].items()}
        self._looked = monotonic()
        for worker, beat in beats.items():
            if beat != self._beats.get(worker):
                self._changed[worker] = self._looked
        self._beats = beats
        return True

    @property
    def _pace(self) -> float:
        """How many times longer heartbeats take than in a small cluster."""
        return max(1.0, len(self._beats) / _HEARTBEATS_PER_S)

    def _recent(self) -> set[str]:
        """Return the workers that have been heard of lately, if they have left since."""
        since = self._looked - _SILENCE_S * self._pace
        return {worker for worker, changed in self._changed.items() if changed >= since}

    def _living(self) -> set[str]:
        """Return the workers that are there and have been heard of lately."""
        return self._recent() & self._beats.keys()

    def _living_hosts(self) -> set[str]:
        """Return the hosts of which a worker has been heard of lately."""
        return {host_of(worker) for worker in self._recent()}

    # Tasks.

    def _done(self, tasks: Iterable[Task], at_once: int | None = None) -> Iterator[tuple[int, Any]]:
        """Yield (number, result or ProfileError) of each task, in the order that they are done.

        Args:
            tasks: numbered from 0; each is asked for when it is submitted.
            at_once: how many are submitted at once; None for all.
        """
        waiting = enumerate(tasks)
        left: dict[int, Task] = {}
        while True:
            for number, task in islice(waiting, None if at_once is None else at_once - len(left)):
                left[number] = task
                self._do(self._submit(number, task, task.hosts))
            if not left:
                return
            for number, result in self._do(self._finished(left)):
                task = left.pop(number)
                yield number, self._result(task, result)

    async def _submit(self, number: int, task: Task, where: Collection[str] | None) -> None:
        """Have one of some workers or hosts do a task; None for any of them."""
        self._forget(task)
        call = pickle.dumps((__version__, task.work, task.arguments))
        task.where, task.attempts = where, task.attempts + 1
        task.future = self._client.submit(
            pickle.loads,
            pickle.dumps(_Call(call)),
            workers=None if where is None else sorted(where),
            pure=False,
            priority=-number,
        )
        task.arrival = asyncio.ensure_future(_arrival(task.future))

    def _forget(self, task: Task) -> None:
        """Give up the last submission of a task, and let the cluster drop its result."""
        if task.arrival is not None:
            task.arrival.cancel()
            task.future.release()

    async def _finished(self, left: dict[int, Task]) -> list[tuple[int, Any]]:
        """Return (number, result or error) of the tasks that are done, waiting a moment for one.

        What a silent worker has is submitted again, and what nobody is left for is given up.
        """
        arrivals = {task.arrival: number for number, task in left.items() if task.arrival}
        await asyncio.wait(arrivals, timeout=LOOK_S, return_when="FIRST_COMPLETED")
        done: list[tuple[int, Any]] = []
        for arrival, number in arrivals.items():
            if arrival.done():
                error = CancelledError() if arrival.cancelled() else arrival.exception()
                done.append((number, arrival.result() if error is None else error))
                if error is None:
                    self._forget(left[number])
        if not await self._look():
            return sorted(done, key=lambda pair: pair[0])
        living, hosts = self._living(), self._living_hosts()
        silent = self._beats.keys() - living
        stuck = await self._keys_on(silent) if silent else set()
        finished = {number for number, _ in done}
        for number, task in left.items():
            if number in finished:
                continue
            able = {w for w in living if task.hosts is None or host_of(w) in task.hosts}
            left_by_all = task.where is not None and not any(
                worker in task.where or host_of(worker) in task.where for worker in self._beats
            )
            lost = str(task.future.key) in stuck or left_by_all
            if lost and able and task.attempts < _ATTEMPTS:
                await self._submit(number, task, able)
            elif (lost and able) or not (hosts if task.hosts is None else hosts & task.hosts):
                self._forget(task)
                reason = "no worker that sees it is left, or answers; restart it and run again"
                done.append((number, ProfileError(f"{task.place}: {reason}")))
        return sorted(done, key=lambda pair: pair[0])

    async def _keys_on(self, workers: Collection[str]) -> set[str]:
        """Return the keys of what some workers are doing, or have done and hold."""
        doing = await _within(PATIENCE_S, self._client.processing(list(workers)))
        holding = await _within(PATIENCE_S, self._client.has_what(list(workers)))
        return {str(key) for each in (doing, holding) for keys in each.values() for key in keys}

    def _result(self, task: Task, result: Any) -> Any:
        """Return the result of a task; the death of workers as an error of the file."""
        if not isinstance(result, BaseException) or isinstance(result, ProfileError):
            return result
        if isinstance(result, BubblevizError):
            raise result
        if isinstance(result, CancelledError) or self._client.status != "running":
            raise self._gone(result) from result
        if lacks_bubbleviz(result):
            check_version(f"--dask: {NEWCOMER}", result)
        if type(result).__name__ == "KilledWorker":
            return ProfileError(
                f"{task.place}: every worker that read it died; if there was too little memory, "
                "start workers with more"
            )
        # Whatever else a worker raises must not lose the other files.
        what = " ".join(f"{type(result).__name__}: {result}".split())[:200]
        return ProfileError(f"{task.place}: no worker could read it ({what})")

    # What a fleet does.

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files that paths stand for on the hosts of the workers.

        Raises:
            InputError: a path leads to no profile on any of them.
            MismatchError: two hosts have different files under one path.
        """
        hosts = sorted(self._living_hosts())
        # Workers run in directories of their own.
        there = [_absolute(path) for path in paths]
        tasks = [Task(host, _sightings, (there,), frozenset([host])) for host in hosts]
        answers = dict(self._done(tasks))
        files: list[InputFile] = []
        for number, path in enumerate(paths):
            seen: dict[str, _Sighting] = {}
            why = ""
            for place, host in enumerate(hosts):
                answer = answers[place]
                if isinstance(answer, ProfileError) or isinstance(answer[number], str):
                    why = str(answer if isinstance(answer, ProfileError) else answer[number])
                    continue
                for sighting in answer[number]:
                    self._see(host, sighting, seen)
            if not seen:
                raise InputError(f"{why} (no worker sees it)" if why else f"{path}: not found")
            files.extend(
                replace(seen[name].file, path=_as_given(name, path))
                for name in sorted(seen, key=natural_key)
            )
        return tuple(files)

    def _see(self, host: str, sighting: _Sighting, seen: dict[str, _Sighting]) -> None:
        path = sighting.file.path
        first = seen.setdefault(path, sighting)
        if (first.size, first.changed_ns) != (sighting.size, sighting.changed_ns):
            others = ", ".join(sorted(self._hosts[path]))
            raise MismatchError(
                f"{path}: is another file on host {host} than on {others}; give each file a "
                "name of its own"
            )
        self._hosts.setdefault(path, set()).add(host)

    def of_files(self, work: Callable[[str], T], paths: Sequence[str]) -> list[T | ProfileError]:
        """Return what some work, a function of a module, returns of each file, or why it cannot."""
        results: dict[int, T | ProfileError] = {}
        most = _MOST_GLANCES if work is glance else _MOST_FILES
        for batch, found in self._over(paths, partial(_of_each, work), most):
            each = [found] if isinstance(found, ProfileError) else found
            results.update(zip(batch, each, strict=True))
        for number, seen in results.items():
            if isinstance(seen, Glance):
                self._bytes[paths[number]] = seen.size
        return [results[number] for number in range(len(paths))]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[FilesRead]:
        """Yield what was read, some files or one, in the order in which that is done."""
        work = partial(_files_read, replace(options, jobs=1))
        for batch, read in self._over(paths, work, _MOST_FILES):
            for number in batch:
                progress.read(paths[number], 1.0)
            some = files_read(batch, [read]) if isinstance(read, ProfileError) else read
            yield replace(some, numbers=tuple(batch))

    def each(self, work: Callable[[T], R], given: Iterable[T]) -> list[R]:
        """Return what some work returns of each of some arguments, in their order.

        What no worker returns, since they die of it or leave, is done here, and so is one alone.
        """
        given = iter(given)
        first = list(islice(given, 2))
        if len(first) < 2:
            return list(map(work, first))
        arguments: dict[int, T] = {}

        def tasks() -> Iterator[Task]:
            for number, argument in enumerate(chain(first, given)):
                arguments[number] = argument
                yield Task("a part of the run", work, (argument,), None)

        results: dict[int, R] = {}
        for number, result in self._done(tasks(), _AT_ONCE):
            argument = arguments.pop(number)
            results[number] = work(argument) if isinstance(result, ProfileError) else result
        return [results[number] for number in range(len(results))]

    def _over(
        self,
        paths: Sequence[str],
        work: Callable[[Sequence[tuple[str, str]]], T],
        most: int,
    ) -> Iterator[tuple[Sequence[int], T | ProfileError]]:
        """Yield (numbers, result) of some work on files together, or (number, error) of one.

        Small files are one task; where one of these takes its worker with it, each is its own.

        Args:
            paths: of all files.
            work: on pairs of a path, as workers see it, and what is shown of it.
            most: how many files are one task.
        """
        batches = self._batches(paths, most)
        while batches:
            again: list[list[int]] = []
            tasks = []
            for batch in batches:
                given = [(_absolute(paths[number]), paths[number]) for number in batch]
                first = paths[batch[0]]
                tasks.append(Task(first, work, (given,), self._seen_on(first)))
            for number, result in self._done(tasks):
                batch = batches[number]
                if isinstance(result, ProfileError) and len(batch) > 1:
                    again.extend([file] for file in batch)
                else:
                    yield batch, result
            batches = again

    def _batches(self, paths: Sequence[str], most: int) -> list[list[int]]:
        """Return numbers of files that are read together: small ones that the same hosts see."""
        most = min(most, -(-len(paths) // (_TASKS * max(len(self._living()), 1))))
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
        """Return the hosts that see a file; None for all."""
        seen = self._hosts.get(_absolute(path))
        return None if seen is None or seen >= self._living_hosts() else frozenset(seen)


async def _arrival(future: Any) -> Any:
    return await future.result()


def _absolute(path: str) -> str:
    return str(Path.cwd() / path) if path else path


def _as_given(path: str, given: str) -> str:
    """Return an absolute path as it would be found here: relative, if it was so given."""
    return path if Path(given).is_absolute() else str(Path(path).relative_to(Path.cwd()))
