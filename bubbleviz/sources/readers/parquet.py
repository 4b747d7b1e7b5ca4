"""Parquet: a table of operations, as polars, pandas and others write it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from bubbleviz.progress import Watch, unwatched
from bubbleviz.sources.readers import OpenFile, Reader

#: Bytes of a file with a footer at least; what is shorter was cut.
_SHORTEST = 12


def _open_file(
    path: str,
    jobs: int = 1,  # noqa: ARG001 - pyarrow has threads of its own
    watch: Watch = unwatched,
) -> AbstractContextManager[OpenFile]:
    """Open a file; its package is imported only now, so that other formats start faster."""
    from bubbleviz.sources.tables.files import read_parquet
    from bubbleviz.sources.tables.operations import open_table

    return open_table(path, "parquet", watch, read_parquet)


READER = Reader(
    name="parquet",
    suffixes=(),
    recognises=lambda head: head.startswith(b"PAR1") and len(head) >= _SHORTEST,
    open_file=_open_file,
    decoded_whole=True,
    operations="a table of operations",
    table_suffixes=(".parquet", ".pq"),
)
