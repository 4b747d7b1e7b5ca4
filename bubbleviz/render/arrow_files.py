"""Arrow files: tables of a report as Parquet, by pyarrow."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from bubbleviz.errors import OutputError

if TYPE_CHECKING:
    from bubbleviz.model.arrow import ArrowTable


def check() -> None:
    """Check that Parquet can be written.

    Raises:
        OutputError: pyarrow is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise OutputError(
            "Parquet is written by pyarrow; install it with: pip install 'bubbleviz[parquet]', or "
            "write --csv"
        )


def parquet_bytes(table: ArrowTable) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    import io

    import pyarrow as pa
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pa.table(table), out, compression="zstd")
    return out.getvalue()
