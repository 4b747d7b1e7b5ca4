"""Parts: the files of recordings, each read whole or again and again as it grows.

A file is divided into whole iterations. Its blocks end with a record that says how many records
they have, and their CRC-32. So a block that is damaged is passed over, wherever the damage is, and
one that is being written is left for later::

    ├─ block ─┤├─ damaged ─┤├─ block ─┤├─ torn
              END          END        END
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from bubbleviz import recording_layout as layout
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.model.columns import NONE, Bools, Ints, Table, joined, scattered
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.texts import natural_key

#: Bytes that are read at a time; a longer iteration is read as a whole.
CHUNK_BYTES = 1 << 24
_SIZE = layout.RECORD_BYTES
_TEXT = bytes([layout.KIND_TEXT])
_NAME = re.compile(rf"(?P<stem>.+?)(?:\.(?P<number>[0-9]{{1,6}}))?{re.escape(layout.SUFFIX)}\Z")


def _record(fields: str) -> np.dtype[np.void]:
    """Return records of these fields, each a name and its type."""
    return np.dtype([(name, kind) for name, kind in map(str.split, fields.split(", "))])


#: Fields that become columns have their names.
_OPERATION = _record(
    "kind u1, flags u1, thread <u2, name <u4, host_start_ns <i8, host_end_ns <i8, start_ns <i8, "
    "end_ns <i8"
)
_CLOCK = _record(
    "kind u1, spare 3u1, half_width_ns <u4, monotonic_ns <i8, utc_ns <i8, device_ns <i8, "
    "spare_ns <i8"
)
_END = _record(
    "kind u1, flags u1, spare 2u1, crc <u4, number <i8, start_ns <i8, end_ns <i8, records <u4, "
    "lost <u4"
)


@dataclass(frozen=True)
class Header:
    """The header of a file.

    Attributes:
        rank: number of the process in the run.
        world_size: how many there are; -1 unknown.
        pid: process id.
        part: number of the file in its recording; earlier ones may have made room.
        on_gpu: whether a GPU ran the operations.
        every: of so many iterations some were recorded; 0 for all.
        iterations: how many of these.
        session_ns: when the recording began, on the host's monotonic clock.
        utc_ns: UTC when the file began.
        monotonic_ns: the monotonic clock at that moment.
    """

    rank: int
    world_size: int
    pid: int
    part: int
    on_gpu: bool
    every: int
    iterations: int
    session_ns: int
    utc_ns: int
    monotonic_ns: int

    @property
    def session(self) -> tuple[int, int, int, int]:
        """What the parts of one recording share."""
        return self.rank, self.world_size, self.pid, self.session_ns

    @property
    def began_utc_ns(self) -> int:
        """UTC when the recording began."""
        return self.utc_ns - (self.monotonic_ns - self.session_ns)


def header_in(path: str, head: bytes) -> Header:
    """Return the header in the first bytes of a file.

    Raises:
        ProfileError: it is cut, damaged, or of another version.
    """
    if not head.startswith(layout.MAGIC):
        raise ProfileError(f"{path}: no recording of bubbleviz.annotate; give one, or a profile")
    version = int.from_bytes(head[8:10], "little")
    if len(head) >= 10 and version != layout.VERSION:
        raise ProfileError(
            f"{path}: a recording of format version {version}, and this bubbleviz reads version "
            f"{layout.VERSION}; use the bubbleviz that wrote it, or a newer one"
        )
    if len(head) < layout.HEADER.size:
        raise ProfileError(f"{path}: a recording that ends within its header; record again")
    values = layout.HEADER.unpack(head[: layout.HEADER.size])
    if zlib.crc32(head[: layout.HEADER_CHECKED]) != values[-2]:
        raise ProfileError(f"{path}: a recording with a damaged header; copy it again, as binary")
    _, _, record_bytes, rank, world_size, pid, part, device, *rest = values
    if record_bytes != layout.RECORD_BYTES or rank < 0:
        raise ProfileError(f"{path}: a recording with an impossible header; record again")
    return Header(rank, world_size, pid, part, device == layout.DEVICE_GPU, *rest[:-3])


def header_of(path: str) -> Header:
    """Return the header of a file.

    Raises:
        ProfileError: it cannot be read, or has none.
    """
    with _opened(path) as file:
        return header_in(path, file.read(layout.HEADER.size))


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """Open a file.

    Raises:
        ProfileError: it cannot be read.
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
        number: that a range gave it; -1 none.
        start_ns: when it began, on the host's monotonic clock, as all times.
        end_ns: when its range was left.
        after_gap: whether iterations before it are not recorded, or are damaged.
        lost: operations that were recorded too late to be written.
        monotonic_ns: when it was written.
        utc_ns: UTC at that moment.
        device_ns: the host's clock less the device's; 0 without a device.
    """

    number: Ints
    start_ns: Ints
    end_ns: Ints
    after_gap: Bools
    lost: Ints
    monotonic_ns: Ints
    utc_ns: Ints
    device_ns: Ints


@dataclass(frozen=True, eq=False, repr=False)
class RecordedOperations(Table):
    """Operations of these iterations, in the order in which they ended.

    Attributes:
        iteration: row of the iterations.
        name_id: number of the name.
        thread: number of the thread in its process.
        launches: whether it only started transfers.
        host_start_ns: when the host entered its range.
        host_end_ns: when it left that.
        start_ns: when the device began; -1 where it has no times, or ran on the host.
        end_ns: when it ended, likewise.
        times_lost: whether it has no times though it ran on a device.
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
    """Whole iterations that follow one another in a file.

    Attributes:
        iterations: these.
        operations: of these.
    """

    iterations: RecordedIterations
    operations: RecordedOperations


