"""The bytes of a file that may become shorter meanwhile, read a block at a time.

A memory map would end the process there (SIGBUS).
"""

from __future__ import annotations

import os
from typing import BinaryIO, overload

#: Bytes that are read for one of them.
_BLOCK = 1 << 16


class ShortenedError(ValueError):
    """The file is shorter than when it was opened."""


class FileContent:
    """The bytes of an open file, by their places.

    Args:
        file: unbuffered, opened to be read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._begin, self._block = 0, b""

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> bytes: ...

    def __getitem__(self, place: int | slice) -> int | bytes:
        """Return a byte, or some of them.

        Raises:
            ShortenedError: the file no longer has them.
        """
        if isinstance(place, slice):
            begin, end, _ = place.indices(self._size)
            return self._read(begin, end)
        at = place - self._begin
        if not 0 <= at < len(self._block):
            self._block = self._read(place, min(place + _BLOCK, self._size))
            self._begin, at = place, 0
        return self._block[at]

    def _read(self, begin: int, end: int) -> bytes:
        """Return the bytes from one place to another."""
        if begin >= self._begin and end <= self._begin + len(self._block):
            return self._block[begin - self._begin : end - self._begin]
        self._file.seek(begin)
        blocks: list[bytes] = []
        missing = end - begin
        while missing > 0:
            block = self._file.read(missing)
            if not block:
                raise ShortenedError(f"it became shorter than {end} bytes while it was read")
            blocks.append(block)
            missing -= len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)
