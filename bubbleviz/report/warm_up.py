"""Describe how the stages of a pipeline warm up in the first iteration."""

from __future__ import annotations

from bubbleviz.explain.first_step import FirstStep
from bubbleviz.model.texts import format_count
from bubbleviz.report.report import Report


def describe_warm_up(report: Report) -> str | None:
    """Return a sentence about the extra time of the first iteration, or None if it has little.

    The sentence says how long the stages warm up, whether they do it one after another, and what
    would be saved if they did it at the same time.
    """
    step = report.explanation.first_step
    if step is None or not step.stages:
        return None
    lead = f"takes {format_time(step.extra_ns)} longer than later ones"
    slowest = max(step.stages, key=lambda stage: stage.extra_ns)
    if len(step.stages) == 1:
        return f"{lead}: only stage {slowest.stage} warms up, for {format_time(step.longest_ns)}"
    times = (
        f"{format_count(len(step.stages), 'stage')} warm up {_describe_order(step)}, "
        f"{format_time(step.total_ns)} in total and at most {format_time(step.longest_ns)} each"
    )
    if not step.saving_ns:
        return f"{lead}: {times}"
    return (
        f"{lead}: {times}. A forward and a backward of all stages at once, before it, would save "
        f"up to {format_time(step.saving_ns)}"
    )


def _describe_order(step: FirstStep) -> str:
    """Return whether the stages warm up one after another or at the same time, as an adverb."""
    if step.is_serial:
        return "one after another"
    return "at the same time" if step.is_together else "partly one after another"


def format_time(time_ns: int) -> str:
    """Format a time in seconds, or in milliseconds if it is shorter than a second."""
    return f"{time_ns / 1e9:,.2f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:,.1f} ms"
