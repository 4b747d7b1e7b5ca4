"""Part files: where a process appends its blocks, one file after another.

No file is written by two processes, renamed, or changed but at its end, so that whoever reads it
meanwhile, on another machine too, sees a beginning of it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bubbleviz import recording_layout as layout
from bubbleviz.annotate.recording.blocks import Block, ClockPair, Names, packed, text_records
from bubbleviz.annotate.recording.place import ProcessPlace

#: Parts that a recording keeps; the oldest makes room.
PARTS = 4
#: So many names of one rank are tried for one that is free.
_MOST_FILES = 100_000


class Session(NamedTuple):
    """One recording of one process.

    Attributes:
        place: of the process.
        start_ns: when it began, by the monotonic clock.
        every: of so many iterations some are recorded; 0 for all.
        iterations: how many of these.
        device: kind of device.
        device_name: in words; "" unknown.
    """

    place: ProcessPlace
    start_ns: int
    every: int
    iterations: int
    device: int
    device_name: str


class PartFiles:
    """The files of a recording.

    All methods raise OSError where the disk fails; what was written before stays readable.

    Args:
        folder: where they are; made if it is not there.
        session: whose blocks they hold.
        limit_bytes: what all of them together hold at most, about.
        write: appends to a file, as ``os.write``.
    """

    def __init__(
        self,
        folder: Path,
        session: Session,
        limit_bytes: int,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._folder, self._session, self._write_some = folder, session, write
        self._part_bytes = max(limit_bytes // PARTS, 1)
        self._names = Names()
        self._file: int | None = None
        self._size = 0
        self._part = self._number = 0
        self._paths: list[Path] = []

    def append(self, block: Block, clock: ClockPair) -> None:
        """Append a block whole, to the next file where this one is full."""
        if self._file is not None and self._size >= self._part_bytes:
            self.close()
        if self._file is None:
            self._begin_part(clock)
        self._write(packed(block, self._names, clock))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)

    def _begin_part(self, clock: ClockPair) -> None:
        """Begin a file with its header, and remove the oldest if there are enough."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path, self._file = self._created()
        self._size, self._names = 0, Names()
        self._paths.append(path)
        session = self._session
        texts = (session.place.host, session.device_name, session.place.run)
        self._write(
            header(session, self._part, clock)
            + b"".join(text_records(of, 0, text) for of, text in enumerate(texts))
        )
        self._part += 1
        while len(self._paths) > PARTS:
            self._paths.pop(0).unlink(missing_ok=True)

    def _created(self) -> tuple[Path, int]:
        """Return the next file of this rank, and its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        stem = f"rank-{self._session.place.rank:05}"
        if not self._paths:
            self._number = _first_free(self._folder, stem)
        while True:
            number, self._number = self._number, self._number + 1
            path = self._folder / f"{stem}{f'.{number}' if number else ''}{layout.SUFFIX}"
            try:
                return path, os.open(path, flags, 0o644)
            except FileExistsError:
                # Another process says that it is this rank, too.
                if number - self._part > _MOST_FILES:
                    raise

    def _write(self, data: bytes) -> None:
        """Write bytes whole, or none of them as far as the disk allows."""
        file = self._file
        assert file is not None, "a part has begun"
        begun = self._size
        try:
            while self._size - begun < len(data):
                self._size += self._write_some(file, data[self._size - begun :])
        except OSError:
            self._size = begun
            try:
                os.ftruncate(file, begun)
            finally:
                self.close()
            raise


def header(session: Session, part: int, clock: ClockPair) -> bytes:
    """Return the header of a part that begins at some time."""
    place = session.place
    whole = layout.HEADER.pack(
        layout.MAGIC,
        layout.VERSION,
        layout.RECORD_BYTES,
        place.rank,
        place.world_size,
        os.getpid(),
        part,
        session.device,
        session.every,
        session.iterations,
        session.start_ns,
        clock.utc_ns,
        clock.monotonic_ns,
        clock.half_width_ns,
        0,
        0,
    )
    checked = whole[: layout.HEADER_CHECKED]
    return checked + zlib.crc32(checked).to_bytes(4, "little") + whole[-4:]


def _first_free(folder: Path, stem: str) -> int:
    """Return the number of the file behind all files of a rank."""
    taken = (path.name for path in folder.glob(f"{stem}*{layout.SUFFIX}"))
    numbers = (name.removeprefix(stem).removesuffix(layout.SUFFIX) for name in taken)
    known = [int(number[1:] or 0) for number in numbers if number[1:].isdecimal() or not number]
    return max(known, default=-1) + 1
