"""Recordings: files that ``bubbleviz.annotate`` writes in a training process.

``lines`` decodes and checks single lines. ``parts`` reads a file, at once or while it grows.
``sessions`` finds the files of each recording and the recordings of each run. ``recording`` makes a
table of the operations of a recording.
"""

from __future__ import annotations

from bubbleviz.errors import ProfileError

#: The first bytes of recordings in the binary format of early development versions.
_BINARY = b"bvrec\r\n\x1a"


def refuse_binary(path: str, head: bytes) -> None:
    """Refuse a recording in the binary format of early development versions.

    Args:
        path: The file, for messages.
        head: Its first bytes, or its first line.

    Raises:
        ProfileError: It has this format.
    """
    # The first line of such a file ends within these bytes.
    if head.startswith(_BINARY) or head == _BINARY[:-1]:
        raise ProfileError(
            f"{path}: a recording in the binary format of an early development version, which "
            "this bubbleviz does not read; record again"
        )
