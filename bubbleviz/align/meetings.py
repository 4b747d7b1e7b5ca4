"""Meetings: find the kernels on different ranks that form a single collective operation.

Members of a recorded communicator or process group meet in the order in which they launched their
collectives. If no group is recorded, the candidates are sets of ranks that could be a group: all
ranks, a pipeline, the replicas of a stage, or the first and the last stage. No rank leaves a
collective before all its members have entered, and all members leave together. Equal end times
therefore show a meeting::

    rank 0   ├───────────────────┤        ├──┤
    rank 1        ├──────────────┤  ├──┤             only the first kernels of both ranks meet
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.align.clocks.precedences import LEAVE_NS, is_unsteady
from bubbleviz.align.clocks.timebase import Timebase
from bubbleviz.align.join import JoinedRecordings
from bubbleviz.align.meetings_by_order import match_equal_ranks
from bubbleviz.align.stages.pipelines import Parallel
from bubbleviz.interpret.iterations import number_occurrences
from bubbleviz.model.collectives import CollectiveIntervals, Group
from bubbleviz.model.columns import NONE, Bools, Ints, Table, make_mask, scatter
from bubbleviz.model.grouping import (
    find_distinct,
    find_distinct_rows,
    find_first_rows,
    find_run_starts,
    group_rows,
    sort_rows,
)
from bubbleviz.model.intervals import Packing, group_extents, measure_within
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.operations import RankIntervals

#: Ranks leave a collective within ``LEAVE_NS`` of each other, or within the transfer time divided
#: by this number. The transfer time is the duration on the rank that entered last. In traces
#: published by ByteDance, ranks leave within 1/100 of this time (median: 1/1,000).
_LEAVE_DIVISOR = 50
#: Maximum time between two pieces of one collective.
_MAX_PIECE_GAP_NS = 5_000


def match_collectives(
    recordings: JoinedRecordings, time: Timebase, parallel: Parallel | None
) -> CollectiveIntervals:
    """Return the collectives of all ranks, with common iterations and meetings.

    A meeting consists of the collectives on different ranks that form a single call. If a table of
    operations lists any meetings, no other meetings are searched for. If the ranks' iterations are
    not paired, meetings are found only from recorded sequence numbers and equal end times.

    Args:
        recordings: The recordings on the report's clock, with stages, pipelines and iterations.
        time: The common clock, along with each machine's uncertainty.
        parallel: Parallel sizes of the run, or None if the user does not specify any.
    """
    table = recordings.collectives
    table = table.replace_columns(
        iteration=recordings.get_common_iterations(table.rank, table.iteration)
    )
    if (table.meeting != NONE).any():
        # A table of operations already lists the meetings.
        return table
    compared = table
    if not recordings.paired:
        # Iterations cannot be compared, so all collectives are put into one iteration. Meetings can
        # then be found only from sequence numbers and equal end times.
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
    """Collects the meetings found by several methods. A collective keeps its first meeting.

    Attributes:
        number: Meeting number of each collective, or -1 if unknown.
    """

    def __init__(self, n_collectives: int) -> None:
        self.number = np.full(n_collectives, NONE, np.int64)

    def add(self, meeting: Ints) -> None:
        """Add the meetings found by another method, for the collectives that have no meeting yet.

        Args:
            meeting: Meeting number of each collective, or -1 if unknown. An offset is added so that
                these numbers differ from those of earlier methods.
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
    """Find the collectives on different ranks that form a single call (a meeting).

    The most reliable methods are applied first, and a collective keeps the first meeting that is
    found:

    1. Collectives with a recorded group are matched within their group
       (:func:`_match_recorded_groups`).
    2. Collectives without a recorded group whose kind and iteration are known are matched by equal
       end times within candidate groups of ranks, largest groups first.
    3. If ``sizes_known``, collectives that are still unmatched after step 2 are matched by launch
       order among ranks that reduce gradients together.
    4. In a run with a single stage, collectives without a recorded group and kind are matched by
       their order in the iteration, if all ranks leave them together (:func:`.match_equal_ranks`).

    Args:
        collectives: Collectives of all ranks on the report's clock, with common iterations.
        stage: Stage of each rank, or -1 if unknown.
        pipeline: Pipeline of each rank, or -1 if the replicas of a stage cannot be distinguished.
        reducing: For each rank, the group of ranks that reduce gradients together with it, or -1 if
            there is none.
        time: The common clock, along with each machine's uncertainty.
        sizes_known: Whether the user specified the parallel sizes of the run.
        ordered: Whether equal iteration numbers on different ranks mean the same iteration.

    Returns:
        Meeting number of each collective, or -1 if unknown. Collectives that meet have equal
        numbers.
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
    is_single_stage = len(stage) > 1 and bool((stage == 0).all())
    if ordered and is_single_stage:
        is_unnamed = (collectives.group == NONE) & (collectives.iteration >= 0) & ~has_name
        rows = np.flatnonzero(is_unnamed & (meetings.number == NONE))
        meetings.add(match_equal_ranks(collectives, rows, len(stage), time))
    return meetings.number


def _match_in_partitions(
    meetings: _Meetings,
    collectives: CollectiveIntervals,
    is_open: Bools,
    partitions: Iterator[Ints],
    time: Timebase,
) -> None:
    """Try partitions of the ranks in turn, and add the meetings within their groups.

    Collectives that have no meeting yet meet if they end together on all ranks of a group
    (:func:`match_by_ends`). Meetings that recur in fewer than half of the iterations are dropped
    (:func:`_select_frequent`).

    If the clocks of a group's ranks cannot be compared, the group is divided into cells.
    Collectives that end together within a cell may also involve ranks in other cells, so their
    meetings are not added, and they are not tried again in later partitions. Collectives in cells
    with a single rank are not tried again either.

    Args:
        meetings: Meetings found so far. Modified in place.
        collectives: Collectives of all ranks.
        is_open: Mask of the collectives to match. Not modified.
        partitions: Partitions of the ranks, in the order in which they are tried. Each partition
            assigns a group to every rank, or -1 to a rank that is in no group.
        time: The common clock, along with each machine's uncertainty.
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
        # Ranks on clocks that cannot be compared may be members of the same collective.
        # A match in a smaller group would therefore not be certain either.
        is_only_member = np.bincount(members[0], minlength=1)[cell] == 1
        may_meet = (meeting == NONE) & ~is_only_member[collectives.rank]
        is_open &= is_undivided[collectives.rank] | may_meet


