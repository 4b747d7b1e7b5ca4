"""Reads recording files (*parts*), either once or repeatedly while they grow.

After its header, a file has one line per iteration. Damaged lines are skipped. Bytes after the last
complete iteration are read again later, because they may be an incomplete line::

    header ⏎ iteration ⏎ damaged ⏎ iteration ⏎ torn
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bubbleviz import recording_layout as layout
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints, Table, join_tables, scatter
from bubbleviz.model.grouping import invert_permutation
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.texts import make_natural_key
from bubbleviz.sources.operations.jsonl.lines import (
    Header,
    Iteration,
    OperationColumns,
    decode_header,
    decode_iteration,
    has_checksum,
    is_cut_header,
)

#: Number of bytes after which a read stops, at the end of the current iteration.
CHUNK_BYTES = 1 << 22
#: Number of bytes at the end of a file that are first searched for its last iteration.
_TAIL_BYTES = 1 << 16
#: Maximum length of a header in bytes.
_MAX_HEADER_BYTES = 1 << 16
#: Matches the path of a recording file: a stem, an optional file number, and the suffix.
_NAME = re.compile(rf"(?P<stem>.+?)(?:\.(?P<number>[0-9]{{1,6}}))?{re.escape(layout.SUFFIX)}\Z")


def read_header(path: str) -> Header:
    """Read the header of a recording file.

    Raises:
        ProfileError: The file cannot be read, or has no valid header.
    """
    with _open_file(path) as file:
        return decode_header(path, file.readline(_MAX_HEADER_BYTES))


@contextmanager
def _open_file(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        ProfileError: The file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            yield file
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be read ({error.strerror}); check the file and its permissions"
        ) from error


@dataclass(frozen=True, eq=False, repr=False)
class RecordedIterations(Table):
    """The recorded iterations of one rank, in the order in which they were written.

    Times are in ns on the host's monotonic clock, unless stated otherwise.

    Attributes:
        number: Iteration number, or -1 if no range contains an iteration number.
        start_ns: Start time of the iteration.
        end_ns: Time at which the iteration's range ended.
        after_gap: Whether iterations are missing before this one, because their lines are damaged
            or because they were not recorded.
        n_lost: Number of operations that ended too late to be written.
        monotonic_ns: Time at which the iteration was written to the file.
        utc_ns: UTC time at which the iteration was written to the file.
        device_ns: Host clock minus device clock, or 0 if there is no device.
    """

    number: Ints
    start_ns: Ints
    end_ns: Ints
    after_gap: Bools
    n_lost: Ints
    monotonic_ns: Ints
    utc_ns: Ints
    device_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RecordedOperations(Table):
    """The recorded operations of one rank, in the order in which they ended.

    Times are in ns on the host's monotonic clock.

    Attributes:
        iteration: The operation's iteration, as a row of :class:`RecordedIterations`.
        name_id: Range name id, or -1 if the file does not define the name.
        thread: Thread number within the process.
        launches: Whether the range only started transfers.
        host_start_ns: Time at which the host entered the range.
        host_end_ns: Time at which the host left the range.
        start_ns: Start on the device, or -1 if it is unknown or the operation ran on the host.
        end_ns: End on the device, or -1 if it is unknown or the operation ran on the host.
        times_lost: Whether the operation ran on a device, but its device times are unknown.
    """

    iteration: Ints
    name_id: Ints
    thread: Ints
    launches: Bools
    host_start_ns: Ints
    host_end_ns: Ints
    start_ns: Ints
    end_ns: Ints
    times_lost: Bools


@dataclass(frozen=True)
class Stretch:
    """A stretch of a recording: consecutive complete iterations and their operations."""

    iterations: RecordedIterations
    operations: RecordedOperations


def join_stretches(stretches: list[Stretch]) -> Stretch:
    """Concatenate one or more stretches in the given order.

    The operations' column ``iteration`` is shifted to match the rows of the concatenated
    iterations.
    """
    n_iterations = np.array([len(stretch.iterations) for stretch in stretches], np.int64)
    n_operations = [len(stretch.operations) for stretch in stretches]
    iterations = join_tables([stretch.iterations for stretch in stretches])
    operations = join_tables([stretch.operations for stretch in stretches])
    first_iteration = np.repeat(np.cumsum(n_iterations) - n_iterations, n_operations)
    iteration = operations.iteration + first_iteration
    return Stretch(iterations, replace(operations, iteration=iteration))


def sort_stretch(stretch: Stretch) -> Stretch:
    """Return a stretch with its iterations sorted by start time, using a stable sort.

    The operations are reordered and renumbered accordingly. The monotonic clock never goes
    backward, so the iterations in a file are unsorted only if someone edited the file.
    """
    start_ns = stretch.iterations.start_ns
    if (start_ns[1:] >= start_ns[:-1]).all():
        return stretch
    order = np.argsort(start_ns, kind="stable")
    iteration = invert_permutation(order)[stretch.operations.iteration]
    operations = replace(stretch.operations, iteration=iteration)
    rows = np.argsort(iteration, kind="stable")
    return Stretch(stretch.iterations.take(order), operations.take(rows))


def make_stretch(
    iterations: list[Iteration], after_damage: list[bool], names: dict[int, int]
) -> Stretch:
    """Convert decoded iterations from one file to a stretch.

    Args:
        iterations: Consecutive iterations in the file. Must not be empty.
        after_damage: For each iteration, whether a damaged line precedes it.
        names: Maps the name ids of this file to the name ids shared by all files.
    """
    after_pause = [iteration.after_pause for iteration in iterations]
    rows = RecordedIterations(
        number=_make_column(NONE if i.iteration is None else i.iteration for i in iterations),
        start_ns=_make_column(iteration.start_ns for iteration in iterations),
        end_ns=_make_column(iteration.end_ns for iteration in iterations),
        after_gap=np.array(after_damage) | np.array(after_pause),
        n_lost=_make_column(iteration.lost for iteration in iterations),
        monotonic_ns=_make_column(iteration.clock.monotonic_ns for iteration in iterations),
        utc_ns=_make_column(iteration.clock.utc_ns for iteration in iterations),
        device_ns=_make_column(iteration.device_offset_ns for iteration in iterations),
    )
    return Stretch(rows, _make_operations(iterations, rows.start_ns, names))


def _make_operations(
    iterations: list[Iteration], iteration_start_ns: Ints, names: dict[int, int]
) -> RecordedOperations:
    """Convert the operations in decoded iterations to columns.

    Args:
        iterations: Consecutive iterations in a file. Must not be empty.
        iteration_start_ns: Start time of each iteration. The times of its operations are relative
            to this time.
        names: Maps the name ids of this file to the name ids shared by all files.
    """
    tables = [iteration.operations for iteration in iterations]
    counts = [len(table.name) for table in tables]
    row = np.repeat(np.arange(len(tables)), counts)
    origin_ns = iteration_start_ns[row]
    # The last element, -1, is for name ids that the file does not define.
    name_of_id = scatter(max([*names, NONE]) + 2, list(names), list(names.values()))
    name_id = _make_column(chain.from_iterable(table.name for table in tables))
    name_id = np.minimum(name_id, len(name_of_id) - 1)
    launches = _make_optional_column(tables, lambda table: table.launches).astype(bool)
    device_start_ns = _convert_device_times(tables, lambda table: table.device_start, origin_ns)
    on_device = np.repeat([bool(table.device_start) for table in tables], counts)
    return RecordedOperations(
        iteration=row,
        name_id=name_of_id[name_id],
        thread=_make_optional_column(tables, lambda table: table.thread),
        launches=launches,
        host_start_ns=_make_column(chain.from_iterable(table.start for table in tables))
        + origin_ns,
        host_end_ns=_make_column(chain.from_iterable(table.end for table in tables)) + origin_ns,
        start_ns=device_start_ns,
        end_ns=_convert_device_times(tables, lambda table: table.device_end, origin_ns),
        times_lost=on_device & (device_start_ns == NONE) & ~launches,
    )


def _make_column(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _make_optional_column(
    tables: list[OperationColumns], column: Callable[[OperationColumns], Sequence[int]]
) -> Ints:
    """Concatenate an optional column from several tables, with zeros for tables without it."""
    lists: list[Sequence[int]] = [column(table) or [0] * len(table.name) for table in tables]
    return _make_column(chain.from_iterable(lists))


def _convert_device_times(
    tables: list[OperationColumns],
    column: Callable[[OperationColumns], list[int | None]],
    origin_ns: Ints,
) -> Ints:
    """Return device times as absolute times in ns on the host's clock, or -1 if unknown.

    Args:
        tables: The operations in each iteration.
        column: Function that returns the device times of a table. An empty list means that all of
            the table's times are unknown.
        origin_ns: For each operation, the start time of its iteration.
    """
    unknown: list[int | None] = [None]
    lists = [column(table) or unknown * len(table.name) for table in tables]
    # None becomes NaN. Doubles are exact for times up to 104 days after the start of an iteration.
    offset_ns = np.fromiter(chain.from_iterable(lists), np.float64, len(origin_ns))
    is_known = ~np.isnan(offset_ns)
    known_ns = np.where(is_known, offset_ns, 0).astype(np.int64) + origin_ns
    return np.where(is_known, known_ns, NONE)


class PartReader:
    """Reads the complete iterations added to a file since it was last read.

    Each read opens the file again and ignores its reported size. On a network file system, this is
    the only way to see another machine's writes. A file that was truncated or replaced is read from
    the beginning.

    Args:
        path: Path to the file, which may still be empty.
        names: Numbers the range names. Several readers may share this object.

    Attributes:
        path: Path to the file.
        header: Header of the file, or None if the file has no complete header yet.
        n_damaged: Number of damaged lines before the last complete iteration.
        damage: Description of the damage in the first damaged line, or "" if no line is damaged.
        n_tail_damaged: Number of damaged lines after the last complete iteration. If another
            machine is writing the file, a later read may find them intact.
        tail_bytes: Number of bytes after the last complete iteration.
        cut_bytes: Number of bytes after the last line end. These bytes belong to a line that is
            still being written or was never completed.
    """

    def __init__(self, path: str, names: Numbering[str]) -> None:
        self.path, self._numbering = path, names
        self._reset()

    def _reset(self) -> None:
        """Discard everything read so far. The next read starts at the beginning of the file."""
        self.header: Header | None = None
        self.damage = ""
        self.n_damaged = self.n_tail_damaged = self.tail_bytes = self.cut_bytes = 0
        self._head = b""
        self._offset = self._n_lines = 0
        self._names: dict[int, int] = {}

    @property
    def is_without_iterations(self) -> bool:
        """Whether a header has been read, but no complete iteration."""
        return self.header is not None and self._offset == len(self._head)

    def read(self) -> Stretch | None:
        """Return the next complete iterations, or None if there are none.

        A call stops at the end of the iteration that reaches ``CHUNK_BYTES`` (4 MiB).

        Raises:
            ProfileError: The file cannot be read, is not a recording, or has an unsupported
                version.
        """
        with _open_file(self.path) as file:
            if not self._seek_unread(file):
                return None
            iterations, after_damage = self._read_iterations(file)
        for iteration in iterations:
            for name_id, name in iteration.names.items():
                self._names[name_id] = self._numbering.number(name)
        return make_stretch(iterations, after_damage, self._names) if iterations else None

    def _seek_unread(self, file: BinaryIO) -> bool:
        """Seek to the position in a file at which reading must continue.

        Reading continues after the last complete iteration that was read. If the file is new, or
        was truncated or replaced, earlier results are discarded, and reading continues after the
        header.

        Returns:
            Whether the file has a complete header.

        Raises:
            ProfileError: The file is not a recording, or has an unsupported version.
        """
        if self.header is not None and file.read(len(self._head)) == self._head:
            file.seek(self._offset - 1)
            if file.read(1) == b"\n":
                return True
        # The file is new, or it was truncated or replaced.
        self._reset()
        file.seek(0)
        head = file.readline(_MAX_HEADER_BYTES)
        if is_cut_header(head):
            self.tail_bytes = self.cut_bytes = len(head)
            return False
        self.header, self._head = decode_header(self.path, head), head
        self._offset, self._n_lines = len(head), 1
        return True

    def _read_iterations(self, file: BinaryIO) -> tuple[list[Iteration], list[bool]]:
        """Read the next complete iterations.

        Reading stops at the end of the iteration that reaches ``CHUNK_BYTES``. Lines after the last
        complete iteration are read again next time, because a reader on another machine may not see
        all written bytes yet. The attributes for damaged lines and unread bytes are updated.

        Returns:
            iterations: The complete iterations.
            after_damage: For each iteration, whether a damaged line directly precedes it.
        """
        iterations: list[Iteration] = []
        after_damage: list[bool] = []
        is_checked = has_checksum(self._head)
        n_bytes = n_lines = n_pending = self.tail_bytes = self.cut_bytes = 0
        if not self.n_damaged:
            self.damage = ""
        for line in file:
            self.tail_bytes += len(line)
            if not line.endswith(b"\n"):
                self.cut_bytes = len(line)
                break
            n_lines += 1
            try:
                iteration = decode_iteration(line, is_checked=is_checked)
            except ValueError as error:
                n_pending += 1
                self.damage = self.damage or f"line {self._n_lines + n_lines}: {error}"
                continue
            iterations.append(iteration)
            after_damage.append(n_pending > 0)
            self.n_damaged += n_pending
            self._n_lines += n_lines
            self._offset += self.tail_bytes
            n_bytes += self.tail_bytes
            n_lines = n_pending = self.tail_bytes = 0
            if n_bytes >= CHUNK_BYTES:
                break
        self.n_tail_damaged = n_pending
        return iterations, after_damage


def read_last_iteration(path: str) -> Iteration | None:
    """Return the last complete iteration in a file, or None if there is none.

    Raises:
        ProfileError: The file cannot be read.
    """
    with _open_file(path) as file:
        head = file.readline(_MAX_HEADER_BYTES)
        size = file.seek(0, os.SEEK_END)
        tail_bytes = _TAIL_BYTES
        while True:
            file.seek(max(size - tail_bytes, len(head)))
            for line in reversed(file.readlines()):
                with suppress(ValueError):
                    return decode_iteration(line, is_checked=has_checksum(head))
            if tail_bytes >= size:
                return None
            tail_bytes *= 8


def parse_file_name(path: str) -> tuple[str, int] | None:
    """Split the path of a recording file into its stem and file number.

    A process writes ``rank-00003.bvrec``, then ``rank-00003.1.bvrec``, and so on. After a restart,
    the new process continues with the next number.

    Returns:
        The stem, such as ``rank-00003``, and the number, which is 0 for the first file. None if the
        path does not belong to a recording file.
    """
    match = _NAME.fullmatch(path)
    return None if match is None else (match["stem"], int(match["number"] or 0))


def sort_files(files: Iterable[str]) -> list[str]:
    """Sort recording files by stem in natural order, then by file number."""

    def make_sort_key(file: str) -> tuple[tuple[tuple[int, int, str], ...], int]:
        stem, number = parse_file_name(file) or (file, 0)
        return make_natural_key(stem), number

    return sorted(files, key=make_sort_key)


class FollowedFolder:
    """Reads the iterations added to a folder's recordings since it was last read.

    Between two reads, files may appear, grow, be deleted or be replaced. Times are on the monotonic
    clock of each file's host. The iterations in a stretch also include UTC times.

    Args:
        folder: Path to the folder that contains the recordings. The folder need not exist yet.

    Attributes:
        names: Numbers the range names in all files.
        unreadable: Errors for files that could not be read, keyed by path. Unreadable files are
            tried again next time.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._parts: dict[str, PartReader] = {}
        self.names: Numbering[str] = Numbering()
        self.unreadable: dict[str, ProfileError] = {}

    @property
    def parts(self) -> tuple[PartReader, ...]:
        """The readers for all files found by the last read, sorted by rank and file number."""
        return tuple(self._parts.values())

    def new(self) -> Iterator[tuple[PartReader, Stretch]]:
        """Yield (reader, new iterations) for each file that has new complete iterations.

        Files are read in the order of :attr:`parts`. If the folder does not exist, nothing is
        yielded. If a file cannot be read, the error is stored in ``unreadable``. Readers and errors
        for deleted files are dropped.

        Raises:
            InputError: The folder cannot be read.
        """
        # List the folder instead of globbing, which hides missing read permissions.
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be read ({error.strerror}); check the directory and its "
                "permissions"
            ) from error
        recordings = (name for name in names if name.endswith(layout.SUFFIX))
        paths = sort_files(str(self._folder / name) for name in recordings)
        self._parts = {
            path: self._parts.get(path) or PartReader(path, self.names) for path in paths
        }
        self.unreadable = {}
        for path, part in self._parts.items():
            try:
                while (stretch := part.read()) is not None:
                    yield part, stretch
            except ProfileError as error:
                # The writer may have deleted the file when it started a later part.
                if Path(path).exists():
                    self.unreadable[path] = error
