"""Nsight Systems: the SQLite file of ``nsys export --type sqlite``.

The file is opened read-only and immutable, so that nothing is ever written to it or beside it.
Each table and column is probed: one that an export lacks is replaced by a view, or is a limitation,
or an error names it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import SQLITE, OpenFile, Reader


def _open_file(
    path: str, jobs: int = 1, watch: Watch = unwatched
) -> AbstractContextManager[OpenFile]:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.nsys.profile_file import open_file

    return open_file(path, jobs, watch)


#: Of these tables every export has one.
_TABLES = frozenset(
    ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")
)

READER = Reader(
    name="nsys",
    suffixes=(".sqlite",),
    recognises=lambda head: head.startswith(SQLITE),
    holds=lambda tables: bool(_TABLES & tables),
    open_file=_open_file,
)
