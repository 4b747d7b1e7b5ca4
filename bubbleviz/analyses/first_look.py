"""Chooses the command that shows the most about the given files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bubbleviz.conventions import convention_file
from bubbleviz.conventions.convention import collect_globs
from bubbleviz.conventions.recognition import recognize_conventions
from bubbleviz.errors import InputError, ProfileError
from bubbleviz.interpret import record
from bubbleviz.model.texts import quote_for_shell
from bubbleviz.progress import Progress, Unwatched
from bubbleviz.sources.gzip_files import read_head
from bubbleviz.sources.nccl.formats import detect_format
from bubbleviz.sources.nsys.files import is_report, measure_bytes
from bubbleviz.sources.paths import InputFile, find_profiles
from bubbleviz.sources.readers import find_reader, list_missing_columns

#: Maximum number of profiles per run whose range names are examined.
_MAX_EXAMINED = 4


def choose_command(paths: Sequence[str], progress: Progress | None = None) -> tuple[str, str]:
    """Choose the command for the given files (``analyze``, ``idle`` or ``nccl``), and the reason.

    The first rule that applies decides:

    - ``nccl``: a file given by name contains NCCL operations, or there are no profiles and one of
      the given directories contains a file of NCCL operations.
    - ``analyze``: one of the first ``_MAX_EXAMINED`` profiles contains operations, has range names
      that follow a known convention, or is a report that nsys must export first.
    - ``idle``: any other case.

    Only a sample of the range names is read. If a trace must be decoded completely, the decoded
    trace is kept for the command. If no file can be read, the command is ``analyze``, which reports
    the error, and the reason is "".

    Args:
        paths: Files, directories and patterns.
        progress: Callback that receives the progress of decoding, if a trace must be decoded
            completely.

    Raises:
        InputError: A path does not exist, cannot be read, or contains no files to read.
    """
    try:
        files = find_profiles(paths)
    except InputError:
        # Directories without profiles may contain NCCL event files.
        folders = (Path(path) for path in paths if Path(path).is_dir())
        within = [str(file) for folder in folders for file in folder.iterdir() if file.is_file()]
        if any(map(_is_event_file, within)):
            return "nccl", "the files contain NCCL operations"
        raise
    if any(file.named and _is_event_file(file.path) for file in files):
        return "nccl", "some of the files contain NCCL operations"
    return _choose_by_names(files, paths, progress or Unwatched())


def _choose_by_names(
    files: Sequence[InputFile], paths: Sequence[str], progress: Progress
) -> tuple[str, str]:
    """Choose ``analyze`` if the range names follow a known convention, otherwise ``idle``.

    The first ``_MAX_EXAMINED`` files are examined in order. Files that cannot be read are skipped.
    ``analyze`` is also chosen if a file is an nsys report that was not exported yet, or contains
    operations instead of ranges. Returns the command and the reason, or ``analyze`` and "" if no
    file could be read.
    """
    examined, globs = [], collect_globs(tuple(convention_file.built_in().values()))
    progress.files({file.path: measure_bytes(file.path) for file in files[:_MAX_EXAMINED]})
    for file in files[:_MAX_EXAMINED]:
        if is_report(file.path):
            return "analyze", "nsys has not exported the range names yet"
        try:
            if noun := find_reader(file.path).operations:
                # If a table lacks columns, analyze names them.
                is_other_table = bool(list_missing_columns(file.path))
                return "analyze", "" if is_other_table else f"{file.path} is {noun}"
            names = record.sample_names(file.path, globs, partial(progress.read, file.path))
        except ProfileError:
            continue
        examined.append(file.path)
        if followed := recognize_conventions(names):
            return "analyze", f"the range names in {file.path} follow {followed[0].name}"
    if not examined:
        return "analyze", ""
    subject = examined[0] if len(files) == 1 else f"the {len(files):,} files"
    reason = f"no range name in {subject} follows a known convention for forward and backward"
    return (
        "idle",
        f"{reason}. To draft a convention, run: "
        f"bubbleviz inspect {' '.join(map(quote_for_shell, paths))}",
    )


def _is_event_file(path: str) -> bool:
    try:
        return detect_format(read_head(path)) != ""
    except ProfileError:
        return False
