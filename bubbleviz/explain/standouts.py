"""Find standouts: ranks that differ from the other ranks in a run with many ranks.

A rank stands out if its bubble ratio is far from the median of all ranks. A rank also stands out if
one of its phases takes significantly more or less time than the median of its stage. If most ranks
of a stage, pipeline or host stand out, they are reported as one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.count.statistics import compute_median
from bubbleviz.explain.slowness import compute_median_of_stage, compute_multiples
from bubbleviz.model.columns import Bools, Floats, Ints
from bubbleviz.model.operations import Rank
from bubbleviz.model.texts import format_count, format_rank_name, to_one_line

#: Minimum absolute difference between a rank's bubble ratio and the median of all ranks.
_MIN_RATIO_EXCESS = 0.01
#: Minimum relative difference between a rank's time in a phase and the median of its stage.
_MIN_TIME_DIFFERENCE = 0.05
#: Minimum fraction of the ranks in a stage, pipeline or host that must stand out to form a group.
_MIN_FRACTION = 0.75


@dataclass(frozen=True)
class Standout:
    """A rank, stage, pipeline or host whose ranks differ from the other ranks of the run.

    Attributes:
        kind: What stands out: ``rank``, ``stage``, ``pipeline`` or ``host``.
        name: Printed name, such as "stage 3".
        ranks: Indices of the ranks that stand out, ascending.
        ratio: Mean bubble ratio of the ranks, or None if it is unknown.
        above: Mean bubble ratio of the ranks minus the median bubble ratio of all ranks in the run,
            or 0 if it is unknown.
        phase: The phase whose time differs most from the median of the stage, or "" if no phase
            differs enough.
        times: Time in ``phase`` as a multiple of the median, or 1 if ``phase`` is "".
    """

    kind: str
    name: str
    ranks: tuple[int, ...]
    ratio: float | None
    above: float
    phase: str
    times: float

    @property
    def why(self) -> str:
        """Description of the difference from the other ranks."""
        if self.phase:
            return f"{self.phase} takes {self.times:.2f} times the median of its stage"
        # A low ratio is not a merit: the other ranks usually wait for the busiest one.
        activity, side = ("more idle", "above") if self.above > 0 else ("busier", "below")
        points = f"{100 * abs(self.above):.2f} points {side} the median"
        return f"{activity} than the other ranks (bubble ratio {points})"

    @property
    def short(self) -> str:
        """Short description of the difference from the other ranks, for a label."""
        if self.phase:
            return f"{self.phase} {self.times:.2f} x median"
        return f"bubble {100 * self.above:+.1f}"

    @property
    def sentence(self) -> str:
        """:attr:`why`, preceded by the name and, for several ranks, the number of ranks."""
        has_several = len(self.ranks) > 1
        ranks = f" ({format_count(len(self.ranks), 'rank')})" if has_several else ""
        return f"{self.name}{ranks}: {self.why}"


@dataclass(frozen=True)
class _PhaseDifference:
    """Time of one phase by rank, compared with the median of the rank's stage.

    Attributes:
        multiple: Time of each rank as a multiple of the median, or NaN if it is unknown.
        difference_ns: Absolute difference of each rank's time from the median, in ns, or NaN if it
            is unknown.
    """

    multiple: Floats
    difference_ns: Floats

    def exceeds(self, min_time_ns: float) -> Bools:
        """Return a mask of the ranks whose time differs significantly from the median.

        The difference must be at least 5 % of the median and at least ``min_time_ns``.
        """
        differs = np.abs(np.nan_to_num(self.multiple, nan=1.0) - 1) >= _MIN_TIME_DIFFERENCE
        return np.asarray(differs & (self.difference_ns >= min_time_ns), bool)

    def median_of(self, ranks: Ints) -> tuple[float, float]:
        """Return the median of ``multiple`` and of ``difference_ns`` over ranks, ignoring NaNs."""
        return _compute_known_median(self.multiple[ranks]), _compute_known_median(
            self.difference_ns[ranks]
        )


def find_standouts(
    ranks: Sequence[Rank],
    bubble_ratio: Floats,
    busy_ns: Mapping[str, Floats],
    min_time_ns: float,
    *,
    is_pipeline: bool,
) -> tuple[Standout, ...]:
    """Find the ranks and groups that stand out, sorted by their difference, largest first.

    A rank stands out if at least one of two conditions holds:

    - Its bubble ratio differs by at least 0.01 from the median of all ranks.
    - The time of one of its phases differs from the median of its stage by at least 5 % and at
      least ``min_time_ns``.

    Args:
        ranks: The ranks, by index. With fewer than three ranks, the result is empty.
        bubble_ratio: Bubble ratio of each rank, or NaN if it is unknown.
        busy_ns: Time of each rank in each phase, keyed by phase name.
        min_time_ns: Minimum difference in ns between the time of a phase and its median.
        is_pipeline: Whether ranks of unknown stage may do different work and cannot be compared.
    """
    if len(ranks) < 3:
        return ()
    above = bubble_ratio - _compute_known_median(bubble_ratio)
    phases = _compare_phases(ranks, busy_ns, is_pipeline=is_pipeline)
    stands_out = np.abs(np.nan_to_num(above)) >= _MIN_RATIO_EXCESS
    for difference in phases.values():
        stands_out |= difference.exceeds(min_time_ns)
    standouts = []
    for kind, name, members in _group_standouts(ranks, stands_out):
        phase, times = _find_most_different_phase(phases, members, min_time_ns)
        ratio = _compute_known_mean(bubble_ratio[members])
        mean_above = _compute_known_mean(above[members])
        standouts.append(
            Standout(
                kind,
                name,
                tuple(members.tolist()),
                ratio,
                0.0 if mean_above is None else mean_above,
                phase,
                times,
            )
        )
    return tuple(sorted(standouts, key=_get_sort_key))


def _compare_phases(
    ranks: Sequence[Rank], busy_ns: Mapping[str, Floats], *, is_pipeline: bool
) -> dict[str, _PhaseDifference]:
    """Compare the time of each rank in each phase with the median of the rank's stage.

    Args:
        ranks: The ranks, by index.
        busy_ns: Time of each rank in each phase, keyed by phase name.
        is_pipeline: Whether ranks of unknown stage may do different work and cannot be compared.

    Returns:
        Keyed by phase name: the time of each rank as a multiple of the median, and the absolute
        difference from the median.
    """
    stages = [rank.stage for rank in ranks]
    phases = {}
    for phase, time_ns in busy_ns.items():
        median_ns = compute_median_of_stage(stages, time_ns, is_pipeline=is_pipeline)
        multiple = compute_multiples(time_ns, median_ns)
        phases[phase] = _PhaseDifference(multiple, np.abs(time_ns - median_ns))
    return phases


def _get_sort_key(standout: Standout) -> tuple[float, tuple[int, ...]]:
    """Return the key that sorts standouts by their difference, largest first, then by ranks.

    The difference is ``abs(times - 1)`` or ``abs(above)``, whichever is larger.
    """
    return -max(abs(standout.times - 1), abs(standout.above)), standout.ranks


def _find_most_different_phase(
    phases: Mapping[str, _PhaseDifference], ranks: Ints, min_time_ns: float
) -> tuple[str, float]:
    """Find the phase in which a group of ranks differs most from the median of their stages.

    The median over the group's ranks is used, both for the multiple and for the difference in ns.
    The phase with the largest difference in ns wins. The first phase wins ties. A phase is
    considered only if its multiple differs from 1 by at least 5 % and its difference is at least
    ``min_time_ns``.

    Args:
        phases: Differences of all ranks, keyed by phase name.
        ranks: Indices of the ranks in a group.
        min_time_ns: Minimum difference in ns between the time of a phase and its median.

    Returns:
        Name of the phase and its multiple, or "" and 1 if no phase differs enough.
    """
    largest_ns, name, times = -np.inf, "", 1.0
    for phase, difference in phases.items():
        multiple, time_ns = difference.median_of(ranks)
        is_noticeable = abs(multiple - 1) >= _MIN_TIME_DIFFERENCE and time_ns >= min_time_ns
        if is_noticeable and time_ns > largest_ns:
            largest_ns, name, times = time_ns, phase, multiple
    return name, times


def _group_standouts(ranks: Sequence[Rank], stands_out: Bools) -> Iterator[tuple[str, str, Ints]]:
    """Group the ranks that stand out by stage, pipeline or host, and yield all others one by one.

    A stage, pipeline or host becomes a group under these conditions:

    - It has at least two ranks.
    - At least 75 % of its ranks stand out and are not yet in a group.
    - The group does not contain all ranks of the run.

    Stages are tried first, then pipelines, then hosts.

    Args:
        ranks: The ranks, by index.
        stands_out: Mask of the ranks that stand out.

    Yields:
        kind: What stands out: ``rank``, ``stage``, ``pipeline`` or ``host``.
        name: Printed name of the group or rank.
        ranks: Indices of the ranks that stand out.
    """
    is_unnamed = stands_out.copy()
    for kind, keys in (
        ("stage", [rank.stage for rank in ranks]),
        ("pipeline", [rank.pipeline for rank in ranks]),
        ("host", [rank.host for rank in ranks]),
    ):
        for key, members in _list_members(keys, is_unnamed).items():
            unnamed = members[is_unnamed[members]]
            has_most = _MIN_FRACTION * len(members) <= len(unnamed) < len(ranks)
            if len(members) > 1 and has_most:
                prefix = "p" if kind == "pipeline" else ""
                yield kind, f"{kind} {prefix}{to_one_line(str(key), 60)}", unnamed
                is_unnamed[unnamed] = False
    has_pipelines = len({rank.pipeline for rank in ranks}) > 1
    for index in np.flatnonzero(is_unnamed).tolist():
        name = _name_rank(ranks[index], index, has_pipelines=has_pipelines)
        yield "rank", name, np.array([index], np.int64)


def _name_rank(rank: Rank, index: int, *, has_pipelines: bool) -> str:
    """Return the name of a rank, followed by its stage if the stage is known.

    Args:
        rank: The rank.
        index: Index of the rank.
        has_pipelines: Whether the run has several pipelines, so that the stage includes the
            pipeline if it is known.
    """
    is_named = has_pipelines and rank.pipeline is not None
    pipeline = f"p{rank.pipeline} " if is_named else ""
    stage = "" if rank.stage is None else f", {pipeline}stage {rank.stage}"
    name = format_rank_name(rank.global_rank, index, to_one_line(rank.label, 40))
    return f"{name}{stage}"


def _list_members(keys: Sequence[str | int | None], is_unnamed: Bools) -> dict[str | int, Ints]:
    """List the ranks of each stage, pipeline or host that contains a rank marked in ``is_unnamed``.

    Args:
        keys: Stage, pipeline or host of each rank, or None if it is unknown. Ranks whose key is
            unknown are left out.
        is_unnamed: Mask of the ranks that stand out and are not in a group yet.

    Returns:
        Rank indices, ascending, keyed by stage, pipeline or host. Keys are in the order in which
        they first occur.
    """
    keys_of_unnamed = {keys[index] for index in np.flatnonzero(is_unnamed).tolist()}
    members: dict[str | int, list[int]] = {}
    for index, key in enumerate(keys):
        if key is not None and key in keys_of_unnamed:
            members.setdefault(key, []).append(index)
    return {key: np.array(indices, np.int64) for key, indices in members.items()}


def _compute_known_median(values: Floats) -> float:
    """Return the median of the values that are not NaN, or NaN if there are none."""
    return compute_median(values[~np.isnan(values)])


def _compute_known_mean(values: Floats) -> float | None:
    """Return the mean of the values that are not NaN, or None if there are none."""
    is_known = ~np.isnan(values)
    return float(values[is_known].mean()) if is_known.any() else None
