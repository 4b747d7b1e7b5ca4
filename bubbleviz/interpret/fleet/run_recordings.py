"""Recordings of a run: finds the profiles of all paths, and records each of them once.

Only the recording of a profile (operations and small statistics) is kept and sent to other
processes.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from bubbleviz.errors import MismatchError, ProfileError
from bubbleviz.interpret.fleet.process_pool import in_processes
from bubbleviz.interpret.record import ReadOptions, record
from bubbleviz.interpret.recording import Recordings, join_recordings
from bubbleviz.model.limitations import Limitation
from bubbleviz.progress import Progress, Watch, unwatched
from bubbleviz.sources.nsys.files import list_files, measure_bytes
from bubbleviz.sources.paths import InputFile, find_profiles, unreadable_profile
from bubbleviz.timing import Step, add

T = TypeVar("T")
R = TypeVar("R")

#: Bytes at the beginning of a file that distinguish most files.
_HEAD_BYTES = 1 << 16
#: Number of consecutive files that are gathered as soon as all of them are read.
_BLOCK = 64

#: The recording of a profile and the steps of reading it, or the error.
Outcome: TypeAlias = "tuple[Recordings, tuple[Step, ...]] | ProfileError"


def outcome_of(path: str, options: ReadOptions, watch: Watch = unwatched) -> Outcome:
    """Return the recording of a profile, or the error; see :func:`record`."""
    try:
        return record(path, options, watch)
    except ProfileError as error:
        return error
    except OSError as error:
        return ProfileError(f"{path}: cannot be read ({error.strerror or error})")


@dataclass(frozen=True, eq=False)
class FilesRead:
    """Result of reading files.

    Attributes:
        numbers: Indices of the files.
        outcomes: Steps of reading each file, or the error.
        recordings: Recordings of the files that could be read, in this order, or None if there are
            none.
    """

    numbers: tuple[int, ...]
    outcomes: tuple[tuple[Step, ...] | ProfileError, ...]
    recordings: Recordings | None


def files_read(numbers: Sequence[int], outcomes: Sequence[Outcome]) -> FilesRead:
    """Return the result of reading files, given the outcome of each."""
    read = [outcome[0] for outcome in outcomes if not isinstance(outcome, ProfileError)]
    return FilesRead(
        tuple(numbers),
        tuple(o if isinstance(o, ProfileError) else o[1] for o in outcomes),
        join_recordings(read) if read else None,
    )


#: Size of a profile and the CRC-32 of its first bytes, which distinguish most files.
Glance: TypeAlias = tuple[int, int]


def glance(path: str) -> Glance:
    """Return the glance of a file.

    Raises:
        ProfileError: The file cannot be opened.
    """
    return size_of(path), zlib.crc32(next(_blocks(path, _HEAD_BYTES), b""))


def digest(path: str) -> bytes:
    """Return the SHA-256 of a whole file.

    Raises:
        ProfileError: The file cannot be opened.
    """
    content = hashlib.sha256()
    for block in _blocks(path, 1 << 20):
        content.update(block)
    return content.digest()


def size_of(path: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        ProfileError: The size cannot be read.
    """
    try:
        return measure_bytes(path)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be looked at ({error.strerror})") from error


def _blocks(path: str, length: int) -> Iterator[bytes]:
    """Yield a file in blocks of at most ``length`` bytes."""
    try:
        for part in list_files(path) if Path(path).is_dir() else [Path(path)]:
            with part.open("rb") as file:
                # A kernel's log looks like an empty file, and never ends.
                while os.fstat(file.fileno()).st_size and (block := file.read(length)):
                    yield block
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error


def of_file(work: Callable[[str], T], path: str) -> T | ProfileError:
    """Return the result of a function for a file, or its error."""
    try:
        return work(path)
    except ProfileError as error:
        return error


