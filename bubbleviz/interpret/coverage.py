"""Coverage: how much of each rank's GPU time the operations explain, and what they do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bubbleviz.interpret.device_work import RankWork
from bubbleviz.interpret.linking.links import LinkRule, Links
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.grouping import rows_by_value
from bubbleviz.model.intervals import group_sum
from bubbleviz.model.operations import RankCoverage, UnattributedKernels
from bubbleviz.model.profile import Profile, Ranges, tid_of
from bubbleviz.model.values import frozen

if TYPE_CHECKING:
    from intervaltree import IntervalTree

#: How many unattributed kernel names are listed for each rank.
LISTED = 5


@frozen
class Coverage:
    """Counts and sums of one profile, ranks numbered within it."""

    kernels: int
    linked_kernels: int
    attributed_kernels: int
    cross_thread_kernels: int
    ambiguous_kernels: int
    ranks: tuple[RankCoverage, ...]
    unattributed: tuple[UnattributedKernels, ...]


@frozen
class UnattributedName:
    """Unattributed compute kernels of one name on one rank.

    ``longest`` is the activity of the longest of them, whose launch stands for all.
    """

    rank: int
    name: str
    count: int
    gpu_ns: int
    longest: int


def rank_coverages(ran: RankWork, unattributed: Bools) -> tuple[RankCoverage, ...]:
    """Return how long the kernels and copies of each rank ran.

    Args:
        ran: all that ran on the ranks.
        unattributed: which are compute kernels outside every compute operation.
    """
    work = ran.work
    duration_ns = work.end_ns - work.start_ns
    rank = work.rank - ran.ranks.start
    sums = (
        group_sum(rank[which], len(ran.ranks), duration_ns[which]).tolist()
        for which in (
            work.compute,
            work.compute & ~unattributed,
            work.communication,
            work.communication & (work.range != NONE),
            work.copy,
        )
    )
    return tuple(RankCoverage(*of_rank) for of_rank in zip(ran.ranks, *sums, strict=True))


def unattributed_names(
    ran: RankWork, unattributed: Bools, names: Sequence[str]
) -> Iterator[UnattributedName]:
    """Yield the names of each rank's unattributed kernels, those with the most time first.

    Args:
        ran: all that ran on the ranks.
        unattributed: which are compute kernels outside every compute operation.
        names: of kernels.
    """
    loose = np.flatnonzero(unattributed)
    for rank, of_rank in rows_by_value(ran.work.rank[loose]):
        at = loose[of_rank]
        duration_ns, name = (ran.work.end_ns - ran.work.start_ns)[at], ran.name_id[at]
        total_ns = group_sum(name, len(names), duration_ns)
        for i in np.argsort(-total_ns, kind="stable")[:LISTED].tolist():
            rows = np.flatnonzero(name == i)
            if len(rows):
                longest = int(ran.rows[at[rows[np.argmax(duration_ns[rows])]]])
                yield UnattributedName(rank, names[i], len(rows), int(total_ns[i]), longest)


def measure_coverage(
    profile: Profile,
    links: Links,
    ranks: Sequence[RankCoverage],
    unattributed: Sequence[UnattributedName],
    named: Ranges,
) -> Coverage:
    """Return the coverage of one profile.

    Args:
        profile: the profile, which can still be read.
        links: of its kernels, then copies.
        ranks: the coverage of each rank.
        unattributed: the names of unattributed kernels with the most time.
        named: the ranges of operations.
    """
    kernels = profile.activities.kernels
    rule = links.rule[:kernels]
    places = _LaunchPlaces(profile, links, named, [name.longest for name in unattributed])
    return Coverage(
        kernels=kernels,
        linked_kernels=int((links.call[:kernels] >= 0).sum()),
        attributed_kernels=int((links.range[:kernels] >= 0).sum()),
        cross_thread_kernels=int((rule == LinkRule.CROSS_THREAD).sum()),
        ambiguous_kernels=int((rule == LinkRule.AMBIGUOUS).sum()),
        ranks=tuple(ranks),
        unattributed=tuple(
            UnattributedKernels(
                name.rank, name.name, name.count, name.gpu_ns, where=places.of(name.longest)
            )
            for name in unattributed
        ),
    )


class _LaunchPlaces:
    """Where the host launched a handful of activities, in words."""

    def __init__(
        self, profile: Profile, links: Links, named: Ranges, activities: Sequence[int]
    ) -> None:
        rows = np.array(activities, np.int64)
        known = rows[links.call[rows] != NONE]
        self._calls = links.calls_of(known, profile.calls)
        self._call_of = {activity: row for row, activity in enumerate(known.tolist())}
        self._links = links
        self._named = named
        self._threads = {t.thread: t.name for t in profile.threads}
        self._trees: dict[int, IntervalTree] = {}

    def _tree(self, thread: int) -> IntervalTree:
        """Return the ranges of a thread; they may overlap in any way."""
        if thread not in self._trees:
            # It takes as long to import as to use; most runs leave no kernel unattributed.
            from intervaltree import IntervalTree

            rows = np.flatnonzero(self._named.thread == thread).tolist()
            self._trees[thread] = IntervalTree.from_tuples(
                (
                    int(self._named.start_ns[row]),
                    int(self._named.end_ns[row]) + 1,
                    self._named.names[self._named.name_id[row]],
                )
                for row in rows
            )
        return self._trees[thread]

    def of(self, activity: int) -> str:
        """Return the place of the call that launched an activity (one of those given)."""
        call = self._call_of.get(activity)
        if call is None:
            return "launching call not in the profile"
        thread = int(self._calls.thread[call])
        name = self._threads.get(thread, "")
        place = f"thread {tid_of(thread)}{f' ({name})' if name else ''}"
        start_ns, end_ns = int(self._calls.start_ns[call]), int(self._calls.end_ns[call])
        around = [r for r in self._tree(thread)[start_ns] if r.end > end_ns]
        around.sort(key=lambda r: (r.begin - r.end, r.begin, r.data))
        if self._links.rule[activity] == LinkRule.AMBIGUOUS:
            return f"{place}, while several threads ran backward"
        if around:
            return f"{place}, in {around[-1].data}"
        return f"{place}, outside every operation"
