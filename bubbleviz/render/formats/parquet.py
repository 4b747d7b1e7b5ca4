"""Parquet: operations as ``--csv`` has them, idle intervals and iterations, for polars and others.

Idle intervals name operations by their rows of ``--parquet``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import parquet

from bubbleviz.model.arrow import ArrowTable, Columns
from bubbleviz.model.files import part_name
from bubbleviz.render.formats import File
from bubbleviz.report.bubbles import has_tokens, written_operations
from bubbleviz.report.rank_means import part_of, rank_parts, rows_of_ranks
from bubbleviz.report.report import Report
from bubbleviz.report.view import View


def operations(report: Report, _: View) -> bytes:
    """Return one row per operation."""
    return parquet_bytes(written_operations(report))


def bubbles(report: Report, _: View) -> bytes:
    """Return one row per idle interval."""
    return parquet_bytes(report.bubbles)


def iterations(report: Report, _: View) -> bytes:
    """Return one row per iteration."""
    return parquet_bytes(report.iterations)


def operations_by_parts(report: Report) -> Iterator[File]:
    """Yield the files of a folder: the operations of some ranks each."""
    tokens = has_tokens(report)
    return _files(
        written_operations(part_of(report, first, last), tokens=tokens)
        for first, last in rank_parts(report)
    )


def bubbles_by_parts(report: Report) -> Iterator[File]:
    """Yield the files of a folder: the idle intervals of some ranks each."""
    own = report.bubbles
    return _files(own.take(rows_of_ranks(own.rank, *ends)) for ends in rank_parts(report))


def _files(tables: Iterable[ArrowTable | Columns]) -> Iterator[File]:
    for number, table in enumerate(tables):
        yield part_name(number, "parquet"), parquet_bytes(table)


def parquet_bytes(table: ArrowTable | Columns) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    out = io.BytesIO()
    parquet.write_table(pa.table(table), out, compression="zstd")
    return out.getvalue()
