"""Renders operations as a Parquet table with one row per operation and the columns of ``--csv``."""

from __future__ import annotations

import io

import pyarrow as pa
from pyarrow import parquet

from bubbleviz.report.operation_columns import build_operation_table
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def write_operations(report: Report, _: View) -> bytes:
    """Return all operations as Parquet bytes. The view is ignored."""
    out = io.BytesIO()
    parquet.write_table(pa.table(build_operation_table(report)), out, compression="zstd")
    return out.getvalue()
