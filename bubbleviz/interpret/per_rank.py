"""Measurement of each rank's operations, unattributed compute and collectives.

One rank is processed at a time, so that its data fits into the cache. Ranks with few kernels are
processed together: their times are shifted onto one time axis so that they do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bubbleviz.conventions.kinds import Kinds, classify_collective, match_any
from bubbleviz.interpret.collectives import RecordedCollectives, build_collective_intervals
from bubbleviz.interpret.coverage import find_unattributed_kernels, make_rank_coverages
from bubbleviz.interpret.late_launches import (
    LateLaunches,
    find_late_collectives,
    find_late_operations,
    find_stalls,
)
from bubbleviz.interpret.linking import NEVER, LinkedProfile, LinkedWork, LinkRule
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.interpret.spans import (
    WorkTimes,
    is_owned_by,
    measure_active_time,
    measure_operations,
    merge_busy_times,
)
from bubbleviz.model import intervals
from bubbleviz.model import operations as model
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, TableT, join_tables, to_slice
from bubbleviz.model.grouping import lookup_values
from bubbleviz.model.phases import COMPUTE, TRANSFERS

#: Maximum number of kernels and copies in a group of ranks that are processed together, and maximum
#: number of cells in the (rank, range) table of the group. Both limits fit into the cache.
_TOGETHER, _ROOM = 1 << 15, 1 << 18
#: Section bounds of a rank that is processed on its own. The section contains all int64 times.
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


#: Names of time columns.
_TIMES, _HOST_TIMES = ("start_ns", "end_ns"), ("host_start_ns", "host_end_ns")
_LAUNCH_TIMES = "launched_ns", "receive_start_ns", "receive_launched_ns"


@dataclass(frozen=True)
class Line:
    """A time axis (line) onto which several ranks are shifted so that they do not overlap.

    Processing a rank takes a few hundred numpy calls, even if it has few kernels. Ranks with few
    kernels share the calls::

        rank 0   5 ├─ kernels ─┤ 95            line   0 ├─────┤ 90
        rank 1   7 ├─ kernels ───┤ 99                          91 ├──────┤ 183

    Attributes:
        ranks: Consecutive rank indices.
        packing: Sections of the line, one per rank.
    """

    ranks: range
    packing: intervals.Packing

    @staticmethod
    def of(ranks: range, *times: tuple[Codes, Ints, Ints]) -> Line:
        """Build a line on which each rank has a section that contains all its given times.

        For a single rank, positions on the line equal the times of the rank.

        Args:
            ranks: Consecutive rank indices of a profile.
            times: Columns (rank, start, end) of events on the ranks. Several sets of columns may be
                given.
        """
        if len(ranks) == 1:
            # A single rank needs no conversion: positions are times.
            return Line(ranks, intervals.Packing(np.array([_FIRST]), np.array([_FIRST, _LAST])))
        rank, low_ns, high_ns = (np.concatenate(columns) for columns in zip(*times, strict=True))
        order = np.argsort(rank, kind="stable")
        low_ns, high_ns = intervals.group_extents(
            rank[order] - ranks.start, len(ranks), low_ns[order], high_ns[order]
        )
        # The instant after the last event of a rank also belongs to its section of the line.
        return Line(ranks, intervals.Packing.of(low_ns, np.maximum(low_ns, high_ns) + 1))

    def place(self, rank: Codes, time_ns: Ints, sentinel: int | None = None) -> Ints:
        """Convert times of ranks to positions on the line.

        Times equal to ``sentinel`` are not converted.
        """
        if len(self.ranks) == 1:
            return time_ns
        position = self.packing.place(rank - self.ranks.start, time_ns)
        return position if sentinel is None else np.where(time_ns == sentinel, sentinel, position)

    def to_time(self, rank: Codes, position: Ints) -> Ints:
        """Convert positions on the line to times of their ranks. Positions of -1 stay -1."""
        if len(self.ranks) == 1:
            return position
        time_ns = position - self.packing.shift_ns[rank - self.ranks.start]
        return np.where(position == NONE, NONE, time_ns)

    def get_starts(self, rank: Codes) -> Ints:
        """Return the position at which each rank's section starts."""
        return self.packing.offset_ns[rank - self.ranks.start]

    def find_ranks(self, position: Ints) -> Ints:
        """Return the rank whose section contains each position."""
        return self.packing.find_groups(position) + self.ranks.start

    def convert_intervals(self, positions: intervals.Intervals) -> model.RankIntervals:
        """Convert intervals on the line to intervals of ranks."""
        rank = self.find_ranks(positions[0])
        return model.RankIntervals(
            rank, self.to_time(rank, positions[0]), self.to_time(rank, positions[1])
        )

    def place_columns(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the times in ``columns`` converted to positions; -1 stays -1."""
        return replace(table, **{n: self.place(rank, getattr(table, n), NONE) for n in columns})

    def convert_columns(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the positions in ``columns`` converted to times; -1 stays -1."""
        return replace(table, **{n: self.to_time(rank, getattr(table, n)) for n in columns})


def group_ranks(kernels: Ints, ranges: int) -> Iterator[range]:
    """Split the ranks into groups of consecutive ranks that are processed together.

    Each group contains at least one rank. It is as large as possible within two limits:

    - ``_TOGETHER`` kernels and copies in total.
    - ``max(1, _ROOM // (ranges + 1))`` ranks.

    Args:
        kernels: Number of kernels and copies on each rank.
        ranges: Number of ranges in the profile whose names denote operations.

    Yields:
        The groups as ranges of rank indices, in ascending order.
    """
    first, max_ranks = 0, max(1, _ROOM // (ranges + 1))
    while first < len(kernels):
        ran = np.cumsum(kernels[first : first + max_ranks])
        end = first + max(1, int(np.searchsorted(ran, _TOGETHER, side="right")))
        yield range(first, end)
        first = end


@dataclass(frozen=True)
class RankResults:
    """Measurements of consecutive ranks.

    Attributes:
        tables: Tables keyed by their names in recordings, for example ``operations`` and ``busy``.
            The key ``late`` contains the late launches.
        coverage: Coverage of each rank.
        unattributed: Pairs yielded by
            :func:`~bubbleviz.interpret.coverage.find_unattributed_kernels`.
    """

    tables: dict[str, Any]
    coverage: list[model.RankCoverage]
    unattributed: list[tuple[model.UnattributedKernels, int]]


@dataclass(frozen=True)
class _KernelKinds:
    """Kinds of kernels, indexed by kernel name id. An extra last entry is for no name (-1).

    Attributes:
        point_to_point: Mask of the kernel names that denote communication between two ranks.
        collective: Pair (index, names). ``index[name_id]`` is the kind of collective, and
            ``names[kind]`` its name. The last name is "" and means no collective.
    """

    point_to_point: Bools
    collective: tuple[Ints, tuple[str, ...]]


@dataclass(frozen=True, eq=False, repr=False)
class _Receives(Table):
    """Receive kernels that were launched inside operations, one row per (operation, receive) pair.

    Attributes:
        operation: Row of the operation in which the receive was launched.
        start_ns: Start of the receive kernel.
        end_ns: End of the receive kernel.
        launched_ns: Launch time of the receive kernel, or -1 if unknown.
    """

    operation: Ints
    start_ns: Ints
    end_ns: Ints
    launched_ns: Ints


def record_ranks(
    linked: LinkedProfile,
    work: LinkedWork,
    placed_ranges: OperationRanges,
    receives: tuple[Ints, Ints],
    collectives: RecordedCollectives,
    keys: model.Operations,
    kinds: Kinds,
) -> RankResults:
    """Measure the operations, unattributed compute, collectives and late launches of all ranks.

    Args:
        linked: The profile with its work linked to API calls and ranges.
        work: All kernels and copies of the profile, classified as compute or communication.
        placed_ranges: Ranges assigned to ranks, with the operation of each range.
        receives: Pairs of a receive kernel (row of ``work``) and a compute range around its launch.
        collectives: Recorded collectives of the profile.
        keys: Operations of the profile, sorted by rank.
        kinds: Name patterns that classify kernels.

    Returns:
        Results of all ranks, in ascending order of rank. The operation columns of the tables
        contain rows of ``keys``.
    """
    if not linked.profile.launches_known:
        # In such a profile, the calls represent the work itself, so they are not launches.
        work = work.replace_columns(rule=np.full(len(work), LinkRule.UNLINKED, np.int8))
    received = _find_receives(work, placed_ranges, receives)
    kernel_kinds = _classify_kernels(work.names, kinds)
    parts = []
    for group in _split_ranks(linked, work, placed_ranges, received, keys):
        part = _record_together(group, collectives, kernel_kinds)
        _add_to_operations(part.tables, group.first_operation)
        parts.append(part)
    return RankResults(
        tables={
            name: join_tables([part.tables[name] for part in parts]) for name in parts[0].tables
        },
        coverage=[coverage for part in parts for coverage in part.coverage],
        unattributed=[kernels for part in parts for kernels in part.unattributed],
    )


@dataclass(frozen=True)
class _RankGroup:
    """Consecutive ranks that are measured together, with their work and operations.

    Operations are numbered within the group, starting at 0. All times are positions on the line.
    Only the launch times in ``work`` are not converted.

    Attributes:
        line: Time axis with one section per rank.
        work: Kernels and copies of the ranks. The column ``operation`` is filled in.
        keys: Operations of the ranks.
        receives: Receive kernels that were launched inside the operations.
        first_operation: Row of the group's first operation in the table for all ranks.
    """

    line: Line
    work: LinkedWork
    keys: model.Operations
    receives: _Receives
    first_operation: int


def _split_ranks(
    linked: LinkedProfile,
    work: LinkedWork,
    placed_ranges: OperationRanges,
    receives: _Receives,
    keys: model.Operations,
) -> Iterator[_RankGroup]:
    """Yield the groups of ranks that are measured together, in ascending order of rank.

    Args:
        linked: The profile with its work linked to API calls and ranges.
        work: All kernels and copies of the profile.
        placed_ranges: Ranges assigned to ranks, with the operation of each range.
        receives: Receive kernels that were launched inside operations.
        keys: Operations of the profile, sorted by rank.
    """
    activities, n_ranges = linked.profile.activities, len(linked.named_ranges)
    every_rank = np.arange(len(activities.ranks) + 1)
    first_operation = np.searchsorted(keys.rank, every_rank).tolist()
    first_range = np.searchsorted(placed_ranges.rank, every_rank).tolist()
    rows_of = activities.make_rank_lookup()
    for ranks in group_ranks(activities.count_by_rank(), n_ranges):
        first, stop = first_operation[ranks.start], first_operation[ranks.stop]
        of_ranks = placed_ranges.take(slice(first_range[ranks.start], first_range[ranks.stop]))
        of_ranks = of_ranks.replace_columns(operation=of_ranks.operation - first)
        rows = np.concatenate([rows_of(rank) for rank in ranks])
        of_group = receives.take((receives.operation >= first) & (receives.operation < stop))
        yield _place_group(
            ranks,
            _take_work(ranks, work, rows, of_ranks, n_ranges),
            keys.take(slice(first, stop)),
            of_group.replace_columns(operation=of_group.operation - first),
            first,
        )


def _place_group(
    ranks: range, work: LinkedWork, keys: model.Operations, receives: _Receives, first: int
) -> _RankGroup:
    """Build a group of ranks, and convert their times to positions on one line.

    Args:
        ranks: Consecutive rank indices.
        work: Kernels and copies of the ranks, with the operations that own them.
        keys: Operations of the ranks.
        receives: Receive kernels that were launched inside the operations.
        first: Row of the group's first operation in the table for all ranks.
    """
    line = _make_line(ranks, work, keys)
    rank_of_receive = keys.rank[receives.operation]
    return _RankGroup(
        line=line,
        work=line.place_columns(work, work.rank, *_TIMES),
        keys=line.place_columns(keys, keys.rank, *_HOST_TIMES),
        receives=line.place_columns(receives, rank_of_receive, *_TIMES, "launched_ns"),
        first_operation=first,
    )


def _add_to_operations(tables: dict[str, Any], first: int) -> None:
    """Convert operation numbers within a group of ranks to rows in the table for all ranks.

    ``first`` is added to the column ``operation`` of each table. The value -1 (none) stays -1.

    Args:
        tables: Tables of a group of ranks, keyed by name. ``busy``, ``collectives`` and ``late``
            are replaced in this dict.
        first: Row of the group's first operation in the table for all ranks.
    """
    for name in ("busy", "collectives", "late"):
        operation = tables[name].operation
        renumbered = np.where(operation == NONE, NONE, operation + first)
        tables[name] = tables[name].replace_columns(operation=renumbered)


def _find_receives(
    work: LinkedWork, placed_ranges: OperationRanges, receives: tuple[Ints, Ints]
) -> _Receives:
    """Return the receives that were launched inside an operation of their rank.

    A pair is dropped if its range was not assigned to the rank of the receive.

    Args:
        work: All kernels and copies of the profile.
        placed_ranges: Ranges assigned to ranks, with the operation of each range.
        receives: Pairs of a receive kernel (row of ``work``) and a compute range around its launch.
    """
    rows, of_range = receives
    rank = work.rank[rows].astype(np.int64)
    operation = lookup_values(
        (placed_ranges.range, placed_ranges.rank), placed_ranges.operation, (of_range, rank)
    )
    launched_ns, _ = work.find_launches(rows)
    received = _Receives(operation, work.start_ns[rows], work.end_ns[rows], launched_ns)
    return received.take(operation != NONE)


def _classify_kernels(names: Sequence[str], kinds: Kinds) -> _KernelKinds:
    """Determine which kernel names denote collectives and point-to-point communication.

    Args:
        names: Kernel names.
        kinds: Name patterns that classify kernels.
    """
    collective = np.full(len(names) + 1, len(kinds.collective_kinds))
    for name in np.flatnonzero(match_any(names, kinds.communication)).tolist():
        kind = classify_collective(names[name], kinds.collective_kinds)
        if kind != NONE:
            collective[name] = kind
    point_to_point = np.append(match_any(names, kinds.point_to_point), False)
    texts = (*(text for text, _ in kinds.collective_kinds), "")
    return _KernelKinds(point_to_point, (collective, texts))


def _take_work(
    ranks: range, work: LinkedWork, rows: Codes, placed_ranges: OperationRanges, n_ranges: int
) -> LinkedWork:
    """Select the work of the given ranks, and find each row's operation, or -1 if it has none.

    Args:
        ranks: Consecutive rank indices.
        work: All kernels and copies of the profile.
        rows: Rows of the ranks' kernels and copies, sorted by (rank, row).
        placed_ranges: Ranges assigned to the ranks. Operations are numbered within the group of
            ranks.
        n_ranges: Number of ranges whose names denote operations.
    """
    # The last column is for work without a range (-1).
    operation_of = np.full((len(ranks), n_ranges + 1), NONE, np.int32)
    operation_of[placed_ranges.rank - ranks.start, placed_ranges.range] = placed_ranges.operation
    if len(ranks) == 1:
        # The rows of a rank are usually consecutive, so a slice avoids a copy.
        work = work.take(to_slice(rows))
        return work.replace_columns(operation=operation_of[0].take(work.range))
    work = work.take(rows)
    return work.replace_columns(operation=operation_of[work.rank - ranks.start, work.range])


def _record_together(
    group: _RankGroup, recorded: RecordedCollectives, kernel_kinds: _KernelKinds
) -> RankResults:
    """Measure a group of ranks together; see :func:`record_ranks`.

    Args:
        group: The ranks, with their work and operations.
        recorded: Recorded collectives of the profile.
        kernel_kinds: Kinds of kernels, indexed by name id.

    Returns:
        The results, with positions on the line converted back to times of the ranks. Operations are
        numbered within the group, starting at 0.
    """
    line = group.line
    measured = _measure_group(group)
    rows = _find_collective_kernels(group, kernel_kinds)
    sets = _measure_exposure(group, measured, rows)
    active, running = measure_active_time(
        measured.operations, measured.times, measured.busy, sets.operating, sets.collecting
    )
    running = replace(running, rank=line.find_ranks(running.start_ns))
    collectives, late_collectives = _record_collectives(group, rows, sets, kernel_kinds, recorded)
    late_launches = join_tables(
        [
            find_late_operations(
                measured.operations,
                measured.thread,
                sets.computed,
                line.get_starts(group.keys.rank),
            ),
            late_collectives,
            find_stalls(measured.operations, measured.thread),
        ]
    )
    rank_of_busy = group.keys.rank[measured.busy.operation]
    tables = {
        "operations": line.convert_columns(
            measured.operations,
            group.keys.rank,
            *_TIMES,
            *_HOST_TIMES,
            *_LAUNCH_TIMES,
            "received_ns",
        ),
        "busy": line.convert_columns(measured.busy, rank_of_busy, *_TIMES),
        "active": active,
        "running": line.convert_columns(running, running.rank, *_TIMES),
        "unattributed": line.convert_intervals(measured.times.unattributed),
        "exposed": line.convert_intervals(sets.exposed),
        "collectives": line.convert_columns(collectives, collectives.rank, *_TIMES),
        "late": line.convert_columns(late_launches, late_launches.rank, "since_ns", "until_ns"),
    }
    return RankResults(
        tables,
        make_rank_coverages(line.ranks, measured.times.spent_ns),
        list(find_unattributed_kernels(group.work, measured.times.loose)),
    )


@dataclass(frozen=True)
class _MeasuredGroup:
    """Operation times of a group of ranks, as positions on the group's line.

    Attributes:
        operations: The operations, with the times of their spans, receives and launches.
        busy: Intervals in which each operation kept its GPU busy.
        times: Times of the kernels and copies.
        thread: Id of the thread that launched the first kernel or copy of each operation, or -1 if
            unknown.
    """

    operations: model.Operations
    busy: model.BusyIntervals
    times: WorkTimes
    thread: Ints


def _measure_group(group: _RankGroup) -> _MeasuredGroup:
    """Measure when the operations of a group ran and were launched."""
    receives = group.receives
    waits = model.BusyIntervals(receives.operation, receives.start_ns, receives.end_ns)
    operations, busy, times = measure_operations(group.keys, group.work, waits, group.line.ranks)
    launched_ns, thread = group.work.find_launches(times.first)
    last = _find_last_receive(operations.received_ns, receives)
    operations = operations.replace_columns(
        launched_ns=group.line.place(group.keys.rank, launched_ns, NONE),
        receive_start_ns=np.append(receives.start_ns, NONE)[last],
        receive_launched_ns=np.append(receives.launched_ns, NONE)[last],
    )
    return _MeasuredGroup(operations, busy, times, thread)


def _find_collective_kernels(group: _RankGroup, kernel_kinds: _KernelKinds) -> Ints:
    """Return the rows of the communication kernels that are not point-to-point.

    A kernel is point-to-point if its name indicates this, or if a transfer between two ranks owns
    it.

    Args:
        group: The ranks, with their work and operations.
        kernel_kinds: Kinds of kernels, indexed by name id.
    """
    work = group.work
    rows = np.flatnonzero(work.communication)
    is_transfer = kernel_kinds.point_to_point[work.name_id[rows]]
    is_transfer |= is_owned_by(group.keys, work.operation[rows], TRANSFERS)
    return rows[~is_transfer]


@dataclass(frozen=True)
class _Exposure:
    """Intervals in which a group of ranks computed or ran collectives, on the group's line.

    Attributes:
        operating: Intervals in which any compute operation kept its GPU busy.
        computed: Union of ``operating`` and the intervals in which compute kernels outside
            operations ran.
        collecting: Intervals in which kernels that communicate between more than two ranks ran.
        exposed: ``collecting`` minus ``computed``.
    """

    operating: intervals.Intervals
    computed: intervals.Intervals
    collecting: intervals.Intervals
    exposed: intervals.Intervals


def _measure_exposure(group: _RankGroup, measured: _MeasuredGroup, rows: Ints) -> _Exposure:
    """Measure when a group of ranks computed, and when it ran nothing but collectives.

    See :class:`_Exposure` for the definitions.

    Args:
        group: The ranks, with their work and operations.
        measured: Times of the operations.
        rows: Rows of the kernels that communicate between more than two ranks.
    """
    operating = merge_busy_times(group.keys, measured.busy, COMPUTE)
    starts_and_ends = zip(operating, measured.times.unattributed, strict=True)
    start_ns, end_ns = map(np.concatenate, starts_and_ends)
    computed = intervals.union(start_ns, end_ns)
    collecting = intervals.union(group.work.start_ns[rows], group.work.end_ns[rows])
    return _Exposure(operating, computed, collecting, intervals.difference(collecting, computed))


def _record_collectives(
    group: _RankGroup,
    rows: Ints,
    sets: _Exposure,
    kernel_kinds: _KernelKinds,
    recorded: RecordedCollectives,
) -> tuple[CollectiveIntervals, LateLaunches]:
    """Build the collectives of a group of ranks, and find those that were launched late.

    Args:
        group: The ranks, with their work and operations.
        rows: Rows of the kernels that communicate between more than two ranks.
        sets: Intervals in which the ranks computed, and in which only the kernels in ``rows`` ran.
        kernel_kinds: Kinds of kernels, indexed by name id.
        recorded: Recorded collectives of the profile.

    Returns:
        collectives: The collectives. Their times are positions on the line.
        late: Delays before late launches of collectives.
    """
    line, work = group.line, group.work
    launched_ns = line.place(work.rank[rows], work.get_launch_times(rows), NEVER)
    collectives, first_kernel = build_collective_intervals(
        group.keys, work, rows, launched_ns, sets.exposed, kernel_kinds.collective, recorded
    )
    launched_ns, thread = work.find_launches(first_kernel)
    return find_late_collectives(
        collectives,
        line.place(collectives.rank, launched_ns, NONE),
        thread,
        (sets.computed, sets.exposed),
        line.get_starts(collectives.rank),
    )


def _make_line(ranks: range, work: LinkedWork, keys: model.Operations) -> Line:
    """Build a line on which each rank has a separate section.

    The section of a rank contains its kernels and copies, their launches, and the host times of its
    operations.

    Args:
        ranks: Consecutive rank indices of a profile.
        work: Kernels and copies of the ranks.
        keys: Operations of the ranks.
    """
    if len(ranks) == 1:
        return Line.of(ranks)
    launched = np.flatnonzero(work.rule != LinkRule.UNLINKED)
    launched_ns = work.launched_ns[launched]
    return Line.of(
        ranks,
        (work.rank, work.start_ns, work.end_ns),
        (work.rank[launched], launched_ns, launched_ns),
        (keys.rank, keys.host_start_ns, keys.host_end_ns),
    )


def _find_last_receive(received_ns: Ints, receives: _Receives) -> Ints:
    """Return the row of the receive that ended last in each operation, or -1 if there is none.

    If several receives end at the same time, the smallest row wins.

    Args:
        received_ns: Latest end of the receives inside each operation.
        receives: The receives, with times on the same line.
    """
    last = np.full(len(received_ns), NONE, np.int64)
    is_last = receives.end_ns == received_ns[receives.operation]
    # Rows are assigned in descending order, so the smallest row of an operation remains.
    rows = np.flatnonzero(is_last)[::-1]
    last[receives.operation[rows]] = rows
    return last
