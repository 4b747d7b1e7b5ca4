"""Meetings: which collectives of all ranks are one.

Members are those of one communicator or process group, one after the other in the order in which
each rank launched them. Where nothing tells the group, candidates are ranks that can be one: all,
a pipeline, the replicas of a stage, the first and the last stage. No member leaves before all have
entered, and all leave together, so that the ends show whether they are one::

    rank 0   ├───────────────────┤        ├──┤
    rank 1        ├──────────────┤  ├──┤             the first meet, the second do not
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bubbleviz.align.iteration_pairs import paired
from bubbleviz.align.leaving_together import Clocks, by_ends
from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.pipelines import Parallel
from bubbleviz.align.staging import Staging
from bubbleviz.align.timebase import Timebase
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.grouping import distinct_rows, groups_of
from bubbleviz.model.intervals import group_extents
from bubbleviz.model.process_groups import Group
from bubbleviz.model.sorting import sorted_rows
from bubbleviz.model.values import frozen


@frozen
class RankPlaces:
    """Where ranks stand.

    Attributes:
        stage: of each rank; -1 unknown.
        pipeline: of each rank; -1 where replicas of a stage cannot be distinguished.
        reducing: a number for the ranks that reduce gradients together; -1 none.
    """

    stage: Ints
    pipeline: Ints
    reducing: Ints


def met(
    joined: JoinedRecordings, staging: Staging, time: Timebase, parallel: Parallel | None
) -> CollectiveIntervals:
    """Return the collectives of all ranks, with iterations over all of them and their meetings.

    Args:
        joined: the recordings, on the report's clock.
        staging: their stages, pipelines and iterations.
        time: how far clocks can be off.
        parallel: the sizes of the run, where the user gives them.
    """
    table = joined.collectives
    iteration = paired(staging.pairing, table.rank, table.iteration)
    table = table.changed(iteration=iteration)
    if (table.meeting != NONE).any():
        # A table of operations tells them.
        return table
    places = RankPlaces(staging.stage_of_rank, staging.pipeline, staging.reducing)
    clocks = Clocks(time.machine, time.comparable, time.uncertainty_ns)
    if staging.pairing.known:
        meeting = meetings_of(table, places, clocks, sizes_known=parallel is not None)
    else:
        # Then only numbers in groups, and common ends, show what is one.
        once = table.changed(iteration=np.zeros(len(table), np.int64))
        meeting = meetings_of(once, places, clocks, sizes_known=False, ordered=False)
    return table.changed(meeting=meeting)


def meetings_of(
    collectives: CollectiveIntervals,
    places: RankPlaces,
    clocks: Clocks,
    *,
    sizes_known: bool = False,
    ordered: bool = True,
) -> Ints:
    """Return for each collective a number that those of all ranks share which are one; -1 unknown.

    Args:
        collectives: of all ranks on the report's clock, ``iteration`` counted over all of them.
        places: of the ranks.
        clocks: of the ranks.
        sizes_known: whether the user gave the sizes of the run.
        ordered: whether iterations of different ranks are known to be the same.
    """
    meeting = np.full(len(collectives), NONE, np.int64)
    if len(collectives) == 0:
        return meeting
    for own in _by_record(collectives, clocks, ordered=ordered):
        _add(meeting, own)
    open_rows = (collectives.group == NONE) & (collectives.iteration >= 0)
    open_rows &= np.array([name != "" for name in collectives.kinds], bool)[collectives.kind]
    without_group = open_rows.copy()
    for partition in _partitions(places):
        rows = np.flatnonzero(open_rows & (meeting == NONE))
        if len(rows) == 0:
            break
        cell, whole = _on_one_clock(partition, clocks)
        members = np.stack((cell, np.arange(len(cell))))[:, cell >= 0]
        found = by_ends(collectives, rows, cell[collectives.rank[rows]], members, clocks)
        found = _usual(collectives, found)
        _add(meeting, np.where(whole[collectives.rank], found, NONE))
        # Those whose clocks cannot be compared may be members as well: no smaller group is certain.
        alone = np.bincount(members[0], minlength=1)[cell] == 1
        open_rows &= whole[collectives.rank] | ((found == NONE) & ~alone[collectives.rank])
    if sizes_known:
        rows = np.flatnonzero(without_group & (meeting == NONE))
        _add(meeting, _in_order(collectives, rows, places.reducing[collectives.rank]))
    return meeting


def _on_one_clock(partition: Ints, clocks: Clocks) -> tuple[Ints, Bools]:
    """Return the cells of a partition, divided by clocks, and whether each rank's is undivided."""
    divided = groups_of(partition, clocks.common)
    parts = np.bincount(groups_of(partition[divided.first]).of_row)
    whole = (parts == 1)[groups_of(partition).of_row]
    inside = partition >= 0
    return np.where(inside, divided.of_row, NONE), np.asarray(whole | ~inside, bool)


def _add(meeting: Ints, found: Ints) -> None:
    """Add meetings that were found to those that are known."""
    new = (found >= 0) & (meeting == NONE)
    meeting[new] = found[new] + int(meeting.max(initial=NONE)) + 1


