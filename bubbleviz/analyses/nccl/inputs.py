"""Inputs: the event files and profiles that paths stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bubbleviz.errors import InputError, ProfileError
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.formats import EventFileFormat, format_of
from bubbleviz.sources.paths import CompanionFormat, find_profiles, refuse_twins


@dataclass(frozen=True)
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

    def recognises(path: str) -> bool:
        if path not in formats:
            try:
                formats[path] = format_of(head_of(path))
            except ProfileError:
                # As a profile, it is refused, or left out of a directory, for the same reason.
                formats[path] = None
        return formats[path] is not None

    files = find_profiles(paths, CompanionFormat("an event file of NCCL", recognises))
    refuse_twins([file.path for file in files], "file")
    return tuple(
        Input(file.path, file.named, formats[file.path] if recognises(file.path) else None)
        for file in files
    )
