"""Part reader: one file of a recording, read whole or again and again as it grows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bubbleviz import recording_layout as layout
from bubbleviz.errors import InputError, NothingToAnalyseError, ProfileError
from bubbleviz.model.grouping import Numbering
from bubbleviz.model.texts import natural_key
from bubbleviz.model.values import frozen
from bubbleviz.progress import Watch
from bubbleviz.sources.recordings.blocks import (
    FoundBlocks,
    add_names,
    found_blocks,
    stretch_of,
    texts_in,
)
from bubbleviz.sources.recordings.columns import Stretch, joined_stretches
from bubbleviz.sources.recordings.header import Header, header_in, header_of

#: Bytes that are read at a time; a longer iteration is read as a whole.
CHUNK_BYTES = 1 << 24


class PartReader:
    """Reads the whole iterations of a file that are new since it was read last.

    The file is opened anew each time and read to where it ends, whatever its size is said to be: on
    a network file system that is how another machine's writes are seen. One that was cut or put in
    the place of another is read from its beginning, and counted in ``restarts``.

    Args:
        path: the file; it may be empty yet.
        names: numbers the names of ranges; several readers may share it.

    Attributes:
        path: the file.
        header: of the file; None as long as it has none.
        host: hostname; "" unknown.
        device: name of the device; "" unknown.
        run: what the launcher calls the run; "" for nothing.
        restarts: how often the file was another one than before.
        damaged: records that belong to no whole iteration, before the last one.
        tail_bytes: bytes behind the last whole iteration: it is being written, or was never ended.
    """

    def __init__(self, path: str, names: Numbering[str]) -> None:
        self.path, self._numbering = path, names
        self.restarts = 0
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
            if found.last:
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
        try:
            with Path(self.path).open("rb") as file:
                head = file.read(layout.HEADER.size)
                if not head.startswith(self._head):
                    self._restart()
                if self.header is None:
                    if len(head) < layout.HEADER.size and layout.MAGIC.startswith(head[:8]):
                        return b""
                    self.header, self._head = header_in(self.path, head), head
                # The byte before has been read already, and shows that the file was not cut.
                file.seek(self._offset - 1)
                data = file.read(most + 1)
        except OSError as error:
            raise ProfileError(
                f"{self.path}: cannot be read ({error.strerror}); check it and its permissions"
            ) from error
        if not data:
            self._restart()
            return self._bytes(most)
        return data[1:]

    def _restart(self) -> None:
        self.restarts += 1
        self._forget()

    def _past_texts(self, data: bytes) -> bytes:
        """Return what follows the texts behind the header, and take these."""
        if self._offset != layout.HEADER.size:
            return data
        size, count = layout.RECORD_BYTES, 0
        while _is_header_text(data[count * size : count * size + 2]):
            count += 1
        texts = {of: text for of, _, text in texts_in(data, 0, min(count, len(data) // size))}
        self.host = texts.get(layout.TEXT_HOST, "")
        self.device = texts.get(layout.TEXT_DEVICE, "")
        self.run = texts.get(layout.TEXT_RUN, "")
        if len(data) < count * size + 2:
            # Others may follow.
            return b""
        self._offset += count * size
        return data[count * size :]

    def _taken(self, data: bytes, found: FoundBlocks) -> Stretch:
        """Return the whole iterations of the next bytes, and go on behind them."""
        end = (found.last[-1] + 1) * layout.RECORD_BYTES
        self._offset += end
        self.tail_bytes = len(data) - end
        self.damaged += found.damaged
        add_names(data, found, self._names, self._numbering)
        return stretch_of(data, found, self._names)


def _is_header_text(beginning: bytes) -> bool:
    """Tell by its first two bytes whether a record is a text of the header."""
    return (
        len(beginning) == 2
        and beginning[0] == layout.KIND_TEXT
        and beginning[1] != layout.TEXT_NAME
    )


# Sessions: which files are parts of one recording, and which recordings are of one run.
#
# A process writes ``rank-00003.bvrec``, then ``rank-00003.1.bvrec`` and so on; a process that takes
# its place after a restart goes on with the next number. Each part knows its recording by its
# header.


_NAME = re.compile(rf"(?P<stem>.+?)(?:\.(?P<number>[0-9]{{1,6}}))?{re.escape(layout.SUFFIX)}\Z")
#: Bytes at the end of a file in which its last iteration is looked for.
_TAIL_BYTES = 1 << 16
#: Clocks of hosts may differ by that.
_CLOCKS_NS = 1_000_000_000
#: And by that where nobody sets them.
_WRONG_CLOCKS_NS = 3_600_000_000_000


def parts_of(path: str) -> list[str]:
    """Return the files of the recording that a file belongs to, in the order of their parts.

    Raises:
        ProfileError: the file cannot be read, or is no recording.
    """
    header = header_of(path)
    parts = {header.part: path}
    for other in _beside(path, header):
        own = _header_or_none(other)
        if own is not None and own.session == header.session:
            parts.setdefault(own.part, other)
    return [parts[part] for part in sorted(parts)]


def in_order(files: Iterable[str]) -> list[str]:
    """Return files in order of their ranks, and those of a rank in that of their numbers."""

    def key(file: str) -> tuple[tuple[tuple[int, int, str], ...], int]:
        match = _NAME.fullmatch(file)
        if match is None:
            return natural_key(file), 0
        return natural_key(match["stem"]), int(match["number"] or 0)

    return sorted(files, key=key)


def others_of(path: str) -> int:
    """Return how many files beside a recording belong to others of the same rank."""
    neighbours = (_numbered(path, number) for number in _ends(path))
    headers = [_header_or_none(other) for other in neighbours if os.path.exists(other)]  # noqa: PTH110 - a look-up a rank
    return len([header for header in headers if header is not None])


def first_parts(files: Sequence[str]) -> list[str]:
    """Return files without those that are later parts of others; opening one reads them all."""
    seen: dict[tuple[int, ...], tuple[int, str]] = {}
    kept: list[str] = []
    for file in files:
        header = _header_or_none(file) if file.endswith(layout.SUFFIX) else None
        if header is None:
            kept.append(file)
            continue
        part, first = seen.get(header.session, (header.part, file))
        if file == first:
            kept.append(file)
        elif header.part < part:
            kept[kept.index(first)] = file
        if header.part <= part:
            seen[header.session] = header.part, file
    return kept


def newest_run(files: Sequence[str]) -> list[str]:
    """Return the files of the newest run of a directory, one a rank, and all that are none.

    That is of each rank the recording that began last, unless it is of another number of ranks, or
    ended before the newest one began. Where each rank was recorded once, no earlier run shows, and
    what lies minutes apart has a clock that is wrong.
    """
    headers = {f: h for f in first_parts(files) if (h := _header_or_none(f)) is not None}
    if not headers:
        return list(files)
    newest = max(headers.values(), key=lambda header: header.began_utc_ns)
    of_rank: dict[int, str] = {}
    for file, header in sorted(headers.items(), key=lambda item: item[1].began_utc_ns):
        if header.world_size == newest.world_size:
            of_rank[header.rank] = file
    alike = sum(header.world_size == newest.world_size for header in headers.values())
    clocks_ns = _CLOCKS_NS if alike > len(of_rank) else _WRONG_CLOCKS_NS
    run = {
        file
        for file in of_rank.values()
        if headers[file].session == newest.session
        or _ended_utc_ns(file, headers[file]) + clocks_ns >= newest.began_utc_ns
    }
    return [file for file in files if file in run or not file.endswith(layout.SUFFIX)]


def _ended_utc_ns(file: str, header: Header) -> int:
    """Return UTC at the end of a recording: of its last iteration, or its beginning without any."""
    last = parts_of(file)[-1]
    own = header_of(last)
    with Path(last).open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        first = max(size - _TAIL_BYTES, 0)
        first += (layout.HEADER.size - first) % layout.RECORD_BYTES
        opened.seek(max(first, layout.HEADER.size))
        data = opened.read()
    found = found_blocks(data)
    if not found.last:
        return max(header.began_utc_ns, own.utc_ns)
    return int(stretch_of(data, found, {}).iterations.utc_ns.max())


def _beside(path: str, header: Header) -> list[str]:
    """Return the files in front of one and behind it that may be parts of its recording."""
    match = _NAME.fullmatch(path)
    if match is None:
        return []
    found = []
    own = int(match["number"] or 0)
    for step in (-1, 1):
        number = own + step
        while number >= 0:
            file = _numbered(path, number)
            other = _header_or_none(file)
            if other is None or other.session != header.session:
                break
            found.append(file)
            number += step
    return found


def _ends(path: str) -> list[int]:
    """Return the numbers in front of a recording's parts and behind them."""
    numbers = [int(m["number"] or 0) for p in parts_of(path) if (m := _NAME.fullmatch(p))]
    return [n for n in (min(numbers) - 1, max(numbers) + 1) if n >= 0] if numbers else []


