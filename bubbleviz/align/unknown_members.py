"""Unknown members: limitations for collectives of which not all members are known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools
from bubbleviz.model.grouping import distinct_rows
from bubbleviz.model.intervals import Packing, group_extents, measure_within
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import RankIntervals


def without_members(
    collectives: CollectiveIntervals, exposed: RankIntervals
) -> Iterator[Limitation]:
    """Yield limitations for collectives whose members are unknown, or not recorded.

    Args:
        collectives: of all ranks.
        exposed: when only collectives ran on ranks.
    """
    unmet, lonely = _waits_for_others(collectives), _of_certain_groups(collectives)
    unknown = _count(collectives, exposed, unmet & ~lonely)
    if unknown:
        yield Limitation(
            "collectives whose members are unknown",
            "nothing tells which ranks they are of (no communicator or process group is recorded, "
            "and no kernels of ranks that can be one group end together), so waiting in them for "
            "the last rank to enter counts as collective, too",
            unknown,
        )
    lacking = _count(collectives, exposed, (unmet & lonely) | _lacks_members(collectives))
    if lacking:
        yield Limitation(
            "collectives of which members are not recorded",
            "no profile is of some ranks that take part in them, so waiting for these counts as "
            "collective, too",
            lacking,
        )


def _count(collectives: CollectiveIntervals, exposed: RankIntervals, which: Bools) -> int:
    """Return how many of some collectives ran while nothing else did."""
    if not which.any():
        return 0
    own = collectives.take(which)
    ranks = int(max(exposed.rank.max(initial=NONE), own.rank.max())) + 1
    extents = group_extents(
        np.concatenate((exposed.rank, own.rank)),
        ranks,
        np.concatenate((exposed.start_ns, own.start_ns)),
        np.concatenate((exposed.end_ns, own.end_ns)),
    )
    packing = Packing.of(*extents)
    alone, times = (
        [packing.place(table.rank, time_ns) for time_ns in (table.start_ns, table.end_ns)]
        for table in (exposed, own)
    )
    return int((measure_within((alone[0], alone[1]), times[0], times[1]) > 0).sum())


def _waits_for_others(collectives: CollectiveIntervals) -> Bools:
    """Return which collectives meet none, and are not of one rank alone."""
    alone = np.array([*(group.size == 1 for group in collectives.groups), False], bool)
    return np.asarray((collectives.meeting == NONE) & ~alone[collectives.group], bool)


def _of_certain_groups(collectives: CollectiveIntervals) -> Bools:
    """Return which are of groups whose members are certain: those that meet none lack them."""
    certain = (group.sole or bool(group.ranks) for group in collectives.groups)
    return np.array([*certain, False], bool)[collectives.group]


def _lacks_members(collectives: CollectiveIntervals) -> Bools:
    """Return which collectives have members on ranks that no profile is of."""
    size = np.array([*(group.size for group in collectives.groups), 0], np.int64)
    if not size.any():
        return np.zeros(len(collectives), bool)
    known = collectives.meeting >= 0
    members = distinct_rows(collectives.meeting[known], collectives.rank[known])[0]
    present = np.bincount(members, minlength=int(collectives.meeting.max(initial=NONE)) + 1)
    members_of = np.append(present, 0)[collectives.meeting]
    return np.asarray(known & (size[collectives.group] > members_of), bool)
