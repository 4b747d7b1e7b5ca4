"""Glances: what distinguishes files at little cost, and at the cost of reading them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from bubbleviz.errors import ProfileError
from bubbleviz.model.values import frozen
from bubbleviz.sources.nsys.columnar.directory import bytes_of, parts_of

#: Bytes at the beginning of a file that distinguish most files.
_HEAD_BYTES = 1 << 16


@frozen
class Glance:
    """A profile's size, and the CRC-32 of its beginning."""

    size: int
    checksum: int


def glance(path: str) -> Glance:
    """Return the glance of a file, which distinguishes most files at little cost.

    Raises:
        ProfileError: the file cannot be opened.
    """
    return Glance(size_of(path), zlib.crc32(next(_blocks(path, _HEAD_BYTES), b"")))


def digest(path: str) -> bytes:
    """Return the SHA-256 of a whole file.

    Raises:
        ProfileError: the file cannot be opened.
    """
    # It takes as long to import as the rest of a glance; runs of one file need none.
    import hashlib

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
