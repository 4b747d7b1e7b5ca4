"""Parquet: one row per operation, with the columns of ``--csv``, for polars and other readers."""

from __future__ import annotations

import io

import pyarrow as pa
from pyarrow import parquet

from bubbleviz.report.operation_columns import written_operations
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def operations(report: Report, _: View) -> bytes:
    """Return one row per operation."""
    out = io.BytesIO()
    parquet.write_table(pa.table(written_operations(report)), out, compression="zstd")
    return out.getvalue()
