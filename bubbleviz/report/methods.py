"""The methods sentence: what was measured, how and with what, ready for a paper."""

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

#: Profilers, by the format of their files, where they are to be named.
_MAKERS = {"nsys": "Nsight Systems", "rocpd": "rocprofv3", "rpd": "rocmProfileData"}


def methods(report: Report) -> str:
    """Return one sentence for a methods section: definition, iterations, ranks, result, version.

    Args:
        report: any report.
    """
    spread = report.summary.bubble_ratio.get(report.headline)
    formats = {profile.format for profile in report.profiles}
    maker = _MAKERS.get(next(iter(formats)), "") if len(formats) == 1 else ""
    profiles = format_count(len(report.profiles), f"{maker} profile".strip())
    tool = f"bubbleviz {report.version} from {profiles}"
    if spread is None or spread.mean is None:
        return (
            f"No bubble ratio could be measured with {tool} on {_ranks(report)}: "
            f"{report.headline_reason.rstrip('.')}."
        )
    if report.no_pipeline is not None:
        return f"No pipeline was measured with {tool} on {_ranks(report)}: {report.no_pipeline}."
    definition = next((s.definition for s in list_ratios() if s.name == report.headline), None)
    means = f", that is {with_source(definition)}," if definition else ""
    ran, schedule = report.schedule, ""
    if ran is not None and ran.name is not None:
        schedule = f" of {'what looks like ' if ran.inferred else ''}the schedule {ran.name}"
    return (
        f"Pipeline bubbles were measured with {tool}: the bubble ratio '{report.headline}'{means} "
        f"over {_iterations(report, spread.n)}{schedule} on {_ranks(report)} is "
        f"{_result(spread.mean, spread)}{''.join(_caveats(report))}."
    )


def with_source(definition: str) -> str:
    """Return the definition of a ratio with its source in brackets, for use in a sentence."""
    formula, _, source = definition.partition("; ")
    return f"{formula} ({source})" if source else formula


def _iterations(report: Report, n: int) -> str:
    """Return the number of averaged iterations, with their microbatches where all have as many."""
    counts = {i.microbatches for i in report.iterations if i.averaged}
    known = next(iter(counts)) if len(counts) == 1 else None
    known = None if known is None else _fed_from_both_ends(report) or known
    each = "" if known is None else f" with {format_count(known, 'microbatch', 'microbatches')}"
    return f"{format_count(n, report.iteration_noun)}{each}"


def _fed_from_both_ends(report: Report) -> int | None:
    """Return the number of microbatches of a rank, where they enter at both ends of the pipeline.

    Those of each direction may count from 0. None for any other schedule.
    """
    ran, shown = report.schedule, report.typical_iteration()
    rule = next((r for r in schedules() if ran is not None and r.name == ran.name), None)
    if rule is None or rule.replicas == 1 or shown is None:
        return None
    forwards = report.operations.take(
        (report.operations.iteration == shown.index)
        & mask_phases(report.operations.phase, (Phase.F, Phase.FB))
    )
    distinct = group_rows(forwards.rank, forwards.chunk, forwards.microbatch)
    each = np.bincount(forwards.rank[distinct.first])
    return int(each.max()) // rule.chunks if len(each) else None


def _ranks(report: Report) -> str:
    stages = {rank.stage for rank in report.ranks}
    known = (
        "" if not stages or None in stages else f"{format_count(len(stages), 'pipeline stage')}, "
    )
    hosts = format_count(len({rank.host for rank in report.ranks}), "host")
    return f"{format_count(len(report.ranks), 'rank')} ({known}{hosts})"


def _result(mean: float, spread: Spread) -> str:
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


def _caveats(report: Report) -> Iterator[str]:
    """Yield the caveats of the result."""
    interval = report.summary.bubble_interval.get(report.headline)
    if interval is not None and interval[0] < interval[1]:
        ends = " and ".join(format_percent_bounds(interval, 2, 4))
        yield f"; clock uncertainty leaves it between {ends} %"
    yield from (f"; {own.caveat}" for own in report.restrictions if own.caveat)
    if report.contradicted(report.headline):
        yield "; it needs clocks that contradict each other"
    if report.stages_contradicted:
        yield "; the given order of stages contradicts the data dependencies"
    kernels = report.kernel_time.sentence
    if kernels is not None:
        yield f"; {kernels}"
    low = report.lower_bound(report.headline)
    if low is not None:
        yield f"; with compute outside every operation counted as work it is {format_percent(low)}"
