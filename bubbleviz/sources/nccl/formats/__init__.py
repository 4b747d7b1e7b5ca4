"""Event files of NCCL's own profilers.

Adding a format is adding a module with a ``FORMAT`` constant, and its name to ``formats``. NCCL's
inspector writes summaries of another kind, which are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from bubbleviz.errors import InputError
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import head_of, unpacked
from bubbleviz.sources.nccl.events import EventFile, NcclEventBuilder
from bubbleviz.sources.nccl.lines import BLOCK, EventObject, EventObjects

_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True)
class EventFileFormat:
    """A kind of event file; no file is of two.

    Attributes:
        name: of the format, in reports.
        recognises: whether a file's first 64 KiB are of this kind.
        build: adds the operations of all its events, which come in their order.
    """

    name: str
    recognises: Callable[[bytes], bool]
    build: Callable[[Iterable[EventObject], NcclEventBuilder], None]


def formats() -> tuple[EventFileFormat, ...]:
    """Return every format."""
    from bubbleviz.sources.nccl.formats import plugin, proxy

    return plugin.FORMAT, proxy.FORMAT


def format_of(head: bytes) -> EventFileFormat | None:
    """Return the format of a file by its first bytes; None where it is none of these."""
    if head.startswith(_SQLITE):
        # Names in a database may look like anything.
        return None
    return next((known for known in formats() if known.recognises(head)), None)


def read_events(
    path: str, watch: Watch = unwatched, chosen: EventFileFormat | None = None
) -> EventFile:
    """Return the communication operations of an event file.

    A file that was cut is read as far as it goes.

    Args:
        path: of the file.
        watch: takes the share of it that has been read.
        chosen: its format; None to recognise it.

    Raises:
        InputError: it is not an event file of NCCL.
        ProfileError: it cannot be read.
    """
    chosen = chosen or format_of(head_of(path))
    if chosen is None:
        raise InputError(
            f"{path}: not an event file of NCCL; write one with NCCL_PROFILER_PLUGIN and "
            "NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE"
        )
    builder = NcclEventBuilder()
    with unpacked(path, watch, BLOCK) as chunks:
        objects = EventObjects(chunks)
        chosen.build(chain.from_iterable(objects.blocks()), builder)
    unreadable = objects.unreadable + (chunks.damaged or chunks.cut)
    return builder.event_file(path, chosen.name, unreadable)
