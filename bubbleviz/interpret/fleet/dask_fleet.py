"""A fleet of Dask workers: profiles are read where they are, also beyond this machine.

``bubbleviz[dask]`` installs what this needs; nothing else loads it. Scheduler and workers need the
same version of bubbleviz. What a worker was to do that dies, or no longer answers, is done again by
another one that sees the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from bubbleviz._version import __version__
from bubbleviz.errors import BubblevizError, InputError, MismatchError, ProfileError
from bubbleviz.interpret.fleet.dask_cluster import Cluster, connected
from bubbleviz.interpret.fleet.dask_tasks import DaskTasks, Pulses, Task, answering_workers
from bubbleviz.interpret.fleet.glances import Glance, digest, glance
from bubbleviz.interpret.fleet.outcome import FilesRead, Outcome, files_read, outcome_of
from bubbleviz.interpret.record import ReadOptions, renamed
from bubbleviz.interpret.recording import gathered
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
    return [_sightings_of(path) for path in paths]


def _sightings_of(path: str) -> list[_Sighting] | str:
    try:
        files = find_profiles([path])
        stats = [Path(file.path).stat() for file in files]
    except (BubblevizError, OSError) as error:
        return str(error)
    return [_Sighting(f, s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)]


def _outcome(path: str, shown: str, options: ReadOptions) -> Outcome:
    outcome = outcome_of(path, options)
    if isinstance(outcome, ProfileError):
        return type(outcome)(str(outcome).replace(path, shown))
    return replace(outcome, recording=renamed(outcome.recording, path, shown))


def _files_read(given: Sequence[tuple[str, str, ReadOptions]]) -> FilesRead:
    """Return what reading some files gave, their recordings gathered."""
    outcomes = [_outcome(*arguments) for arguments in given]
    read = files_read(range(len(given)), outcomes)
    return replace(read, recordings=(gathered(read.recordings),) if read.recordings else ())


def _of_each(work: Callable[..., T], given: Sequence[tuple[object, ...]]) -> list[T | ProfileError]:
    """Return what some work returns of each of some arguments, or the error of that file."""
    return [_or_error(work, arguments) for arguments in given]


def _or_error(work: Callable[..., T], arguments: tuple[object, ...]) -> T | ProfileError:
    try:
        return work(*arguments)
    except ProfileError as error:
        return error


class DaskFleet:
    """The workers of a cluster; each file is read on a host that sees it."""

    strict = False
    #: Who loads this can do all that workers are asked for.
    version = __version__

    def __init__(self, cluster: Cluster, answering: set[str]) -> None:
        self._pulses = Pulses(cluster, answering)
        self._tasks = DaskTasks(cluster, self._pulses)
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
        answers = dict(self._tasks.done(tasks))
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

    def glances(self, paths: Sequence[str]) -> list[Glance | ProfileError]:
        """Return the glance of each file, or why there is none."""
        glances = self._all(glance, paths, _MOST_GLANCES)
        for path, seen in zip(paths, glances, strict=True):
            self._bytes[path] = seen.size if isinstance(seen, Glance) else 0
        return glances

    def digests(self, paths: Sequence[str]) -> list[bytes | ProfileError]:
        """Return the digest of each file, or why there is none."""
        return self._all(digest, paths, _MOST_FILES)

    def _all(
        self, work: Callable[[str], T], paths: Sequence[str], most: int
    ) -> list[T | ProfileError]:
        given = [(_absolute(path),) for path in paths]
        results: dict[int, T | ProfileError] = {}
        for batch, found in self._over(paths, partial(_of_each, work), given, most):
            each = [found] if isinstance(found, ProfileError) else found
            results.update(zip(batch, each, strict=True))
        return [results[number] for number in range(len(paths))]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[FilesRead]:
        """Yield what was read, some files or one, in the order in which that is done."""
        each = replace(options, jobs=1)
        given = [(_absolute(path), path, each) for path in paths]
        for batch, read in self._over(paths, _files_read, given, _MOST_FILES):
            for number in batch:
                progress.read(paths[number], 1.0)
            if isinstance(read, ProfileError):
                yield FilesRead(tuple(batch), (read,), ())
            else:
                yield replace(read, numbers=tuple(batch))

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
        for number, result in self._tasks.done(tasks(), _AT_ONCE):
            argument = arguments.pop(number)
            results[number] = work(argument) if isinstance(result, ProfileError) else result
        return [results[number] for number in range(len(results))]

    def _over(
        self,
        paths: Sequence[str],
        work: Callable[[Any], T],
        given: Sequence[tuple[object, ...]],
        most: int,
    ) -> Iterator[tuple[Sequence[int], T | ProfileError]]:
        """Yield (numbers, result) of some work on files together, or (number, error) of one.

        Small files are one task; where one of these takes its worker with it, each is its own.
        """
        batches = self._batches(paths, most)
        while batches:
            again: list[list[int]] = []
            tasks = [self._task(paths, batch, work, given) for batch in batches]
            for number, result in self._tasks.done(tasks):
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

    def _task(
        self,
        paths: Sequence[str],
        batch: Sequence[int],
        work: Callable[[Any], Any],
        given: Sequence[tuple[object, ...]],
    ) -> Task:
        """Return the task of some work on files, where these are seen."""
        first = paths[batch[0]]
        return Task(first, work, ([given[n] for n in batch],), self._seen_on(first))

    def _seen_on(self, path: str) -> frozenset[str] | None:
        """Return the hosts that see a file; None for all."""
        seen = self._hosts.get(_absolute(path))
        return None if seen is None or seen >= self._pulses.hosts() else frozenset(seen)


def _absolute(path: str) -> str:
    return str(Path.cwd() / path) if path else path


def _as_given(path: str, given: str) -> str:
    """Return an absolute path as it would be found here: relative, if it was so given."""
    return path if Path(given).is_absolute() else str(Path(path).relative_to(Path.cwd()))
