"""Damages the bytes of any content, regardless of its format."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

from scripts.fuzzing.values import NASTY_BYTES, Random

#: First bytes of gzip data.
_GZIP = b"\x1f\x8b"


def replace_byte(content: bytearray, offset: int, chance: Random) -> None:
    """Replace a byte with a special or random value, or flip one of its bits."""
    content[offset] = chance.choice(
        [*NASTY_BYTES, chance.randrange(256), content[offset] ^ 1 << chance.randrange(8)]
    )


def damage_bytes(content: bytes, chance: Random) -> bytes:
    """Replace a few bytes, remove, repeat, zero or insert a block, or cut off the end."""
    if not content:
        return bytes(chance.randrange(256) for _ in range(chance.randrange(40)))
    damaged = bytearray(content)
    size = len(damaged)
    first, second = sorted((chance.randrange(size), chance.randrange(size + 1)))
    choice = chance.randrange(12)
    if choice < 6:
        for _ in range(chance.choice([1, 1, 2, 3, 8, 64])):
            near_start = chance.random() < 0.3
            replace_byte(damaged, chance.randrange(min(size, 200) if near_start else size), chance)
    elif choice < 8:
        del damaged[first:]
    elif choice == 8:
        del damaged[first : min(second, first + 4_096)]
    elif choice == 9:
        damaged[first:first] = damaged[first : min(second, first + 4_096)]
    elif choice == 10:
        damaged[first:second] = bytes(second - first)
    else:
        length = chance.choice([1, 4, 100])
        damaged[first:first] = bytes(chance.randrange(256) for _ in range(length))
    return bytes(damaged)


def damage_file_bytes(path: Path, chance: Random) -> None:
    """Damage the bytes of a file.

    In a gzipped file, damage the compressed or the unpacked bytes.
    """
    content = path.read_bytes()
    if content.startswith(_GZIP) and chance.random() < 0.6:
        edit_content(path, lambda text: damage_bytes(text, chance))
    else:
        path.write_bytes(damage_bytes(content, chance))


def edit_content(path: Path, edit: Callable[[bytes], bytes]) -> None:
    """Replace the content of a file. A gzipped file is unpacked first and packed again.

    Args:
        path: The file.
        edit: Function that returns the new content, given the current content.
    """
    content = path.read_bytes()
    if not content.startswith(_GZIP):
        path.write_bytes(edit(content))
        return
    try:
        unpacked = gzip.decompress(content)
    except (OSError, EOFError, zlib.error):  # an earlier step damaged the packed data
        return
    path.write_bytes(gzip.compress(edit(unpacked), compresslevel=1, mtime=0))
