"""Event files of NCCL's own profilers.

Adding a format is adding a module with a ``FORMAT`` constant. NCCL's inspector writes summaries of
another kind, which are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic

from bubbleviz.errors import InputError
from bubbleviz.progress import Watch, unwatched
from bubbleviz.registry import discover
from bubbleviz.sources.gzip_files import head_of, unpacked
from bubbleviz.sources.nccl.events import Columns, EventFile
from bubbleviz.sources.nccl.lines import BLOCK, EventT, Objects

_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True)
class EventFileFormat(Generic[EventT]):
    """A kind of event file; no file is of two.

    Attributes:
        name: what reports call it.
        event: what its events are decoded to.
        recognises: whether a file's first 64 KiB are of this kind.
        gather: takes all its events, in their order, and adds rows for what they tell.
    """

    name: str
    event: type[EventT]
    recognises: Callable[[bytes], bool]
    gather: Callable[[Iterable[EventT], Columns], None]


def formats() -> tuple[EventFileFormat[Any], ...]:
    """Return every format."""
    return discover(__name__, "FORMAT", EventFileFormat)


def format_of(head: bytes) -> EventFileFormat[Any] | None:
    """Return the format of a file by its first bytes; None where it is none of these."""
    if head.startswith(_SQLITE):
        # Names in a database may look like anything.
        return None
    return next((own for own in formats() if own.recognises(head)), None)


def read_events(
    path: str, watch: Watch = unwatched, chosen: EventFileFormat[Any] | None = None
) -> EventFile:
    """Return the communication operations of an event file.

    A file that was cut is read as far as it goes.

    Args:
        path: of the file.
        watch: takes what share of it has been read.
        chosen: its format; None to recognise it.

    Raises:
        InputError: it is no event file of NCCL.
        ProfileError: it cannot be read.
    """
    chosen = chosen or format_of(head_of(path))
    if chosen is None:
        raise InputError(
            f"{path}: no event file of NCCL; write one with NCCL_PROFILER_PLUGIN and "
            "NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE"
        )
    columns = Columns()
    with unpacked(path, watch, BLOCK) as chunks:
        objects = Objects(chunks, chosen.event)
        chosen.gather(chain.from_iterable(objects.blocks()), columns)
    lost = objects.unreadable + (chunks.damaged or chunks.cut)
    return columns.done(path, chosen.name, lost)