def _divide_by_clock(partition: Ints, comparable_clock: Ints) -> tuple[Ints, Bools]:
    """Divide groups of ranks into cells: ranks in one group whose clocks can be compared.

    Args:
        partition: Group of each rank, or -1 for a rank that is in no group.
        comparable_clock: Clock number of each rank. Clocks can be compared if their numbers are
            equal.

    Returns:
        cell: Cell of each rank, or -1 for a rank that is in no group.
        is_undivided: Mask of the ranks whose group is a single cell or that are in no group.
    """
    cells = group_rows(partition, comparable_clock)
    n_cells_of_group = np.bincount(group_rows(partition[cells.first]).of_row)
    has_group = partition >= 0
    is_undivided = (n_cells_of_group == 1)[group_rows(partition).of_row] | ~has_group
    return np.where(has_group, cells.of_row, NONE), is_undivided


def _match_recorded_groups(
    collectives: CollectiveIntervals, time: Timebase, *, ordered: bool
) -> Iterator[Ints]:
    """Match the collectives of recorded groups by three methods, and yield the results of each.

    Each collective is matched by the first method that applies. A group's members may be uncertain
    if several groups share a name (:func:`_mask_certain_groups`).

    1. Sequence numbers are used if the members of the group are certain, and every collective of
       the group has a sequence number. Collectives with equal group and sequence number meet.
    2. Launch order (:func:`_match_by_order`) is used for all other groups whose members are
       certain, but only if ``ordered`` is True.
    3. Equal end times (:func:`match_by_ends`) are used for all collectives of recorded groups that
       have no meeting yet. The number of ranks that meet must be the smaller of the number of ranks
       that run the group's collectives and the group's recorded size.

    Methods 2 and 3 leave out collectives that belong to no iteration. A meeting always has at least
    two ranks.

    Args:
        collectives: Collectives of all ranks.
        time: The common clock, along with each machine's uncertainty.
        ordered: Whether equal iteration numbers on different ranks mean the same iteration.

    Yields:
        Three arrays, one per method, with the meeting number of each collective, or -1 if the
        method finds none. Each array numbers its meetings independently. Nothing is yielded if no
        collective has a recorded group.
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
    # Ranks may split a collective into different numbers of pieces, and groups may share a name.
    # The affected collectives are still unmatched.
    is_unmatched = (group >= 0) & (by_number == NONE) & (by_order == NONE)
    rows = np.flatnonzero(is_unmatched & has_iteration)
    max_size = [communicator.size or len(collectives) for communicator in groups]
    yield match_by_ends(collectives, rows, group[rows], members, time, np.array(max_size, np.int64))


def _mask_certain_groups(groups: Sequence[Group], members: Ints) -> Bools:
    """Return a mask of the recorded groups whose members are known for certain.

    Several groups may share a name, which makes their members ambiguous. The members of a group are
    certain if its name is unique, if the profile lists its ranks, or if the number of ranks that
    run its collectives equals its recorded size.

    Args:
        groups: Recorded communicators and process groups.
        members: Distinct pairs of a group (row 0) and a rank that runs its collectives (row 1),
            shape (2, pairs).

    Returns:
        Mask with one entry per group. An extra last entry is False so that group -1 is not treated
        as certain.
    """
    n_present = np.bincount(members[0], minlength=len(groups)).tolist()
    is_certain = [
        communicator.has_unique_name or bool(communicator.ranks) or communicator.size == count
        for communicator, count in zip(groups, n_present, strict=True)
    ]
    return np.array([*is_certain, False], bool)


def _drop_single_ranks(collectives: CollectiveIntervals, meeting: Ints) -> Ints:
    """Return a copy of ``meeting`` with -1 in place of meetings that contain only one rank."""
    has_meeting = meeting >= 0
    rank = collectives.rank[has_meeting]
    n_meetings = int(meeting.max(initial=NONE)) + 1
    low, high = group_extents(meeting[has_meeting], n_meetings, rank, rank)
    return np.where(np.append(high > low, False)[meeting], meeting, NONE)


def _match_by_order(collectives: CollectiveIntervals, rows: Ints, cell: Ints) -> Ints:
    """Match collectives by launch order within each cell (group of ranks).

    The n-th collectives on all ranks meet. More precisely, collectives meet if they have the same
    cell, iteration, kind and ``order`` (the position among the collectives with the same rank,
    kind, group and iteration). If ranks have different numbers of rows for a cell, iteration and
    kind, all of these rows are left out.

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to match.
        cell: Cell of each collective (not just those in ``rows``), or -1 for a collective that is
            in no cell.

    Returns:
        Meeting number of each collective, or -1 if it is not matched. Meetings with a single rank
        are left out.
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
    """Yield partitions of the ranks into groups that may run collectives together.

    The partitions are, in this order:

    1. All ranks. Ranks without a stage are left out if any rank has a stage.
    2. Pipelines.
    3. Stages.
    4. Ranks that reduce gradients together.
    5. The first and the last stage of each pipeline.
    6. Replicas of a stage that reduce gradients with different ranks (:func:`_group_tensor_ranks`).

    A partition that equals an earlier one is skipped.

    Args:
        stage: Stage of each rank, or -1 if unknown.
        pipeline: Pipeline of each rank, or -1 if unknown.
        reducing: For each rank, the group of ranks that reduce gradients together with it, or -1 if
            there is none.

    Yields:
        Group of each rank, or -1 for a rank that the partition leaves out.
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
    """Group a stage's replicas that reduce gradients with different ranks (tensor parallelism).

    The n-th ranks of all reducing groups on one stage form one group. The ranks of a reducing group
    are counted in ascending order.

    Args:
        stage: Stage of each rank, or -1 if unknown.
        reducing: For each rank, the group of ranks that reduce gradients together with it, or -1 if
            there is none.

    Returns:
        Group of each rank, or -1 if its stage or its reducing group is unknown.
    """
    rows = np.flatnonzero((stage >= 0) & (reducing >= 0))
    tensor_group = group_rows(stage[rows], number_occurrences((reducing[rows],))).of_row
    return scatter(len(stage), rows, tensor_group)


def _select_frequent(collectives: CollectiveIntervals, meeting: Ints) -> Ints:
    """Drop meetings that do not recur in at least half of the iterations.

    End times that agree in only a few iterations do so by chance. Collectives with the same rank,
    kind and order in different iterations form a series. If fewer than half of the collectives in a
    series have a meeting, every meeting with a member from this series is dropped.

    Args:
        collectives: Collectives of all ranks.
        meeting: Meeting number of each collective, or -1 if it has none.

    Returns:
        A copy of ``meeting`` with -1 in place of the dropped meetings.
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
    """Match collectives of equal kind and iteration that end together on all ranks in a cell.

    A cell is a group of ranks that may run the same collectives. Collectives in a cell meet if all
    of the following conditions hold:

    - The first and last end times differ by no more than the cell's tolerance
      (:func:`_get_tolerance_ns`) plus a slack for long collectives (:func:`_get_slack_ns` of the
      shortest duration).
    - If the end times differ by more than ``LEAVE_NS``, at least one of the collectives ends
      without a partner outside the cell (:func:`_mask_outside_partners`).
    - If the cell's clocks are uncertain, the time between the ends is constant over iterations
      (:func:`_is_steady`).

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to match.
        cell: Cell of each row in ``rows``, or -1 for a row that is in no cell.
        members: Cell (row 0) and rank (row 1) of each member of a cell, shape (2, members).
        time: The common clock, along with each machine's uncertainty.
        max_size: For each cell, the number of ranks that must meet if the cell has more ranks. By
            default, all ranks of a cell must meet.

    Returns:
        Meeting number of each collective, or -1 if not enough ranks end together with it. A meeting
        can contain several rows from one rank, which are pieces of a single collective
        (:func:`_add_pieces`).
    """
    size = np.bincount(members[0], minlength=int(cell.max(initial=NONE)) + 2)
    if max_size is not None:
        size[: len(max_size)] = np.minimum(size[: len(max_size)], max_size[: len(size)])
    tolerance_of_cell = _get_tolerances(time, members, size)
    is_usable = (cell >= 0) & (tolerance_of_cell[cell] >= 0)
    clustered = _group_by_end(collectives, rows[is_usable], cell[is_usable], tolerance_of_cell)
    of_cluster = _measure_ends(collectives, clustered).take(clustered.cluster)
    tolerance_ns = tolerance_of_cell[clustered.cell] + _get_slack_ns(of_cluster.shortest_ns)
    spread_ns = of_cluster.last_end_ns - of_cluster.first_end_ns
    is_together = of_cluster.n_ranks == size[clustered.cell]
    is_together &= spread_ns <= tolerance_ns
    # Members that wait for a long time have a large slack, so a group can end together by chance.
    has_partner = np.zeros(len(collectives), bool)
    has_partner[rows] = _mask_outside_partners(collectives, rows, cell, time)
    n_without = np.bincount(clustered.cluster, ~has_partner[clustered.row])[clustered.cluster]
    is_together &= (spread_ns <= LEAVE_NS) | (n_without > 0)
    clustered = clustered.take(is_together)
    is_steady = _is_steady(
        collectives.take(clustered.row),
        clustered.cell,
        of_cluster.first_end_ns[is_together],
        tolerance_of_cell[clustered.cell] > LEAVE_NS,
    )
    matched = clustered.take(is_steady)
    meeting = scatter(len(collectives), matched.row, matched.cluster)
    return _add_pieces(collectives, meeting) if len(matched) else meeting


