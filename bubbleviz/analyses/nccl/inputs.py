"""Finds the input files of ``bubbleviz nccl``: event files and profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.model.pointers import describe_pointer
from bubbleviz.sources.gzip_files import read_head
from bubbleviz.sources.nccl.formats import detect_format
from bubbleviz.sources.paths import InputFile, find_profiles, refuse_duplicates

#: Suffixes of event files and of pointers to event files.
_SUFFIXES = frozenset(("", ".txt", ".log", ".json", ".jsonl", ".jsonlines"))


def find_inputs(paths: Sequence[str]) -> Mapping[InputFile, str]:
    """Find the files at the paths, and return each event file's format, or "" for profiles.

    Directories and glob patterns are expanded.

    Raises:
        InputError: A path does not exist, or there are neither event files nor profiles at a path.
        MismatchError: A file is given twice.
        ProfileError: A file cannot be read.
    """
    if not paths:
        raise InputError("no files were given; pass NCCL event files, profiles, or both")
    formats: dict[str, str] = {}
    pointers: set[str] = set()

    def is_event_file(path: str) -> bool:
        """Return whether a file contains NCCL events or is a pointer to a file that does.

        The detected format of the file is cached.
        """
        if path not in formats:
            try:
                head = read_head(path)
                formats[path] = detect_format(head)
                if Path(path).suffix in _SUFFIXES and describe_pointer(head) is not None:
                    pointers.add(path)
            except ProfileError:
                # The same error will be reported when the file is read as a profile.
                formats[path] = ""
        return formats[path] != "" or path in pointers

    files = find_profiles(paths, ("an NCCL event file", is_event_file))
    refuse_duplicates([file.path for file in files], "file")
    # Event files of different ranks may have identical content, but profiles never do.
    refuse_same_content(Fleet(1), [file.path for file in files if not is_event_file(file.path)])
    return {file: formats[file.path] if is_event_file(file.path) else "" for file in files}
