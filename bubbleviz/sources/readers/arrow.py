"""Arrow IPC: a table of operations as a file (Feather) or a stream."""

from __future__ import annotations

from bubbleviz.sources.readers import Reader, table_opened_by

#: A file, and a message of a stream, which follows the length of its schema.
_FILE, _MESSAGE = b"ARROW1", b"\xff\xff\xff\xff"

#: Bytes of a file with a footer, or of a stream with a schema, at least; what is shorter was cut.
_SHORTEST = 16


READER = Reader(
    name="arrow",
    suffixes=(),
    recognises=lambda head: head.startswith((_FILE, _MESSAGE)) and len(head) >= _SHORTEST,
    open_file=table_opened_by("arrow", "read_arrow"),
    decoded_whole=True,
    operations="a table of operations",
    table_suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
)
