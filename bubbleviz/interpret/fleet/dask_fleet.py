"""A fleet of Dask workers: profiles are read where they are, also beyond this machine.

``bubbleviz[dask]`` installs what this needs; nothing else loads it. Scheduler and workers need the
same version of bubbleviz. What a worker was to do that dies, or no longer answers, is done again by
another one that sees the files.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic
from typing import Any, TypeVar

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.interpret.fleet.dask_cluster import LOOK_S, Attempt, Cluster, connected, error_of
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
from bubbleviz.model.texts import natural_key
from bubbleviz.model.values import frozen
from bubbleviz.progress import Progress
from bubbleviz.sources.paths import InputFile, find_profiles

T = TypeVar("T")
R = TypeVar("R")

#: Small files are one task: so many files and bytes at most, and so many tasks a worker at least.
_MOST_FILES, _MOST_BYTES, _TASKS = 128, 32 << 20, 4
#: So many parts of a run are on their way at once: what they take here does not grow with a run.
_AT_ONCE = 4
#: So many files are looked at together, which takes a moment each.
_MOST_GLANCES = 1024
#: A worker without a heartbeat for so long does nothing any more; Dask asks for two a second.
_SILENCE_S = 7.0
#: Workers that Dask allows a second of heartbeats each, in clusters of thousands.
_HEARTBEATS_PER_S = 200
#: How long a worker may take to answer at all, seconds.
_ANSWER_S = 5.0
#: How long a worker with a heartbeat may take to load bubbleviz, seconds.
_LOADING_S = 120.0
#: The question for the version; a thread loads bubbleviz, so that the heartbeat goes on.
_VERSION = (
    asyncio.to_thread,
    resolve_name,
    "bubbleviz.interpret.fleet.dask_fleet:DaskFleet.version",
)
NEWCOMER = "a worker that joined during the run"
#: How often a task is submitted again because the workers that had it are silent or left.
_ATTEMPTS = 5


class Pulses:
    """When each worker's heartbeat was last seen to change, by the clock here."""

    def __init__(self, cluster: Cluster, answering: set[str]) -> None:
        self._cluster = cluster
        self._looked = monotonic()
        self._beats = cluster.pulses()
        self._changed = dict.fromkeys(answering, self._looked)

    def look(self) -> bool:
        """Look again, unless that was a moment ago; tell whether it was done."""
        now = monotonic()
        if now - self._looked < self._spacing(LOOK_S):
            return False
        beats = self._cluster.pulses()
        self._looked = now = monotonic()
        for worker, beat in beats.items():
            if beat != self._beats.get(worker):
                self._changed[worker] = now
        self._beats = beats
        return True

    def living(self) -> set[str]:
        """Return the workers that are there and have been heard of lately."""
        return {worker for worker in self._beats if self.lives(worker)}

    def lives(self, worker: str) -> bool:
        """Tell whether a worker is there and has been heard of lately."""
        return worker in self._beats and self._is_recent(worker)

    def silent(self) -> set[str]:
        """Return the workers that are there and have not been heard of lately."""
        return set(self._beats) - self.living()

    def have_left(self, where: Collection[str] | None) -> bool:
        """Tell whether none of some workers or hosts is there any more; None is anywhere."""
        return where is not None and not any(
            worker in where or host_of(worker) in where for worker in self._beats
        )

    def hosts(self) -> set[str]:
        """Return the hosts of which a worker has been heard of lately, if it has left since."""
        return {host_of(worker) for worker in self._changed if self._is_recent(worker)}

    def _is_recent(self, worker: str) -> bool:
        silence = self._looked - self._changed.get(worker, float("-inf"))
        return silence <= self._spacing(_SILENCE_S)

    def _spacing(self, least_s: float) -> float:
        return max(least_s, least_s * len(self._beats) / _HEARTBEATS_PER_S)


def host_of(worker: str) -> str:
    """Return the host in a worker's address (``tcp://10.0.0.1:40000``, ``tcp://[::1]:40000``)."""
    return worker.partition("://")[2].rpartition(":")[0].strip("[]")


