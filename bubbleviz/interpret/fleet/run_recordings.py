"""Recordings of a run: the profiles that paths stand for, each found once, and all recorded.

Only a profile's recording, its operations and small statistics, travels and is kept.
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
from bubbleviz.interpret.recording import Recordings, gathered
from bubbleviz.model.limitations import Limitation
from bubbleviz.progress import Progress, Watch, unwatched
from bubbleviz.sources.nsys.files import bytes_of, parts_of
from bubbleviz.sources.paths import InputFile, find_profiles, unreadable_profile
from bubbleviz.timing import Step, add

T = TypeVar("T")
R = TypeVar("R")

#: Bytes at the beginning of a file that distinguish most files.
_HEAD_BYTES = 1 << 16
#: So many neighbouring files are gathered as soon as they are read.
_BLOCK = 64


# What is done with a file, by whichever process, on whichever machine.

#: The recording of a profile and the steps of reading it, or why there is none.
Outcome: TypeAlias = "tuple[Recordings, tuple[Step, ...]] | ProfileError"


def outcome_of(path: str, options: ReadOptions, watch: Watch = unwatched) -> Outcome:
    """Return the recording of a profile, or why there is none; see :func:`record`."""
    try:
        return record(path, options, watch)
    except ProfileError as error:
        return error
    except OSError as error:
        return ProfileError(f"{path}: cannot be read ({error.strerror or error})")


@dataclass(frozen=True, eq=False)
class FilesRead:
    """What reading some files gave.

    Attributes:
        numbers: of the files, one after the other.
        outcomes: the steps of reading each, or why it cannot be read.
        recordings: of those that can, in their order; None where none can.
    """

    numbers: tuple[int, ...]
    outcomes: tuple[tuple[Step, ...] | ProfileError, ...]
    recordings: Recordings | None


def files_read(numbers: Sequence[int], outcomes: Sequence[Outcome]) -> FilesRead:
    """Return what reading some files gave, by the outcome of each."""
    read = [outcome[0] for outcome in outcomes if not isinstance(outcome, ProfileError)]
    return FilesRead(
        tuple(numbers),
        tuple(o if isinstance(o, ProfileError) else o[1] for o in outcomes),
        gathered(read) if read else None,
    )


#: A profile's size, and the CRC-32 of its beginning, which distinguish most files.
Glance: TypeAlias = tuple[int, int]


def glance(path: str) -> Glance:
    """Return the glance of a file.

    Raises:
        ProfileError: the file cannot be opened.
    """
    return size_of(path), zlib.crc32(next(_blocks(path, _HEAD_BYTES), b""))


def digest(path: str) -> bytes:
    """Return the SHA-256 of a whole file.

    Raises:
        ProfileError: the file cannot be opened.
    """
    content = hashlib.sha256()
    for block in _blocks(path, 1 << 20):
        content.update(block)
    return content.digest()


def size_of(path: str) -> int:
    """Return the bytes of a file.

    Raises:
        ProfileError: it cannot be looked at.
    """
    try:
        return bytes_of(path)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be looked at ({error.strerror})") from error


def _blocks(path: str, length: int) -> Iterator[bytes]:
    """Yield a file in blocks of so many bytes."""
    try:
        for part in parts_of(path) if Path(path).is_dir() else [Path(path)]:
            with part.open("rb") as file:
                # A kernel's log looks like an empty file, and never ends.
                while os.fstat(file.fileno()).st_size and (block := file.read(length)):
                    yield block
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error


def of_file(work: Callable[[str], T], path: str) -> T | ProfileError:
    """Return what some work returns of a file, or why it cannot."""
    try:
        return work(path)
    except ProfileError as error:
        return error


class Fleet:
    """Where profiles are found, looked at and recorded: this machine.

    Args:
        jobs: how many processes, or threads, are at work at once.
    """

    #: Whether a file that cannot be read ends the run, if it was named.
    strict = True

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the files that paths stand for.

        Raises:
            InputError: a path does not exist, cannot be read, or leads to no profile.
        """
        return find_profiles(paths)

    def of_files(self, work: Callable[[str], T], paths: Sequence[str]) -> list[T | ProfileError]:
        """Return what some work, a function of a module, returns of each file, or why it cannot."""
        return [of_file(work, path) for path in paths]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[FilesRead]:
        """Yield what was read, some files or one, in the order in which that is done.

        One file is read by threads, several by a process each, the largest first.
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
        """Return what some work, a function of a module, returns of each argument, in order."""
        return list(map(work, given))


def refuse_same_content(fleet: Fleet, files: Sequence[str]) -> Mapping[str, int]:
    """Return the bytes of each file that can be read; refuse files of the same content.

    Raises:
        MismatchError: two files have the same content.
    """
    alike: dict[Glance, list[str]] = {}
    for path, seen in zip(files, fleet.of_files(glance, files), strict=True):
        # Empty files are alike, and each is refused by whoever reads it.
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
        # Neighbouring files are gathered once all of them are read: many small ones take more.
        block = read.numbers[0] // _BLOCK * _BLOCK
        numbers = range(block, block + _BLOCK)
        if done.issuperset(numbers):
            some = [parts.pop(number) for number in numbers if number in parts]
            if some:
                parts[block] = gathered(some)
        bad = [number for number in errors if files[number].named and fleet.strict]
        if bad and all(before in done for before in range(min(bad))):
            raise errors[min(bad)]
    ordered = [parts[number] for number in sorted(parts)]
    if not ordered:
        raise errors[0]
    limitations = (unreadable_profile(errors[number]) for number in sorted(errors))
    whole = gathered(ordered)
    return whole, tuple(limitations)
