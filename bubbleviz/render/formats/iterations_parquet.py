"""Iterations as Parquet: one row an iteration, with its windows and ratios."""

from __future__ import annotations

from bubbleviz.render.formats import as_parquet

RENDERER = as_parquet(
    "iterations-parquet",
    "one row an iteration, with ratios, as Parquet",
    ".iterations.parquet",
    lambda report: report.iterations,
)
