"""XPlane: the ``*.xplane.pb`` that JAX, TensorBoard and TensorFlow write (XLA's profiler).

It is protobuf, read a piece at a time; see :mod:`bubbleviz.sources.xla.xspace`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import OpenFile, Reader
from bubbleviz.sources.xla.names import FOLDER
from bubbleviz.sources.xla.wire import MalformedError, Walk


def _open_file(
    path: str, jobs: int = 1, watch: Watch = unwatched
) -> AbstractContextManager[OpenFile]:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.xla.xspace_planes import open_file

    return open_file(path, jobs, watch)


def _recognises(head: bytes) -> bool:
    """Tell whether a file begins with a plane of which the number or the name fits."""
    walk = Walk(head, cut=True)
    try:
        first = next(walk.fields(0, len(head)), None)
        if first is None or first.number != 1:
            return False
        for field in walk.fields(first.begin, first.end):
            if field.number == 2:
                return walk.text(field).startswith(("/host:", "/device:", "Task Environment"))
            if field.number != 1:
                return False
    except MalformedError:
        return False
    return False


READER = Reader(
    name="xplane",
    suffixes=(".xplane.pb",),
    recognises=_recognises,
    open_file=_open_file,
    decoded_whole=True,
    folder=FOLDER,
)
