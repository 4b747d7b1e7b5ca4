"""Refuses files in which the operations of two runs have the same ranks and iterations.

Their ratio would be that of neither run. One run may repeat all operations of an iteration, too,
if it does not number the microbatches of all its passes, but it does so in one go::

    one run      iteration 0: F0 F1 B0 B1 F0 F1 B0 B1   iteration 1: ...
    two runs     iteration 0: F0 F1 B0 B1   iteration 1: ...   iteration 0: F0 F1 B0 B1   ...
    two runs     iteration 0: F0 F1 B0 B1
                               F0 F1 B0 B1                at the same time, on one rank
"""

from __future__ import annotations

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import RankOperations
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import Phase

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
    groups = groups_of(operations.rank[rows], operations.iteration[rows])
    n_groups = len(groups)
    is_repeated = _find_repeated(operations, rows, groups.of_row, n_groups)
    end_ns, start_ns = _find_gap(operations, rows, groups.of_row, n_groups)
    is_apart = _has_starts_between(
        operations, operations.rank[rows[groups.first]], end_ns, start_ns
    )
    is_overlapped = _find_overlapped(operations, rows, groups.of_row, n_groups)
    n_merged = int((is_repeated & (is_apart | is_overlapped)).sum())
    if n_merged and n_merged >= _MIN_SHARE * n_groups:
        raise ProfileError(
            f"{path}: {n_merged:,} of {n_groups:,} iterations of ranks hold every forward and "
            "backward twice, at different times, so the operations of two runs were merged; give "
            "each run a file of its own"
        )


def _find_repeated(operations: RankOperations, rows: Ints, group: Ints, n_groups: int) -> Bools:
    """Return whether all forwards and backwards of each group occur a second time."""
    is_repeated = np.ones(n_groups, bool)
    for phases in (_FORWARD, _BACKWARD):
        of_phase = among(operations.phase[rows], phases)
        first, second = (
            np.bincount(group[of_phase & (operations.occurrence[rows] == k)], minlength=n_groups)
            for k in (0, 1)
        )
        is_repeated &= (first == second) & (first > 0)
    return is_repeated


def _find_gap(
    operations: RankOperations, rows: Ints, group: Ints, n_groups: int
) -> tuple[Ints, Ints]:
    """Return when the first occurrences in each group end, and when the second ones start."""
    bounds = []
    for occurrence in (0, 1):
        chosen = operations.occurrence[rows] == occurrence
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
    operations: RankOperations, rank: Ints, since_ns: Ints, until_ns: Ints
) -> Bools:
    """Return whether an operation of each rank starts in its interval."""
    is_spanned = operations.has_span == 1
    packing = intervals.Packing.of(
        *intervals.group_extents(
            operations.rank[is_spanned],
            int(operations.rank.max()) + 1,
            operations.start_ns[is_spanned],
            operations.end_ns[is_spanned],
        )
    )
    starts = np.sort(packing.place(operations.rank[is_spanned], operations.start_ns[is_spanned]))
    is_gap = until_ns > since_ns
    low = np.searchsorted(starts, packing.place(rank, since_ns))
    high = np.searchsorted(starts, packing.place(rank, np.maximum(since_ns, until_ns)))
    return np.asarray(is_gap & (high > low), bool)


def _find_overlapped(operations: RankOperations, rows: Ints, group: Ints, n_groups: int) -> Bools:
    """Return whether operations of each group ran at the same time as others of it."""
    start_ns, end_ns = operations.start_ns[rows], operations.end_ns[rows]
    total_ns = intervals.group_sum(group, n_groups, end_ns - start_ns)
    union_ns = intervals.group_measure(group, n_groups, start_ns, end_ns)
    return np.asarray(total_ns - union_ns > _MIN_OVERLAP * total_ns, bool)
