"""Finding all profiles of a run, and recording each of them once.

A recording contains operations and small statistics. Only recordings, not profiles, are kept and
sent between processes.
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
from bubbleviz.interpret.fleet.process_pool import run_in_processes
from bubbleviz.interpret.record import ReadOptions, record
from bubbleviz.interpret.recording import Recordings, join_recordings
from bubbleviz.model.limitations import Limitation
from bubbleviz.progress import Progress, Watch, unwatched
from bubbleviz.sources.nsys.files import list_files, measure_bytes
from bubbleviz.sources.paths import InputFile, find_profiles, make_unreadable_limitation
from bubbleviz.timing import Step, add_steps

T = TypeVar("T")
R = TypeVar("R")

#: Number of bytes at the start of a file that distinguish most files.
_HEAD_BYTES = 1 << 16
#: Number of consecutive files whose recordings are joined as soon as all of them are read.
_BLOCK = 64

#: Result of recording a profile: its recordings and the timed steps of reading it, or the error.
Outcome: TypeAlias = "tuple[Recordings, tuple[Step, ...]] | ProfileError"


def record_file(path: str, options: ReadOptions, watch: Watch = unwatched) -> Outcome:
    """Record a profile, and return (recordings, timed steps), or the error if it cannot be read."""
    try:
        return record(path, options, watch)
    except ProfileError as error:
        return error
    except OSError as error:
        return ProfileError(f"{path}: cannot be read ({error.strerror or error})")


@dataclass(frozen=True, eq=False)
class FilesRead:
    """Result of reading one or more files.

    Attributes:
        numbers: Indices of the files.
        outcomes: For each file, the timed reading steps, or the error.
        recordings: Recordings of the readable files, in the same order, or None if no file is
            readable.
    """

    numbers: tuple[int, ...]
    outcomes: tuple[tuple[Step, ...] | ProfileError, ...]
    recordings: Recordings | None


def collect_outcomes(numbers: Sequence[int], outcomes: Sequence[Outcome]) -> FilesRead:
    """Join the recordings of several files, and collect each file's timed steps or error.

    Args:
        numbers: Index of each file.
        outcomes: For each file, its recordings and steps, or the error.
    """
    read = [outcome[0] for outcome in outcomes if not isinstance(outcome, ProfileError)]
    return FilesRead(
        tuple(numbers),
        tuple(o if isinstance(o, ProfileError) else o[1] for o in outcomes),
        join_recordings(read) if read else None,
    )


#: Size of a profile in bytes, and CRC-32 of its first bytes. Together they distinguish most files.
Glance: TypeAlias = tuple[int, int]


def read_glance(path: str) -> Glance:
    """Return the size of a file in bytes, and the CRC-32 of its first ``_HEAD_BYTES`` bytes.

    Raises:
        ProfileError: The file cannot be opened.
    """
    return read_size(path), zlib.crc32(next(_read_blocks(path, _HEAD_BYTES), b""))


def compute_digest(path: str) -> bytes:
    """Return the SHA-256 digest of a file's content.

    Raises:
        ProfileError: The file cannot be opened.
    """
    content = hashlib.sha256()
    for block in _read_blocks(path, 1 << 20):
        content.update(block)
    return content.digest()


def read_size(path: str) -> int:
    """Return the size of a file in bytes.

    Raises:
        ProfileError: The size cannot be read.
    """
    try:
        return measure_bytes(path)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be accessed ({error.strerror})") from error


def _read_blocks(path: str, length: int) -> Iterator[bytes]:
    """Yield the content of a file in blocks of up to ``length`` bytes.

    The files of a directory are yielded one after another.
    """
    try:
        for part in list_files(path) if Path(path).is_dir() else [Path(path)]:
            with part.open("rb") as file:
                # A kernel log device has size 0, but reading it never ends.
                while os.fstat(file.fileno()).st_size and (block := file.read(length)):
                    yield block
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error


def call_for_file(function: Callable[[str], T], path: str) -> T | ProfileError:
    """Call a function with a path, and return its result or the ``ProfileError`` that it raises."""
    try:
        return function(path)
    except ProfileError as error:
        return error


class Fleet:
    """Finds, checks and records profiles on this machine.

    Args:
        jobs: Number of processes or threads that work at the same time.
    """

    #: Whether the run ends if a file that the user named cannot be read.
    strict = True

    def __init__(self, jobs: int = 1) -> None:
        self.jobs = jobs

    def find(self, paths: Sequence[str]) -> tuple[InputFile, ...]:
        """Return the profiles that are at the given paths or in the given directories.

        Raises:
            InputError: A path does not exist, cannot be read, or leads to no profile.
        """
        return find_profiles(paths)

    def call_for_files(
        self, function: Callable[[str], T], paths: Sequence[str]
    ) -> list[T | ProfileError]:
        """Call a module-level function for each file.

        The results or errors are returned in the order of the files.
        """
        return [call_for_file(function, path) for path in paths]

    def record(
        self, paths: Sequence[str], options: ReadOptions, progress: Progress
    ) -> Iterator[FilesRead]:
        """Record files, and yield results as soon as one or more files have been read.

        A single file is read by several threads. Several files are read by several processes,
        largest files first.
        """
        if len(paths) == 1 or self.jobs == 1:
            for number, path in enumerate(paths):
                watch = partial(progress.read, path)
                file_options = replace(options, jobs=self.jobs)
                yield collect_outcomes([number], [record_file(path, file_options, watch)])
                watch(1.0)
            return
        sizes = [call_for_file(read_size, path) for path in paths]
        large = [-size if isinstance(size, int) else 0 for size in sizes]
        order = sorted(range(len(paths)), key=lambda number: (large[number], number))
        function = partial(
            record_file, options=replace(options, jobs=max(1, self.jobs // len(paths)))
        )
        jobs = min(self.jobs, len(paths))
        for number, outcome in run_in_processes(function, paths, order, jobs, progress):
            yield collect_outcomes([number], [outcome])

    def map(self, function: Callable[[T], R], arguments: Iterable[T]) -> list[R]:
        """Call a module-level function for each argument, and return the results in order."""
        return list(map(function, arguments))


def refuse_same_content(fleet: Fleet, files: Sequence[str]) -> Mapping[str, int]:
    """Raise an error if two files have the same content, and return the file sizes in bytes.

    The result is keyed by path. Empty and unreadable files are left out.

    Raises:
        MismatchError: Two files have the same content.
    """
    paths_of_glance: dict[Glance, list[str]] = {}
    for path, glance_of_path in zip(files, fleet.call_for_files(read_glance, files), strict=True):
        # Empty files have the same content, but each is refused when it is read.
        if isinstance(glance_of_path, tuple) and glance_of_path[0]:
            paths_of_glance.setdefault(glance_of_path, []).append(path)
    candidates = [path for paths in paths_of_glance.values() if len(paths) > 1 for path in paths]
    path_of_content: dict[bytes, str] = {}
    for path, content in zip(
        candidates, fleet.call_for_files(compute_digest, candidates), strict=True
    ):
        if isinstance(content, bytes):
            if content in path_of_content:
                raise MismatchError(
                    f"{path_of_content[content]} and {path} are the same profile; pass it only once"
                )
            path_of_content[content] = path
    return {path: size for (size, _), paths in paths_of_glance.items() for path in paths}


def record_all(
    fleet: Fleet, files: Sequence[InputFile], options: ReadOptions, progress: Progress
) -> tuple[Recordings, tuple[Limitation, ...]]:
    """Record all files of a run.

    Args:
        fleet: Fleet that reads the files.
        files: Files that the user named, and files found in directories.
        options: Options for reading the files.
        progress: Object that is notified of the fraction of each file that has been read.

    Returns:
        recordings: One recording per profile, in the order of the files. A table with several
            clocks has several recordings.
        limitations: One limitation for each unreadable file.

    Raises:
        ProfileError: No file can be read. A strict fleet also raises this error if any file that
            the user named cannot be read. The error of the first such file is raised.
    """
    read_numbers: set[int] = set()
    errors: dict[int, ProfileError] = {}
    parts: dict[int, Recordings] = {}
    for read in fleet.record([file.path for file in files], options, progress):
        for number, outcome in zip(read.numbers, read.outcomes, strict=True):
            if isinstance(outcome, ProfileError):
                errors[number] = outcome
            else:
                add_steps(outcome)
        if read.recordings is not None:
            parts[read.numbers[0]] = read.recordings
        read_numbers.update(read.numbers)
        _join_block(parts, read.numbers[0] // _BLOCK * _BLOCK, read_numbers)
        fatal = [number for number in errors if files[number].named and fleet.strict]
        if fatal and all(earlier in read_numbers for earlier in range(min(fatal))):
            raise errors[min(fatal)]
    ordered = [parts[number] for number in sorted(parts)]
    if not ordered:
        raise errors[0]
    limitations = (make_unreadable_limitation(errors[number]) for number in sorted(errors))
    recordings = join_recordings(ordered)
    return recordings, tuple(limitations)


def _join_block(parts: dict[int, Recordings], first: int, read_numbers: set[int]) -> None:
    """Join the recordings of a block of ``_BLOCK`` consecutive files once all of them are read.

    Joined recordings need less memory than many small ones.

    Args:
        parts: Recordings, keyed by the index of their first file. The recordings of the block are
            replaced in place.
        first: Index of the first file in the block.
        read_numbers: Indices of the files that have been read.
    """
    numbers = range(first, first + _BLOCK)
    if read_numbers.issuperset(numbers):
        block_parts = [parts.pop(number) for number in numbers if number in parts]
        if block_parts:
            parts[first] = join_recordings(block_parts)
