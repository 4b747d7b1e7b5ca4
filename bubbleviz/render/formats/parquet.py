"""Parquet: the operations as ``--csv`` has them, for polars, pandas, DuckDB and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bubbleviz.render.formats import as_parquet

if TYPE_CHECKING:
    from bubbleviz.model.arrow import ArrowTable
    from bubbleviz.report.report import Report


def _table(report: Report) -> ArrowTable:
    from bubbleviz.report.operation_columns import WrittenOperations

    return WrittenOperations(report)


def _tables(report: Report) -> Iterator[ArrowTable]:
    from bubbleviz.report.operation_columns import WrittenOperations, has_tokens
    from bubbleviz.report.rank_means import part_of, rank_parts

    tokens = has_tokens(report)
    for first, last in rank_parts(report):
        yield WrittenOperations(part_of(report, first, last), tokens=tokens)


RENDERER = as_parquet("parquet", "one row an operation, as Parquet", ".parquet", _table, _tables)
