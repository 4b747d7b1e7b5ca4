"""Measure: what the primary ratio is called; the idle time of no pipeline is no bubble of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bubbleviz.model.values import frozen
from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import ONE_STAGE, UNPROVEN


@frozen
class Measure:
    """What the primary ratio is called.

    Attributes:
        name: in a headline: ``bubble ratio (schedule)``.
        idle: what it is the share of: ``bubble``, or ``idle time``.
    """

    name: str
    idle: str


def measure_of(report: Report) -> str:
    """Return the name of the primary ratio in a headline: ``bubble ratio (schedule)``."""
    return _measure(report.headline, pipeline=report.no_pipeline is None).name


def idle_of(report: Report) -> str:
    """Return what the ratio is a share of, in words: ``bubble``, or ``idle time``."""
    return _measure(report.headline, pipeline=report.no_pipeline is None).idle


def saved_measure(document: Mapping[str, Any]) -> Measure:
    """Return what the ratio of a report is called that was written as JSON."""
    none = {ONE_STAGE.code, UNPROVEN.code}
    codes = {restriction.get("code") for restriction in document.get("restrictions") or ()}
    return _measure(document["headline"], pipeline=not none & codes)


def _measure(headline: str, *, pipeline: bool) -> Measure:
    if pipeline:
        return Measure(f"bubble ratio ({headline})", "bubble")
    return Measure("idle in iterations", "idle time")