def _mask_outside_partners(
    collectives: CollectiveIntervals, rows: Ints, cell: Ints, time: Timebase
) -> Bools:
    """Return a mask of the rows that end within ``LEAVE_NS`` of a row in another cell.

    Only rows with the same machine, kind and iteration are compared::

        cell 0, rank 0   ├───────────────┤          rank 2 is an outside partner of rank 0
        cell 0, rank 1   ├─────────────────┤
        cell 1, rank 2                 ├─┤
        cell 1, rank 3                   ├─┤

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to compare.
        cell: Cell of each row in ``rows``, or -1 for a row that is in no cell.
        time: The common clock, with the machine of each rank.
    """
    machine = time.machine[collectives.rank[rows]]
    key = group_rows(machine, collectives.iteration[rows], collectives.kind[rows]).of_row
    order = sort_rows(key, collectives.end_ns[rows])
    key, end_ns = key[order], collectives.end_ns[rows][order]
    padded_key, padded_end_ns = np.append(key, NONE), np.append(end_ns, 0)
    has_partner = np.zeros(len(rows), bool)
    for neighbor in _find_neighbors(key, cell[order]):
        is_near = np.abs(padded_end_ns[neighbor] - end_ns) <= LEAVE_NS
        has_partner[order] |= is_near & (padded_key[neighbor] == key)
    return has_partner