class Fleet:
    """Finds, checks and records profiles on this machine.

    Args:
        jobs: Number of processes or threads that work at the same time.
    """

    #: Whether a file that cannot be read ends the run, if it was named.
    strict = True

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files that paths name or contain.

        Raises:
            InputError: A path does not exist, cannot be read, or leads to no profile.
        """
        return find_profiles(paths)

    def of_files(self, work: Callable[[str], T], paths: Sequence[str]) -> list[T | ProfileError]:
        """Return the result of a module-level function for each file, or its error."""
        return [of_file(work, path) for path in paths]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[FilesRead]:
        """Yield files as soon as they are read, one or more at a time.

        A single file is read by threads, several files by one process each, the largest first.
        """
        if len(paths) == 1 or self.jobs == 1:
            for number, path in enumerate(paths):
                watch = partial(progress.read, path)
                each = replace(options, jobs=self.jobs)
                yield files_read([number], [outcome_of(path, each, watch)])
                watch(1.0)
            return
        sizes = [of_file(size_of, path) for path in paths]
        large = [-size if isinstance(size, int) else 0 for size in sizes]
        order = sorted(range(len(paths)), key=lambda number: (large[number], number))
        work = partial(outcome_of, options=replace(options, jobs=max(1, self.jobs // len(paths))))
        jobs = min(self.jobs, len(paths))
        for number, outcome in in_processes(work, paths, order, jobs, progress):
            yield files_read([number], [outcome])

    def each(self, work: Callable[[T], R], given: Iterable[T]) -> list[R]:
        """Return the result of a module-level function for each argument, in order."""
        return list(map(work, given))


def refuse_same_content(fleet: Fleet, files: Sequence[str]) -> Mapping[str, int]:
    """Refuse files with the same content, and return the size of each readable file in bytes.

    Raises:
        MismatchError: Two files have the same content.
    """
    alike: dict[Glance, list[str]] = {}
    for path, seen in zip(files, fleet.of_files(glance, files), strict=True):
        # Empty files have the same content, but each is refused when it is read.
        if isinstance(seen, tuple) and seen[0]:
            alike.setdefault(seen, []).append(path)
    candidates = [path for same in alike.values() if len(same) > 1 for path in same]
    known: dict[bytes, str] = {}
    for path, content in zip(candidates, fleet.of_files(digest, candidates), strict=True):
        if isinstance(content, bytes):
            if content in known:
                raise MismatchError(
                    f"{known[content]} and {path}: the same profile twice; give each profile once"
                )
            known[content] = path
    return {path: size for (size, _), same in alike.items() for path in same}


def record_all(
    fleet: Fleet, files: Sequence[InputFile], options: ReadOptions, progress: Progress
) -> tuple[Recordings, tuple[Limitation, ...]]:
    """Return one recording per clock, and limitations for files that cannot be read.

    Args:
        fleet: Machines or processes that read the files.
        files: Files that were named, or found in directories.
        options: Options for reading them.
        progress: Receives the fraction of each file that has been read.

    Raises:
        ProfileError: A file that was named cannot be read, or no file can. The error is that of the
            first such file.
    """
    done: set[int] = set()
    errors: dict[int, ProfileError] = {}
    parts: dict[int, Recordings] = {}
    for read in fleet.record([file.path for file in files], options, progress):
        for number, outcome in zip(read.numbers, read.outcomes, strict=True):
            if isinstance(outcome, ProfileError):
                errors[number] = outcome
            else:
                add(outcome)
        if read.recordings is not None:
            parts[read.numbers[0]] = read.recordings
        done.update(read.numbers)
        # Many small groups need more memory, so consecutive files are gathered once all are read.
        block = read.numbers[0] // _BLOCK * _BLOCK
        numbers = range(block, block + _BLOCK)
        if done.issuperset(numbers):
            some = [parts.pop(number) for number in numbers if number in parts]
            if some:
                parts[block] = join_recordings(some)
        bad = [number for number in errors if files[number].named and fleet.strict]
        if bad and all(before in done for before in range(min(bad))):
            raise errors[min(bad)]
    ordered = [parts[number] for number in sorted(parts)]
    if not ordered:
        raise errors[0]
    limitations = (unreadable_profile(errors[number]) for number in sorted(errors))
    whole = join_recordings(ordered)
    return whole, tuple(limitations)
