"""Recording: what ``bubbleviz.annotate`` writes in a training process, without a profiler."""

from __future__ import annotations

from bubbleviz.progress import Watch, unwatched
from bubbleviz.recording_layout import MAGIC, SUFFIX
from bubbleviz.sources.readers import Opened, Reader


def _open_file(
    path: str,
    jobs: int = 1,  # noqa: ARG001 - one thread reads it
    watch: Watch = unwatched,
) -> Opened:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.recordings.operations import open_recording

    return open_recording(path, watch)


READER = Reader(
    name="recording",
    suffixes=(SUFFIX,),
    recognises=lambda head: head.startswith(MAGIC),
    open_file=_open_file,
    decoded_whole=True,
    operations="a recording of bubbleviz.annotate",
    sessions="bubbleviz.sources.recordings.operations",
)
