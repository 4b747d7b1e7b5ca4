"""Refuses files in which the operations of two runs have the same ranks and iterations.

Their ratio would be that of neither run. One run may repeat all operations of an iteration, too,
if it does not number the microbatches of all its passes, but it does so in one go::

    one run      iteration 0: F0 F1 B0 B1 F0 F1 B0 B1   iteration 1: ...
    two runs     iteration 0: F0 F1 B0 B1   iteration 1: ...   iteration 0: F0 F1 B0 B1   ...
    two runs     iteration 0: F0 F1 B0 B1
                               F0 F1 B0 B1                at the same time, on one rank

One of two runs may have more microbatches, so that its last ones occur once.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import WORK, Phase

_FORWARD, _BACKWARD = (Phase.F,), (Phase.B, Phase.BW)
#: Share of the iterations of ranks that two runs have in common, from which a file is refused.
_MIN_SHARE = 0.1
#: Share of the compute time of two occurrences that overlaps if they are of two runs.
_MIN_OVERLAP = 0.05


def refuse_merged_runs(path: str, operations: RankOperations, is_named: Bools) -> None:
    """Refuse a file that holds two runs of the same ranks and iterations.

    Args:
        path: Path of the file, for the message.
        operations: Operations of the file.
        is_named: Whether the file itself names the iteration of each operation.

    Raises:
        ProfileError: The file holds two runs.
    """
    is_pass = among(operations.phase, (*_FORWARD, *_BACKWARD)) & (operations.microbatch >= 0)
    rows = np.flatnonzero(is_pass & is_named & (operations.has_span == 1))
    if not (operations.occurrence[rows] > 0).any():
        return
    groups = groups_of(operations.rank, operations.iteration)
    group = groups.of_row[rows]
    n_named = len(distinct(group))
    is_repeated = _find_repeated(operations, rows, group, len(groups))
    end_ns, start_ns = _find_gap(operations, rows, group, len(groups))
    rank = operations.rank[groups.first]
    is_apart = _has_starts_between(operations, groups.of_row, rank, end_ns, start_ns)
    is_overlapped = _find_overlapped(operations, rows, group, len(groups))
    n_merged = int((is_repeated & (is_apart | is_overlapped)).sum())
    if n_merged and n_merged >= _MIN_SHARE * n_named:
        raise ProfileError(
            f"{path}: {n_merged:,} of {n_named:,} iterations of ranks hold the same forwards and "
            "backwards twice, at different times, so the operations of two runs were merged; give "
            "each run a file of its own"
        )


def _find_repeated(operations: RankOperations, rows: Ints, group: Ints, n_groups: int) -> Bools:
    """Return whether all forwards and backwards of one run occur a second time in each group.

    The other run may have more microbatches, so that only the first ones occur twice.
    """
    last = _last_repeated(operations, rows, group, n_groups, (*_FORWARD, *_BACKWARD))
    is_shared = operations.microbatch[rows] <= last[group]
    is_repeated = last >= 0
    for phases in (_FORWARD, _BACKWARD):
        of_phase = among(operations.phase[rows], phases) & is_shared
        first, second = (
            np.bincount(group[of_phase & (operations.occurrence[rows] == k)], minlength=n_groups)
            for k in (0, 1)
        )
        is_repeated &= (first == second) & (first > 0)
        is_repeated &= _last_repeated(operations, rows, group, n_groups, phases) == last
    return is_repeated


def _last_repeated(
    operations: RankOperations, rows: Ints, group: Ints, n_groups: int, phases: tuple[Phase, ...]
) -> Ints:
    """Return the last microbatch of each group that runs a phase twice; -1 if none does."""
    chosen = among(operations.phase[rows], phases) & (operations.occurrence[rows] == 1)
    microbatch = operations.microbatch[rows[chosen]]
    return intervals.group_latest(group[chosen], n_groups, microbatch, NONE)


def _find_gap(
    operations: RankOperations, rows: Ints, group: Ints, n_groups: int
) -> tuple[Ints, Ints]:
    """Return when the first of two occurrences in each group end, and when the second ones start.

    Microbatches that occur once do not count, as either run may hold them.
    """
    last = _last_repeated(operations, rows, group, n_groups, (*_FORWARD, *_BACKWARD))
    is_shared = operations.microbatch[rows] <= last[group]
    bounds = []
    for occurrence in (0, 1):
        chosen = is_shared & (operations.occurrence[rows] == occurrence)
        of_occurrence = rows[chosen]
        bounds.append(
            intervals.group_extents(
                group[chosen],
                n_groups,
                operations.start_ns[of_occurrence],
                operations.end_ns[of_occurrence],
            )
        )
    return bounds[0][1], bounds[1][0]


def _has_starts_between(
    operations: RankOperations, group: Ints, rank: Ints, since_ns: Ints, until_ns: Ints
) -> Bools:
    """Return whether the rank of each group starts anything else in the interval of the group.

    Forwards and backwards of the group itself do not count: those of one run may have numbers that
    its next pass does not use.

    Args:
        operations: Operations of the file.
        group: Group of each operation.
        rank: Rank of each group.
        since_ns: Start of the interval of each group.
        until_ns: End of the interval of each group.
    """
    is_spanned = operations.has_span == 1
    rows = np.flatnonzero(is_spanned)
    of_rank = _count_starts(operations, rows, operations.rank[rows], rank, since_ns, until_ns)
    rows = np.flatnonzero(is_spanned & among(operations.phase, WORK))
    groups = np.arange(len(rank))
    of_group = _count_starts(operations, rows, group[rows], groups, since_ns, until_ns)
    return np.asarray(of_rank > of_group, bool)


def _count_starts(
    operations: RankOperations,
    rows: Ints,
    place: Ints,
    wanted: Ints,
    since_ns: Ints,
    until_ns: Ints,
) -> Ints:
    """Return how many operations start in intervals, each of which counts those of one place.

    Args:
        operations: Operations of the file.
        rows: Operations that are counted.
        place: Place of each of these.
        wanted: Place of each interval.
        since_ns: Start of each interval.
        until_ns: End of each interval; the interval is empty if it is not after the start.
    """
    n_places = int(max(place.max(initial=0), wanted.max(initial=0))) + 1
    start_ns, end_ns = operations.start_ns[rows], operations.end_ns[rows]
    packing = intervals.Packing.of(*intervals.group_extents(place, n_places, start_ns, end_ns))
    starts = np.sort(packing.place(place, start_ns))
    low = np.searchsorted(starts, packing.place(wanted, since_ns))
    high = np.searchsorted(starts, packing.place(wanted, np.maximum(since_ns, until_ns)))
    return np.asarray(high - low, np.int64)


def _find_overlapped(operations: RankOperations, rows: Ints, group: Ints, n_groups: int) -> Bools:
    """Return whether operations of each group ran at the same time as others of it."""
    start_ns, end_ns = operations.start_ns[rows], operations.end_ns[rows]
    total_ns = intervals.group_sum(group, n_groups, end_ns - start_ns)
    union_ns = intervals.group_measure(group, n_groups, start_ns, end_ns)
    return np.asarray(total_ns - union_ns > _MIN_OVERLAP * total_ns, bool)
