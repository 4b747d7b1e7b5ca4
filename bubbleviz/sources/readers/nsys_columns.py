"""Nsight Systems: directories of ``nsys export --type parquetdir`` and ``arrowdir``."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.nsys.files import is_columnar
from bubbleviz.sources.readers import OpenFile, Reader


def _open_file(
    path: str, jobs: int = 1, watch: Watch = unwatched
) -> AbstractContextManager[OpenFile]:
    """Open a directory; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.nsys.columnar_export import open_directory

    return open_directory(path, jobs, watch)


READER = Reader(
    name="nsys_columns",
    suffixes=(),
    recognises=lambda _: False,
    open_file=_open_file,
    recognises_directory=is_columnar,
)
