"""Unknown members: limitations for collectives of which not all members are known."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE
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
    ranks = int(max(exposed.rank.max(initial=NONE), collectives.rank.max(initial=NONE))) + 1
    extents = group_extents(
        np.concatenate((exposed.rank, collectives.rank)),
        ranks,
        np.concatenate((exposed.start_ns, collectives.start_ns)),
        np.concatenate((exposed.end_ns, collectives.end_ns)),
    )
    packing = Packing.of(*extents)
    line = [packing.place(exposed.rank, t) for t in (exposed.start_ns, exposed.end_ns)]
    times = [packing.place(collectives.rank, t) for t in (collectives.start_ns, collectives.end_ns)]
    alone = measure_within((line[0], line[1]), times[0], times[1]) > 0
    # Of a group that a table names and one rank has, the others are not in the table.
    sole = np.array([*(group.sole for group in collectives.groups), False], bool)
    unmet = alone & (collectives.meeting == NONE)
    unknown = int((unmet & ~sole[collectives.group]).sum())
    if unknown:
        yield Limitation(
            "collectives whose members are unknown",
            "nothing tells which ranks they are of (no communicator or process group is recorded, "
            "and no kernels of ranks that can be one group end together), so waiting in them for "
            "the last rank to enter counts as collective, too",
            unknown,
        )
    size = np.array([*(group.size for group in collectives.groups), 0], np.int64)
    known = np.flatnonzero(collectives.meeting >= 0)
    meeting = collectives.meeting[known]
    members = distinct_rows(meeting, collectives.rank[known])[0]
    present = np.bincount(members, minlength=int(meeting.max(initial=NONE)) + 1)
    partial = size[collectives.group[known]] > present[meeting]
    lacking = int((alone[known] & partial).sum() + (unmet & sole[collectives.group]).sum())
    if lacking:
        yield Limitation(
            "collectives of which members are not recorded",
            "no profile is of some ranks that take part in them, so waiting for these counts as "
            "collective, too",
            lacking,
        )
