"""Parts: the files of recordings, each read at once or repeatedly while it grows.

A file has one line per iteration. Damaged lines are skipped. Bytes after the last whole iteration
are read again later, because they may be an incomplete line::

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

#: Number of bytes that are read at a time; a longer iteration is read completely.
CHUNK_BYTES = 1 << 22
#: Number of bytes at the end of a file that are searched first for its last iteration.
_TAIL_BYTES = 1 << 16
#: Maximum length of a header in bytes.
_MAX_HEADER_BYTES = 1 << 16
_NAME = re.compile(rf"(?P<stem>.+?)(?:\.(?P<number>[0-9]{{1,6}}))?{re.escape(layout.SUFFIX)}\Z")


def read_header(path: str) -> Header:
    """Return the header of a file.

    Raises:
        ProfileError: The file cannot be read, or has no header.
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
            f"{path}: cannot be read ({error.strerror}); check it and its permissions"
        ) from error


@dataclass(frozen=True, eq=False, repr=False)
class RecordedIterations(Table):
    """Iterations of one rank, in the order in which they were written.

    Attributes:
        number: Number that a range gives the iteration, or -1 if none does.
        start_ns: Start time on the host's monotonic clock, like all other times.
        end_ns: End time of its range.
        after_gap: Whether iterations before it are damaged or were not recorded.
        n_lost: Number of operations that ended too late to be written.
        monotonic_ns: Time when it was written.
        utc_ns: UTC at that time.
        device_ns: The host's clock minus the device's; 0 without a device.
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
    """Operations of the iterations of one rank, in the order in which they ended.

    Attributes:
        iteration: Row of the iteration.
        name_id: Id of the name.
        thread: Number of the thread in its process.
        launches: Whether the range only started transfers.
        host_start_ns: Time when the host entered the range.
        host_end_ns: Time when the host left the range.
        start_ns: Start on the device, or -1 if it is unknown or the operation ran on the host.
        end_ns: End on the device, or -1 if ``start_ns`` is -1.
        times_lost: Whether the operation ran on a device and its times are unknown.
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
    """Complete iterations that follow each other in a file, and their operations."""

    iterations: RecordedIterations
    operations: RecordedOperations


def join_stretches(stretches: list[Stretch]) -> Stretch:
    """Concatenate one or more stretches."""
    n_iterations = np.array([len(stretch.iterations) for stretch in stretches], np.int64)
    n_operations = [len(stretch.operations) for stretch in stretches]
    iterations = join_tables([stretch.iterations for stretch in stretches])
    operations = join_tables([stretch.operations for stretch in stretches])
    first_iteration = np.repeat(np.cumsum(n_iterations) - n_iterations, n_operations)
    iteration = operations.iteration + first_iteration
    return Stretch(iterations, replace(operations, iteration=iteration))


def sort_stretch(stretch: Stretch) -> Stretch:
    """Return a stretch with its iterations sorted by start.

    The clock of a recording only increases, so a file has another order only if it was edited.
    The sort is stable.
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
    """Return iterations as columns.

    Args:
        iterations: At least one iteration.
        after_damage: Whether damaged lines precede each iteration.
        names: Id of each range name among the names of all files, keyed by its id in this file.
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
    """Return the operations of iterations as columns.

    Args:
        iterations: At least one iteration.
        iteration_start_ns: Start of each iteration, which the times of its operations are relative
            to.
        names: Id of each range name among the names of all files, keyed by its id in this file.
    """
    tables = [iteration.operations for iteration in iterations]
    counts = [len(table.name) for table in tables]
    row = np.repeat(np.arange(len(tables)), counts)
    origin_ns = iteration_start_ns[row]
    # The last element stands for names that the file does not define.
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
    """Return a column of tables, with 0 for all rows of a table that lacks it."""
    lists: list[Sequence[int]] = [column(table) or [0] * len(table.name) for table in tables]
    return _make_column(chain.from_iterable(lists))


def _convert_device_times(
    tables: list[OperationColumns],
    column: Callable[[OperationColumns], list[int | None]],
    origin_ns: Ints,
) -> Ints:
    """Return times of the device on the host's clock, or -1 if unknown.

    Args:
        tables: The operations of each iteration.
        column: Returns the times of a table, which may be absent.
        origin_ns: Time on the host's clock that the times of each operation are relative to.
    """
    unknown: list[int | None] = [None]
    lists = [column(table) or unknown * len(table.name) for table in tables]
    # None becomes NaN. Doubles are exact up to 104 days after the start of an iteration.
    offset_ns = np.fromiter(chain.from_iterable(lists), np.float64, len(origin_ns))
    is_known = ~np.isnan(offset_ns)
    known_ns = np.where(is_known, offset_ns, 0).astype(np.int64) + origin_ns
    return np.where(is_known, known_ns, NONE)


