"""Detects and reads event files from NCCL's profilers and PyTorch's flight recorder dumps.

To add a format, write a module like :mod:`bubbleviz.sources.nccl.proxy_profiler` and add an entry
to ``_FORMATS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from bubbleviz.errors import InputError
from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.gzip_files import UnpackedFile, read_head
from bubbleviz.sources.nccl import flight_recorder, inspector
from bubbleviz.sources.nccl.event_objects import BLOCK, EventObject, EventObjects
from bubbleviz.sources.nccl.events import EventFile, NcclEventBuilder
from bubbleviz.sources.nccl.profiler_plugin import add_plugin_events, is_plugin_file
from bubbleviz.sources.nccl.proxy_profiler import add_proxy_events, is_proxy_file
from bubbleviz.sources.sqlite.queries import SQLITE

#: A test for a file's first 64 KiB, and a function that adds the file's operations to a builder.
_Format: TypeAlias = tuple[
    Callable[[bytes], bool], Callable[[Iterable[EventObject], NcclEventBuilder], None]
]
#: Event file formats, keyed by name. A file passes the test of at most one format.
_FORMATS: Mapping[str, _Format] = {
    "profiler plugin": (is_plugin_file, add_plugin_events),
    "proxy profiler": (is_proxy_file, add_proxy_events),
}


def detect_format(head: bytes) -> str:
    """Return the name of a file's format, or "" if the file is not an event file.

    An SQLite database is never an event file.

    Args:
        head: First 64 KiB of the file.
    """
    if head.startswith(SQLITE):
        # Names in a database may look like events.
        return ""
    if flight_recorder.is_dump(head):
        return flight_recorder.FLIGHT_RECORDER
    if inspector.is_inspector_file(head):
        return inspector.INSPECTOR
    return next((name for name, (is_format, _) in _FORMATS.items() if is_format(head)), "")


def read_events(path: str, watch: Watch = unwatched, format_name: str = "") -> EventFile:
    """Read the communication operations of an event file.

    As much as possible is read from a truncated or damaged file. If its gzip data is damaged or
    truncated, ``is_packed_damaged`` of the result is set, and one more object is counted as
    unreadable.

    Args:
        path: Path to the file.
        watch: Callback that receives the fraction of the file that has been read.
        format_name: Name of the format, or "" to detect it.

    Raises:
        InputError: The file is not an NCCL event file.
        ProfileError: The file cannot be read.
    """
    format_name = format_name or detect_format(read_head(path))
    if not format_name:
        raise InputError(
            f"{path}: not an NCCL event file; record one by setting NCCL_PROFILER_PLUGIN and "
            "NCCL_PROFILE_DUMP_FILE, or NCCL_PROXY_PROFILE"
        )
    if format_name == flight_recorder.FLIGHT_RECORDER:
        return flight_recorder.read_dump(path, watch)
    if format_name == inspector.INSPECTOR:
        return inspector.read_inspector_file(path, watch)
    builder = NcclEventBuilder()
    chunks = UnpackedFile(path, watch, BLOCK)
    objects = EventObjects(chunks)
    _, add_events = _FORMATS[format_name]
    add_events(objects, builder)
    unreadable = objects.unreadable + (chunks.damaged or chunks.cut)
    file = builder.build_event_file(path, format_name, unreadable)
    return replace(file, is_packed_damaged=chunks.damaged or chunks.cut)
