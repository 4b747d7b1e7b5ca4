"""Inputs: the event files and profiles that paths stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret.fleet.fleet import Local
from bubbleviz.interpret.fleet.run_recordings import refuse_same_content
from bubbleviz.model.pointers import pointer_words
from bubbleviz.model.values import frozen
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.formats import EventFileFormat, format_of
from bubbleviz.sources.paths import CompanionFormat, find_profiles, refuse_twins

#: Endings that event files have: a pointer of such a name in a directory may stand for one.
_SUFFIXES = frozenset(("", ".txt", ".log", ".json", ".jsonl", ".jsonlines"))


@frozen
class Input:
    """A file to read, ``named`` or not, and the format of its NCCL events; None of a profile."""

    path: str
    named: bool
    format: EventFileFormat[Any] | None


def find_inputs(paths: Sequence[str]) -> tuple[Input, ...]:
    """Return the event files and profiles that paths stand for.

    Raises:
        InputError: a path that does not exist, or leads to neither.
        MismatchError: a file is named twice.
        ProfileError: a file cannot be read.
    """
    if not paths:
        raise InputError("no file given; name event files of NCCL, profiles, or both")
    formats: dict[str, EventFileFormat[Any] | None] = {}
    pointers: set[str] = set()

    def recognises(path: str) -> bool:
        if path not in formats:
            try:
                head = head_of(path)
                formats[path] = format_of(head)
                if Path(path).suffix in _SUFFIXES and pointer_words(head) is not None:
                    pointers.add(path)
            except ProfileError:
                # As a profile, it is refused, or left out of a directory, for the same reason.
                formats[path] = None
        return formats[path] is not None or path in pointers

    files = find_profiles(paths, CompanionFormat("an event file of NCCL", recognises))
    refuse_twins([file.path for file in files], "file")
    # Event files of ranks that recorded alike may be equal; profiles never are.
    refuse_same_content(Local(1), [file.path for file in files if not recognises(file.path)])
    return tuple(
        Input(file.path, file.named, formats[file.path] if recognises(file.path) else None)
        for file in files
    )
