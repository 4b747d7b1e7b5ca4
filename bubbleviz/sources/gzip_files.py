"""Reads files that may be gzipped: either only the first bytes, or all bytes that are intact."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bubbleviz.errors import ProfileError
from bubbleviz.progress import Watch

#: Number of bytes to read when recognizing the format of a file.
HEAD_BYTES = 1 << 16
#: Number of compressed bytes to read at once from a gzipped file.
_PACKED_BYTES = 1 << 16
#: Number of bytes to read at once from an uncompressed file.
_PLAIN_BYTES = 1 << 20
#: The first bytes of gzip data.
GZIP = b"\x1f\x8b"
#: Byte order mark, which some editors put at the start of UTF-8 text.
BOM = b"\xef\xbb\xbf"
#: Value of zlib's ``wbits`` that makes it expect a gzip header.
_BITS = zlib.MAX_WBITS | 16


def read_head(path: str) -> bytes:
    """Return the first ``HEAD_BYTES`` (64 KiB) of a file, unpacked if the file is gzipped.

    A file whose reported size is 0, such as a special file, is not read.

    Raises:
        ProfileError: The file cannot be opened or unpacked.
    """
    try:
        with Path(path).open("rb") as file:
            # Some special files, such as the kernel log, have size 0 and never end.
            packed = file.read(HEAD_BYTES) if os.fstat(file.fileno()).st_size else b""
    except OSError as error:
        raise ProfileError(
            f"{path}: cannot be opened ({error.strerror}); check the file and its permissions"
        ) from error
    if not packed.startswith(GZIP):
        return packed
    try:
        return zlib.decompressobj(wbits=_BITS).decompress(packed, HEAD_BYTES)
    except zlib.error as error:
        raise ProfileError(
            f"{path}: the gzip data is damaged ({error}); copy the file again"
        ) from error


def is_json(head: bytes) -> bool:
    """Return whether the start of a file looks like a JSON object or array."""
    return head.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")


class UnpackedFile:
    """Iterates over the bytes of a file, unpacked if the file is gzipped.

    If the gzip data is damaged or truncated, the iteration sets ``damaged`` or ``cut`` and ends
    without an error. If a gzip file has several members, all of them are unpacked.

    Args:
        path: Path to the file.
        watch: Callback that receives the fraction of the file that has been read.
        max_bytes: Maximum number of bytes in a chunk.

    Attributes:
        damaged: Whether the gzip data is damaged. Valid only after the iteration has ended.
        cut: Whether the file ends in the middle of its gzip data. Valid only after the iteration
            has ended.
    """

    def __init__(self, path: str, watch: Watch, max_bytes: int) -> None:
        self.damaged = self.cut = False
        self._path, self._watch, self._max_bytes = path, watch, max_bytes

    def __iter__(self) -> Iterator[bytes]:
        """Yield the file's bytes in chunks.

        Raises:
            ProfileError: The file cannot be opened or read.
        """
        try:
            with Path(self._path).open("rb") as file:
                yield from self._iter_pieces(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise ProfileError(
                f"{self._path}: cannot be read ({error.strerror or error}); copy the file again"
            ) from error

    def _iter_pieces(self, file: IO[bytes], size: int) -> Iterator[bytes]:
        """Yield the bytes of an open file, unpacked if it is gzipped, and report the progress.

        If the gzip data is not intact, ``damaged`` or ``cut`` is set at the end.
        """

        def read(length: int) -> bytes:
            self._watch(min(file.tell() / size, 1.0) if size else 1.0)
            return file.read(length)

        packed = read(min(_PACKED_BYTES, self._max_bytes))
        if not packed.startswith(GZIP):
            while packed:
                yield packed
                packed = read(min(_PLAIN_BYTES, self._max_bytes))
            return
        unpacker = zlib.decompressobj(wbits=_BITS)
        while packed:
            try:
                chunk = unpacker.decompress(packed, self._max_bytes)
            except zlib.error:
                self.damaged = True
                return
            if chunk:
                yield chunk
            packed, self.cut = unpacker.unconsumed_tail, not unpacker.eof
            if unpacker.eof:
                # A gzipped file may consist of several members.
                packed = unpacker.unused_data.lstrip(b"\0")
                unpacker = zlib.decompressobj(wbits=_BITS)
            packed = packed or read(_PACKED_BYTES)
