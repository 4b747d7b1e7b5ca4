"""Fleet: where the profiles of a run are read, one after another or many at once.

Only a profile's recording, its operations and small statistics, travels and is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from bubbleviz.errors import ProfileError
from bubbleviz.interpret.fleet.glances import Glance, digest, glance, size_of
from bubbleviz.interpret.fleet.outcome import FilesRead, files_read, outcome_of
from bubbleviz.interpret.record import ReadOptions
from bubbleviz.model.values import frozen
from bubbleviz.progress import Progress
from bubbleviz.sources.paths import InputFile, find_profiles

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
