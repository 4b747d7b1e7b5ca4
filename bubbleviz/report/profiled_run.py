"""Compare the iterations of a report with a step that was not profiled."""

from __future__ import annotations

import numpy as np

from bubbleviz.model.intervals import GroupCover
from bubbleviz.report.profiling_cost import ProfilingCost, describe_cost_and_bounds
from bubbleviz.report.report import Report


def list_profiling_sentences(report: Report) -> list[str]:
    """Return what the comparison with an unprofiled step says about the primary ratio.

    The list is empty if no unprofiled step is given.
    """
    if report.unprofiled_step_ns is None:
        return []
    cost = report.derive(measure_profiling_cost)
    if cost is None:
        return ["no iteration is averaged, so the unprofiled step cannot be compared"]
    ratio = report.summary.bubble_ratio[report.headline].mean
    window_ns = report.summary.window_ns[report.headline].mean
    return [describe_cost_and_bounds(cost, ratio, window_ns)]


def measure_profiling_cost(report: Report) -> ProfilingCost | None:
    """Compare the steps of a report with the unprofiled step.

    A step lasts from the start of an iteration to the start of the next one. If no iteration is
    followed by another one, it lasts to the end of the last optimizer step.

    Returns:
        The comparison, or None if no unprofiled step is given or no iteration is averaged.
    """
    if report.unprofiled_step_ns is None:
        return None
    windows = report.summary.window_ns
    spread = next(
        (windows[name] for name in ("period", "step") if name in windows and windows[name].n), None
    )
    if spread is None or spread.mean is None:
        return None
    return ProfilingCost(
        unprofiled_ns=report.unprofiled_step_ns,
        profiled_ns=spread.mean,
        error_ns=spread.ci95 or 0.0,
        steps=spread.n,
        overhead_ns=_average_overhead(report),
    )


def _average_overhead(report: Report) -> float:
    """Return the mean recorded overhead per averaged iteration, on the rank with the most."""
    overheads = report.overheads
    averaged = [iteration for iteration in report.iterations if iteration.averaged]
    if not len(overheads) or not averaged:
        return 0.0
    n_ranks = len(report.ranks)
    cover = GroupCover((overheads.rank, overheads.start_ns, overheads.end_ns), n_ranks)
    later = {iteration.index: iteration.start_ns for iteration in report.iterations}
    rank = np.tile(np.arange(n_ranks), len(averaged))
    start_ns = np.repeat([iteration.start_ns for iteration in averaged], n_ranks)
    end_ns = np.repeat(
        [max(later.get(iteration.index + 1, 0), iteration.end_ns) for iteration in averaged],
        n_ranks,
    )
    covered_ns = cover.within(rank, start_ns, end_ns).reshape(len(averaged), n_ranks)
    return float(covered_ns.mean(axis=0).max())
