"""The ratios in a saved report, which is either on a run's bubbles or on its idle time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.summary import Average, RunSummary

#: A saved report from ``analyze`` or ``idle``.
ReportSummary: TypeAlias = RunSummary | IdleSummary


@dataclass(frozen=True)
class RatioSummary:
    """One ratio in a saved report.

    Attributes:
        name: Name of the ratio.
        bubble: Mean and spread of the ratio over the averaged iterations.
        window_ns: Mean and spread of the ratio's window length, in ns.
        interval: Lower and upper bounds of the mean ratio, given the uncertainty of the clocks.
            None if the bounds are unknown or the ratio does not compare clocks.
        contradicted: Whether the ratio depends on clocks that contradict each other.
    """

    name: str
    bubble: Average
    window_ns: Average
    interval: tuple[float, float] | None = None
    contradicted: bool = False


def find_ratio(report: ReportSummary, name: str) -> RatioSummary | None:
    """Return a ratio from a report, or None if the report does not contain it.

    The ratio is marked as contradicted in two cases:

    - It compares clocks, and clocks contradict each other in at least one iteration.
    - A clock was set during at least one iteration.
    """
    numbers = report.summary
    if name not in numbers.bubble_ratio:
        return None
    bubble, window_ns = numbers.bubble_ratio[name], numbers.window_ns[name]
    if isinstance(report, IdleSummary):
        return RatioSummary(name, bubble, window_ns)
    intervals = report.summary.bubble_interval
    # Ratios that compare clocks have an entry even if their bounds are unknown.
    is_contradicted = name in intervals and has_contradicting_clocks(report)
    is_contradicted |= any(iteration.clock_set for iteration in report.iterations)
    return RatioSummary(name, bubble, window_ns, intervals.get(name), is_contradicted)


def has_contradicting_clocks(report: ReportSummary) -> bool:
    """Return whether any ratio of a report depends on clocks that contradict each other."""
    if isinstance(report, IdleSummary):
        return False
    return any(iteration.clocks_contradict for iteration in report.iterations)


def describe_kernel_time(report: ReportSummary) -> str | None:
    """Return the sentence about kernel time to quote with the primary ratio, or None if not needed.

    See :attr:`.kernel_time.KernelTime.sentence`. For reports on idle time, the result is None.
    """
    return None if isinstance(report, IdleSummary) else report.summary.kernel_time.sentence


def has_iterations(report: ReportSummary) -> bool:
    """Return whether the primary ratio's windows are iterations or steps.

    The result is False if the windows are whole captures.
    """
    return report.has_steps if isinstance(report, IdleSummary) else True
