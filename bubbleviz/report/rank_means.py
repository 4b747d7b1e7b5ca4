"""Rank means: numbers of each rank averaged over iterations, and their distribution over ranks.

Runs of many ranks are summarised with these numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from bubbleviz.count.rank_iterations import (
    RankIterations,
    account_column,
    has_account,
    indices_of,
    own_ratios,
    rank_column,
)
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.standouts import Standout, find_standouts
from bubbleviz.model.arrow import Kind, Records, records, row_type
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.report.report import NOTICEABLE, Report
from bubbleviz.report.restrictions import ONE_STAGE, UNPROVEN

if TYPE_CHECKING:
    from bubbleviz.report.summary import RunSummary

#: A run of more ranks than this is summarised: tables show how numbers are spread and the ranks at
#: the ends, pictures one row per stage, the interactive page one pipeline at a time.
MANY_RANKS = 256


def many_ranks(ranks: int) -> bool:
    """Return whether a run of so many ranks is summarised by outputs."""
    return ranks > MANY_RANKS


@dataclass(frozen=True)
class RankMeans:
    """Means over the averaged iterations, by rank; NaN where they are unknown.

    Attributes:
        ratio: name of the ratio; the headline, or schedule where no rank has it.
        bubble_ratio: of the rank, shape (ranks,).
        bubble_ns: length of its bubble, shape (ranks,).
        busy_ns: by printed phase name, of phases that any rank ran, shape (ranks,) each.
        launch_gap: share of the busy time in which no kernel ran, shape (ranks,).
        idle_ns: by cause, shape (ranks, causes).
        communication_ns: by column of ``CommunicationTimes``, shape (ranks,) each.
    """

    ratio: str
    bubble_ratio: Floats
    bubble_ns: Floats
    busy_ns: Mapping[str, Floats]
    launch_gap: Floats
    idle_ns: Floats
    communication_ns: Mapping[str, Floats]


def rank_means(report: Report) -> RankMeans:
    """Return the means of a report's ranks; of the typical iteration where none is averaged."""
    typical = report.typical_iteration()
    shown = [i for i in report.iterations if i.averaged] or [i for i in (typical,) if i]
    ranks = [iteration.ranks for iteration in shown]
    name = report.headline
    if not any(has_account(own, name) for own in ranks):
        name = "schedule"
    places = [np.array(indices_of(own), np.int64) for own in ranks]
    rank = np.concatenate([np.zeros(0, np.int64), *places])

    def mean(values: Sequence[Floats | Ints]) -> Floats:
        """Return the mean of each rank's known values, given by iteration."""
        given = np.concatenate([np.zeros(0), *values])
        known = ~np.isnan(given)
        counts = np.bincount(rank[known], minlength=len(report.ranks))
        sums = np.bincount(rank[known], given[known], minlength=len(report.ranks))
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(counts > 0, sums / counts, np.nan), np.float64)

    at = np.array([i.index for i in shown], np.int64)
    causes, times = report.explanation.causes.idle_ns, report.explanation.communication
    idle_ns = causes.get(name, causes[report.explanation.listed_ratio])
    busy_ns = {
        phase.label: mean([rank_column(own, "phase_ns")[:, place] for own in ranks])
        for place, phase in enumerate(COMPUTE)
    }
    return RankMeans(
        ratio=name,
        bubble_ratio=mean([np.array(own_ratios(own, name), np.float64) for own in ranks]),
        bubble_ns=mean([_bubble_ns(own, name) for own in ranks]),
        busy_ns={label: column for label, column in busy_ns.items() if np.any(column > 0)},
        launch_gap=mean([_launch_gap(own) for own in ranks]),
        idle_ns=_over_iterations(idle_ns, at),
        communication_ns={
            field.name: _over_iterations(getattr(times, field.name), at) for field in fields(times)
        },
    )


def stages_of(report: Report) -> Records[Any]:
    """Return one row per stage, with means over its ranks and the averaged iterations.

    Columns: ``stage`` (null unknown), ``ranks``, ``bubble_ratio``, ``bubble_ns``, the work by phase
    as ``busy_ns_F`` and so on, and the idle time by cause as ``idle_ns_warmup`` and so on.
    """
    means, members = rank_means(report), defaultdict(list)
    columns = {"bubble_ratio": means.bubble_ratio, "bubble_ns": means.bubble_ns}
    columns |= {f"busy_ns_{label}": column for label, column in means.busy_ns.items()}
    idle_ns = {f"idle_ns_{cause.label}": means.idle_ns[:, cause] for cause in Cause}
    columns |= {name: column for name, column in idle_ns.items() if column.any()}
    for rank in report.ranks:
        members[NONE if rank.stage is None else rank.stage].append(rank.index)
    stage = row_type("Stage", ("stage", "ranks", *columns))
    rows = []
    for number, own in sorted(members.items()):
        known = [column[own][~np.isnan(column[own])] for column in columns.values()]
        of_stage = [float(values.mean()) if len(values) else None for values in known]
        rows.append(stage._make((None if number == NONE else number, len(own), *of_stage)))
    kinds: dict[str, Kind] = {"stage": "int64", "ranks": "int64"}
    return records(rows, {**kinds, **dict.fromkeys(columns, "float64")})


