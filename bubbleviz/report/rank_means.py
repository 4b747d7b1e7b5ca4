"""Rank means: what the averaged iterations say of each rank, how it is spread, and what stands out.

A run of many ranks is read from these: which ranks differ, and by how much, from the others of
their stage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from bubbleviz.count.statistics import median
from bubbleviz.explain.causes.cause import Cause
from bubbleviz.explain.slowness import as_multiples, median_of_peers, stage_groups
from bubbleviz.model.arrow import Kind, Records, records, row_type
from bubbleviz.model.columns import NONE, Bools, Floats, Ints
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.texts import counted, one_line, rank_name
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


def median_of_stage(report: Report, values: Floats) -> Floats:
    """Return for each rank the median of the values of its stage, or NaN if none is known.

    Ranks of a pipeline whose stages are unknown do different work, so they have no median.
    """
    stages = [rank.stage for rank in report.ranks]
    medians = median_of_peers(stage_groups(stages), values)
    is_unknown = np.array([stage is None for stage in stages], bool)
    return np.where(is_unknown & (report.no_pipeline is None), np.nan, medians)


# Standouts: the few of very many ranks that differ from the others, and by what.
#
# Ranks that differ together are named together: by their stage, pipeline or host, where most of its
# ranks are among them.


#: A rank stands out whose ratio is so far from the median of all, or a phase of which takes so
#: much more or less than the median of its stage, and a noticeable part of the window.
_POINTS, _TIMES = 0.01, 0.05
#: A stage, pipeline or host does of whose ranks so many do.
_MOST_OF = 0.75


@dataclass(frozen=True)
class Standout:
    """A rank, or a stage, pipeline or host, that differs from the others.

    Attributes:
        name: of it.
        ranks: their indices, ascending.
        ratio: mean of their ratios; None where it is unknown.
        above: how far that is above the median of all ranks.
        phase: of those whose time differs from the median of its stage, that which differs by
            most time; empty where none does.
        times: that time, as a multiple.
    """

    name: str
    ranks: tuple[int, ...]
    ratio: float | None
    above: float
    phase: str
    times: float

    @property
    def why(self) -> str:
        """By what it differs."""
        if self.phase:
            return f"{self.phase} takes {self.times:.2f} times the median of its stage"
        side = "above" if self.above > 0 else "below"
        return f"{100 * abs(self.above):.2f} points {side} the median"

    @property
    def short(self) -> str:
        """By what it differs, in a few characters."""
        if self.phase:
            return f"{self.phase} {self.times:.2f} x median"
        return f"bubble {100 * self.above:+.1f}"


def standouts(report: Report, means: RankMeans) -> tuple[Standout, ...]:
    """Return what stands out, what differs most first; of two ranks, none does."""
    if len(report.ranks) < 3:
        return ()
    ratios = means.bubble_ratio
    above = ratios - _median(ratios)
    middle = {phase: median_of_stage(report, own) for phase, own in means.busy_ns.items()}
    times = {phase: as_multiples(own, middle[phase]) for phase, own in means.busy_ns.items()}
    lost_ns = {phase: np.abs(own - middle[phase]) for phase, own in means.busy_ns.items()}
    away = {phase: np.nan_to_num(np.abs(own - 1)) for phase, own in times.items()}
    least_ns = NOTICEABLE * (report.summary.window_ns[means.ratio].mean or 0.0)
    out = np.abs(np.nan_to_num(above)) >= _POINTS
    for phase, own in away.items():
        out |= (own >= _TIMES) & (lost_ns[phase] >= least_ns)
    found = [
        _standout(name, ranks, above, times, lost_ns, least_ns, means)
        for name, ranks in _grouped(report, np.asarray(out, bool))
    ]
    return tuple(sorted(found, key=lambda s: (-max(abs(s.times - 1), abs(s.above)), s.ranks)))


def _grouped(report: Report, out: Bools) -> Iterator[tuple[str, Ints]]:
    """Yield the ranks that stand out, by what most of is among them, each once."""
    left = out.copy()
    ranks = report.ranks
    for kind, keys in (
        ("stage", [rank.stage for rank in ranks]),
        ("pipeline", [rank.pipeline for rank in ranks]),
        ("host", [rank.host for rank in ranks]),
    ):
        for key, members in _members(keys, left):
            inside = members[left[members]]
            if len(members) > 1 and _MOST_OF * len(members) <= len(inside) < len(ranks):
                yield f"{kind} {one_line(str(key), 60)}", inside
                left[inside] = False
    for rank in np.flatnonzero(left).tolist():
        stage = "" if ranks[rank].stage is None else f", stage {ranks[rank].stage}"
        name = rank_name(ranks[rank].global_rank, rank, one_line(ranks[rank].label, 40))
        yield f"{name}{stage}", np.array([rank], np.int64)


def _members(keys: Sequence[str | int | None], out: Bools) -> Iterator[tuple[str | int, Ints]]:
    """Yield the ranks of each key that some of them that stand out have."""
    members: dict[str | int, list[int]] = {}
    wanted = {keys[rank] for rank in np.flatnonzero(out).tolist()} - {None}
    for rank, key in enumerate(keys):
        if key is not None and key in wanted:
            members.setdefault(key, []).append(rank)
    for key, own in members.items():
        yield key, np.array(own, np.int64)


def _standout(
    name: str,
    ranks: Ints,
    above: Floats,
    times: dict[str, Floats],
    lost_ns: dict[str, Floats],
    least_ns: float,
    means: RankMeans,
) -> Standout:
    multiples = {phase: _median(own[ranks]) for phase, own in times.items()}
    lost = {phase: _median(own[ranks]) for phase, own in lost_ns.items()}
    known = {
        phase: own
        for phase, own in multiples.items()
        if abs(own - 1) >= _TIMES and lost[phase] >= least_ns
    }
    # That which takes most time more, or less.
    phase = max(known, key=lambda own: lost[own], default="")
    own = means.bubble_ratio[ranks][~np.isnan(means.bubble_ratio[ranks])]
    return Standout(
        name=name,
        ranks=tuple(ranks.tolist()),
        ratio=float(own.mean()) if len(own) else None,
        above=float(above[ranks][~np.isnan(above[ranks])].mean()) if len(own) else 0.0,
        phase=phase,
        times=known[phase] if phase else 1.0,
    )


def _median(values: Floats) -> float:
    """Return the median of those that are known; NaN of none."""
    return median(values[~np.isnan(values)])


def sentence_of(standout: Standout) -> str:
    """Return what stands out, how many ranks that are, and by what."""
    several = len(standout.ranks) > 1
    ranks = f" ({counted(len(standout.ranks), 'rank')})" if several else ""
    return f"{standout.name}{ranks}: {standout.why}"


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