def _find_neighbors(key: Ints, cell: Ints) -> tuple[Ints, Ints]:
    """Return the rows before and after each run, where a run is a sequence of rows in one cell.

    Args:
        key: Key of each row, ascending. A run contains only rows with the same key.
        cell: Cell of each row.

    Returns:
        before: For each row, the last row before its run, or -1 if there is none.
        after: For each row, the first row after its run, or the number of rows if there is none.
    """
    run_start = find_run_starts(key, cell)
    run = np.cumsum(make_mask(len(key), run_start)) - 1
    return run_start[run] - 1, np.append(run_start, len(key))[run + 1]


@dataclass(frozen=True, eq=False, repr=False)
class _Clustered(Table):
    """Collectives, divided into clusters that end together.

    Attributes:
        row: Row of the collective in the table of all collectives.
        cell: Cell of the collective, which is a group of ranks that may run the same collectives.
        cluster: Cluster number of the collective, unique over all cells.
    """

    row: Ints
    cell: Ints
    cluster: Ints


@dataclass(frozen=True, eq=False, repr=False)
class _ClusterEnds(Table):
    """The times at which the collectives in each cluster end, one row per cluster.

    If a rank has several collectives in a cluster, only the last one to end is used.

    Attributes:
        first_end_ns: Earliest end time of any rank.
        last_end_ns: Latest end time of any rank.
        shortest_ns: Shortest duration on any rank.
        n_ranks: Number of different ranks in the cluster.
    """

    first_end_ns: Ints
    last_end_ns: Ints
    shortest_ns: Ints
    n_ranks: Ints