def answering_workers(cluster: Cluster) -> set[str]:
    """Return the workers that answer.

    Raises:
        InputError: there is none.
        MismatchError: the scheduler or a worker has another version of bubbleviz, or none.
    """
    workers = cluster.pulses()
    if not workers:
        raise InputError(f"--dask {cluster.address}: the cluster has no worker; start some first")
    pulses = Pulses(cluster, set(workers))
    alive = _answers(cluster, pulses, workers, _ANSWER_S, platform.python_version)
    # A worker that answers at once may yet need a while to load bubbleviz for the first time.
    versions = _answers(cluster, pulses, alive, _LOADING_S, *_VERSION)
    if not versions:
        raise InputError(
            f"--dask {cluster.address}: no worker of {len(workers)} answers; restart them and run "
            "again"
        )
    for worker, version in sorted(versions.items()):
        check_version(f"--dask {cluster.address}: worker {worker}", version)
    check_version(f"--dask {cluster.address}: the scheduler", cluster.scheduler_answer(*_VERSION))
    return set(versions)


def _answers(
    cluster: Cluster,
    pulses: Pulses,
    workers: Iterable[str],
    patience_s: float,
    function: Callable[..., object],
    *arguments: object,
) -> dict[str, object]:
    """Return what each worker answers, an error included.

    Left out are those that do not answer in time, and those that leave or freeze meanwhile.
    """
    waiting = cluster.ask(workers, function, *arguments)
    answers: dict[str, object] = {}
    deadline = monotonic() + patience_s
    while waiting and monotonic() < deadline:
        for arrival in cluster.finished(waiting, min(LOOK_S, patience_s)):
            worker = waiting.pop(arrival)
            if error_of(arrival) is None:  # it has not left
                answers[worker] = arrival.result()
        if pulses.look():
            cluster.forget([a for a, worker in waiting.items() if not pulses.lives(worker)])
    cluster.forget(waiting)
    return answers


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


def with_same_version(version: str, work: Callable[..., T], *arguments: object) -> T:
    """Do some work, on a worker that may have joined after all versions were compared."""
    if version != __version__:
        raise MismatchError(
            f"--dask: {NEWCOMER} has bubbleviz {__version__}, not {version}; install the same "
            "version everywhere"
        )
    return work(*arguments)


@frozen
class Task:
    """What a worker is to do.

    Attributes:
        place: what it is about, for messages.
        work: what to do.
        arguments: of the work.
        hosts: where it can be done; None for anywhere.
        attempts: its submissions that are under way; the first result counts.
    """

    place: str
    work: Callable[..., Any]
    arguments: tuple[object, ...]
    hosts: frozenset[str] | None
    attempts: list[Attempt] = field(default_factory=list)


@contextmanager
def dask_fleet(address: str) -> Iterator[DaskFleet]:
    """Yield a fleet of the workers of a cluster.

    Args:
        address: of the scheduler, or the path of its scheduler file.

    Raises:
        InputError: there is no scheduler, no worker that answers, or no Dask here.
        MismatchError: the scheduler or a worker has another version of bubbleviz, or none.
    """
    with connected(address) as cluster:
        yield DaskFleet(cluster, answering_workers(cluster))


