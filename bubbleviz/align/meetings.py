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

from bubbleviz.align.clocks.precedences import LEAVE_NS, is_unsteady
from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Ints, scatter
from bubbleviz.model.grouping import (
    find_distinct,
    find_distinct_rows,
    find_first_rows,
    group_rows,
    sort_rows,
)
from bubbleviz.model.intervals import Packing, group_extents, measure_within
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import RankIntervals

#: Ranks leave a collective within ``LEAVE_NS`` of each other, or within one in so many parts of
#: the time that data moved, that of the member that entered last:
#: in jobs that ByteDance published it is one of 1,000 in the median, and one of 100 at most.
_LEAVE_PARTS = 50
#: Pieces of one collective follow each other within so long.
_PIECES_NS = 5_000


def met(joined: JoinedRecordings, time: Timebase, parallel: Parallel | None) -> CollectiveIntervals:
    """Return the collectives of all ranks, with iterations over all of them and their meetings.

    Args:
        joined: The recordings on the report's clock, with stages, pipelines and iterations.
        time: Uncertainty of the clocks.
        parallel: Sizes of the run, or None if the user gives none.
    """
    table = joined.collectives
    table = table.replace_columns(
        iteration=joined.common_iterations_of(table.rank, table.iteration)
    )
    if (table.meeting != NONE).any():
        # A table of operations tells them.
        return table
    places, ordered = (joined.stage_of_rank, joined.pipeline, joined.reducing), True
    own = table
    if not joined.paired:
        # Then only numbers in groups, and common ends, show what is one.
        own, ordered = table.replace_columns(iteration=np.zeros(len(table), np.int64)), False
    sizes_known = ordered and parallel is not None
    meeting = meetings_of(own, *places, time, sizes_known=sizes_known, ordered=ordered)
    return table.replace_columns(meeting=meeting)


def meetings_of(
    collectives: CollectiveIntervals,
    stage: Ints,
    pipeline: Ints,
    reducing: Ints,
    time: Timebase,
    *,
    sizes_known: bool = False,
    ordered: bool = True,
) -> Ints:
    """Return for each collective a number that those of all ranks share which are one; -1 unknown.

    Args:
        collectives: of all ranks on the report's clock, ``iteration`` counted over all of them.
        stage: of each rank; -1 unknown.
        pipeline: of each rank; -1 where replicas of a stage cannot be distinguished.
        reducing: a number for the ranks that reduce gradients together; -1 none.
        time: how far the clocks of ranks can be off.
        sizes_known: whether the user gave the sizes of the run.
        ordered: whether iterations of different ranks are known to be the same.
    """
    meeting = np.full(len(collectives), NONE, np.int64)
    if len(collectives) == 0:
        return meeting

    def add(found: Ints) -> None:
        new = (found >= 0) & (meeting == NONE)
        meeting[new] = found[new] + int(meeting.max(initial=NONE)) + 1

    for own in _by_record(collectives, time, ordered=ordered):
        add(own)
    open_rows = (collectives.group == NONE) & (collectives.iteration >= 0)
    open_rows &= np.array([name != "" for name in collectives.kinds], bool)[collectives.kind]
    without_group = open_rows.copy()
    # A number for each rank that those share whose times can be compared.
    known = time.comparable & (time.uncertainty_ns >= 0)
    common = np.where(known[time.machine], NONE, time.machine)
    for partition in _partitions(stage, pipeline, reducing):
        rows = np.flatnonzero(open_rows & (meeting == NONE))
        if len(rows) == 0:
            break
        # Cells are divided by clocks; whole are those of ranks whose cell is not.
        divided = group_rows(partition, common)
        parts = np.bincount(group_rows(partition[divided.first]).of_row)
        inside = partition >= 0
        whole = (parts == 1)[group_rows(partition).of_row] | ~inside
        cell = np.where(inside, divided.of_row, NONE)
        members = np.stack((cell, np.arange(len(cell))))[:, inside]
        found = by_ends(collectives, rows, cell[collectives.rank[rows]], members, time)
        found = _usual(collectives, found)
        add(np.where(whole[collectives.rank], found, NONE))
        # Those whose clocks cannot be compared may be members as well: no smaller group is certain.
        alone = np.bincount(members[0], minlength=1)[cell] == 1
        open_rows &= whole[collectives.rank] | ((found == NONE) & ~alone[collectives.rank])
    if sizes_known:
        rows = np.flatnonzero(without_group & (meeting == NONE))
        add(_in_order(collectives, rows, reducing[collectives.rank]))
    return meeting


