"""Names for the primary ratio and for idle time.

Idle time is called a bubble only if the ranks form a pipeline. Without a pipeline, the primary
ratio may cover only a small part of the lost time, because it treats launch gaps inside operations
as work. If launch gaps or compute outside operations take up too much time, the ratio is called
"idle between operations".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bubbleviz.report.report import Report
from bubbleviz.report.restrictions import ONE_STAGE, UNPROVEN

if TYPE_CHECKING:
    from bubbleviz.report.summary import RunSummary


@dataclass(frozen=True)
class Measure:
    """Names of the primary ratio and of the idle time.

    Attributes:
        name: Name of the ratio in a headline, such as ``bubble ratio (schedule)``.
        idle: Name of the idle time, such as ``bubble``.
    """

    name: str
    idle: str


def name_measure(report: Report) -> Measure:
    """Return the names for a report's primary ratio and idle time."""
    return _make_measure(
        report.headline,
        is_pipeline=report.no_pipeline is None,
        is_part=is_idle_elsewhere(report),
    )


def name_saved_measure(summary: RunSummary) -> Measure:
    """Return the names for a saved report's primary ratio and idle time."""
    no_pipeline = {ONE_STAGE.code, UNPROVEN.code}
    return _make_measure(
        summary.headline,
        is_pipeline=all(entry.code not in no_pipeline for entry in summary.restrictions),
        is_part=bool(summary.summary.kernel_time.sentence),
    )


def is_idle_elsewhere(report: Report) -> bool:
    """Return whether the ranks are not a pipeline and the sentence about kernel time is needed.

    If so, the primary ratio covers only part of the GPUs' idle time. See
    :attr:`.kernel_time.KernelTime.sentence`.
    """
    return report.no_pipeline is not None and report.kernel_time.sentence is not None


def _make_measure(headline: str, *, is_pipeline: bool, is_part: bool) -> Measure:
    """Return the names for the primary ratio and for idle time.

    Args:
        headline: Name of the primary ratio.
        is_pipeline: Whether the ranks form a pipeline.
        is_part: Whether the ratio covers only part of the idle time.
    """
    if is_pipeline:
        return Measure(f"bubble ratio ({headline})", "bubble")
    if is_part:
        return Measure("idle between operations", "time between operations")
    return Measure("idle in iterations", "idle time")
