"""Parquet: operations as ``--csv`` has them, idle intervals and iterations, for polars and others.

Idle intervals name operations by their rows of ``--parquet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bubbleviz.render.formats import Renderer, needs

if TYPE_CHECKING:
    from bubbleviz.model.arrow import ArrowTable
    from bubbleviz.render.formats import File
    from bubbleviz.report.report import Report
    from bubbleviz.report.view import View

#: Raises where Parquet cannot be written.
check = needs(
    "pyarrow",
    "Parquet is written by pyarrow; install it with: pip install 'bubbleviz[parquet]', or "
    "write --csv",
)


def _operations(report: Report) -> ArrowTable:
    from bubbleviz.report.bubbles import WrittenOperations

    return WrittenOperations(report)


def _operations_by_parts(report: Report) -> Iterator[ArrowTable]:
    from bubbleviz.report.bubbles import WrittenOperations, has_tokens
    from bubbleviz.report.rank_means import part_of, rank_parts

    tokens = has_tokens(report)
    for first, last in rank_parts(report):
        yield WrittenOperations(part_of(report, first, last), tokens=tokens)


def _bubbles_by_parts(report: Report) -> Iterator[ArrowTable]:
    from bubbleviz.report.rank_means import rank_parts, rows_of_ranks

    for first, last in rank_parts(report):
        yield report.bubbles.take(rows_of_ranks(report.bubbles.rank, first, last))


def _renderer(
    name: str,
    summary: str,
    suffix: str,
    table: Callable[[Report], ArrowTable],
    tables: Callable[[Report], Iterator[ArrowTable]] | None = None,
) -> Renderer[bytes]:
    """Return the renderer of a table of the report, in one file or by parts."""

    def render(report: Report, view: View) -> bytes:
        del view
        check()
        return parquet_bytes(table(report))

    def parts(report: Report) -> Iterator[File]:
        from bubbleviz.model.files import part_name

        check()
        for number, part in enumerate(tables(report) if tables else ()):
            yield part_name(number, "parquet"), parquet_bytes(part)

    return Renderer(
        name=name,
        summary=summary,
        suffixes=(suffix,),
        render=render,
        order=3,
        check=check,
        binary=True,
        parts=parts if tables else None,
    )


def parquet_bytes(table: ArrowTable) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    import io

    import pyarrow as pa
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pa.table(table), out, compression="zstd")
    return out.getvalue()


RENDERER = (
    _renderer(
        "parquet", "one row an operation, as Parquet", ".parquet", _operations, _operations_by_parts
    ),
    _renderer(
        "bubbles-parquet",
        "one row an idle interval, as Parquet",
        ".bubbles.parquet",
        lambda report: report.bubbles,
        _bubbles_by_parts,
    ),
    _renderer(
        "iterations-parquet",
        "one row an iteration, with ratios, as Parquet",
        ".iterations.parquet",
        lambda report: report.iterations,
    ),
)