class PartReader:
    """Reads the complete iterations that were added to a file since it was last read.

    The file is opened each time and read to its end, whatever its reported size: on a network file
    system, the writes of another machine are seen only this way. A file that was cut or replaced is
    read from its beginning.

    Args:
        path: Path of the file, which may still be empty.
        names: Numbering of the names of ranges, which several readers may share.

    Attributes:
        path: Path of the file.
        header: Header of the file, or None if it has none yet.
        n_damaged: Number of damaged lines before the last whole iteration.
        damage: What is wrong with the first damaged line, or "" if none is damaged.
        n_tail_damaged: Number of damaged lines after the last whole iteration. They may
            become readable later if another machine writes the file.
        tail_bytes: Number of bytes after the last whole iteration.
        cut_bytes: Number of bytes after the last line, which are still being written or were never
            completed.
    """

    def __init__(self, path: str, names: Numbering[str]) -> None:
        self.path, self._numbering = path, names
        self._reset()

    def _reset(self) -> None:
        """Discard everything that was read, so that the file is read again from its start."""
        self.header: Header | None = None
        self.damage = ""
        self.n_damaged = self.n_tail_damaged = self.tail_bytes = self.cut_bytes = 0
        self._head = b""
        self._offset = self._n_lines = 0
        self._names: dict[int, int] = {}

    @property
    def is_without_iterations(self) -> bool:
        """Whether the file has a header and no whole iteration was read."""
        return self.header is not None and self._offset == len(self._head)

    def read(self) -> Stretch | None:
        """Return up to a few megabytes of the next complete iterations, or None if there are none.

        Raises:
            ProfileError: The file cannot be read, is not a recording, or has another version.
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
        """Go to the end of the last iteration that was read; return False without a whole header.

        If the file is new, or was cut or replaced, everything read before is discarded, and the
        position is the end of the header.

        Raises:
            ProfileError: The file is not a recording, or has another version.
        """
        if self.header is not None and file.read(len(self._head)) == self._head:
            file.seek(self._offset - 1)
            if file.read(1) == b"\n":
                return True
        # The file is new, or it was cut or replaced.
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
        """Return the next whole iterations, and whether damaged lines precede each of them.

        Lines after the last whole iteration are read again next time, because a reader on another
        machine may not see all written bytes yet. Reading stops after ``CHUNK_BYTES``. All
        attributes that describe damaged lines and unread bytes are updated.
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
    """Return the last whole iteration of a file, or None if there is none.

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
    """Return the path of a rank's first file without its suffix, and the number of a file.

    A process writes ``rank-00003.bvrec``, then ``rank-00003.1.bvrec``. The process that replaces it
    after a restart continues with the next number. The result is None for other names.
    """
    match = _NAME.fullmatch(path)
    return None if match is None else (match["stem"], int(match["number"] or 0))


def sort_files(files: Iterable[str]) -> list[str]:
    """Sort files by the name of their rank, in natural order, and then by their number."""

    def make_sort_key(file: str) -> tuple[tuple[tuple[int, int, str], ...], int]:
        stem, number = parse_file_name(file) or (file, 0)
        return make_natural_key(stem), number

    return sorted(files, key=make_sort_key)


class FollowedFolder:
    """Reads what was added to the recordings of a folder since it was last read.

    In the meantime, files may appear, grow, be deleted or be replaced. Times are on the monotonic
    clock of each host; the iterations of a stretch also give UTC.

    Args:
        folder: Folder of the recordings, which need not exist yet.

    Attributes:
        names: Numbering of the names of ranges in all files.
        unreadable: Errors of files that could not be read, keyed by path. They are read again the
            next time.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._parts: dict[str, PartReader] = {}
        self.names: Numbering[str] = Numbering()
        self.unreadable: dict[str, ProfileError] = {}

    @property
    def parts(self) -> tuple[PartReader, ...]:
        """Readers of the present files, in the order of ranks and their parts."""
        return tuple(self._parts.values())

    def new(self) -> Iterator[tuple[PartReader, Stretch]]:
        """Yield the complete iterations that were added to each file, with the reader of the file.

        Files that disappeared are forgotten, and their errors are not reported.

        Raises:
            InputError: The folder cannot be read.
        """
        # A glob pattern matches nothing in a folder without read permission, so names are listed.
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be read ({error.strerror}); check it and its permissions"
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
                # The file may have been deleted when a later part was written.
                if Path(path).exists():
                    self.unreadable[path] = error
