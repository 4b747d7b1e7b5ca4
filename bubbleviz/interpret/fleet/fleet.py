"""Fleet: where the profiles of a run are read, one after another or many at once.

Only a profile's recording, its operations and small statistics, travels and is kept.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from bubbleviz.errors import ProfileError
from bubbleviz.interpret.fleet.process_pool import BrokenPool, Job, worker_pool
from bubbleviz.interpret.record import ReadOptions, TimedRecording, record
from bubbleviz.model.values import frozen
from bubbleviz.progress import Progress, Watch, unwatched
from bubbleviz.sources.paths import InputFile, find_profiles

T = TypeVar("T")

#: A profile's recording, or why there is none.
Outcome: TypeAlias = "TimedRecording | ProfileError"
#: How many processes may die over one file.
_DEATHS = 3
#: What a process reports of a file: its number, and how much of it has been read.
_SHARE = struct.Struct("<qd")
#: How often the progress of the processes is looked at, seconds.
_LOOK_S = 0.1
#: Bytes at the beginning of a file that distinguish most files.
_HEAD_BYTES = 1 << 16


@frozen
class Glance:
    """A file's size, and a digest of its beginning."""

    size: int
    digest: bytes


def glance(path: str) -> Glance:
    """Return the glance of a file, which distinguishes most files at little cost.

    Raises:
        ProfileError: the file cannot be opened.
    """
    return Glance(_size(path), _digest(path, _HEAD_BYTES))


def digest(path: str) -> bytes:
    """Return the SHA-256 of a whole file.

    Raises:
        ProfileError: the file cannot be opened.
    """
    return _digest(path, None)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise ProfileError(f"{path}: cannot be looked at ({error.strerror})") from error


def _digest(path: str, most: int | None) -> bytes:
    content = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            # A kernel's log looks like an empty file, and never ends.
            while os.fstat(file.fileno()).st_size and (block := file.read(most or 1 << 20)):
                content.update(block)
                if most is not None:
                    break
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
    return content.digest()


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
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (number of the path, outcome), in the order in which they are done."""


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
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield (number of the path, outcome); the largest files are begun first.

        One file is read by threads, several by a process each.
        """
        if len(paths) == 1 or self.jobs == 1:
            for number, path in enumerate(paths):
                watch = partial(progress.read, path)
                each = replace(options, jobs=self.jobs)
                yield number, outcome_of(path, each, watch)
                watch(1.0)
            return
        sizes = [_or_error(_size, path) for path in paths]
        large = [-size if isinstance(size, int) else 0 for size in sizes]
        order = sorted(range(len(paths)), key=lambda number: (large[number], number))
        each = replace(options, jobs=max(1, self.jobs // len(paths)))
        yield from _ParallelRun(paths, each, progress).outcomes(order, min(self.jobs, len(paths)))


def _or_error(work: Callable[[str], T], path: str) -> T | ProfileError:
    try:
        return work(path)
    except ProfileError as error:
        return error


def outcome_of(
    path: str,
    options: ReadOptions,
    watch: Watch = unwatched,
) -> Outcome:
    """Return the recording of a profile, or why there is none; see :func:`record`."""
    try:
        return record(path, options, watch)
    except ProfileError as error:
        return error
    except OSError as error:
        return ProfileError(f"{path}: cannot be read ({error.strerror or error})")


class _ParallelRun:
    """Files recorded by several processes.

    Files that were in hand when a process died are done again, each by one process alone, so that
    it shows which of them it dies of.
    """

    def __init__(self, paths: Sequence[str], options: ReadOptions, progress: Progress) -> None:
        self._paths, self._options, self._progress = paths, options, progress
        self._deaths: Counter[int] = Counter()

    def outcomes(self, order: Sequence[int], jobs: int) -> Iterator[tuple[int, Outcome]]:
        """Yield (number, outcome) of each file."""
        waiting = deque(order)
        while waiting:
            suspects = deque(number for number in waiting if self._deaths[number])
            others = deque(number for number in waiting if not self._deaths[number])
            batch = others or deque([suspects.popleft()])
            waiting = suspects
            yield from self._in_pool(batch, min(jobs, len(batch)))
            # What the batch still holds was not done, as a process died.
            for number in batch:
                if self._deaths[number] < _DEATHS:
                    waiting.append(number)
                else:
                    yield number, self._lost(number)

    def _in_pool(self, batch: deque[int], jobs: int) -> Iterator[tuple[int, Outcome]]:
        """Yield what gets done until a process dies, and take it from the batch."""
        in_hand: dict[Future[None], tuple[int, Job[Outcome]]] = {}
        try:
            receiver, sender = Pipe(duplex=False)
            with receiver, sender, worker_pool(jobs, _report_to, sender) as pool:
                waiting = deque(batch)
                while batch:
                    while waiting and len(in_hand) < jobs:
                        job = pool.submit(_record_task, self._task(waiting[0]))
                        in_hand[job.future] = waiting.popleft(), job
                    finished = wait(in_hand, _LOOK_S, FIRST_COMPLETED).done
                    while receiver.poll():
                        number, share = _SHARE.unpack(receiver.recv_bytes())
                        self._progress.read(self._paths[number], share)
                    for future in finished:
                        number, job = in_hand[future]
                        outcome = job.result()
                        del in_hand[future]
                        batch.remove(number)
                        self._progress.read(self._paths[number], 1.0)
                        yield number, outcome
        except BrokenPool:
            self._deaths.update(number for number, _ in in_hand.values())
        except OSError:
            # No process can be started.
            yield from self._here(batch)

    def _here(self, batch: deque[int]) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes of a batch that this process records."""
        while batch:
            number = batch.popleft()
            watch = partial(self._progress.read, self._paths[number])
            yield number, outcome_of(self._paths[number], self._options, watch)
            watch(1.0)

    def _task(self, number: int) -> tuple[int, str, ReadOptions]:
        return number, self._paths[number], self._options

    def _lost(self, number: int) -> ProfileError:
        return ProfileError(
            f"{self._paths[number]}: {_DEATHS} processes died while they read it; if there was too "
            "little memory, give a smaller --jobs"
        )


#: Where a worker reports how much of a file it has read.
_progress_senders: list[Connection] = []


def _report_to(sender: Connection) -> None:
    _progress_senders.append(sender)


def _record_task(task: tuple[int, str, ReadOptions]) -> Outcome:
    number, path, options = task

    def watch(share: float) -> None:
        # So short a message is written at once or not at all, whoever else writes.
        _progress_senders[-1].send_bytes(_SHARE.pack(number, share))

    return outcome_of(path, options, watch)
