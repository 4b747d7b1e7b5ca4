"""Parquet: the operations as ``--csv`` has them, for polars, pandas, DuckDB and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubbleviz.render.formats import as_parquet

if TYPE_CHECKING:
    from bubbleviz.model.arrow import ArrowTable
    from bubbleviz.report.report import Report


def _table(report: Report) -> ArrowTable:
    from bubbleviz.report.operation_columns import WrittenOperations

    return WrittenOperations(report)


RENDERER = as_parquet("parquet", "one row an operation, as Parquet", ".parquet", _table)
