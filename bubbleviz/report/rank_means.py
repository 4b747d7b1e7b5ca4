"""Rank means: each rank's times and ratios, averaged over iterations, and their distributions.

Outputs use the means to summarize runs with many ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bubbleviz.count.iterations import Iteration
from bubbleviz.count.rank_iterations import (
    RankIterations,
    compute_rank_ratios,
    get_account_column,
    get_rank_column,
    has_account,
    list_indices,
)
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.standouts import Standout, find_standouts
from bubbleviz.model.arrow import Kind, Records, make_records, make_row_type
from bubbleviz.model.columns import NONE, Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.report.kernel_time import NOTICEABLE
from bubbleviz.report.report import Report

#: Maximum number of ranks that outputs list individually. With more ranks, tables show
#: distributions and standouts, pictures show one row per stage, and the interactive page shows one
#: pipeline at a time.
MANY_RANKS = 256


def is_many_ranks(ranks: int) -> bool:
    """Return whether outputs summarize a run with this many ranks."""
    return ranks > MANY_RANKS


@dataclass(frozen=True)
class RankMeans:
    """Each rank's means over the averaged iterations, or NaN if unknown.

    Attributes:
        ratio: Name of the ratio: the headline, or ``schedule`` if no rank has the headline ratio.
        bubble_ratio: Each rank's mean bubble ratio, shape (ranks,).
        bubble_ns: Each rank's mean bubble time, shape (ranks,).
        work_ns: Each rank's mean time in compute operations, shape (ranks,).
        busy_ns: Each rank's mean busy time by phase: arrays of shape (ranks,), keyed by the phase's
            display name. Phases that no rank ran are left out.
        launch_gap: Fraction of each rank's busy time during which no kernel ran, shape (ranks,).
        idle_ns: Each rank's mean idle time by cause, shape (ranks, causes).
        communication_ns: Means of the columns of ``CommunicationTimes``: arrays of shape (ranks,),
            keyed by column name.
    """

    ratio: str
    bubble_ratio: Floats
    bubble_ns: Floats
    work_ns: Floats
    busy_ns: Mapping[str, Floats]
    launch_gap: Floats
    idle_ns: Floats
    communication_ns: Mapping[str, Floats]


def compute_rank_means(report: Report) -> RankMeans:
    """Return each rank's means over the averaged iterations of a report.

    If no iterations are averaged, the values of the typical iteration are returned. The ratio is
    the primary ratio, or ``schedule`` if no rank has a window of the primary ratio.
    """
    iterations = _list_averaged_iterations(report)
    ranks = [iteration.ranks for iteration in iterations]
    name = report.headline
    if not any(has_account(of_iteration, name) for of_iteration in ranks):
        name = "schedule"
    indices = [np.array(list_indices(of_iteration), np.int64) for of_iteration in ranks]
    rank = np.concatenate([np.zeros(0, np.int64), *indices])

    def average_by_rank(values: Sequence[Floats | Ints]) -> Floats:
        """Return the mean of each rank's known values, or NaN if all of its values are NaN.

        Args:
            values: The values of the ranks, for each iteration.
        """
        all_values = np.concatenate([np.zeros(0), *values])
        is_known = ~np.isnan(all_values)
        counts = np.bincount(rank[is_known], minlength=len(report.ranks))
        sums = np.bincount(rank[is_known], all_values[is_known], minlength=len(report.ranks))
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(counts > 0, sums / counts, np.nan), np.float64)

    averaged = np.array([iteration.index for iteration in iterations], np.int64)
    causes, times = report.explanation.causes.idle_ns, report.explanation.communication
    idle_ns = causes.get(name, causes[report.explanation.listed_ratio])
    phase_ns = [get_rank_column(of_iteration, "phase_ns") for of_iteration in ranks]
    busy_ns = {
        phase.label: average_by_rank([times_ns[:, column] for times_ns in phase_ns])
        for column, phase in enumerate(COMPUTE)
    }
    communication_ns = {
        field.name: _average_iterations(getattr(times, field.name), averaged)
        for field in fields(times)
    }
    return RankMeans(
        ratio=name,
        bubble_ratio=average_by_rank(
            [np.array(compute_rank_ratios(each, name), np.float64) for each in ranks]
        ),
        bubble_ns=average_by_rank(
            [_list_bubble_times(of_iteration, name) for of_iteration in ranks]
        ),
        work_ns=average_by_rank(
            [get_rank_column(of_iteration, "compute_ns") for of_iteration in ranks]
        ),
        busy_ns={label: column for label, column in busy_ns.items() if np.any(column > 0)},
        launch_gap=average_by_rank([_list_launch_gaps(of_iteration) for of_iteration in ranks]),
        idle_ns=_average_iterations(idle_ns, averaged),
        communication_ns=communication_ns,
    )


def _list_averaged_iterations(report: Report) -> list[Iteration]:
    """Return the averaged iterations, or only the typical iteration if none is averaged."""
    typical = report.typical_iteration()
    return [i for i in report.iterations if i.averaged] or [i for i in (typical,) if i]


def summarize_stages(report: Report) -> Records[Any]:
    """Return one row per stage, with means over the stage's ranks and the averaged iterations.

    Rows are sorted by stage. Ranks whose stage is unknown form the first row. The columns are:

    - ``stage``, which is null if unknown, and ``ranks``, the number of ranks;
    - ``bubble_ratio`` and ``bubble_ns``;
    - the busy time for each phase (``busy_ns_F`` and so on);
    - the idle time for each cause (``idle_ns_warmup`` and so on). Causes without idle time are left
      out.
    """
    means, members = compute_rank_means(report), defaultdict(list)
    columns = {"bubble_ratio": means.bubble_ratio, "bubble_ns": means.bubble_ns}
    columns |= {f"busy_ns_{label}": column for label, column in means.busy_ns.items()}
    idle_ns = {f"idle_ns_{cause.label}": means.idle_ns[:, cause] for cause in Cause}
    columns |= {name: column for name, column in idle_ns.items() if column.any()}
    for rank in report.ranks:
        members[NONE if rank.stage is None else rank.stage].append(rank.index)
    stage = make_row_type("Stage", ("stage", "ranks", *columns))
    rows = []
    for number, ranks in sorted(members.items()):
        stage_means = [_average_known(column[ranks]) for column in columns.values()]
        stage_number = None if number == NONE else number
        rows.append(stage._make((stage_number, len(ranks), *stage_means)))
    kinds: dict[str, Kind] = {"stage": "int64", "ranks": "int64"}
    return make_records(rows, {**kinds, **dict.fromkeys(columns, "float64")})


def _average_known(values: Floats) -> float | None:
    """Return the mean of the values that are not NaN, or None if all values are NaN."""
    known_values = values[~np.isnan(values)]
    return float(known_values.mean()) if len(known_values) else None


def _average_iterations(column: Ints, iterations: Ints) -> Floats:
    """Return a column's mean over iterations, or zeros if there are no iterations.

    Args:
        column: Array of shape (iterations, ranks, ...).
        iterations: Indices of the iterations to average.
    """
    if not len(iterations):
        return np.zeros(column.shape[1:])
    return np.asarray(column[iterations].mean(axis=0), np.float64)


def _list_bubble_times(ranks: RankIterations, ratio: str) -> Floats:
    """Return each rank's bubble time in a ratio's window, or NaN if there is no window."""
    bubble_ns = get_account_column(ranks, ratio, "bubble_ns")
    return np.where(has_account(ranks, ratio), bubble_ns, np.nan)


def _list_launch_gaps(ranks: RankIterations) -> Floats:
    """Return the fraction of each rank's busy time in which no kernel ran. NaN if never busy."""
    compute_ns = get_rank_column(ranks, "compute_ns")
    gaps = 1 - get_rank_column(ranks, "active_ns") / np.maximum(compute_ns, 1)
    return np.where(compute_ns > 0, gaps, np.nan)


def summarize_distribution(values: Floats) -> tuple[float, float, float, float] | None:
    """Return the minimum, median, 95th percentile and maximum. None if all values are NaN.

    Args:
        values: One value per rank. NaNs are ignored.
    """
    ordered = np.sort(values[~np.isnan(values)])
    if not len(ordered):
        return None
    # np.quantile imports numpy.ma, which takes about 15 ms.
    index = np.array((0, 0.5, 0.95, 1)) * (len(ordered) - 1)
    minimum, median, high, maximum = np.interp(index, np.arange(len(ordered)), ordered).tolist()
    return minimum, median, high, maximum


def list_standouts(report: Report, means: RankMeans) -> tuple[Standout, ...]:
    """Return the ranks, stages, pipelines and hosts that stand out, largest difference first.

    A time must differ by at least the fraction ``NOTICEABLE`` of the mean window; see
    :func:`find_standouts`.
    """
    window_ns = report.summary.window_ns[means.ratio].mean or 0.0
    return find_standouts(
        tuple(report.ranks),
        means.bubble_ratio,
        means.busy_ns,
        NOTICEABLE * window_ns,
        is_pipeline=report.no_pipeline is None,
    )