def _measure_ends(collectives: CollectiveIntervals, clustered: _Clustered) -> _ClusterEnds:
    """Measure each cluster's end times, shortest duration and number of ranks.

    If a rank has several collectives in a cluster, they are pieces of one collective. Only the
    piece that ends last is used.

    Args:
        collectives: Collectives of all ranks.
        clustered: Rows of the collectives, along with their clusters.
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
    """Divide the collectives of each cell, iteration and kind into clusters that end together.

    The collectives are sorted by end time. A new cluster starts if the time since the previous end
    exceeds the cell's tolerance plus a slack (:func:`_get_slack_ns` of the shorter of the two
    collectives). A cluster in which all ranks have the same number of rows is divided further
    (:func:`_split_clusters`).

    Args:
        collectives: Collectives of all ranks.
        rows: Rows to divide.
        cell: Cell of each row in ``rows``.
        tolerance_of_cell: For each cell, the maximum difference in ns between the end times of one
            collective.

    Returns:
        The rows with their cells and clusters, sorted by (cell, iteration, kind, end time).
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
    """Return, for each cell, the maximum difference in ns between a collective's end times.

    The result is -1 for a cell whose ``size`` is less than 2 or whose clocks cannot be compared.

    Args:
        time: The common clock, along with each machine's uncertainty.
        members: Cell (row 0) and rank (row 1) of each member of a cell, shape (2, members).
        size: For each cell, the number of ranks that must meet.
    """
    tolerance_of_cell = np.full(len(size), NONE, np.int64)
    for cell in np.flatnonzero(size > 1).tolist():
        tolerance_of_cell[cell] = _get_tolerance_ns(time, members[1][members[0] == cell])
    return tolerance_of_cell