@frozen
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

    def __init__(self, cluster: Cluster, answering: set[str]) -> None:
        super().__init__()
        self._cluster, self._pulses = cluster, Pulses(cluster, answering)
        self._hosts: dict[str, set[str]] = {}
        self._bytes: dict[str, int] = {}

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files that paths stand for on the hosts of the workers.

        Raises:
            InputError: a path leads to no profile on any of them.
            MismatchError: two hosts have different files under one path.
        """
        hosts = sorted(self._pulses.hosts())
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
            tasks = [self._task([paths[number] for number in batch], work) for batch in batches]
            for number, result in self._done(tasks):
                batch = batches[number]
                if isinstance(result, ProfileError) and len(batch) > 1:
                    again.extend([file] for file in batch)
                else:
                    yield batch, result
            batches = again

    def _batches(self, paths: Sequence[str], most: int) -> list[list[int]]:
        """Return numbers of files that are read together: small ones that the same hosts see."""
        most = min(most, -(-len(paths) // (_TASKS * max(len(self._pulses.living()), 1))))
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

    def _task(self, paths: Sequence[str], work: Callable[[Sequence[tuple[str, str]]], Any]) -> Task:
        """Return the task of some work on files, where these are seen."""
        given = [(_absolute(path), path) for path in paths]
        return Task(paths[0], work, (given,), self._seen_on(paths[0]))

    def _seen_on(self, path: str) -> frozenset[str] | None:
        """Return the hosts that see a file; None for all."""
        seen = self._hosts.get(_absolute(path))
        return None if seen is None or seen >= self._pulses.hosts() else frozenset(seen)

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
                self._submit(number, task, task.hosts)
            if not left:
                return
            attempts = {a.arrival: (n, a) for n, task in left.items() for a in task.attempts}
            done = self._cluster.finished(attempts, LOOK_S) if attempts else []
            for number, attempt in sorted((attempts[a] for a in done), key=lambda pair: pair[0]):
                if number not in left:
                    continue
                task = left[number]
                if error_of(attempt.arrival) is not None and len(task.attempts) > 1:
                    task.attempts.remove(attempt)
                    continue
                result = self._result(attempt, task.place)
                self._cluster.forget(task.attempts)
                del left[number]
                yield number, result
            if left and self._pulses.look():
                yield from self._resubmit_stuck(left)

    def _submit(self, number: int, task: Task, where: Collection[str] | None) -> None:
        arguments = (__version__, task.work, *task.arguments)
        task.attempts.append(
            self._cluster.submit(with_same_version, arguments, where, priority=-number)
        )

    def _resubmit_stuck(self, left: dict[int, Task]) -> Iterator[tuple[int, ProfileError]]:
        """Have done elsewhere what a silent worker has, and give up what nobody is left for."""
        living, silent, hosts = self._pulses.living(), self._pulses.silent(), self._pulses.hosts()
        stuck = self._cluster.keys_on(silent) if silent else set()
        for number, task in list(left.items()):
            able = {w for w in living if task.hosts is None or host_of(w) in task.hosts}
            lost = all(
                attempt.key in stuck or self._pulses.have_left(attempt.where)
                for attempt in task.attempts
            )
            recent = hosts if task.hosts is None else hosts & task.hosts
            if lost and able and len(task.attempts) < _ATTEMPTS:
                self._submit(number, task, able)
            elif (lost and able) or not recent:
                self._cluster.forget(task.attempts)
                del left[number]
                yield (
                    number,
                    ProfileError(
                        f"{task.place}: no worker that sees it is left, or answers; restart it and "
                        "run again"
                    ),
                )

    def _result(self, attempt: Attempt, place: str) -> Any:
        """Return the result of an attempt; the death of workers as an error of the file."""
        error = error_of(attempt.arrival)
        if error is None:
            return attempt.arrival.result()
        if isinstance(error, ProfileError):
            return error
        if isinstance(error, BubblevizError):
            raise error
        if isinstance(error, CancelledError) or not self._cluster.connected:
            raise self._cluster.gone(error) from error
        if lacks_bubbleviz(error):
            check_version(f"--dask: {NEWCOMER}", error)
        if type(error).__name__ == "KilledWorker":
            return ProfileError(
                f"{place}: every worker that read it died; if there was too little memory, start "
                "workers with more"
            )
        # Whatever else a worker raises must not lose the other files.
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return ProfileError(f"{place}: no worker could read it ({what})")


def _absolute(path: str) -> str:
    return str(Path.cwd() / path) if path else path


def _as_given(path: str, given: str) -> str:
    """Return an absolute path as it would be found here: relative, if it was so given."""
    return path if Path(given).is_absolute() else str(Path(path).relative_to(Path.cwd()))
