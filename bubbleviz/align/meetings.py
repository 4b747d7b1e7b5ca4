"""Meetings: which collectives of different ranks are one collective operation.

Members of a recorded communicator or process group meet in the order in which each rank launched
its collectives. If no group is recorded, the candidates are sets of ranks that could be a group:
all ranks, a pipeline, the replicas of a stage, or the first and the last stage. No member leaves a
collective before all have entered, and all leave it together, so equal end times show a meeting::

    rank 0   ├───────────────────┤        ├──┤
    rank 1        ├──────────────┤  ├──┤             the first two meet, the others do not
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.clocks.precedences import LEAVE_NS, is_unsteady
from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model.collectives import CollectiveIntervals, Group
from bubbleviz.model.columns import NONE, Bools, Ints, Table, scatter
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

#: Ranks leave a collective within ``LEAVE_NS`` of each other, or within the time that data moved
#: (the duration on the rank that entered last) divided by this number. In jobs that ByteDance
#: published they leave within 1/1,000 of that time in the median, and 1/100 at most.
_LEAVE_DIVISOR = 50
#: Maximum time between two pieces of one collective.
_MAX_PIECE_GAP_NS = 5_000


def match_collectives(
    recordings: JoinedRecordings, time: Timebase, parallel: Parallel | None
) -> CollectiveIntervals:
    """Return the collectives of all ranks, with common iterations and meetings.

    If a table of operations states any meetings, these are kept and no others are searched for.

    Args:
        recordings: The recordings on the report's clock, with stages, pipelines and iterations.
        time: Uncertainty of the clocks.
        parallel: Sizes of the run, or None if the user gives none.
    """
    table = recordings.collectives
    table = table.replace_columns(
        iteration=recordings.get_common_iterations(table.rank, table.iteration)
    )
    if (table.meeting != NONE).any():
        # A table of operations states the meetings.
        return table
    compared = table
    if not recordings.paired:
        # Only sequence numbers within groups, and equal ends, show what meets.
        compared = table.replace_columns(iteration=np.zeros(len(table), np.int64))
    meeting = find_meetings(
        compared,
        recordings.stage_of_rank,
        recordings.pipeline,
        recordings.reducing,
        time,
        sizes_known=recordings.paired and parallel is not None,
        ordered=recordings.paired,
    )
    return table.replace_columns(meeting=meeting)


class _Meetings:
    """Meetings found so far. A collective keeps its first meeting.

    Attributes:
        number: Meeting of each collective, or -1 if unknown.
    """

    def __init__(self, n_collectives: int) -> None:
        self.number = np.full(n_collectives, NONE, np.int64)

    def add(self, meeting: Ints) -> None:
        """Add the meetings of another method, for the collectives that have no meeting yet.

        Args:
            meeting: Meeting of each collective, or -1 if unknown. The numbers are changed, so that
                they differ from those of earlier methods.
        """
        is_new = (meeting >= 0) & (self.number == NONE)
        next_number = int(self.number.max(initial=NONE)) + 1
        self.number[is_new] = meeting[is_new] + next_number


def find_meetings(
    collectives: CollectiveIntervals,
    stage: Ints,
    pipeline: Ints,
    reducing: Ints,
    time: Timebase,
    *,
    sizes_known: bool = False,
    ordered: bool = True,
) -> Ints:
    """Find the meeting of each collective.

    Methods are tried in order of reliability. Collectives with a recorded group are matched within
    it. The others are matched by equal ends within candidate groups, largest groups first, and if
    ``sizes_known``, finally by the order of launches among ranks that reduce together.

    Args:
        collectives: Collectives of all ranks on the report's clock, with common iterations.
        stage: Stage of each rank, or -1 if unknown.
        pipeline: Pipeline of each rank, or -1 if the replicas of a stage cannot be distinguished.
        reducing: Group of the ranks that reduce gradients together, or -1 if there is none.
        time: Uncertainty of the clocks of ranks.
        sizes_known: Whether the user gave the sizes of the run.
        ordered: Whether iterations of different ranks are known to be the same.

    Returns:
        Meeting of each collective, or -1 if unknown. Collectives that meet have equal numbers.
    """
    meetings = _Meetings(len(collectives))
    if len(collectives) == 0:
        return meetings.number
    for meeting in _match_recorded_groups(collectives, time, ordered=ordered):
        meetings.add(meeting)
    has_name = np.array([name != "" for name in collectives.kinds], bool)[collectives.kind]
    is_groupless = (collectives.group == NONE) & (collectives.iteration >= 0) & has_name
    _match_in_partitions(
        meetings, collectives, is_groupless, _list_partitions(stage, pipeline, reducing), time
    )
    if sizes_known:
        rows = np.flatnonzero(is_groupless & (meetings.number == NONE))
        meetings.add(_match_by_order(collectives, rows, reducing[collectives.rank]))
    return meetings.number


def _match_in_partitions(
    meetings: _Meetings,
    collectives: CollectiveIntervals,
    is_open: Bools,
    partitions: Iterator[Ints],
    time: Timebase,
) -> None:
    """Add the meetings of collectives that end together in groups of each partition of the ranks.

    A group is divided into parts if the clocks of its ranks cannot be compared. Ranks of different
    parts may meet as well, so a meeting within a part is not certain and is not added. A collective
    of a divided group is tried again in smaller groups only if its part has several ranks, and the
    collective has no meeting within its part.

    Args:
        meetings: Meetings so far; updated.
        collectives: Collectives of all ranks.
        is_open: Mask of the collectives without a recorded group.
        partitions: Group of each rank, or -1 if it is in none, for each partition.
        time: Uncertainty of the clocks of ranks.
    """
    is_open = is_open.copy()
    is_comparable = time.comparable & (time.uncertainty_ns >= 0)
    comparable_clock = np.where(is_comparable[time.machine], NONE, time.machine)
    for partition in partitions:
        rows = np.flatnonzero(is_open & (meetings.number == NONE))
        if len(rows) == 0:
            return
        cell, is_undivided = _divide_by_clock(partition, comparable_clock)
        members = np.stack((cell, np.arange(len(cell))))[:, cell >= 0]
        meeting = match_by_ends(collectives, rows, cell[collectives.rank[rows]], members, time)
        meeting = _select_frequent(collectives, meeting)
        meetings.add(np.where(is_undivided[collectives.rank], meeting, NONE))
        # Ranks whose clocks cannot be compared may be members, so no smaller group is certain.
        is_only_member = np.bincount(members[0], minlength=1)[cell] == 1
        may_meet = (meeting == NONE) & ~is_only_member[collectives.rank]
        is_open &= is_undivided[collectives.rank] | may_meet


def _divide_by_clock(partition: Ints, comparable_clock: Ints) -> tuple[Ints, Bools]:
    """Divide groups of ranks into parts (cells) whose clocks can be compared.

    Args:
        partition: Group of each rank, or -1 if it is in none.
        comparable_clock: Number of each rank that is equal for ranks whose clocks can be compared.

    Returns:
        cell: Cell of each rank, or -1 if it is in no group.
        is_undivided: Mask of the ranks whose group is a single cell, and of the ranks in no group.
    """
    cells = group_rows(partition, comparable_clock)
    n_cells_of_group = np.bincount(group_rows(partition[cells.first]).of_row)
    has_group = partition >= 0
    is_undivided = (n_cells_of_group == 1)[group_rows(partition).of_row] | ~has_group
    return np.where(has_group, cells.of_row, NONE), is_undivided


def _match_recorded_groups(
    collectives: CollectiveIntervals, time: Timebase, *, ordered: bool
) -> Iterator[Ints]:
    """Yield the meetings of recorded groups: by sequence numbers, by order, and by equal ends.

    Sequence numbers are used for groups whose members are certain and whose collectives all have a
    sequence number. Order is used for the other groups with certain members if iterations are known
    to be the same. Equal ends are used for all collectives that remain.

    Args:
        collectives: Collectives of all ranks.
        time: Uncertainty of the clocks of ranks.
        ordered: Whether iterations of different ranks are known to be the same.

    Yields:
        Meeting of each collective, or -1 if unknown: one array per method, or nothing if no group
        is recorded.
    """
    group, groups = collectives.group, collectives.groups
    if not (group >= 0).any():
        return
    members = find_distinct_rows(group, collectives.rank)
    members = members[:, members[0] >= 0]
    has_certain_group = _mask_certain_groups(groups, members)[group]
    is_numbered = np.ones(len(groups) + 1, bool)
    is_numbered[group[collectives.sequence < 0]] = False

    rows = np.flatnonzero(has_certain_group & is_numbered[group])
    number = group_rows(group[rows], collectives.sequence[rows]).of_row
    by_number = scatter(len(collectives), rows, number)
    yield _drop_single_ranks(collectives, by_number)
    has_iteration = collectives.iteration >= 0
    rows = np.flatnonzero(has_certain_group & ~is_numbered[group] & has_iteration)
    by_order = _match_by_order(collectives, rows if ordered else rows[:0], group)
    yield by_order
    # Equal ends remain if ranks ran one in different numbers of pieces, or groups share a name.
    is_unmatched = (group >= 0) & (by_number == NONE) & (by_order == NONE)
    rows = np.flatnonzero(is_unmatched & has_iteration)
    max_size = [communicator.size or len(collectives) for communicator in groups]
    yield match_by_ends(collectives, rows, group[rows], members, time, np.array(max_size, np.int64))


def _mask_certain_groups(groups: Sequence[Group], members: Ints) -> Bools:
    """Return a mask of the recorded groups whose members are certain.

    Several groups may share a name. The members are certain only if that is excluded: the name is
    unique, the group records its ranks, or as many ranks as its size run its collectives.

    Args:
        groups: Recorded communicators and process groups.
        members: Groups and the ranks that run their collectives, shape (2, members).

    Returns:
        Mask with one entry per group, and a last entry of False for collectives of group -1.
    """
    n_present = np.bincount(members[0], minlength=len(groups)).tolist()
    is_certain = [
        communicator.has_unique_name or bool(communicator.ranks) or communicator.size == count
        for communicator, count in zip(groups, n_present, strict=True)
    ]
    return np.array([*is_certain, False], bool)


def _drop_single_ranks(collectives: CollectiveIntervals, meeting: Ints) -> Ints:
    """Return the meetings, with -1 in place of each meeting that contains only one rank."""
    has_meeting = meeting >= 0
    rank = collectives.rank[has_meeting]
    n_meetings = int(meeting.max(initial=NONE)) + 1
    low, high = group_extents(meeting[has_meeting], n_meetings, rank, rank)
    return np.where(np.append(high > low, False)[meeting], meeting, NONE)


def _match_by_order(collectives: CollectiveIntervals, rows: Ints, cell: Ints) -> Ints:
    """Match collectives by order: the n-th collective of a kind on each rank of a cell meet.

    A cell is a group of ranks. Collectives are counted separately in each iteration.

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to match.
        cell: Cell of each collective, or -1 if it is in none.

    Returns:
        Meeting of each collective. It is -1 for rows that are not matched, for meetings with a
        single rank, and if the ranks of a cell run different numbers of collectives of a kind in
        the iteration.
    """
    meeting = np.full(len(collectives), NONE, np.int64)
    rows = rows[cell[rows] >= 0]
    key = group_rows(cell[rows], collectives.iteration[rows], collectives.kind[rows]).of_row
    key_ranks = group_rows(key, collectives.rank[rows])
    count = np.bincount(key_ranks.of_row, minlength=1)
    n_keys = int(key.max(initial=NONE)) + 1
    min_count, max_count = group_extents(key[key_ranks.first], n_keys, count, count)
    is_equal = (min_count == max_count)[key]
    rows, key = rows[is_equal], key[is_equal]
    meeting[rows] = group_rows(key, collectives.order[rows]).of_row
    return _drop_single_ranks(collectives, meeting)


def _list_partitions(stage: Ints, pipeline: Ints, reducing: Ints) -> Iterator[Ints]:
    """Yield the group of each rank for each way to divide the ranks into groups, largest first.

    The divisions are: all ranks, pipelines, stages, ranks that reduce together, first and last
    stage of each pipeline, and replicas of a stage that reduce with different ranks (tensor
    parallelism). The group is -1 for a rank that a division leaves out, such as one without a
    stage. A division that equals an earlier one is skipped.

    Args:
        stage: Stage of each rank, or -1 if unknown.
        pipeline: Pipeline of each rank, or -1 if unknown.
        reducing: Group of the ranks that reduce gradients together, or -1 if there is none.
    """
    is_working = stage >= 0
    all_ranks = np.zeros(len(stage), np.int64)
    all_working = np.where(is_working, 0, NONE) if is_working.any() else all_ranks
    by_pipeline = np.where(is_working, pipeline, NONE)
    by_stage = np.where(is_working, stage, NONE)
    is_first_or_last = is_working & ((stage == 0) | (stage == stage.max(initial=NONE)))
    by_ends = np.where(is_first_or_last, by_pipeline, NONE)
    by_tensor = _group_tensor_ranks(stage, reducing)
    yielded: set[bytes] = set()
    for partition in (all_working, by_pipeline, by_stage, reducing, by_ends, by_tensor):
        number = group_rows(partition).of_row
        key = np.where(partition < 0, NONE, number).tobytes()
        if key not in yielded:
            yielded.add(key)
            yield partition


def _group_tensor_ranks(stage: Ints, reducing: Ints) -> Ints:
    """Group the replicas of each stage that reduce with different ranks (tensor parallelism).

    The n-th ranks of all reducing groups of a stage form one group.

    Args:
        stage: Stage of each rank, or -1 if unknown.
        reducing: Group of the ranks that reduce gradients together, or -1 if there is none.

    Returns:
        Group of each rank, or -1 if its stage or its reducing group is unknown.
    """
    rows = np.flatnonzero((stage >= 0) & (reducing >= 0))
    tensor_group = group_rows(stage[rows], number_occurrences((reducing[rows],))).of_row
    return scatter(len(stage), rows, tensor_group)


def _select_frequent(collectives: CollectiveIntervals, meeting: Ints) -> Ints:
    """Return the meetings, with -1 for those that do not recur in at least half of the iterations.

    Ends that agree in only a few iterations agree by chance. Collectives of different iterations
    with equal rank, kind and order form a series. A meeting is dropped if any of its members is
    from a series in which fewer than half of the collectives have a meeting.
    """
    series = group_rows(collectives.rank, collectives.kind, collectives.order).of_row
    n_met = np.bincount(series, meeting >= 0)
    is_frequent = 2 * n_met >= np.bincount(series)
    n_meetings = int(meeting.max(initial=NONE)) + 1
    is_kept = np.ones(n_meetings, bool)
    is_kept[meeting[(meeting >= 0) & ~is_frequent[series]]] = False
    return np.where(np.append(is_kept, False)[meeting], meeting, NONE)


def match_by_ends(
    collectives: CollectiveIntervals,
    rows: Ints,
    cell: Ints,
    members: Ints,
    time: Timebase,
    max_size: Ints | None = None,
) -> Ints:
    """Match collectives of one kind and iteration that end together on all ranks of a cell.

    A cell is a group of ranks that may run the same collectives. Ends agree within the uncertainty
    of the clocks plus ``LEAVE_NS``, or plus the shortest duration divided by ``_LEAVE_DIVISOR`` if
    that is longer than ``LEAVE_NS``. On clocks of several machines, the differences of the ends
    must also stay the same over iterations (:func:`_is_steady`).

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to match.
        cell: Cell of each of these rows, or -1 if it is in none.
        members: Cell and rank of each member of a cell, shape (2, members).
        time: Uncertainty of the clocks of ranks.
        max_size: Maximum number of ranks of each cell that meet. By default all ranks of the cell
            must meet.

    Returns:
        Meeting of each collective, or -1 if it ends with too few others. A meeting can contain
        several rows of a rank, which are pieces of one collective.
    """
    meeting = np.full(len(collectives), NONE, np.int64)
    n_cells = int(cell.max(initial=NONE)) + 2
    size = np.bincount(members[0], minlength=n_cells)
    if max_size is not None:
        size[: len(max_size)] = np.minimum(size[: len(max_size)], max_size[: len(size)])
    tolerance_of_cell = _get_tolerances(time, members, size)
    is_usable = (cell >= 0) & (tolerance_of_cell[cell] >= 0)
    clustered = _group_by_end(collectives, rows[is_usable], cell[is_usable], tolerance_of_cell)
    of_cluster = _measure_ends(collectives, clustered).take(clustered.cluster)
    is_complete = of_cluster.n_ranks == size[clustered.cell]
    tolerance_ns = tolerance_of_cell[clustered.cell] + _get_slack_ns(of_cluster.shortest_ns)
    is_together = is_complete & (of_cluster.last_end_ns - of_cluster.first_end_ns <= tolerance_ns)
    clustered = clustered.take(is_together)
    is_steady = _is_steady(
        collectives.take(clustered.row),
        clustered.cell,
        of_cluster.first_end_ns[is_together],
        tolerance_of_cell[clustered.cell] > LEAVE_NS,
    )
    matched = clustered.take(is_steady)
    if len(matched) == 0:
        return meeting
    meeting[matched.row] = matched.cluster
    return _add_pieces(collectives, meeting)


@dataclass(frozen=True, eq=False, repr=False)
class _Clustered(Table):
    """Collectives of all cells, divided into clusters that end together.

    Attributes:
        row: Row of the collective.
        cell: Cell of the collective.
        cluster: Cluster of the collective.
    """

    row: Ints
    cell: Ints
    cluster: Ints


@dataclass(frozen=True, eq=False, repr=False)
class _ClusterEnds(Table):
    """Ends of the clusters, one row per cluster. The last collective of each rank counts.

    Attributes:
        first_end_ns: First end among the ranks.
        last_end_ns: Last end among the ranks.
        shortest_ns: Shortest duration among the ranks.
        n_ranks: Number of ranks.
    """

    first_end_ns: Ints
    last_end_ns: Ints
    shortest_ns: Ints
    n_ranks: Ints


def _measure_ends(collectives: CollectiveIntervals, clustered: _Clustered) -> _ClusterEnds:
    """Measure when each cluster ends on its first and on its last rank.

    If a rank has several collectives in a cluster, which are pieces of one, the last to end counts.

    Args:
        collectives: Collectives of all ranks.
        clustered: Rows of the collectives, with their clusters.
    """
    end_ns = collectives.end_ns[clustered.row]
    length_ns = end_ns - collectives.start_ns[clustered.row]
    ranks_of_cluster = group_rows(clustered.cluster, collectives.rank[clustered.row])
    last = find_first_rows(ranks_of_cluster.of_row, -end_ns)
    cluster = clustered.cluster[last]
    n_clusters = int(clustered.cluster.max(initial=NONE)) + 1
    first_end_ns, last_end_ns = group_extents(cluster, n_clusters, end_ns[last], end_ns[last])
    shortest_ns, _ = group_extents(cluster, n_clusters, length_ns[last], length_ns[last])
    n_ranks = np.bincount(cluster, minlength=n_clusters)
    return _ClusterEnds(first_end_ns, last_end_ns, shortest_ns, n_ranks)


def _group_by_end(
    collectives: CollectiveIntervals, rows: Ints, cell: Ints, tolerance_of_cell: Ints
) -> _Clustered:
    """Divide the collectives of a cell, iteration and kind into clusters that end together.

    The collectives are divided at gaps between their end times. A gap is a difference of
    consecutive end times that exceeds the tolerance of the cell plus the slack of the shorter of
    the two collectives (:func:`_get_slack_ns`). If a cluster has several rows of each rank, it is
    divided further (:func:`_split_clusters`).

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to divide.
        cell: Cell of each of these rows.
        tolerance_of_cell: Maximum difference between the ends of one collective, for each cell.

    Returns:
        The rows with their cells and clusters, sorted by (cell, iteration, kind) and end time.
    """
    key = group_rows(cell, collectives.iteration[rows], collectives.kind[rows]).of_row
    order = sort_rows(key, collectives.end_ns[rows])
    rows, cell, key = rows[order], cell[order], key[order]
    end_ns = collectives.end_ns[rows]
    length_ns = end_ns - collectives.start_ns[rows]
    shorter_ns = np.minimum(length_ns[1:], length_ns[:-1])
    max_gap_ns = tolerance_of_cell[cell][1:] + _get_slack_ns(shorter_ns)
    is_new = (end_ns[1:] - end_ns[:-1] > max_gap_ns) | (key[1:] != key[:-1])
    cluster = np.cumsum(np.append(False, is_new))[: len(rows)]
    return _Clustered(rows, cell, _split_clusters(cluster, collectives.rank[rows], end_ns))


def _get_tolerances(time: Timebase, members: Ints, size: Ints) -> Ints:
    """Return the maximum difference between the ends of one collective on the ranks of each cell.

    It is -1 for a cell with fewer than two ranks, or with clocks that cannot be compared.

    Args:
        time: Uncertainty of the clocks of ranks.
        members: Cells and their ranks, shape (2, members).
        size: Number of ranks of each cell that meet.
    """
    tolerance_of_cell = np.full(len(size), NONE, np.int64)
    for cell in np.flatnonzero(size > 1).tolist():
        tolerance_of_cell[cell] = _get_tolerance_ns(time, members[1][members[0] == cell])
    return tolerance_of_cell


def _get_tolerance_ns(time: Timebase, ranks: Ints) -> int:
    """Return the maximum difference between the ends of one collective on the given ranks.

    On one clock it is ``LEAVE_NS``. On several clocks, the two largest uncertainties are added. It
    is -1 if the clocks cannot be compared.
    """
    machines = find_distinct(time.machine[ranks])
    if len(machines) == 1:
        return LEAVE_NS
    uncertainty_ns = time.uncertainty_ns[machines]
    if not time.comparable[machines].all() or (uncertainty_ns < 0).any():
        return NONE
    return LEAVE_NS + int(np.sort(uncertainty_ns)[-2:].sum())


def _get_slack_ns(length_ns: Ints) -> Ints:
    """Return the additional tolerance for the ends of long collectives.

    It is the duration divided by ``_LEAVE_DIVISOR``, minus ``LEAVE_NS``, and at least 0.

    Args:
        length_ns: Duration of each collective on the rank where it is shortest.
    """
    return np.maximum(length_ns // _LEAVE_DIVISOR - LEAVE_NS, 0)


def _split_clusters(cluster: Ints, rank: Ints, end_ns: Ints) -> Ints:
    """Split each cluster in which all ranks have equally many rows.

    Several collectives in quick succession end within the tolerance. The n-th rows of all ranks, in
    order of their ends, then form one cluster. Other clusters are not split.

    Args:
        cluster: Cluster of each row.
        rank: Rank of each row.
        end_ns: End of each row.

    Returns:
        New cluster of each row.
    """
    cluster_ranks = group_rows(cluster, rank)
    order = sort_rows(cluster_ranks.of_row, end_ns)
    nth = np.empty(len(order), np.int64)
    nth[order] = number_occurrences((cluster_ranks.of_row[order],))
    count = np.bincount(cluster_ranks.of_row)
    cluster_of_pair = cluster[cluster_ranks.first]
    n_clusters = int(cluster.max(initial=NONE)) + 1
    min_count, max_count = group_extents(cluster_of_pair, n_clusters, count, count)
    is_equal = (min_count == max_count)[cluster]
    return group_rows(cluster, np.where(is_equal, nth, 0)).of_row


def _is_steady(
    collectives: CollectiveIntervals, cell: Ints, first_end_ns: Ints, is_doubtful: Bools
) -> Bools:
    """Return a mask of the collectives whose ends keep their distance from the first end.

    The distance is the time from the first end among the members of a meeting to the end of the
    collective. If clocks are uncertain, many collectives end together by chance, and their
    distances vary. The distances of members of one collective are the same in all iterations,
    except for drift. If the distance of a rank varies, all collectives of its cell and kind are
    left out of the mask. Collectives that are not doubtful do not count as varying.

    Args:
        collectives: Collectives that end together.
        cell: Cell of each collective.
        first_end_ns: First end among the members of its meeting.
        is_doubtful: Mask of the collectives on clocks with an uncertainty.
    """
    pairs = group_rows(cell, collectives.kind, collectives.rank)
    cells = group_rows(cell, collectives.kind)
    distance_ns = collectives.end_ns - first_end_ns
    varies = is_unsteady(pairs, distance_ns, collectives.end_ns) & is_doubtful
    is_steady = np.ones(len(cells), bool)
    is_steady[cells.of_row[varies]] = False
    return np.asarray(is_steady[cells.of_row], bool)


def _add_pieces(collectives: CollectiveIntervals, meeting: Ints) -> Ints:
    """Return the meetings, with earlier pieces of a collective added to the last piece's meeting.

    A rank may record one collective as several consecutive rows, its pieces. A row is a piece if
    the next collective of its rank, kind, iteration and group starts within ``_MAX_PIECE_GAP_NS``
    of its end, and that next collective has a meeting or is itself a piece. The rank must also run
    more collectives of this kind, group and iteration than the member of the meeting that runs the
    fewest::

        rank 0   ├────────────────┤
        rank 1     ├─────┤├───────┤

    Args:
        collectives: Collectives of all ranks.
        meeting: Meeting of each collective, or -1 if it has none.

    Returns:
        Meeting of each collective, including the pieces.
    """
    key = group_rows(
        collectives.rank, collectives.kind, collectives.iteration, collectives.group
    ).of_row
    meeting_of_chain = _find_chain_meetings(collectives, key, meeting)
    n_pieces = np.bincount(key)[key]
    met = np.flatnonzero(meeting >= 0)
    n_meetings = int(meeting.max(initial=NONE)) + 1
    fewest, _ = group_extents(meeting[met], n_meetings, n_pieces[met], n_pieces[met])
    candidates = np.flatnonzero((meeting == NONE) & (meeting_of_chain >= 0))
    pieces = candidates[n_pieces[candidates] > fewest[meeting_of_chain[candidates]]]
    extended = meeting.copy()
    extended[pieces] = meeting_of_chain[pieces]
    return extended


def _find_chain_meetings(collectives: CollectiveIntervals, key: Ints, meeting: Ints) -> Ints:
    """Find the meeting that each collective belongs to if it is a piece of one.

    Collectives of a group that follow each other within ``_MAX_PIECE_GAP_NS`` form a chain. A
    collective with a meeting keeps that meeting. Any other collective gets the meeting of the next
    collective in its chain that has one.

    Args:
        collectives: Collectives of all ranks.
        key: Group of collectives of one rank, kind, iteration and communicator, for each
            collective.
        meeting: Meeting of each collective, or -1 if it has none.

    Returns:
        Meeting for each collective, or -1 if no later collective of its chain has one.
    """
    order = sort_rows(key, collectives.start_ns)
    row, next_row = order[:-1], order[1:]
    gap_ns = collectives.start_ns[next_row] - collectives.end_ns[row]
    is_continued = (key[row] == key[next_row]) & (gap_ns <= _MAX_PIECE_GAP_NS)
    # Find the next row in each chain of pieces that has a meeting, or that ends the chain.
    position = np.arange(len(order))
    is_last = np.append(~is_continued, True) | (meeting[order] >= 0)
    next_last = np.where(is_last, position, len(order))
    last = np.minimum.accumulate(next_last[::-1])[::-1]
    return scatter(len(order), order, meeting[order[last]])


def find_incomplete_collectives(
    collectives: CollectiveIntervals, exposed: RankIntervals
) -> Iterator[Limitation]:
    """Yield limitations for collectives whose members are unknown, or were not all recorded.

    There are at most two limitations, each with the number of collectives. The first counts
    collectives without a meeting in groups whose members are not certain. The second counts
    collectives without a meeting in groups with certain members, and meetings with fewer ranks than
    their group has. Only collectives that ran, at least in part, while nothing else did are
    counted. Collectives without a meeting in groups of a single rank are ignored.

    Args:
        collectives: Collectives of all ranks, with their meetings.
        exposed: Time of each rank in which nothing but collectives ran.
    """
    groups, group, meeting = collectives.groups, collectives.group, collectives.meeting
    is_single = np.array([*(c.size == 1 for c in groups), False], bool)[group]
    is_unmet = (meeting == NONE) & ~is_single
    # If the members of a group are certain, those of an unmatched collective were not recorded.
    is_certain = np.array([*(c.has_unique_name or bool(c.ranks) for c in groups), False], bool)[
        group
    ]
    size = np.array([*(c.size for c in groups), 0], np.int64)[group]
    is_met = meeting >= 0
    members, _ = find_distinct_rows(meeting[is_met], collectives.rank[is_met])
    n_present = np.bincount(members, minlength=int(meeting.max(initial=NONE)) + 1)
    lacks_members = is_met & (size > np.append(n_present, 0)[meeting])
    if count := _count_exposed(collectives, exposed, is_unmet & ~is_certain):
        yield Limitation(
            "collectives with unknown members",
            "no communicator or process group is recorded, and no kernels end together, so waiting "
            "counts as collective",
            count,
        )
    if count := _count_exposed(collectives, exposed, (is_unmet & is_certain) | lacks_members):
        yield Limitation(
            "collectives with members that were not recorded",
            "some of their ranks have no profile, so waiting for these counts as collective",
            count,
        )


def _count_exposed(
    collectives: CollectiveIntervals, exposed: RankIntervals, is_counted: Bools
) -> int:
    """Count the collectives of a mask that ran, at least in part, while nothing else did.

    Args:
        collectives: Collectives of all ranks.
        exposed: Time of each rank in which nothing but collectives ran.
        is_counted: Mask of the collectives to count.
    """
    if not is_counted.any():
        return 0
    counted = collectives.take(is_counted)
    n_ranks = int(max(exposed.rank.max(initial=NONE), counted.rank.max())) + 1
    rank = np.concatenate((exposed.rank, counted.rank))
    start_ns = np.concatenate((exposed.start_ns, counted.start_ns))
    end_ns = np.concatenate((exposed.end_ns, counted.end_ns))
    packing = Packing.of(*group_extents(rank, n_ranks, start_ns, end_ns))
    exposed_start = packing.place(exposed.rank, exposed.start_ns)
    exposed_end = packing.place(exposed.rank, exposed.end_ns)
    start = packing.place(counted.rank, counted.start_ns)
    end = packing.place(counted.rank, counted.end_ns)
    return int((measure_within((exposed_start, exposed_end), start, end) > 0).sum())
