"""Bubbles as Parquet: the rows of ``--bubbles``; operations go by their rows of ``--parquet``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bubbleviz.render.formats import as_parquet

if TYPE_CHECKING:
    from bubbleviz.model.arrow import ArrowTable
    from bubbleviz.report.report import Report


def _tables(report: Report) -> Iterator[ArrowTable]:
    from bubbleviz.report.rank_means import rank_parts, rows_of_ranks

    for first, last in rank_parts(report):
        yield report.bubbles.take(rows_of_ranks(report.bubbles.rank, first, last))


RENDERER = as_parquet(
    "bubbles-parquet",
    "one row an idle interval, as Parquet",
    ".bubbles.parquet",
    lambda report: report.bubbles,
    _tables,
)