def _numbered(path: str, number: int) -> str:
    """Return the path of a file of the same rank with another number."""
    match = _NAME.fullmatch(path)
    stem = path if match is None else match["stem"]
    return f"{stem}.{number}{layout.SUFFIX}" if number else f"{stem}{layout.SUFFIX}"


def _header_or_none(path: str) -> Header | None:
    try:
        return header_of(path)
    except ProfileError:
        return None


# Session reader: a whole recording of one process, all of its parts.


@frozen
class RecordedSession:
    """A recording of one process.

    Attributes:
        path: of its first file.
        header: of its first file.
        host: hostname; "" unknown.
        device: name of its device; "" unknown.
        run: what the launcher calls the run; "" for nothing.
        parts: how many files it has.
        names: of ranges, by number.
        stretch: its whole iterations.
        damaged: records in front of the last iteration that belong to none.
        tail_bytes: bytes behind the last iteration.
    """

    path: str
    header: Header
    host: str
    device: str
    run: str
    parts: int
    names: tuple[str, ...]
    stretch: Stretch
    damaged: int
    tail_bytes: int


def read_session(path: str, watch: Watch) -> RecordedSession:
    """Return the recording that a file belongs to.

    Raises:
        ProfileError: a file cannot be read, or is damaged at its beginning.
        NothingToAnalyseError: it holds no whole iteration.
    """
    watch(0.0)
    names: Numbering[str] = Numbering()
    paths = parts_of(path)
    readers = [PartReader(part, names) for part in paths]
    stretches: list[Stretch] = []
    for number, reader in enumerate(readers):
        own = []
        while (stretch := reader.read()) is not None:
            own.append(stretch)
        if own and number and _follows(readers[number - 1 : number + 1]) is False:
            own[0] = _after_gap(own[0])
        stretches += own
        watch((number + 1) / len(readers))
    header = next((reader.header for reader in readers if reader.header is not None), None)
    if header is None or not stretches:
        raise NothingToAnalyseError(
            f"{path}: a recording without any whole iteration; let it run until the second one "
            "has begun"
        )
    return RecordedSession(
        path=paths[0],
        header=header,
        host=_first([reader.host for reader in readers]),
        device=_first([reader.device for reader in readers]),
        run=_first([reader.run for reader in readers]),
        parts=len(paths),
        names=names.values,
        stretch=joined_stretches(stretches),
        damaged=sum(reader.damaged for reader in readers),
        tail_bytes=sum(reader.tail_bytes for reader in readers),
    )


