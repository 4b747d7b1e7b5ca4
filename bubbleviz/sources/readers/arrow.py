"""Arrow IPC: a table of operations as a file (Feather) or a stream."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import OpenFile, Reader

#: A file, and a message of a stream, which follows the length of its schema.
_FILE, _MESSAGE = b"ARROW1", b"\xff\xff\xff\xff"

#: Bytes of a file with a footer, or of a stream with a schema, at least; what is shorter was cut.
_SHORTEST = 16


def _open_file(
    path: str,
    jobs: int = 1,  # noqa: ARG001 - pyarrow has threads of its own
    watch: Watch = unwatched,
) -> AbstractContextManager[OpenFile]:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.tables.files import read_arrow
    from bubbleviz.sources.tables.operations import open_table

    return open_table(path, "arrow", watch, read_arrow)


READER = Reader(
    name="arrow",
    suffixes=(),
    recognises=lambda head: head.startswith((_FILE, _MESSAGE)) and len(head) >= _SHORTEST,
    open_file=_open_file,
    decoded_whole=True,
    operations="a table of operations",
    table_suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
)
