"""Bubbles as Parquet: the rows of ``--bubbles``; operations go by their rows of ``--parquet``."""

from __future__ import annotations

from bubbleviz.render.formats import as_parquet

RENDERER = as_parquet(
    "bubbles-parquet",
    "one row an idle interval, as Parquet",
    ".bubbles.parquet",
    lambda report: report.bubbles,
)
