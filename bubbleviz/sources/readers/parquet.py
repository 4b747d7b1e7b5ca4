"""Parquet: a table of operations, as polars, pandas and others write it."""

from __future__ import annotations

from bubbleviz.sources.readers import Reader, table_opened_by

#: Bytes of a file with a footer at least; what is shorter was cut.
_SHORTEST = 12


READER = Reader(
    name="parquet",
    suffixes=(),
    recognises=lambda head: head.startswith(b"PAR1") and len(head) >= _SHORTEST,
    open_file=table_opened_by("parquet", "read_parquet"),
    decoded_whole=True,
    operations="a table of operations",
    table_suffixes=(".parquet", ".pq"),
)
