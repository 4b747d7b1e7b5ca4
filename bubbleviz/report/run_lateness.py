"""Find the rank that arrives last at the barriers of a report's run."""

from __future__ import annotations

from functools import partial

from bubbleviz.explain.late_arrivals import Lateness
from bubbleviz.explain.run_lateness import measure_run_lateness
from bubbleviz.report.labels import name_rank
from bubbleviz.report.late_ranks import describe_lateness
from bubbleviz.report.report import Report


def find_lateness(report: Report) -> Lateness | None:
    """Return which ranks arrive last at barriers, or None if the run shows no barriers.

    Only runs without a pipeline are measured. In a pipeline, ranks wait for their inputs as well.
    """
    run = report.explanation.slowdown_source
    averaged = [iteration for iteration in report.iterations if iteration.averaged]
    if run is None or not averaged:
        return None
    ratios = [iteration.ratios.get("schedule") for iteration in averaged]
    return measure_run_lateness(
        run,
        recorded=None if len(report.collectives) else report.operations,
        has_common_clock=all(ratio is not None and ratio.value is not None for ratio in ratios),
    )


def describe_late_rank(report: Report) -> str:
    """Return sentences on the rank for which others usually wait, or "" if there is none."""
    hosts = [rank.host for rank in report.ranks]
    return describe_lateness(report.derive(find_lateness), partial(name_rank, report), hosts)
