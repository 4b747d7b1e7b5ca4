"""Split a ratio's window into the work of a rank and its idle time by cause."""

from __future__ import annotations

from bubbleviz.report.idle_summary import IdleSummary
from bubbleviz.report.ratio_summary import ReportSummary, find_ratio


def split_window(report: ReportSummary, ratio: str) -> dict[str, float]:
    """Split a ratio's mean window into the mean work and the mean bubble of a rank, in ns.

    The keys are ``work`` and ``bubble``, or ``busy`` and ``idle`` in reports on idle time. The
    result is empty if the mean of the ratio or of its window is unknown.
    """
    numbers = find_ratio(report, ratio)
    if numbers is None or numbers.bubble.mean is None or numbers.window_ns.mean is None:
        return {}
    window_ns, bubble = numbers.window_ns.mean, numbers.bubble.mean
    work, idle = ("busy", "idle") if isinstance(report, IdleSummary) else ("work", "bubble")
    return {work: (1 - bubble) * window_ns, idle: bubble * window_ns}


def split_primary_window(report: ReportSummary) -> dict[str, float]:
    """Split the mean window of the primary ratio into a rank's work and the parts of its bubble.

    Times are in ns. The first key is ``work`` (or ``busy`` in reports on idle time). The other keys
    are the names of the parts of the bubble, for example causes of idle time. The result is empty
    if the mean of the ratio or of its window is unknown.
    """
    divided = split_window(report, report.headline)
    if not divided:
        return {}
    window_ns = sum(divided.values())
    work, _ = divided.items()
    causes = {part.name: part.share * window_ns for part in report.summary.bubble_parts}
    return dict([work]) | causes


def find_first_cause(report: ReportSummary) -> tuple[str, float] | None:
    """Return the name of the bubble's largest part, and its share of the bubble.

    The result is None if there is no bubble.
    """
    shares = {part.name: part.share for part in report.summary.bubble_parts}
    total = sum(shares.values())
    if not total:
        return None
    largest = max(shares, key=shares.__getitem__)
    return largest, shares[largest] / total