def joined_stretches(stretches: list[Stretch]) -> Stretch:
    """Return stretches (at least one) as one."""
    counts = np.array([len(stretch.iterations) for stretch in stretches], np.int64)
    rows = [len(stretch.operations) for stretch in stretches]
    operations = joined([stretch.operations for stretch in stretches])
    before = np.repeat(np.cumsum(counts) - counts, rows)
    return Stretch(
        joined([stretch.iterations for stretch in stretches]),
        replace(operations, iteration=operations.iteration + before),
    )


#: Of each whole block of some bytes its first record, its END, and whether damaged records stand in
#: front of it; and how many records belong to no block, before the last END.
FoundBlocks = tuple[list[int], list[int], list[bool], int]


def found_blocks(data: bytes) -> FoundBlocks:
    """Return the whole blocks of some bytes, which begin with a record."""
    whole = data[: len(data) // _SIZE * _SIZE]
    ends, view = np.frombuffer(whole, _END), memoryview(whole)
    candidates = np.flatnonzero(ends["kind"] == layout.KIND_END)
    records, crcs = ends["records"][candidates].tolist(), ends["crc"][candidates].tolist()
    first: list[int] = []
    last: list[int] = []
    gap: list[bool] = []
    before = damaged = 0
    for at, count, crc in zip(candidates.tolist(), records, crcs, strict=True):
        begin, end = at + 1 - count, at * _SIZE
        # A clock and an END at least.
        if count < 2 or begin < before:
            continue
        # The CRC's own place counts as zeros.
        own = zlib.crc32(view[begin * _SIZE : end + layout.END_CRC.start])
        own = zlib.crc32(view[end + layout.END_CRC.stop : end + _SIZE], zlib.crc32(bytes(4), own))
        if own != crc:
            continue
        first.append(begin)
        last.append(at)
        gap.append(begin > before)
        damaged += begin - before
        before = at + 1
    return first, last, gap, damaged


def stretch_of(data: bytes, found: FoundBlocks, names: dict[int, int]) -> Stretch:
    """Return whole blocks as columns.

    Args:
        data: whose blocks they are.
        found: at least one.
        names: number of each name of the file, by its number there.
    """
    first, last = (np.array(records, np.int64) for records in found[:2])
    count = len(data) // _SIZE
    of_block = np.zeros(count + 1, np.int64)
    of_block[first] += 1
    of_block[last + 1] -= 1
    inside = np.cumsum(of_block[:-1]) == 1
    rows = np.frombuffer(data, _OPERATION, count)
    at = np.flatnonzero(inside & (rows["kind"] == layout.KIND_OPERATION))
    own, end = rows[at], np.frombuffer(data, _END, count)[last]
    clock = np.frombuffer(data, _CLOCK, count)[last - 1]
    number = scattered(max([*names, NONE]) + 2, list(names), list(names.values()))

    def columns(records: npt.NDArray[np.void], names: str) -> dict[str, Ints]:
        return {name: records[name].astype(np.int64) for name in names.split()}

    iterations = RecordedIterations(
        number=np.where((end["flags"] & layout.NAMED) != 0, end["number"], NONE),
        after_gap=np.array(found[2], bool) | ((end["flags"] & layout.AFTER_PAUSE) != 0),
        **columns(end, "start_ns end_ns lost"),
        **columns(clock, "monotonic_ns utc_ns device_ns"),
    )
    operations = RecordedOperations(
        iteration=np.searchsorted(last, at),
        name_id=number[np.minimum(own["name"].astype(np.int64), len(number) - 1)],
        launches=(own["flags"] & layout.LAUNCHES) != 0,
        times_lost=(own["flags"] & layout.TIMES_LOST) != 0,
        **columns(own, "thread host_start_ns host_end_ns start_ns end_ns"),
    )
    return Stretch(iterations, operations)


def _texts_in(data: bytes, first: int, last: int) -> Iterator[tuple[int, int, str]]:
    """Yield what each text of some records is of, its number, and itself.

    Args:
        data: that begin with a record.
        first: of the records.
        last: behind the last of them.
    """
    pieces: dict[tuple[int, int], bytes] = {}
    for at in range(first, last):
        if data[at * _SIZE] == layout.KIND_TEXT:
            _, of, used, number, text = layout.TEXT.unpack_from(data, at * _SIZE)
            pieces[of, number] = pieces.get((of, number), b"") + text[:used]
    for (of, number), text in pieces.items():
        yield of, number, text.decode("utf-8", "replace")


class PartReader:
    """Reads the whole iterations of a file that are new since it was read last.

    The file is opened anew each time and read to where it ends, whatever its size is said to be: on
    a network file system that is how another machine's writes are seen. One that was cut or put in
    the place of another is read from its beginning.

    Args:
        path: the file; it may be empty yet.
        names: numbers the names of ranges; several readers may share it.

    Attributes:
        path: the file.
        header: of the file; None as long as it has none.
        host: hostname; "" unknown.
        device: name of the device; "" unknown.
        run: what the launcher calls the run; "" for nothing.
        damaged: records that belong to no whole iteration, before the last one.
        tail_bytes: bytes behind the last whole iteration: it is being written, or was never ended.
    """

    def __init__(self, path: str, names: Numbering[str]) -> None:
        self.path, self._numbering = path, names
        self._forget()

    def _forget(self) -> None:
        self.header: Header | None = None
        self.host = self.device = self.run = ""
        self.damaged = self.tail_bytes = 0
        self._head = b""
        self._offset = layout.HEADER.size
        self._names: dict[int, int] = {}

    def read(self) -> Stretch | None:
        """Return the next whole iterations, some megabytes of them; None where there is none yet.

        Raises:
            ProfileError: it is no recording, of another version, or cannot be read.
        """
        chunk = CHUNK_BYTES
        while True:
            data = self._bytes(chunk)
            ended = len(data) < chunk
            data = self._past_texts(data)
            found = found_blocks(data)
            if found[1]:
                return self._taken(data, found)
            if ended:
                self.tail_bytes = len(data)
                return None
            # An iteration, or damage, that is longer than that.
            chunk *= 2

    def _bytes(self, most: int) -> bytes:
        """Return the bytes from where the last whole iteration ended; none without a header.

        Raises:
            ProfileError: it is no recording, of another version, or cannot be read.
        """
        with _opened(self.path) as file:
            head = file.read(layout.HEADER.size)
            if not head.startswith(self._head):
                self._forget()
            if self.header is None:
                if len(head) < layout.HEADER.size and layout.MAGIC.startswith(head[:8]):
                    return b""
                self.header, self._head = header_in(self.path, head), head
            # The byte before has been read already, and shows that the file was not cut.
            file.seek(self._offset - 1)
            data = file.read(most + 1)
        if not data:
            self._forget()
            return self._bytes(most)
        return data[1:]

    def _past_texts(self, data: bytes) -> bytes:
        """Return what follows the texts behind the header, and take these."""
        if self._offset != layout.HEADER.size:
            return data
        size, count = layout.RECORD_BYTES, 0
        while (beginning := data[count * size : count * size + 2])[:1] == _TEXT and (
            len(beginning) == 2 and beginning[1] != layout.TEXT_NAME
        ):
            count += 1
        texts = {of: text for of, _, text in _texts_in(data, 0, min(count, len(data) // size))}
        kinds = (layout.TEXT_HOST, layout.TEXT_DEVICE, layout.TEXT_RUN)
        self.host, self.device, self.run = (texts.get(kind, "") for kind in kinds)
        if len(data) < count * size + 2:
            # Others may follow.
            return b""
        self._offset += count * size
        return data[count * size :]

    def _taken(self, data: bytes, found: FoundBlocks) -> Stretch:
        """Return the whole iterations of the next bytes, and go on behind them."""
        end = (found[1][-1] + 1) * layout.RECORD_BYTES
        self._offset += end
        self.tail_bytes = len(data) - end
        self.damaged += found[3]
        kinds = np.frombuffer(data, np.uint8)[: len(data) // _SIZE * _SIZE : _SIZE]
        first, last = found[:2]
        blocks = np.searchsorted(last, np.flatnonzero(kinds == layout.KIND_TEXT))
        for block in np.unique(blocks[blocks < len(last)]).tolist():
            for of, number, text in _texts_in(data, first[block], last[block]):
                if of == layout.TEXT_NAME:
                    self._names[number] = self._numbering.number(text)
        return stretch_of(data, found, self._names)


def rank_and_number(path: str) -> tuple[str, int] | None:
    """Return the path of the first file of a rank, without its ending, and the number of a file.

    A process writes ``rank-00003.bvrec``, then ``rank-00003.1.bvrec`` and so on; a process that
    takes its place after a restart goes on with the next number. None for other names.
    """
    match = _NAME.fullmatch(path)
    return None if match is None else (match["stem"], int(match["number"] or 0))


def in_order(files: Iterable[str]) -> list[str]:
    """Return files in order of their ranks, and those of a rank in that of their numbers."""

    def key(file: str) -> tuple[tuple[tuple[int, int, str], ...], int]:
        stem, number = rank_and_number(file) or (file, 0)
        return natural_key(stem), number

    return sorted(files, key=key)


class FollowedFolder:
    """Reads what is new in the recordings of a folder each time it is asked.

    Files may appear, grow, make room for later ones, or be replaced meanwhile. Times are those of
    each host's monotonic clock; ``iterations`` of stretches have UTC beside it.

    Args:
        folder: where recordings are, or will be.

    Attributes:
        names: of ranges, numbered over all files.
        unreadable: why files cannot be read, by path; each is tried again.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._parts: dict[str, PartReader] = {}
        self.names: Numbering[str] = Numbering()
        self.unreadable: dict[str, ProfileError] = {}

    @property
    def parts(self) -> tuple[PartReader, ...]:
        """The files that are there, in order of ranks and their parts."""
        return tuple(self._parts.values())

    def new(self) -> Iterator[tuple[PartReader, Stretch]]:
        """Yield the whole iterations that each file has since this was asked last, and its reader.

        Names are numbered by the folder.

        Raises:
            InputError: the folder cannot be read.
        """
        try:
            paths = in_order(map(str, self._folder.glob(f"*{layout.SUFFIX}")))
        except OSError as error:
            raise InputError(
                f"{self._folder}: cannot be read ({error.strerror}); check it and its permissions"
            ) from error
        self._parts = {
            path: self._parts.get(path) or PartReader(path, self.names) for path in paths
        }
        self.unreadable = {}
        for path, part in self._parts.items():
            try:
                while (stretch := part.read()) is not None:
                    yield part, stretch
            except ProfileError as error:
                # A later part may have made it go meanwhile.
                if Path(path).exists():
                    self.unreadable[path] = error
