"""Event files of NCCL's own profilers.

Adding a format is adding a module with a ``FORMAT`` constant. NCCL's inspector writes summaries of
another kind, which are not read.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from bubbleviz.errors import InputError
from bubbleviz.nccl_events import Columns, EventFile
from bubbleviz.nccl_lines import Event, Objects
from bubbleviz.progress import Watch, unwatched
from bubbleviz.registry import discover

if TYPE_CHECKING:
    from collections.abc import Iterator

#: So much of a file tells what it is.
HEAD = 1 << 16
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Format:
    """A kind of event file.

    Attributes:
        name: what reports call it.
        order: place among those that are asked.
        recognises: whether a file's first 64 KiB are of this kind.
        gather: takes all its events, in their order, and adds rows for what they tell.
    """

    name: str
    order: int
    recognises: Callable[[bytes], bool]
    gather: Callable[[Iterable[Event], Columns], None]


def formats() -> tuple[Format, ...]:
    """Return every format."""
    return discover(__name__, "FORMAT", Format)


def format_of(head: bytes) -> Format | None:
    """Return the format of a file by its first bytes; None where it is none of these."""
    return next((own for own in formats() if own.recognises(head)), None)


def head_of(path: str) -> bytes:
    """Return the first bytes of a file, unpacked where they are gzipped.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with _opened(path) as file:
            return file.read(HEAD)
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: is gzipped, and damaged ({error}); copy it again") from error


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with Path(path).open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            yield cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); check the path") from error


def read_events(path: str, watch: Watch = unwatched) -> EventFile:
    """Return the communication operations of an event file.

    A file that was cut is read as far as it goes.

    Raises:
        InputError: it cannot be read, or is no event file of NCCL.
    """
    chosen = format_of(head_of(path))
    if chosen is None:
        raise InputError(
            f"{path}: no event file of NCCL; write one with NCCL_PROFILER_PLUGIN and "
            "NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE"
        )
    size = max(Path(path).stat().st_size, 1)
    columns = Columns()
    cut = 0
    with _opened(path) as file:
        objects = Objects(file)

        def events() -> Iterator[Event]:
            nonlocal cut
            try:
                for block in objects.blocks():
                    watch(min(objects.read / size, 1.0))
                    yield from block
            except (EOFError, zlib.error):
                # A gzipped file that was cut.
                cut = 1

        chosen.gather(events(), columns)
    return columns.done(path, chosen.name, objects.unreadable + cut)
