"""Recordings of a run: the profiles that paths stand for, each found once, and all recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from bubbleviz.errors import MismatchError, ProfileError
from bubbleviz.interpret.fleet.glances import Glance, digest, glance, size_of
from bubbleviz.interpret.fleet.outcome import FilesRead, files_read, outcome_of
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.interpret.recording import GatheredRecordings, Part, Recording, taken_over
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.private_names import note_host, note_paths
from bubbleviz.model.values import frozen
from bubbleviz.progress import Progress
from bubbleviz.sources.paths import InputFile, find_profiles, unreadable_profile
from bubbleviz.timing import add

# Fleet: where the profiles of a run are read, one after another or many at once.
#
# Only a profile's recording, its operations and small statistics, travels and is kept.


T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Fleet(Protocol):
    """Where profiles are found, looked at and recorded."""

    @property
    def strict(self) -> bool:
        """Whether a file that cannot be read ends the run, if it was named."""

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files of some paths; see :func:`~bubbleviz.sources.paths.find_profiles`."""

    def glances(self, paths: Sequence[str]) -> list[Glance | ProfileError]:
        """Return the glance of each file, or why there is none."""

    def digests(self, paths: Sequence[str]) -> list[bytes | ProfileError]:
        """Return the digest of each file, or why there is none."""

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[FilesRead]:
        """Yield what was read, some files or one, in the order in which that is done."""

    def each(self, work: Callable[[T], R], given: Iterable[T]) -> list[R]:
        """Return what some work, a function of a module, returns of each of some arguments."""


@frozen
class Local:
    """This machine, with so many processes, or threads, at work at once."""

    jobs: int
    strict: bool = True

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files that paths stand for.

        Raises:
            InputError: a path does not exist, cannot be read, or leads to no profile.
        """
        return find_profiles(paths)

    def glances(self, paths: Sequence[str]) -> list[Glance | ProfileError]:
        """Return the glance of each file, or why there is none."""
        return [_or_error(glance, path) for path in paths]

    def digests(self, paths: Sequence[str]) -> list[bytes | ProfileError]:
        """Return the digest of each file, or why there is none."""
        return [_or_error(digest, path) for path in paths]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[FilesRead]:
        """Yield what was read of each file; the largest files are begun first.

        One file is read by threads, several by a process each.
        """
        if len(paths) == 1 or self.jobs == 1:
            for number, path in enumerate(paths):
                watch = partial(progress.read, path)
                each = replace(options, jobs=self.jobs)
                yield files_read([number], [outcome_of(path, each, watch)])
                watch(1.0)
            return
        # Processes take a hundredth of a second to import.
        from bubbleviz.interpret.fleet.parallel_run import ParallelRun

        sizes = [_or_error(size_of, path) for path in paths]
        large = [-size if isinstance(size, int) else 0 for size in sizes]
        order = sorted(range(len(paths)), key=lambda number: (large[number], number))
        each = replace(options, jobs=max(1, self.jobs // len(paths)))
        run = ParallelRun(paths, each, progress)
        for number, outcome in run.outcomes(order, min(self.jobs, len(paths))):
            yield files_read([number], [outcome])

    def each(self, work: Callable[[T], R], given: Iterable[T]) -> list[R]:
        """Return what some work returns of each of some arguments, in their order."""
        return list(map(work, given))


def _or_error(work: Callable[[str], T], path: str) -> T | ProfileError:
    try:
        return work(path)
    except ProfileError as error:
        return error


#: So many neighbouring files are gathered as soon as they are read.
_BLOCK = 64


def refuse_same_content(fleet: Fleet, files: Sequence[str]) -> Mapping[str, int]:
    """Return the bytes of each file that can be read; refuse files of the same content.

    Raises:
        MismatchError: two files have the same content.
    """
    alike: dict[Glance, list[str]] = {}
    for path, seen in zip(files, fleet.glances(files), strict=True):
        # Empty files are alike, and each is refused by whoever reads it.
        if isinstance(seen, Glance) and seen.size:
            alike.setdefault(seen, []).append(path)
    candidates = [path for same in alike.values() if len(same) > 1 for path in same]
    known: dict[bytes, str] = {}
    for path, content in zip(candidates, fleet.digests(candidates), strict=True):
        if isinstance(content, bytes):
            if content in known:
                raise MismatchError(
                    f"{known[content]} and {path}: the same profile twice; give each profile once"
                )
            known[content] = path
    return {path: seen.size for seen, same in alike.items() for path in same}


def record_all(
    fleet: Fleet, files: Sequence[InputFile], options: ReadOptions, progress: Progress
) -> tuple[GatheredRecordings, tuple[Limitation, ...]]:
    """Return the recordings, one a clock, and limitations for files that cannot be read.

    Args:
        fleet: where the files are read.
        files: named, or found in directories.
        options: how to read them.
        progress: takes how much of each file has been read.

    Raises:
        ProfileError: a file that was named cannot be read, or none of the others can; of several
            such files it is the first.
    """
    done: set[int] = set()
    errors: dict[int, ProfileError] = {}
    parts: dict[int, list[Part]] = {}
    for read in fleet.record([file.path for file in files], options, progress):
        for number, outcome in zip(read.numbers, read.outcomes, strict=True):
            if isinstance(outcome, ProfileError):
                errors[number] = outcome
            else:
                add(outcome)
        for part in read.recordings:
            _note_names(part)
        parts[read.numbers[0]] = list(read.recordings)
        done.update(read.numbers)
        _gather_block(read.numbers[0] // _BLOCK * _BLOCK, parts, done)
        bad = [number for number in errors if files[number].named and fleet.strict]
        if bad and all(before in done for before in range(min(bad))):
            raise errors[min(bad)]
    ordered = [part for number in sorted(parts) for part in parts.pop(number)]
    if not ordered:
        raise errors[0]
    limitations = (unreadable_profile(str(errors[number])) for number in sorted(errors))
    return taken_over(ordered), tuple(limitations)


def _gather_block(first: int, parts: dict[int, list[Part]], done: set[int]) -> None:
    """Gather recordings of neighbouring files once all of them are read: many small ones take more.

    Args:
        first: number of the first of these files.
        parts: recordings by the number of their first file.
        done: the files that are read.
    """
    numbers = range(first, first + _BLOCK)
    some = [part for number in numbers for part in parts.get(number, ())]
    if len(some) > 1 and done.issuperset(numbers):
        for number in numbers:
            parts.pop(number, None)
        parts[first] = [taken_over(some)]


def _note_names(part: Part) -> None:
    """Note the names of files and hosts in recordings."""
    for recording in part.recordings if isinstance(part, GatheredRecordings) else (part,):
        note_paths([recording.source.path])
        for host in _hosts(recording):
            note_host(host)


def _hosts(recording: Recording) -> Iterator[str]:
    """Yield the names of hosts in a recording, and of clocks, which are mostly those of hosts."""
    if recording.source.clock is None:
        yield recording.source.host
    for told in (rank.told for rank in recording.ranks):
        if told is not None and told.host is not None:
            yield told.host
        if told is not None and told.clock is not None:
            yield told.clock.name
