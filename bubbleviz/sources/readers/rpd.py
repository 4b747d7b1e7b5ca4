"""rpd: the SQLite file that the tracer of rocmProfileData writes, ROCm's older one."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import SQLITE, OpenFile, Reader


def _open_file(
    path: str, jobs: int = 1, watch: Watch = unwatched
) -> AbstractContextManager[OpenFile]:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.rocm.profile_file import open_rpd

    return open_rpd(path, jobs, watch)


#: Of these tables every file has one.
_TABLES = frozenset(("rocpd_api", "rocpd_op"))

READER = Reader(
    name="rpd",
    suffixes=(".rpd",),
    recognises=lambda head: head.startswith(SQLITE),
    holds=lambda tables: bool(_TABLES & tables),
    open_file=_open_file,
    decoded_whole=True,
)