def _follows(readers: Sequence[PartReader]) -> bool:
    """Tell whether the second of two files is the part behind the first one."""
    first, second = (reader.header for reader in readers)
    return first is not None and second is not None and second.part == first.part + 1


def _after_gap(stretch: Stretch) -> Stretch:
    """Return a stretch of which iterations in front are not there."""
    after_gap = stretch.iterations.after_gap.copy()
    after_gap[0] = True
    return replace(stretch, iterations=replace(stretch.iterations, after_gap=after_gap))


def _first(texts: Sequence[str]) -> str:
    return next(filter(None, texts), "")


def repeated_numbers(session: RecordedSession) -> bool:
    """Tell whether ranges number iterations in another way than upwards, each once."""
    number = session.stretch.iterations.number
    named = number[number >= 0]
    return bool((np.diff(named) <= 0).any())


# Followed folder: the recordings of a run while it runs, iteration by iteration.


@frozen
class NewIterations:
    """Whole iterations of one file that are new.

    Attributes:
        part: that they were read from, with its header and what it could not read.
        stretch: they and their operations; names are numbered by the folder.
    """

    part: PartReader
    stretch: Stretch


class FollowedFolder:
    """Reads what is new in the recordings of a folder each time it is asked.

    Files may appear, grow, make room for later ones, or be replaced meanwhile. Times are those of
    each host's monotonic clock; ``stretch.iterations`` has UTC beside it.

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

    def new(self) -> Iterator[NewIterations]:
        """Yield whole iterations that were written since this was asked last, file by file.

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
                    yield NewIterations(part, stretch)
            except ProfileError as error:
                # A later part may have made it go meanwhile.
                if Path(path).exists():
                    self.unreadable[path] = error
