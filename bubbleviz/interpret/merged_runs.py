"""Refusal of files that contain two runs with the same ranks and iterations.

In such a file, the ratio would be wrong for both runs. A single run may also repeat all operations
of an iteration, if its names do not distinguish all microbatches. Unlike two separate runs, it
repeats them without a break::

    one run      iteration 0: F0 F1 B0 B1 F0 F1 B0 B1   iteration 1: ...
    two runs     iteration 0: F0 F1 B0 B1   iteration 1: ...   iteration 0: F0 F1 B0 B1   ...
    two runs     iteration 0: F0 F1 B0 B1
                               F0 F1 B0 B1                at the same time, on one rank

If one of the two runs has more microbatches than the other, its last microbatches occur only once.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.errors import ProfileError
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import find_distinct, group_rows
from bubbleviz.model.operations import Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import WORK, Phase

_FORWARD, _BACKWARD = (Phase.F,), (Phase.B, Phase.BW)
#: A file is refused if at least this share of its iterations contain two runs.
_MIN_SHARE = 0.1
#: Operations belong to two different runs if more than this share of their time overlaps.
_MIN_OVERLAP = 0.05


def refuse_merged_runs(path: str, operations: Operations, is_named: Bools) -> None:
    """Refuse a file that contains two runs with the same ranks and iterations.

    An iteration of a rank contains two runs if both of the following conditions hold:

    - All passes of one run occur twice; see :func:`_mask_repeated_groups`.
    - An unrelated operation starts between the first and the second occurrences, or operations
      overlap.

    The file is refused if at least ``_MIN_SHARE`` of the named iterations contain two runs.

    Args:
        path: Path of the file, for the message.
        operations: Operations of the file.
        is_named: Mask of the operations whose iteration has a name or number in the file.

    Raises:
        ProfileError: The file contains two runs.
    """
    is_pass = mask_phases(operations.phase, (*_FORWARD, *_BACKWARD)) & (operations.microbatch >= 0)
    rows = np.flatnonzero(is_pass & is_named & (operations.has_span == 1))
    if not (operations.occurrence[rows] > 0).any():
        return
    groups = group_rows(operations.rank, operations.iteration)
    group = groups.of_row[rows]
    n_named = len(find_distinct(group))
    is_repeated = _mask_repeated_groups(operations, rows, group, len(groups))
    end_ns, start_ns = _find_breaks(operations, rows, group, len(groups))
    rank = operations.rank[groups.first]
    has_break = _has_starts_between(operations, groups.of_row, rank, end_ns, start_ns)
    is_overlapped = _mask_overlapped_groups(operations, rows, group, len(groups))
    n_merged = int((is_repeated & (has_break | is_overlapped)).sum())
    if n_merged and n_merged >= _MIN_SHARE * n_named:
        raise ProfileError(
            f"{path}: {n_merged:,} of {n_named:,} iterations (counted per rank) contain the same "
            "forwards and backwards twice, at different times, so the file contains two runs; "
            "write each run to a separate file"
        )


def _mask_repeated_groups(operations: Operations, rows: Ints, group: Ints, n_groups: int) -> Bools:
    """Return a mask of the groups in which all forwards and backwards of one run occur twice.

    Only microbatches up to the last one that occurs twice are checked, because one run may have
    more microbatches than the other. Among the checked microbatches, the forwards must have equal
    numbers of first and second occurrences, and so must the backwards. The last repeated microbatch
    must be the same for forwards and backwards.

    Args:
        operations: Operations of the file.
        rows: Rows of the forwards and backwards whose iteration has a name.
        group: Group of each row. A group is an iteration on a rank.
        n_groups: Number of groups.
    """
    last = _find_last_repeated_microbatch(
        operations, rows, group, n_groups, (*_FORWARD, *_BACKWARD)
    )
    is_shared = operations.microbatch[rows] <= last[group]
    is_repeated = last >= 0
    for phases in (_FORWARD, _BACKWARD):
        of_phase = mask_phases(operations.phase[rows], phases) & is_shared
        n_first, n_second = (
            np.bincount(group[of_phase & (operations.occurrence[rows] == k)], minlength=n_groups)
            for k in (0, 1)
        )
        is_repeated &= (n_first == n_second) & (n_first > 0)
        is_repeated &= (
            _find_last_repeated_microbatch(operations, rows, group, n_groups, phases) == last
        )
    return is_repeated


def _find_last_repeated_microbatch(
    operations: Operations, rows: Ints, group: Ints, n_groups: int, phases: tuple[Phase, ...]
) -> Ints:
    """Return the largest microbatch number in each group that occurs twice, or -1 if none does.

    Only operations of the given phases are considered. See :func:`_mask_repeated_groups` for the
    other arguments.
    """
    is_second = mask_phases(operations.phase[rows], phases) & (operations.occurrence[rows] == 1)
    microbatch = operations.microbatch[rows[is_second]]
    return intervals.group_latest(group[is_second], n_groups, microbatch, NONE)


def _find_breaks(
    operations: Operations, rows: Ints, group: Ints, n_groups: int
) -> tuple[Ints, Ints]:
    """Return when each group's first run ends and its second run starts, if it has two runs.

    First occurrences of passes belong to one run, and second occurrences to the other. Microbatches
    after the last one that occurs twice are ignored, because either run may have executed them. See
    :func:`_mask_repeated_groups` for the arguments.

    Returns:
        end_ns: Latest end of the first occurrences in each group.
        start_ns: Earliest start of the second occurrences in each group.
    """
    last = _find_last_repeated_microbatch(
        operations, rows, group, n_groups, (*_FORWARD, *_BACKWARD)
    )
    is_shared = operations.microbatch[rows] <= last[group]
    bounds = []
    for occurrence in (0, 1):
        is_occurrence = is_shared & (operations.occurrence[rows] == occurrence)
        of_occurrence = rows[is_occurrence]
        bounds.append(
            intervals.group_extents(
                group[is_occurrence],
                n_groups,
                operations.start_ns[of_occurrence],
                operations.end_ns[of_occurrence],
            )
        )
    return bounds[0][1], bounds[1][0]


def _has_starts_between(
    operations: Operations, group: Ints, rank: Ints, since_ns: Ints, until_ns: Ints
) -> Bools:
    """Return a mask of the groups whose rank starts an unrelated operation in the group's interval.

    An operation is unrelated if it belongs to another group or if its phase is not in ``WORK``.
    Other operations of the group are ignored, because a run may use microbatch numbers in one pass
    that it does not use in the next.

    Args:
        operations: Operations of the file.
        group: Group of each operation.
        rank: Rank of each group.
        since_ns: Start of each group's interval.
        until_ns: End of each group's interval, exclusive.
    """
    is_spanned = operations.has_span == 1
    rows = np.flatnonzero(is_spanned)
    n_of_rank = _count_starts(operations, rows, operations.rank[rows], rank, since_ns, until_ns)
    rows = np.flatnonzero(is_spanned & mask_phases(operations.phase, WORK))
    groups = np.arange(len(rank))
    n_of_group = _count_starts(operations, rows, group[rows], groups, since_ns, until_ns)
    return np.asarray(n_of_rank > n_of_group, bool)


def _count_starts(
    operations: Operations,
    rows: Ints,
    key: Ints,
    interval_key: Ints,
    since_ns: Ints,
    until_ns: Ints,
) -> Ints:
    """Count, for each interval, the operations with the same key that start in it.

    The intervals are half-open.

    Args:
        operations: Operations of the file.
        rows: Rows of the operations to count.
        key: Key of each operation. A key is a rank or a group.
        interval_key: Key of each interval.
        since_ns: Start of each interval.
        until_ns: End of each interval. The interval is empty if this is not after the start.
    """
    n_keys = int(max(key.max(initial=0), interval_key.max(initial=0))) + 1
    start_ns, end_ns = operations.start_ns[rows], operations.end_ns[rows]
    packing = intervals.Packing.of(*intervals.group_extents(key, n_keys, start_ns, end_ns))
    starts = np.sort(packing.place(key, start_ns))
    low = np.searchsorted(starts, packing.place(interval_key, since_ns))
    high = np.searchsorted(starts, packing.place(interval_key, np.maximum(since_ns, until_ns)))
    return np.asarray(high - low, np.int64)


def _mask_overlapped_groups(
    operations: Operations, rows: Ints, group: Ints, n_groups: int
) -> Bools:
    """Return a mask of the groups in which operations overlap each other.

    The overlap is the sum of the durations minus the length of their union. It must exceed
    ``_MIN_OVERLAP`` of the sum. See :func:`_mask_repeated_groups` for the arguments.
    """
    start_ns, end_ns = operations.start_ns[rows], operations.end_ns[rows]
    total_ns = intervals.group_sum(group, n_groups, end_ns - start_ns)
    union_ns = intervals.group_measure(group, n_groups, start_ns, end_ns)
    return np.asarray(total_ns - union_ns > _MIN_OVERLAP * total_ns, bool)