def _by_record(
    collectives: CollectiveIntervals, time: Timebase, *, ordered: bool
) -> Iterator[Ints]:
    """Yield the meetings of recorded groups: by numbers, by order, by ends."""
    group, groups = collectives.group, collectives.groups
    if not (group >= 0).any():
        return
    members = find_distinct_rows(group, collectives.rank)
    members = members[:, members[0] >= 0]
    present = np.bincount(members[0], minlength=len(groups)).tolist()
    # Whether those of a group are its members, and no others' of the same name.
    certain = [
        own.has_unique_name or bool(own.ranks) or own.size == count
        for own, count in zip(groups, present, strict=True)
    ]
    known = np.array([*certain, False], bool)[group]
    numbered = np.ones(len(groups) + 1, bool)
    numbered[group[collectives.sequence < 0]] = False
    rows = np.flatnonzero(known & numbered[group])
    place = group_rows(group[rows], collectives.sequence[rows]).of_row
    found = scatter(len(collectives), rows, place)
    yield _of_several(collectives, found)
    rows = np.flatnonzero(known & ~numbered[group] & (collectives.iteration >= 0))
    in_order = _in_order(collectives, rows if ordered else rows[:0], group)
    yield in_order
    # Where ranks ran one in more pieces than others, or groups share a name, the ends show it.
    rest = (group >= 0) & (found == NONE) & (in_order == NONE)
    rows = np.flatnonzero(rest & (collectives.iteration >= 0))
    most = np.array([own.size or len(collectives) for own in groups], np.int64)
    yield by_ends(collectives, rows, group[rows], members, time, most)


def _of_several(collectives: CollectiveIntervals, number: Ints) -> Ints:
    """Return numbers, -1 for those that a single rank has."""
    is_numbered = number >= 0
    rank = collectives.rank[is_numbered]
    count = int(number.max(initial=NONE)) + 1
    low, high = group_extents(number[is_numbered], count, rank, rank)
    return np.where(np.append(high > low, False)[number], number, NONE)


def _in_order(collectives: CollectiveIntervals, rows: Ints, cell: Ints) -> Ints:
    """Return the meetings of some rows by their place in the order of their rank.

    That is unknown where ranks of a cell have not as many of a kind in an iteration.
    """
    found = np.full(len(collectives), NONE, np.int64)
    rows = rows[cell[rows] >= 0]
    key = group_rows(cell[rows], collectives.iteration[rows], collectives.kind[rows]).of_row
    ranks = group_rows(key, collectives.rank[rows])
    count = np.bincount(ranks.of_row, minlength=1)
    least, most = group_extents(key[ranks.first], int(key.max(initial=NONE)) + 1, count, count)
    rows, key = rows[(least == most)[key]], key[(least == most)[key]]
    found[rows] = group_rows(key, collectives.order[rows]).of_row
    return _of_several(collectives, found)


def _partitions(stage: Ints, pipeline: Ints, reducing: Ints) -> Iterator[Ints]:
    """Yield a number for each rank that those share which can be one group, largest groups first.

    It is -1 for ranks that are in none.
    """
    working = stage >= 0
    everyone = np.where(working, 0, NONE) if working.any() else np.zeros(len(stage), np.int64)
    line = np.where(working, pipeline, NONE)
    edge = working & ((stage == 0) | (stage == stage.max(initial=NONE)))
    # Replicas of a stage that reduce with different ones are tensor-parallel.
    rows = np.flatnonzero(working & (reducing >= 0))
    place = group_rows(stage[rows], number_occurrences((reducing[rows],))).of_row
    beside = scatter(len(stage), rows, place)
    seen: set[bytes] = set()
    by_stage = np.where(working, stage, NONE)
    for partition in (everyone, line, by_stage, reducing, np.where(edge, line, NONE), beside):
        number = group_rows(partition).of_row
        key = np.where(partition < 0, NONE, number).tobytes()
        if key not in seen:
            seen.add(key)
            yield partition


def _usual(collectives: CollectiveIntervals, found: Ints) -> Ints:
    """Return the meetings of those that meet in at least half of the iterations.

    What ends together in few of them does so by chance.
    """
    of_class = group_rows(collectives.rank, collectives.kind, collectives.order).of_row
    meets = np.bincount(of_class, found >= 0)
    usual = 2 * meets >= np.bincount(of_class)
    number = int(found.max(initial=NONE)) + 1
    all_usual = np.ones(number, bool)
    all_usual[found[(found >= 0) & ~usual[of_class]]] = False
    return np.where(np.append(all_usual, False)[found], found, NONE)