def _by_record(
    collectives: CollectiveIntervals, clocks: Clocks, *, ordered: bool
) -> Iterator[Ints]:
    """Yield the meetings of recorded groups: by numbers, by order, by ends."""
    group = collectives.group
    if not (group >= 0).any():
        return
    members = distinct_rows(group, collectives.rank)
    present = np.bincount(members[0][members[0] >= 0], minlength=len(collectives.groups))
    certain = np.array(
        [
            _is_certain(own, int(count))
            for own, count in zip(collectives.groups, present, strict=True)
        ],
        bool,
    )
    numbered = np.ones(len(collectives.groups), bool)
    numbered[group[(group >= 0) & (collectives.sequence < 0)]] = False
    known = (group >= 0) & np.append(certain, False)[group]
    rows = np.flatnonzero(known & np.append(numbered, False)[group])
    found = np.full(len(collectives), NONE, np.int64)
    found[rows] = groups_of(group[rows], collectives.sequence[rows]).of_row
    yield _of_several(collectives, found)
    rows = np.flatnonzero(known & ~np.append(numbered, True)[group] & (collectives.iteration >= 0))
    in_order = _in_order(collectives, rows if ordered else rows[:0], group)
    yield in_order
    # Where ranks ran one in more pieces than others, or groups share a name, the ends show it.
    rest = (group >= 0) & (found == NONE) & (in_order == NONE)
    rows = np.flatnonzero(rest & (collectives.iteration >= 0))
    most = np.array([own.size or len(collectives) for own in collectives.groups], np.int64)
    yield by_ends(collectives, rows, group[rows], members[:, members[0] >= 0], clocks, most)


def _is_certain(group: Group, present: int) -> bool:
    """Return whether those of a group are its members, and no others' of the same name.

    Args:
        group: the group.
        present: how many ranks have collectives of it.
    """
    return group.sole or bool(group.ranks) or group.size == present


def _of_several(collectives: CollectiveIntervals, number: Ints) -> Ints:
    """Return numbers, -1 for those that a single rank has."""
    low, high = group_extents(
        number[number >= 0],
        int(number.max(initial=NONE)) + 1,
        collectives.rank[number >= 0],
        collectives.rank[number >= 0],
    )
    return np.where(np.append(high > low, False)[number], number, NONE)


def _in_order(collectives: CollectiveIntervals, rows: Ints, cell: Ints) -> Ints:
    """Return the meetings of some rows by their place in the order of their rank.

    That is unknown where ranks of a cell have not as many of a kind in an iteration.
    """
    found = np.full(len(collectives), NONE, np.int64)
    rows = rows[cell[rows] >= 0]
    key = groups_of(cell[rows], collectives.iteration[rows], collectives.kind[rows]).of_row
    ranks = groups_of(key, collectives.rank[rows])
    count = np.bincount(ranks.of_row, minlength=1)
    least, most = group_extents(key[ranks.first], int(key.max(initial=NONE)) + 1, count, count)
    rows, key = rows[(least == most)[key]], key[(least == most)[key]]
    found[rows] = groups_of(key, collectives.order[rows]).of_row
    return _of_several(collectives, found)


def _partitions(places: RankPlaces) -> Iterator[Ints]:
    """Yield a number for each rank that those share which can be one group, largest groups first.

    It is -1 for ranks that are in none.
    """
    stage, pipeline = places.stage, places.pipeline
    working = stage >= 0
    everyone = np.where(working, 0, NONE) if working.any() else np.zeros(len(stage), np.int64)
    line = np.where(working, pipeline, NONE)
    edge = working & ((stage == 0) | (stage == stage.max(initial=NONE)))
    seen: set[bytes] = set()
    for partition in (
        everyone,
        line,
        np.where(working, stage, NONE),
        places.reducing,
        np.where(edge, line, NONE),
        _beside(places),
    ):
        number = groups_of(partition).of_row
        key = np.where(partition < 0, NONE, number).tobytes()
        if key not in seen:
            seen.add(key)
            yield partition


def _beside(places: RankPlaces) -> Ints:
    """Return a number for replicas of a stage that reduce with different ones: tensor-parallel."""
    stage, place = places.stage, np.full(len(places.stage), NONE, np.int64)
    rows = np.flatnonzero((stage >= 0) & (places.reducing >= 0))
    order = rows[sorted_rows(places.reducing[rows], rows)]
    reducing = places.reducing[order]
    nth = np.arange(len(order)) - np.searchsorted(reducing, reducing)
    place[order] = groups_of(stage[order], nth).of_row
    return place


def _usual(collectives: CollectiveIntervals, found: Ints) -> Ints:
    """Return the meetings of those that meet in at least half of the iterations.

    What ends together in few of them does so by chance.
    """
    of_class = groups_of(collectives.rank, collectives.kind, collectives.order).of_row
    meets = np.bincount(of_class, found >= 0)
    usual = 2 * meets >= np.bincount(of_class)
    number = int(found.max(initial=NONE)) + 1
    all_usual = np.ones(number, bool)
    all_usual[found[(found >= 0) & ~usual[of_class]]] = False
    return np.where(np.append(all_usual, False)[found], found, NONE)