def _get_tolerance_ns(time: Timebase, ranks: Ints) -> int:
    """Return the maximum difference in ns between a collective's end times on several ranks.

    If all ranks are on one machine, the result is ``LEAVE_NS``. Otherwise, the two largest clock
    uncertainties of the machines are added, or the result is -1 if any of the clocks cannot be
    compared or has no bounded uncertainty.
    """
    machines = find_distinct(time.machine[ranks])
    if len(machines) == 1:
        return LEAVE_NS
    uncertainty_ns = time.uncertainty_ns[machines]
    if not time.comparable[machines].all() or (uncertainty_ns < 0).any():
        return NONE
    return LEAVE_NS + int(np.sort(uncertainty_ns)[-2:].sum())


def _get_slack_ns(length_ns: Ints) -> Ints:
    """Return the additional tolerance, in ns, for the end times of long collectives.

    The additional tolerance is ``max(length_ns // _LEAVE_DIVISOR - LEAVE_NS, 0)``.

    Args:
        length_ns: Duration of each collective on the rank where it was shortest.
    """
    return np.maximum(length_ns // _LEAVE_DIVISOR - LEAVE_NS, 0)


def _split_clusters(cluster: Ints, rank: Ints, end_ns: Ints) -> Ints:
    """Split clusters that contain several collectives from each rank.

    Several collectives in quick succession may end within the tolerance and fall into one cluster.
    If all ranks have the same number of rows in a cluster, the n-th rows of all ranks, sorted by
    end time, form a new cluster. Other clusters are not split.

    Args:
        cluster: Cluster number of each row.
        rank: Rank of each row.
        end_ns: End time of each row.

    Returns:
        New zero-based cluster number of each row.
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
    """Return a mask that excludes collectives that end together only by chance.

    If clocks are uncertain, many collectives end together by chance. The delay of a collective
    (from the first end among the members of its meeting to its own end) then varies over
    iterations. In real meetings, each rank has the same delay in all iterations, except for drift.
    If the delay of any rank with doubtful collectives varies (:func:`is_unsteady`), the mask is
    False for all collectives of the same cell and kind.

    Args:
        collectives: Collectives that end together.
        cell: Cell of each collective.
        first_end_ns: For each collective, the first end among the members of its meeting.
        is_doubtful: Mask of the collectives in cells with uncertain clocks.
    """
    pairs = group_rows(cell, collectives.kind, collectives.rank)
    cells = group_rows(cell, collectives.kind)
    distance_ns = collectives.end_ns - first_end_ns
    varies = is_unsteady(pairs, distance_ns, collectives.end_ns) & is_doubtful
    is_steady = np.ones(len(cells), bool)
    is_steady[cells.of_row[varies]] = False
    return np.asarray(is_steady[cells.of_row], bool)


def _add_pieces(collectives: CollectiveIntervals, meeting: Ints) -> Ints:
    """Add a collective's earlier pieces to the meeting of its last piece.

    A rank may record one collective as several consecutive rows, called pieces. A row without a
    meeting is a piece if both of the following conditions hold:

    - The next row of the same rank, kind, iteration and group starts at most
      ``_MAX_PIECE_GAP_NS`` after this row ends, and has a meeting or is itself a piece.
    - The rank has more rows of this kind, group and iteration than the member of the meeting with
      the fewest such rows::

          rank 0   ├────────────────┤
          rank 1     ├─────┤├───────┤

    Args:
        collectives: Collectives of all ranks.
        meeting: Meeting number of each collective, or -1 if it has none. Not modified.

    Returns:
        Meeting number of each collective, including the pieces.
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
    """Return each collective's meeting, or else the next meeting in its chain.

    Collectives of equal ``key`` form a chain if each starts at most ``_MAX_PIECE_GAP_NS`` after the
    previous one ends. The members of a chain may be pieces of one collective.

    Args:
        collectives: Collectives of all ranks.
        key: Number of each collective, equal for collectives with the same rank, kind, iteration
            and communicator.
        meeting: Meeting number of each collective, or -1 if it has none.

    Returns:
        Meeting number for each collective, or -1 if neither the collective nor any later one in its
        chain has a meeting.
    """
    order = sort_rows(key, collectives.start_ns)
    row, next_row = order[:-1], order[1:]
    gap_ns = collectives.start_ns[next_row] - collectives.end_ns[row]
    is_continued = (key[row] == key[next_row]) & (gap_ns <= _MAX_PIECE_GAP_NS)
    # For each row, find the first row, at or after it, that has a meeting or ends the chain.
    position = np.arange(len(order))
    is_last = np.append(~is_continued, True) | (meeting[order] >= 0)
    next_last = np.where(is_last, position, len(order))
    last = np.minimum.accumulate(next_last[::-1])[::-1]
    return scatter(len(order), order, meeting[order[last]])


def find_incomplete_collectives(
    collectives: CollectiveIntervals, exposed: RankIntervals
) -> Iterator[Limitation]:
    """Yield limitations for collectives whose members are unknown or were not all recorded.

    The members of a group are certain if the group lists its ranks or has a unique name. At most
    two limitations are yielded, each with the number of affected rows (collectives of one rank):

    1. Unknown members: rows without a meeting, in an unknown group or a group without certain
       members.
    2. Members that were not recorded: rows without a meeting in a group with certain members, and
       rows whose meeting has fewer ranks than the recorded size of the group.

    Only rows that overlap ``exposed`` are counted. Rows without a meeting in single-rank groups are
    ignored.

    Args:
        collectives: Collectives of all ranks, with their meetings.
        exposed: Intervals on each rank in which only collectives ran.
    """
    groups, group, meeting = collectives.groups, collectives.group, collectives.meeting
    is_single = np.array([*(c.size == 1 for c in groups), False], bool)[group]
    is_unmet = (meeting == NONE) & ~is_single
    # If the members of a group are certain, the missing members of a collective were not recorded.
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
            "no communicator or process group was recorded, and no kernels end together, so time "
            "spent waiting for other ranks counts as part of the collectives",
            count,
        )
    if count := _count_exposed(collectives, exposed, (is_unmet & is_certain) | lacks_members):
        yield Limitation(
            "collectives with members that were not recorded",
            "some of their ranks have no profile, so time spent waiting for these ranks counts as "
            "part of the collectives",
            count,
        )


def _count_exposed(
    collectives: CollectiveIntervals, exposed: RankIntervals, is_counted: Bools
) -> int:
    """Count the selected collectives that overlap an interval in which only collectives ran.

    Args:
        collectives: Collectives of all ranks.
        exposed: Intervals on each rank in which only collectives ran.
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
