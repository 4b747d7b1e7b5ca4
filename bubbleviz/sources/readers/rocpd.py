"""rocpd: the SQLite file that ``rocprofv3`` of AMD's ROCm writes, of one or several processes."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import SQLITE, OpenFile, Reader


def _open_file(
    path: str, jobs: int = 1, watch: Watch = unwatched
) -> AbstractContextManager[OpenFile]:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.rocm.profile_file import open_rocpd

    return open_rocpd(path, jobs, watch)


def _holds(tables: frozenset[str]) -> bool:
    from bubbleviz.sources.rocm.rocpd import is_rocpd

    return is_rocpd(tables)


READER = Reader(
    name="rocpd",
    suffixes=("_results.db",),
    recognises=lambda head: head.startswith(SQLITE),
    holds=_holds,
    open_file=_open_file,
    decoded_whole=True,
    possible_suffixes=(".db",),
    folder_by_host=True,
)
