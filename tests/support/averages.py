"""Builds averages for synthetic reports."""

from __future__ import annotations

from bubbleviz.report.summary import Average


def make_average(mean: float | None, std: float | None, n: int) -> Average:
    """Return an average whose minimum, maximum and confidence interval are unknown."""
    return Average(mean, std, min=None, max=None, ci95=None, n=n)