def by_ends(
    collectives: CollectiveIntervals,
    rows: Ints,
    cell: Ints,
    members: Ints,
    time: Timebase,
    most: Ints | None = None,
) -> Ints:
    """Return the meetings of some rows: of those of all ranks of a cell that end together.

    Args:
        collectives: of all ranks.
        rows: to look at.
        cell: a number of each of these that those share which can be one; -1 none.
        members: cells and their ranks, shape (2, members).
        time: how far the clocks of ranks can be off.
        most: how many of the ranks of each cell can be one; None for all of them.
    """
    found = np.full(len(collectives), NONE, np.int64)
    size = np.bincount(members[0], minlength=int(cell.max(initial=NONE)) + 2)
    if most is not None:
        size[: len(most)] = np.minimum(size[: len(most)], most[: len(size)])
    tolerances_ns = np.full(len(size), NONE, np.int64)
    for place in np.flatnonzero(size > 1).tolist():
        tolerances_ns[place] = _tolerance_ns(time, members[1][members[0] == place])
    usable = (cell >= 0) & (tolerances_ns[cell] >= 0)
    rows, cell = rows[usable], cell[usable]
    key = group_rows(cell, collectives.iteration[rows], collectives.kind[rows]).of_row
    order = sort_rows(key, collectives.end_ns[rows])
    rows, cell, key = rows[order], cell[order], key[order]
    rank, end_ns = collectives.rank[rows], collectives.end_ns[rows]
    length_ns, tolerance_ns = end_ns - collectives.start_ns[rows], tolerances_ns[cell]
    shorter_ns = np.minimum(length_ns[1:], length_ns[:-1])
    apart = end_ns[1:] - end_ns[:-1] > tolerance_ns[1:] + _slack_ns(shorter_ns)
    apart |= key[1:] != key[:-1]
    number = _divided(np.cumsum(np.append(False, apart))[: len(rows)], rank, end_ns)
    # Of a rank's pieces the last end counts.
    last = find_first_rows(group_rows(number, rank).of_row, -end_ns)
    count = int(number.max(initial=NONE)) + 1
    low, high = group_extents(number[last], count, end_ns[last], end_ns[last])
    shortest_ns = group_extents(number[last], count, length_ns[last], length_ns[last])[0]
    whole = np.bincount(number[last], minlength=len(low))[number] == size[cell]
    tolerance_ns = tolerance_ns + _slack_ns(shortest_ns)[number]
    together = np.flatnonzero(whole & ((high - low)[number] <= tolerance_ns))
    steady = _steady(
        collectives.take(rows[together]),
        cell[together],
        low[number[together]],
        tolerances_ns[cell[together]] > LEAVE_NS,
    )
    together = together[steady]
    if len(together) == 0:
        return found
    found[rows[together]] = number[together]
    return _with_pieces(collectives, found)


def _tolerance_ns(time: Timebase, ranks: Ints) -> int:
    """Return how far the ends of one collective of some ranks may be apart; -1 any."""
    machines = find_distinct(time.machine[ranks])
    if len(machines) == 1:
        return LEAVE_NS
    uncertainty_ns = time.uncertainty_ns[machines]
    if not time.comparable[machines].all() or (uncertainty_ns < 0).any():
        return NONE
    return LEAVE_NS + int(np.sort(uncertainty_ns)[-2:].sum())


