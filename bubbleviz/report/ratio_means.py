"""The mean of each bubble ratio of a report, one record per ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bubbleviz.count.ratios import RatioDefinition, list_ratios
from bubbleviz.model.arrow import Kind
from bubbleviz.report.report import Report


@dataclass(frozen=True)
class RatioMean:
    """Mean and spread of one bubble ratio over the averaged iterations. Unknown values are None.

    Attributes:
        name: Name of the ratio.
        mean: Mean of the ratio.
        std: Standard deviation with n - 1 degrees of freedom.
        min: Smallest value.
        max: Largest value.
        ci95: Half-width of the 95 % confidence interval of the mean.
        n: Number of iterations in which the ratio is known.
        interval_low: Lower bound of the mean, given the uncertainty of the clocks.
        interval_high: Upper bound of the mean, given the uncertainty of the clocks.
        low: Mean of the ratio if compute outside operations counted as work.
        overhead: Mean of the bubble time divided by the work time.
        window_ns: Mean length of the window.
        is_contradicted: Whether the ratio depends on clocks that contradict each other.
        window: Description of the window.
    """

    name: str
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    ci95: float | None
    n: int
    interval_low: float | None
    interval_high: float | None
    low: float | None
    overhead: float | None
    window_ns: float | None
    is_contradicted: bool
    window: str


#: Column types of a table of :class:`RatioMean`.
RATIO_KINDS: Mapping[str, Kind] = {
    "name": "string",
    **dict.fromkeys(("mean", "std", "min", "max", "ci95"), "float64"),
    "n": "int64",
    **dict.fromkeys(("interval_low", "interval_high", "low", "overhead", "window_ns"), "float64"),
    "is_contradicted": "bool",
    "window": "string",
}


def list_ratio_means(report: Report) -> tuple[RatioMean, ...]:
    """Return the mean of each ratio, in display order."""
    return tuple(_make_ratio_mean(report, definition) for definition in list_ratios())


def _make_ratio_mean(report: Report, definition: RatioDefinition) -> RatioMean:
    name, summary = definition.name, report.summary
    ratio = summary.bubble_ratio[name]
    interval_low, interval_high = summary.bubble_interval.get(name) or (None, None)
    return RatioMean(
        name=name,
        mean=ratio.mean,
        std=ratio.std,
        min=ratio.min,
        max=ratio.max,
        ci95=ratio.ci95,
        n=ratio.n,
        interval_low=interval_low,
        interval_high=interval_high,
        low=summary.bubble_low[name].mean,
        overhead=summary.bubble_overhead[name].mean,
        window_ns=summary.window_ns[name].mean,
        is_contradicted=report.contradicted(name),
        window=definition.summary,
    )
