"""Inputs of ``bubbleviz nccl``: the event files and profiles that paths stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.model.pointers import describe_pointer
from bubbleviz.sources.gzip_files import read_head
from bubbleviz.sources.nccl.formats import detect_format
from bubbleviz.sources.paths import InputFile, find_profiles, refuse_duplicates

#: Endings that event files have: a pointer of such a name in a directory may stand for one.
_SUFFIXES = frozenset(("", ".txt", ".log", ".json", ".jsonl", ".jsonlines"))


def find_inputs(paths: Sequence[str]) -> Mapping[InputFile, str]:
    """Return the files that paths stand for, with the format of event files, "" of profiles.

    Raises:
        InputError: a path that does not exist, or leads to neither.
        MismatchError: a file is named twice.
        ProfileError: a file cannot be read.
    """
    if not paths:
        raise InputError("no file given; name event files of NCCL, profiles, or both")
    formats: dict[str, str] = {}
    pointers: set[str] = set()

    def recognises(path: str) -> bool:
        if path not in formats:
            try:
                head = read_head(path)
                formats[path] = detect_format(head)
                if Path(path).suffix in _SUFFIXES and describe_pointer(head) is not None:
                    pointers.add(path)
            except ProfileError:
                # As a profile, it is refused, or left out of a directory, for the same reason.
                formats[path] = ""
        return formats[path] != "" or path in pointers

    files = find_profiles(paths, ("an event file of NCCL", recognises))
    refuse_duplicates([file.path for file in files], "file")
    # Event files of ranks that recorded alike may be equal; profiles never are.
    refuse_same_content(Fleet(1), [file.path for file in files if not recognises(file.path)])
    return {file: formats[file.path] if recognises(file.path) else "" for file in files}
