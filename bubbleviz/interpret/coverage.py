"""Each rank's GPU time inside and outside operations, and the kernels outside operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.interpret.linking import LinkedProfile, LinkedWork, LinkRule
from bubbleviz.model.columns import Bools, Ints
from bubbleviz.model.grouping import list_rows_by_value
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import RankCoverage, UnattributedKernels
from bubbleviz.model.profile import Ranges, get_tid

if TYPE_CHECKING:
    from intervaltree import IntervalTree

#: Maximum number of unattributed kernel names listed for each rank.
LISTED = 5


@dataclass(frozen=True)
class Coverage:
    """Number of kernels linked to calls, and GPU time attributed to operations, for one profile.

    A kernel is linked if its launching call is known. It is attributed if the call also belongs to
    an operation range. Ranks are numbered within the profile.
    """

    kernels: int
    linked_kernels: int
    attributed_kernels: int
    cross_thread_kernels: int
    ambiguous_kernels: int
    ranks: tuple[RankCoverage, ...]
    unattributed: tuple[UnattributedKernels, ...]


def make_rank_coverages(ranks: range, spent_ns: Ints) -> list[RankCoverage]:
    """Build the coverage of each rank from the total durations of its kernels and copies.

    Args:
        ranks: Indices of the ranks.
        spent_ns: Total durations in ns, shape (ranks, 5). The columns are copies, communication
            inside ranges, communication outside ranges, compute inside compute operations, and
            compute outside them.
    """
    return [
        RankCoverage(rank, inside + loose, inside, linked + unlinked, linked, copies)
        for rank, (copies, linked, unlinked, inside, loose) in zip(
            ranks, spent_ns.tolist(), strict=True
        )
    ]


def find_unattributed_kernels(
    work: LinkedWork, unattributed: Bools
) -> Iterator[tuple[UnattributedKernels, int]]:
    """Yield the kernel names that take the most time outside operations on each rank.

    For each rank, the ``LISTED`` names with the longest total duration are yielded, longest first.

    Args:
        work: All kernels and copies of the ranks.
        unattributed: Mask of the compute kernels outside every compute operation.

    Yields:
        kernels: Number and total duration of the kernels with a name. The field ``where`` is empty.
        longest: Activity row of the longest kernel with this name. Callers fill in ``where`` with
            the place where it was launched.
    """
    loose = np.flatnonzero(unattributed)
    for rank, of_rank in list_rows_by_value(work.rank[loose]):
        kernels = loose[of_rank]
        duration_ns, name = (work.end_ns - work.start_ns)[kernels], work.name_id[kernels]
        total_ns = group_sum(name, len(work.names), duration_ns)
        for i in np.argsort(-total_ns, kind="stable")[:LISTED].tolist():
            rows = np.flatnonzero(name == i)
            if len(rows):
                longest = int(work.activity[kernels[rows[np.argmax(duration_ns[rows])]]])
                gpu_ns = int(total_ns[i])
                yield UnattributedKernels(rank, work.names[i], len(rows), gpu_ns, ""), longest


def measure_coverage(
    linked: LinkedProfile,
    ranks: Sequence[RankCoverage],
    unattributed: Sequence[tuple[UnattributedKernels, int]],
) -> Coverage:
    """Return the coverage of one profile.

    Args:
        linked: The profile with its work linked to API calls and ranges. Its file must still be
            open.
        ranks: Coverage of each rank.
        unattributed: Pairs yielded by :func:`find_unattributed_kernels`.
    """
    work, n_kernels = linked.work, linked.profile.activities.kernels
    rule = work.rule[:n_kernels]

    def count(code: LinkRule) -> int:
        return int(np.count_nonzero(rule == np.int8(code)))

    places = _describe_launches(linked, [longest for _, longest in unattributed])
    located = [
        replace(of_name, where=where)
        for (of_name, _), where in zip(unattributed, places, strict=True)
    ]
    return Coverage(
        kernels=n_kernels,
        linked_kernels=n_kernels - count(LinkRule.UNLINKED),
        attributed_kernels=int(np.count_nonzero(work.range[:n_kernels] >= 0)),
        cross_thread_kernels=count(LinkRule.CROSS_THREAD),
        ambiguous_kernels=count(LinkRule.AMBIGUOUS),
        ranks=tuple(ranks),
        unattributed=tuple(located),
    )


def _describe_launches(linked: LinkedProfile, activities: Sequence[int]) -> Iterator[str]:
    """Yield, for each activity, a description of where the host launched it.

    The description names the launching thread and the innermost operation range around the launch.
    If several threads were running backward passes during the launch, the description mentions this
    instead of a range. If the launching call is unknown, the description states only that.
    """
    work = linked.work
    names = {t.thread: t.name for t in linked.profile.threads}
    # Only a few ranges contain such a launch, so building the trees is fast.
    around_launches = _select_ranges_around(linked.named_ranges, work.launched_ns[[*activities]])
    tree_of = cache(partial(_build_tree, around_launches))
    for activity in activities:
        if work.rule[activity] == LinkRule.UNLINKED:
            yield "launching call not in the profile"
            continue
        thread = int(work.threads[work.thread[activity]])
        name = names.get(thread, "")
        launch_place = f"thread {get_tid(thread)}{f' ({name})' if name else ''}"
        around = tree_of(thread)[int(work.launched_ns[activity])]
        if work.rule[activity] == LinkRule.AMBIGUOUS:
            yield f"{launch_place}, while several threads ran backward"
        elif around:
            innermost = max(around, key=lambda own: (own.begin - own.end, own.begin, own.data))
            yield f"{launch_place}, in {innermost.data}"
        else:
            yield f"{launch_place}, outside every operation"


def _select_ranges_around(named_ranges: Ranges, times_ns: Ints) -> Ranges:
    """Return the ranges of all threads that contain at least one of the times, ends included."""
    times_ns = np.sort(times_ns)
    n_before_start = np.searchsorted(times_ns, named_ranges.start_ns)
    n_before_end = np.searchsorted(times_ns, named_ranges.end_ns, side="right")
    return named_ranges.take(n_before_start < n_before_end)


def _build_tree(named_ranges: Ranges, thread: int) -> IntervalTree:
    """Build an interval tree that contains the ranges of a thread, with the range names as data.

    Ranges may overlap in any way. The tree has exclusive ends, 1 ns after the ends of the ranges.
    """
    # Importing ``intervaltree`` takes as long as using it, so it is imported only when needed.
    from intervaltree import IntervalTree

    rows = np.flatnonzero(named_ranges.thread == thread).tolist()
    return IntervalTree.from_tuples(
        (
            int(named_ranges.start_ns[r]),
            int(named_ranges.end_ns[r]) + 1,
            named_ranges.names[named_ranges.name_id[r]],
        )
        for r in rows
    )