def _slack_ns(length_ns: Ints) -> Ints:
    """Return how much farther apart the ends of long collectives may be than those of short ones.

    Args:
        length_ns: of the shortest of each.
    """
    return np.maximum(length_ns // _LEAVE_PARTS - LEAVE_NS, 0)


def _divided(cluster: Ints, rank: Ints, end_ns: Ints) -> Ints:
    """Return numbers of clusters, divided where each rank has as many rows of one.

    Several collectives right after each other end within the tolerance; in order they are one each.
    """
    ranks = group_rows(cluster, rank)
    order = sort_rows(ranks.of_row, end_ns)
    nth = np.empty(len(order), np.int64)
    nth[order] = number_occurrences((ranks.of_row[order],))
    count = np.bincount(ranks.of_row)
    of_cluster = cluster[ranks.first]
    least, most = group_extents(of_cluster, int(cluster.max(initial=NONE)) + 1, count, count)
    return group_rows(cluster, np.where((least == most)[cluster], nth, 0)).of_row


def _steady(own: CollectiveIntervals, cell: Ints, first_ns: Ints, doubtful: Bools) -> Bools:
    """Return which rows end as long after the first of their members each time, but for drift.

    Where clocks are not well known, much ends together within what they may be apart.

    Args:
        own: rows that end together.
        cell: of each.
        first_ns: the first end of their members.
        doubtful: whether clocks are not well known.
    """
    pair, cells = group_rows(cell, own.kind, own.rank), group_rows(cell, own.kind)
    moves = is_unsteady(pair, own.end_ns - first_ns, own.end_ns) & doubtful
    steady = np.ones(len(cells), bool)
    steady[cells.of_row[moves]] = False
    return np.asarray(steady[cells.of_row], bool)


def _with_pieces(collectives: CollectiveIntervals, found: Ints) -> Ints:
    """Return meetings with the rows that are pieces of them: right before, where others have none.

    ::

        rank 0   ├────────────────┤
        rank 1     ├─────┤├───────┤
    """
    rank, kind, iteration = collectives.rank, collectives.kind, collectives.iteration
    key = group_rows(rank, kind, iteration, collectives.group).of_row
    order = sort_rows(key, collectives.start_ns)
    now, following = order[:-1], order[1:]
    gap_ns = collectives.start_ns[following] - collectives.end_ns[now]
    follows = (key[now] == key[following]) & (gap_ns <= _PIECES_NS)
    # The meeting that each row, or what follows it right away, is in.
    place = np.arange(len(order))
    ends = np.append(~follows, True) | (found[order] >= 0)
    last = np.minimum.accumulate(np.where(ends, place, len(order))[::-1])[::-1]
    joined = scatter(len(order), order, found[order[last]])
    # Other members of the meeting have fewer of the kind in the iteration.
    count = np.bincount(key)
    met = np.flatnonzero(found >= 0)
    n_pieces = count[key[met]]
    n_meetings = int(found.max(initial=NONE)) + 1
    fewest, _ = group_extents(found[met], n_meetings, n_pieces, n_pieces)
    new = np.flatnonzero((found == NONE) & (joined >= 0))
    new = new[count[key[new]] > fewest[joined[new]]]
    result = found.copy()
    result[new] = joined[new]
    return result


def without_members(
    collectives: CollectiveIntervals, exposed: RankIntervals
) -> Iterator[Limitation]:
    """Yield limitations for collectives with unknown members, or not recorded.

    Args:
        collectives: of all ranks.
        exposed: when only collectives ran on ranks.
    """
    groups, group, meeting = collectives.groups, collectives.group, collectives.meeting
    alone = np.array([*(own.size == 1 for own in groups), False], bool)[group]
    unmet = (meeting == NONE) & ~alone
    # Where members of a group are certain, those that meet none lack them.
    certain = np.array([*(own.has_unique_name or bool(own.ranks) for own in groups), False], bool)[
        group
    ]
    size = np.array([*(own.size for own in groups), 0], np.int64)[group]
    known = meeting >= 0
    members = find_distinct_rows(meeting[known], collectives.rank[known])[0]
    present = np.bincount(members, minlength=int(meeting.max(initial=NONE)) + 1)
    few = known & (size > np.append(present, 0)[meeting])
    for which, what, reason in (
        (
            unmet & ~certain,
            "collectives with unknown members",
            "no communicator or process group is recorded, and no kernels end together, so waiting "
            "counts as collective",
        ),
        (
            (unmet & certain) | few,
            "collectives with members that were not recorded",
            "some of their ranks have no profile, so waiting for these counts as collective",
        ),
    ):
        if count := _count(collectives, exposed, which):
            yield Limitation(what, reason, count)


def _count(collectives: CollectiveIntervals, exposed: RankIntervals, which: Bools) -> int:
    """Return how many of some collectives ran while nothing else did."""
    if not which.any():
        return 0
    own = collectives.take(which)
    ranks = int(max(exposed.rank.max(initial=NONE), own.rank.max())) + 1
    rank = np.concatenate((exposed.rank, own.rank))
    start_ns = np.concatenate((exposed.start_ns, own.start_ns))
    end_ns = np.concatenate((exposed.end_ns, own.end_ns))
    extents = group_extents(rank, ranks, start_ns, end_ns)
    packing = Packing.of(*extents)
    alone, times = (
        [packing.place(table.rank, time_ns) for time_ns in (table.start_ns, table.end_ns)]
        for table in (exposed, own)
    )
    return int((measure_within((alone[0], alone[1]), times[0], times[1]) > 0).sum())
