"""Write a sentence for a paper's methods section that states the measurement and its result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.count.ratios import list_ratios
from bubbleviz.count.statistics import Spread
from bubbleviz.model.grouping import group_rows
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import Phase
from bubbleviz.model.texts import format_count, format_percent, format_percent_bounds
from bubbleviz.report.report import Report
from bubbleviz.schedules.known import schedules

#: Profiler names, keyed by file format.
_PROFILER_NAMES = {
    "nsys": "Nsight Systems",
    "rocpd": "rocprofv3",
    "rpd": "rocmProfileData",
    "ascend": "Ascend",
}


def write_methods(report: Report) -> str:
    """Write a sentence for a paper's methods section.

    The sentence gives the version of bubbleviz, the definition of the ratio, the numbers of
    iterations and ranks, the result and its caveats. If no ratio could be measured, or if the run
    is not a pipeline, the sentence states the reason instead.
    """
    spread = report.summary.bubble_ratio.get(report.headline)
    formats = {profile.format for profile in report.profiles}
    profiler = _PROFILER_NAMES.get(next(iter(formats)), "") if len(formats) == 1 else ""
    profiles = format_count(len(report.profiles), f"{profiler} profile".strip())
    tool = f"bubbleviz {report.version} from {profiles}"
    if spread is None or spread.mean is None:
        return (
            f"No bubble ratio could be measured with {tool} on {_count_ranks(report)}: "
            f"{report.headline_reason.rstrip('.')}."
        )
    if report.no_pipeline is not None:
        return (
            f"No pipeline was measured with {tool} on {_count_ranks(report)}: {report.no_pipeline}."
        )
    definition = next((s.definition for s in list_ratios() if s.name == report.headline), None)
    means = f", that is {format_definition(definition)}," if definition else ""
    recognition, schedule = report.schedule, ""
    if recognition is not None and recognition.name is not None:
        likeness = "what looks like " if recognition.inferred else ""
        schedule = f" of {likeness}the schedule {recognition.name}"
    return (
        f"Pipeline bubbles were measured with {tool}: the bubble ratio '{report.headline}'{means} "
        f"over {_count_iterations(report, spread.n)}{schedule} on {_count_ranks(report)} is "
        f"{_format_result(spread.mean, spread)}{''.join(_list_caveats(report))}."
    )


def format_definition(definition: str) -> str:
    """Return the definition of a ratio with its source in parentheses."""
    formula, _, source = definition.partition("; ")
    return f"{formula} ({source})" if source else formula


def _count_iterations(report: Report, n: int) -> str:
    """Format the number of averaged iterations and, if it is constant, the number of microbatches.

    For bidirectional schedules, the microbatches of both directions are counted.

    Args:
        report: The run's report.
        n: Number of averaged iterations.
    """
    microbatch_counts = {i.microbatches for i in report.iterations if i.averaged}
    n_microbatches = next(iter(microbatch_counts)) if len(microbatch_counts) == 1 else None
    n_microbatches = (
        None
        if n_microbatches is None
        else _count_bidirectional_microbatches(report) or n_microbatches
    )
    microbatches = (
        ""
        if n_microbatches is None
        else f" with {format_count(n_microbatches, 'microbatch', 'microbatches')}"
    )
    return f"{format_count(n, report.iteration_noun)}{microbatches}"


def _count_bidirectional_microbatches(report: Report) -> int | None:
    """Return the number of microbatches in a bidirectional schedule such as DualPipe.

    In such schedules, microbatches enter at both ends of the pipeline, and their numbers may start
    at 0 in each direction. The result is therefore computed from the forwards in the typical
    iteration. It is the maximum number of distinct forwards on any rank, divided by the number of
    chunks. The result is None for all other schedules.
    """
    recognition, iteration = report.schedule, report.typical_iteration()
    rule = next(
        (r for r in schedules() if recognition is not None and r.name == recognition.name), None
    )
    if rule is None or rule.replicas == 1 or iteration is None:
        return None
    forwards = report.operations.take(
        (report.operations.iteration == iteration.index)
        & mask_phases(report.operations.phase, (Phase.F, Phase.FB))
    )
    distinct = group_rows(forwards.rank, forwards.chunk, forwards.microbatch)
    n_by_rank = np.bincount(forwards.rank[distinct.first])
    return int(n_by_rank.max()) // rule.chunks if len(n_by_rank) else None


def _count_ranks(report: Report) -> str:
    """Format the numbers of ranks, stages and hosts: ``8 ranks (4 pipeline stages, 1 host)``."""
    stages = {rank.stage for rank in report.ranks}
    stage_count = (
        "" if not stages or None in stages else f"{format_count(len(stages), 'pipeline stage')}, "
    )
    hosts = format_count(len({rank.host for rank in report.ranks}), "host")
    return f"{format_count(len(report.ranks), 'rank')} ({stage_count}{hosts})"


def _format_result(mean: float, spread: Spread) -> str:
    """Format the mean of a ratio with its standard deviation and confidence interval.

    For two iterations, the text gives the mean and both values. For a single iteration, it gives
    only the value.
    """
    if spread.std is None or spread.ci95 is None:
        return format_percent(mean)
    if spread.pair is not None:
        return "{} on average ({} and {} in two iterations)".format(
            format_percent(mean), *map(format_percent, spread.pair)
        )
    return (
        f"{format_percent(mean)} on average (standard deviation {100 * spread.std:.2f} percentage "
        f"points; 95 % confidence interval of the mean +/- {100 * spread.ci95:.2f}, Student's t)"
    )


def _list_caveats(report: Report) -> Iterator[str]:
    """Yield the caveats of the result as clauses that start with a semicolon.

    There are caveats about bounds due to clock uncertainty, restrictions, contradictions between
    clocks or in the order of stages, and kernel time. The last caveat is the ratio that would
    result if compute outside all operations counted as work.
    """
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        bounds = " and ".join(format_percent_bounds(interval, 2, 4))
        yield f"; clock uncertainty leaves it between {bounds} %"
    yield from (
        f"; {restriction.caveat}" for restriction in report.restrictions if restriction.caveat
    )
    if report.contradicted(report.headline):
        yield "; it relies on clocks that contradict each other"
    if report.stages_contradicted:
        yield "; the given order of stages contradicts the data dependencies"
    kernels = report.kernel_time.sentence
    if kernels is not None:
        yield f"; {kernels}"
    low = report.lower_bound(report.headline)
    if low is not None:
        yield f"; if compute outside all operations counts as work, it is {format_percent(low)}"
