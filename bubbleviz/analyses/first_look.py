"""A first look at files: which command tells most of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bubbleviz.conventions.convention import globs_of
from bubbleviz.conventions.convention_file import built_in
from bubbleviz.conventions.recognition import recognise
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret.record import sampled_names
from bubbleviz.model.values import frozen
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.sources.gzip_files import head_of
from bubbleviz.sources.nccl.formats import format_of
from bubbleviz.sources.nsys.files import REPORT_SUFFIXES, bytes_of
from bubbleviz.sources.paths import InputFile, find_profiles
from bubbleviz.sources.readers import reader_of

#: How many profiles of a run are looked at before none is taken to name its operations.
_MOST = 4


@frozen
class FirstLook:
    """The command that fits files, and why, in words; "" where nothing can be read."""

    command: str
    reason: str


def first_look(paths: Sequence[str], progress: Progress | None = None) -> FirstLook:
    """Return the command that fits files: ``analyze``, ``idle`` or ``nccl``.

    Only a sample of the names is read, and a trace that is decoded whole stays open for the
    command. What cannot be read is left to ``analyze`` to refuse.

    Args:
        paths: files, directories and patterns.
        progress: takes the progress of traces that are decoded whole.

    Raises:
        InputError: a path does not exist, cannot be read, or leads to nothing to read.
    """
    try:
        files = find_profiles(paths)
    except InputError:
        if _holds_events(paths):
            return FirstLook("nccl", "these are events of NCCL's profiler")
        raise
    if any(file.named and _is_event_file(file.path) for file in files):
        return FirstLook("nccl", "events of NCCL's profiler are among the files")
    return _by_names(files, progress or Unwatched())


def _by_names(files: Sequence[InputFile], progress: Progress) -> FirstLook:
    looked_at, globs = [], globs_of(tuple(built_in().values()))
    progress.files({file.path: bytes_of(file.path) for file in files[:_MOST]})
    for file in files[:_MOST]:
        if file.path.endswith(REPORT_SUFFIXES):
            return FirstLook("analyze", "nsys has yet to export the names of ranges")
        try:
            if noun := reader_of(file.path).operations:
                return FirstLook("analyze", f"{file.path} is {noun}")
            names = sampled_names(file.path, globs, partial(progress.read, file.path))
        except ProfileError:
            continue
        looked_at.append(file.path)
        if followed := recognise(names):
            return FirstLook("analyze", f"{file.path} names its operations as {followed[0].name}")
    if not looked_at:
        return FirstLook("analyze", "")
    what = looked_at[0] if len(files) == 1 else f"the {len(files):,} files"
    why = f"no range of {what} names forward or backward as a known convention does"
    return FirstLook("idle", f"{why}; inspect may draft one")


def _is_event_file(path: str) -> bool:
    try:
        return format_of(head_of(path)) is not None
    except ProfileError:
        return False


def _holds_events(paths: Sequence[str]) -> bool:
    """Tell whether directories that hold no profile hold events of NCCL."""
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    files = (file for folder in folders for file in folder.iterdir() if file.is_file())
    return any(_is_event_file(str(file)) for file in files)
