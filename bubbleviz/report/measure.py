"""Measure: what the primary ratio is called; the idle time of no pipeline is no bubble of one."""

from __future__ import annotations

from bubbleviz.report.report import Report


def measure_of(report: Report) -> str:
    """Return the name of the primary ratio in a headline: ``bubble ratio (schedule)``."""
    return "idle in iterations" if report.no_pipeline else f"bubble ratio ({report.headline})"


def idle_of(report: Report) -> str:
    """Return what the ratio is a share of, in words: ``bubble``, or ``idle time``."""
    return "idle time" if report.no_pipeline else "bubble"
