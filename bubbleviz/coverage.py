"""Coverage: how much of each rank's GPU time the operations explain, and what they do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from intervaltree import IntervalTree

from bubbleviz.columns import NONE, Bools, Ints
from bubbleviz.intervals import group_sum
from bubbleviz.link import Links, Rule
from bubbleviz.model import RankCoverage, UnattributedKernels
from bubbleviz.profile import Profile, Ranges, tid_of

#: How many unattributed kernel names are listed for each rank.
LISTED = 5


@dataclass(frozen=True)
class Coverage:
    """Counts and sums of one profile, ranks numbered within it."""

    kernels: int
    linked_kernels: int
    attributed_kernels: int
    cross_thread_kernels: int
    ambiguous_kernels: int
    ranks: tuple[RankCoverage, ...]
    unattributed: tuple[UnattributedKernels, ...]


def measure_coverage(
    profile: Profile,
    links: Links,
    communication: Bools,
    loose: Bools,
    rank: Ints,
    ranks: Ints,
    named: Ranges,
) -> Coverage:
    """Return the coverage of one profile.

    Args:
        profile: the profile.
        links: of its kernels, then copies.
        communication: which of these are communication kernels.
        loose: which are compute kernels outside every compute operation.
        rank: rank of each within the profile.
        ranks: the (process, device) pairs.
        named: the ranges of operations.
    """
    kernels = len(profile.kernels)
    duration = np.concatenate(
        (
            profile.kernels.end_ns - profile.kernels.start_ns,
            profile.copies.end_ns - profile.copies.start_ns,
        )
    )
    is_kernel = np.arange(len(links)) < kernels
    compute = is_kernel & ~communication
    explained = communication & (links.range >= 0)

    def by_rank(which: Bools) -> list[int]:
        total: list[int] = group_sum(rank[which], len(ranks), duration[which]).tolist()
        return total

    sums = zip(
        by_rank(compute),
        by_rank(compute & ~loose),
        by_rank(communication),
        by_rank(explained),
        by_rank(~is_kernel),
        strict=True,
    )
    rule = links.rule[:kernels]
    return Coverage(
        kernels=kernels,
        linked_kernels=int((links.call[:kernels] >= 0).sum()),
        attributed_kernels=int((links.range[:kernels] >= 0).sum()),
        cross_thread_kernels=int((rule == Rule.CROSS_THREAD).sum()),
        ambiguous_kernels=int((rule == Rule.AMBIGUOUS).sum()),
        ranks=tuple(RankCoverage(i, *values) for i, values in enumerate(sums)),
        unattributed=_largest(profile, links, loose[:kernels], rank[:kernels], named),
    )


def _largest(
    profile: Profile, links: Links, loose: Bools, rank: Ints, named: Ranges
) -> tuple[UnattributedKernels, ...]:
    """Return the unattributed kernels with the most time, by rank and name."""
    found = []
    duration = profile.kernels.end_ns - profile.kernels.start_ns
    where = _Whereabouts(profile, named)
    for index in np.unique(rank[loose]).tolist():
        rows = np.flatnonzero(loose & (rank == index))
        name = profile.kernels.name_id[rows]
        total = group_sum(name, len(profile.kernels.names), duration[rows])
        for i in np.argsort(-total, kind="stable")[:LISTED].tolist():
            of_name = rows[name == i]
            if len(of_name) == 0:
                continue
            longest = int(of_name[np.argmax(duration[of_name])])
            found.append(
                UnattributedKernels(
                    rank=index,
                    name=profile.kernels.names[i],
                    count=len(of_name),
                    gpu_ns=int(total[i]),
                    where=where.of(int(links.call[longest]), int(links.rule[longest])),
                )
            )
    return tuple(found)


class _Whereabouts:
    """Says in words where a call was made; asked for a handful of kernels only."""

    def __init__(self, profile: Profile, named: Ranges) -> None:
        self._calls = profile.calls
        self._named = named
        self._threads = {t.thread: t.name for t in profile.threads}
        self._trees: dict[int, IntervalTree] = {}

    def _tree(self, thread: int) -> IntervalTree:
        """Return the ranges of a thread; they may overlap in any way."""
        if thread not in self._trees:
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

    def of(self, call: int, rule: int) -> str:
        """Return the place of a call (row, -1 none) that was treated by a rule."""
        if call == NONE:
            return "launching call not in the profile"
        thread = int(self._calls.thread[call])
        name = self._threads.get(thread, "")
        place = f"thread {tid_of(thread)}{f' ({name})' if name else ''}"
        start_ns, end_ns = int(self._calls.start_ns[call]), int(self._calls.end_ns[call])
        around = [r for r in self._tree(thread)[start_ns] if r.end > end_ns]
        around.sort(key=lambda r: (r.begin - r.end, r.begin, r.data))
        if rule == Rule.AMBIGUOUS:
            return f"{place}, while several threads ran backward"
        if around:
            return f"{place}, in {around[-1].data}"
        return f"{place}, outside every operation"