def _over_iterations(column: Ints, at: Ints) -> Floats:
    """Return the mean over some iterations of a column of shape (iterations, ranks, ...)."""
    zero = np.zeros(column.shape[1:])
    return np.asarray(column[at].mean(axis=0), np.float64) if len(at) else zero


def _bubble_ns(ranks: RankIterations, name: str) -> Floats:
    own_ns = account_column(ranks, name, "bubble_ns")
    return np.where(has_account(ranks, name), own_ns, np.nan)


def _launch_gap(ranks: RankIterations) -> Floats:
    compute_ns = rank_column(ranks, "compute_ns")
    gaps = 1 - rank_column(ranks, "active_ns") / np.maximum(compute_ns, 1)
    return np.where(compute_ns > 0, gaps, np.nan)


def distribution(values: Floats) -> tuple[float, float, float, float] | None:
    """Return the least, the median, what 95 % do not exceed and the most; None without any.

    Args:
        values: of ranks; NaN ones are left out.
    """
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None
    # np.quantile imports numpy.ma, which takes some 15 ms.
    places = np.array((0, 0.5, 0.95, 1)) * (len(known) - 1)
    least, median, high, most = np.interp(places, np.arange(len(known)), np.sort(known)).tolist()
    return least, median, high, most


def standouts(report: Report, means: RankMeans) -> tuple[Standout, ...]:
    """Return the ranks, stages, pipelines and hosts that stand out, the most different first."""
    window_ns = report.summary.window_ns[means.ratio].mean or 0.0
    return find_standouts(
        tuple(report.ranks),
        means.bubble_ratio,
        means.busy_ns,
        NOTICEABLE * window_ns,
        is_pipeline=report.no_pipeline is None,
    )


# Groups of whole pipelines.


def rank_groups(
    pipelines: Sequence[int | None], fewest: int, most: int, unknown: int
) -> list[tuple[int, int]]:
    """Return groups of ranks, of whole pipelines, as (first, behind the last).

    Args:
        pipelines: of each rank, which are in order of these; None for unknown ones.
        fewest: pipelines of fewer ranks share a group, of up to so many.
        most: ranks of a group; larger pipelines are cut.
        unknown: ranks of a group where pipelines are not known.
    """
    count = len(pipelines)
    starts = [r for r in range(count) if r == 0 or pipelines[r] != pipelines[r - 1]]
    groups: list[tuple[int, int]] = []
    for first, last in zip(starts, [*starts[1:], count], strict=False):
        size = unknown if pipelines[first] is None else most
        if groups and last - groups[-1][0] <= fewest:
            groups[-1] = (groups[-1][0], last)
        else:
            groups.extend((at, min(at + size, last)) for at in range(first, last, size))
    return groups


def rows_of_ranks(rank: Ints, first: int, last: int) -> slice:
    """Return the rows of some ranks in a column in order of these."""
    low, high = np.searchsorted(rank, (first, last)).tolist()
    return slice(low, high)


# Measure: what the primary ratio is called; the idle time of no pipeline is no bubble of one.
#
# Launch gaps inside operations count as work. Where they, or compute outside operations, outweigh
# the rest, the ratio is only the idle time between operations, and its name says so.


def measure_of(report: Report) -> str:
    """Return the name of the primary ratio in a headline: ``bubble ratio (schedule)``."""
    return _measure_of(report)["name"]


def idle_of(report: Report) -> str:
    """Return what the ratio is a share of, in words: ``bubble``, or ``idle time``."""
    return _measure_of(report)["idle"]


def is_idle_elsewhere(report: Report) -> bool:
    """Return whether the ratio of no pipeline is only a part of the idle time of its GPUs."""
    return report.no_pipeline is not None and report.kernel_time.sentence is not None


def _measure_of(report: Report) -> dict[str, str]:
    return _measure(
        report.headline,
        is_pipeline=report.no_pipeline is None,
        is_part=is_idle_elsewhere(report),
    )


def saved_measure(summary: RunSummary) -> dict[str, str]:
    """Return what the primary ratio of a saved report is called, as :func:`measure_of` does."""
    no_pipeline = {ONE_STAGE.code, UNPROVEN.code}
    return _measure(
        summary.headline,
        is_pipeline=all(entry.code not in no_pipeline for entry in summary.restrictions),
        is_part=bool(summary.summary.kernel_time.sentence),
    )


def _measure(headline: str, *, is_pipeline: bool, is_part: bool) -> dict[str, str]:
    if is_pipeline:
        return {"name": f"bubble ratio ({headline})", "idle": "bubble"}
    if is_part:
        return {"name": "idle between operations", "idle": "time between operations"}
    return {"name": "idle in iterations", "idle": "idle time"}
