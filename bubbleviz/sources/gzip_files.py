"""Files that may be gzipped: their first bytes, and all bytes up to any damage."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bubbleviz.errors import ProfileError
from bubbleviz.progress import Watch

#: Bytes of a file that its format is recognised by.
HEAD_BYTES = 1 << 16
#: Bytes of a gzipped file that are unpacked at a time.
_PACKED_BYTES = 1 << 16
#: Bytes of any other file that are read at a time.
_PLAIN_BYTES = 1 << 20
#: The first bytes of gzip data.
GZIP = b"\x1f\x8b"
#: Editors of other systems put this in front of UTF-8.
BOM = b"\xef\xbb\xbf"
#: Has zlib look for gzip's header.
_BITS = zlib.MAX_WBITS | 16


def read_head(path: str) -> bytes:
    """Return the first 64 KiB of a file, unpacked where they are gzipped.

    Raises:
        ProfileError: it cannot be opened or unpacked.
    """
    try:
        with Path(path).open("rb") as file:
            # A kernel's log looks like an empty file, and never ends.
            packed = file.read(HEAD_BYTES) if os.fstat(file.fileno()).st_size else b""
    except OSError as error:
        raise ProfileError(f"{path}: cannot be opened ({error.strerror})") from error
    if not packed.startswith(GZIP):
        return packed
    try:
        return zlib.decompressobj(wbits=_BITS).decompress(packed, HEAD_BYTES)
    except zlib.error as error:
        raise ProfileError(f"{path}: gzip data is damaged ({error}); copy it again") from error


def is_json(head: bytes) -> bool:
    """Return whether a file begins as JSON does."""
    return head.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")


class UnpackedFile:
    """The bytes of a file, unpacked where they are gzipped, up to any damage.

    Args:
        path: of the file.
        watch: takes the share of it that has been read.
        most: bytes that are yielded at a time, at most.

    Attributes:
        damaged: whether they could not be unpacked to the end.
        cut: whether the file ends before its gzip data does.
    """

    def __init__(self, path: str, watch: Watch, most: int) -> None:
        self.damaged = self.cut = False
        self._path, self._watch, self._most = path, watch, most

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes, piece by piece.

        Raises:
            ProfileError: it cannot be opened or read.
        """
        try:
            with Path(self._path).open("rb") as file:
                yield from self._iter_pieces(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise ProfileError(
                f"{self._path}: cannot be read ({error.strerror or error}); copy it again"
            ) from error

    def _iter_pieces(self, file: IO[bytes], size: int) -> Iterator[bytes]:
        def read(length: int) -> bytes:
            self._watch(min(file.tell() / size, 1.0) if size else 1.0)
            return file.read(length)

        packed = read(min(_PACKED_BYTES, self._most))
        if not packed.startswith(GZIP):
            while packed:
                yield packed
                packed = read(min(_PLAIN_BYTES, self._most))
            return
        unpacker = zlib.decompressobj(wbits=_BITS)
        while packed:
            try:
                chunk = unpacker.decompress(packed, self._most)
            except zlib.error:
                self.damaged = True
                return
            if chunk:
                yield chunk
            packed, self.cut = unpacker.unconsumed_tail, not unpacker.eof
            if unpacker.eof:
                # A file may be several, one after the other.
                packed = unpacker.unused_data.lstrip(b"\0")
                unpacker = zlib.decompressobj(wbits=_BITS)
            packed = packed or read(_PACKED_BYTES)
