"""Recording: what ``bubbleviz.annotate`` writes in a training process, without a profiler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.recording_layout import MAGIC, SUFFIX
from bubbleviz.sources.readers import OpenFile, Reader, Sessions


def _open_file(
    path: str,
    jobs: int = 1,  # noqa: ARG001 - one thread reads it
    watch: Watch = unwatched,
) -> AbstractContextManager[OpenFile]:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.recordings.operations import open_recording

    return open_recording(path, watch)


def _first_parts(files: Sequence[str]) -> list[str]:
    from bubbleviz.sources.recordings.operations import first_parts

    return first_parts(files)


def _newest_run(files: Sequence[str]) -> list[str]:
    from bubbleviz.sources.recordings.operations import newest_run

    return newest_run(files)


READER = Reader(
    name="recording",
    suffixes=(SUFFIX,),
    recognises=lambda head: head.startswith(MAGIC),
    open_file=_open_file,
    decoded_whole=True,
    operations="a recording of bubbleviz.annotate",
    sessions=Sessions(_first_parts, _newest_run),
)
