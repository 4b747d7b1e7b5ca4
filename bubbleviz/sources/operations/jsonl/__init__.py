"""Reads recordings, which are the files that ``bubbleviz.annotate`` writes in a training process.

``lines`` decodes and checks single lines. ``parts`` reads a file, either once or repeatedly while
it grows. ``sessions`` finds the files of each recording and the recordings of each run.
``recording`` converts a recording to a table of operations.
"""

from __future__ import annotations

from bubbleviz.errors import ProfileError

#: The first bytes of recordings in the binary format from early development versions.
_BINARY = b"bvrec\r\n\x1a"


def refuse_binary(path: str, head: bytes) -> None:
    """Raise an error if a recording has the binary format from early development versions.

    Args:
        path: Path to the file, for messages.
        head: First bytes or first line of the file.

    Raises:
        ProfileError: The file has this format.
    """
    # In this format, a file's first line consists of the magic bytes without the last byte.
    if head.startswith(_BINARY) or head == _BINARY[:-1]:
        raise ProfileError(
            f"{path}: is a recording in the binary format of an early development version, which "
            "this version of bubbleviz cannot read; record the run again"
        )
