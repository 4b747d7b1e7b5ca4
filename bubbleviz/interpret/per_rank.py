"""Measure each rank: the spans of its operations, its unexplained time, and its collectives.

One rank is handled at a time, so that its work fits into the cache. Ranks with little work are
handled together, next to each other on one line of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from bubbleviz.conventions.kinds import Kinds, classify_collective, match_any
from bubbleviz.interpret.collectives import RecordedCollectives, build_collective_intervals
from bubbleviz.interpret.coverage import find_unattributed_kernels, make_rank_coverages
from bubbleviz.interpret.late_launches import (
    find_late_collectives,
    find_late_operations,
    find_stalls,
)
from bubbleviz.interpret.linking import NEVER, LinkedProfile, LinkedWork, LinkRule
from bubbleviz.interpret.operation_ranges import OperationRanges
from bubbleviz.interpret.spans import (
    is_owned_by,
    measure_active_time,
    measure_operations,
    merge_busy_times,
)
from bubbleviz.model import intervals
from bubbleviz.model import operations as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, TableT, join_tables, to_slice
from bubbleviz.model.grouping import lookup_values
from bubbleviz.model.phases import COMPUTE, TRANSFERS

#: Maximum number of kernels and copies of ranks that are handled together, and of cells in their
#: table of operations by rank and range. Both then fit into the cache.
_TOGETHER, _ROOM = 1 << 15, 1 << 18
#: Bounds of the section of a single rank, which contains all times.
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


#: Columns of times.
_TIMES, _HOST_TIMES = ("start_ns", "end_ns"), ("host_start_ns", "host_end_ns")
_LAUNCH_TIMES = "launched_ns", "receive_start_ns", "receive_launched_ns"


@dataclass(frozen=True)
class Line:
    """One line of time on which several ranks are placed next to each other.

    Apart from its kernels, each rank costs a few hundred calls of numpy. Ranks with little work
    share these calls::

        rank 0   5 ├─ what it did ─┤ 95        line   0 ├─────┤ 90
        rank 1   7 ├─ what it did ───┤ 99                      91 ├──────┤ 183

    Attributes:
        ranks: Consecutive ranks.
        packing: Sections of the line, one per rank.
    """

    ranks: range
    packing: intervals.Packing

    @staticmethod
    def of(ranks: range, *times: tuple[Codes, Ints, Ints]) -> Line:
        """Return a line of time with a separate section for the given times of each rank.

        The line of a single rank has the times of the rank itself.

        Args:
            ranks: Consecutive ranks of a profile.
            times: Columns (rank, start, end) of events on these ranks.
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
        """Convert times of ranks to positions on the line. Times equal to ``sentinel`` are kept."""
        if len(self.ranks) == 1:
            return time_ns
        position = self.packing.place(rank - self.ranks.start, time_ns)
        return position if sentinel is None else np.where(time_ns == sentinel, sentinel, position)

    def to_time(self, rank: Codes, position: Ints) -> Ints:
        """Convert positions on the line to times of their ranks. Positions of -1 are kept."""
        if len(self.ranks) == 1:
            return position
        time_ns = position - self.packing.shift_ns[rank - self.ranks.start]
        return np.where(position == NONE, NONE, time_ns)

    def get_starts(self, rank: Codes) -> Ints:
        """Return the position at which the section of each rank starts."""
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
        """Return a table with the times in ``columns`` converted to positions. -1 is kept."""
        return replace(table, **{n: self.place(rank, getattr(table, n), NONE) for n in columns})

    def convert_columns(self, table: TableT, rank: Codes, *columns: str) -> TableT:
        """Return a table with the positions in ``columns`` converted to times. -1 is kept."""
        return replace(table, **{n: self.to_time(rank, getattr(table, n)) for n in columns})


def group_ranks(kernels: Ints, ranges: int) -> Iterator[range]:
    """Yield ranges of consecutive ranks that are handled together, in ascending order.

    A group has at most ``_TOGETHER`` kernels and copies, unless it is a single rank with more. The
    number of ranks in a group is also limited if the profile has very many ranges.

    Args:
        kernels: Number of kernels and copies of each rank.
        ranges: Number of ranges of the profile. Each of them may have run on any rank.
    """
    first, max_ranks = 0, max(1, _ROOM // (ranges + 1))
    while first < len(kernels):
        ran = np.cumsum(kernels[first : first + max_ranks])
        end = first + max(1, int(np.searchsorted(ran, _TOGETHER, side="right")))
        yield range(first, end)
        first = end


#: Kinds of kernels by name, with a last row for no name (-1): whether the kernel communicates
#: between two ranks; and which collective it carries out, as a row of the names that follow. The
#: last of these names is "" for no collective.
_KernelKinds: TypeAlias = tuple[Bools, tuple[Ints, tuple[str, ...]]]
#: Results of ranks: tables, keyed by their names in recordings, and ``late`` launches; the coverage
#: of each rank; the unattributed kernels with the most time, by name, and the activity of the
#: longest kernel of each name.
RanksWork: TypeAlias = tuple[
    dict[str, Any], list[model.RankCoverage], list[tuple[model.UnattributedKernels, int]]
]


@dataclass(frozen=True, eq=False, repr=False)
class _Receives(Table):
    """Receives that were launched inside operations, one row per pair.

    Attributes:
        operation: Operation that the receive was launched inside of.
        start_ns: Start of the receive.
        end_ns: End of the receive.
        launched_ns: Time when the host launched it, or -1 if unknown.
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
) -> RanksWork:
    """Measure the operations, unexplained time, collectives and late launches of all ranks.

    Args:
        linked: The profile, linked to its calls.
        work: All work of the profile, with the kinds of kernels.
        placed_ranges: Ranges that name operations, by rank.
        receives: Row of each receive, and a compute range around its launch, one pair for each such
            range.
        collectives: Recorded collectives of the profile.
        keys: Operations of the profile, in order of rank.
        kinds: Kinds of kernels, by name.

    Returns:
        Results of all ranks, in ascending order of rank; see ``RanksWork``. Tables refer to
        operations of the whole profile.
    """
    activities = linked.profile.activities
    if not linked.profile.launches_known:
        # These calls stand for the work itself, and do not show when the host launched it.
        work = work.replace_columns(rule=np.full(len(work), LinkRule.UNLINKED, np.int8))
    received = _find_receives(work, placed_ranges, receives)
    kernel_kinds = _classify_kernels(work.names, kinds)
    every_rank = np.arange(len(activities.ranks) + 1)
    first_operation = np.searchsorted(keys.rank, every_rank).tolist()
    first_range = np.searchsorted(placed_ranges.rank, every_rank).tolist()
    rows_of = activities.make_rank_lookup()
    parts = []
    for ranks in group_ranks(activities.count_by_rank(), len(linked.named_ranges)):
        first, stop = first_operation[ranks.start], first_operation[ranks.stop]
        of_ranks = placed_ranges.take(slice(first_range[ranks.start], first_range[ranks.stop]))
        of_ranks = of_ranks.replace_columns(operation=of_ranks.operation - first)
        rows = np.concatenate([rows_of(rank) for rank in ranks])
        inside_operations = received.take(
            (received.operation >= first) & (received.operation < stop)
        )
        part = _record_together(
            ranks,
            _take_work(ranks, work, rows, of_ranks, len(linked.named_ranges)),
            keys.take(slice(first, stop)),
            inside_operations.replace_columns(operation=inside_operations.operation - first),
            collectives,
            kernel_kinds,
        )
        tables = part[0]
        for name in ("busy", "collectives", "late"):
            operation = tables[name].operation
            renumbered = np.where(operation == NONE, NONE, operation + first)
            tables[name] = tables[name].replace_columns(operation=renumbered)
        parts.append(part)
    tables_of_parts, coverage, unattributed = zip(*parts, strict=True)
    return (
        {
            name: join_tables([tables[name] for tables in tables_of_parts])
            for name in tables_of_parts[0]
        },
        list(chain.from_iterable(coverage)),
        list(chain.from_iterable(unattributed)),
    )


def _find_receives(
    work: LinkedWork, placed_ranges: OperationRanges, receives: tuple[Ints, Ints]
) -> _Receives:
    """Return the receives that were launched inside a range that is an operation of their rank.

    Args:
        work: All work of the profile.
        placed_ranges: Ranges that name operations, by rank.
        receives: Row of each receive, and a compute range around its launch, one pair for each such
            range.
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
    """Return the kinds of kernels by name; see ``_KernelKinds``.

    Args:
        names: Names of kernels.
        kinds: Patterns for the kinds of kernels.
    """
    collective = np.full(len(names) + 1, len(kinds.collective_kinds))
    for name in np.flatnonzero(match_any(names, kinds.communication)).tolist():
        kind = classify_collective(names[name], kinds.collective_kinds)
        if kind != NONE:
            collective[name] = kind
    point_to_point = np.append(match_any(names, kinds.point_to_point), False)
    texts = (*(text for text, _ in kinds.collective_kinds), "")
    return point_to_point, (collective, texts)


def _take_work(
    ranks: range, work: LinkedWork, rows: Codes, placed_ranges: OperationRanges, n_ranges: int
) -> LinkedWork:
    """Return the work of ranks, with the operation that owns each row, or -1 if none does.

    Args:
        ranks: The ranks.
        work: All work of the profile.
        rows: Rows of the work of these ranks, in order of (rank, row).
        placed_ranges: Ranges of these ranks.
        n_ranges: Number of ranges that name operations.
    """
    # The last column stands for no range (-1).
    operation_of = np.full((len(ranks), n_ranges + 1), NONE, np.int32)
    operation_of[placed_ranges.rank - ranks.start, placed_ranges.range] = placed_ranges.operation
    if len(ranks) == 1:
        # The rows of a rank mostly follow each other, so they need not be copied.
        work = work.take(to_slice(rows))
        return work.replace_columns(operation=operation_of[0].take(work.range))
    work = work.take(rows)
    return work.replace_columns(operation=operation_of[work.rank - ranks.start, work.range])


def _record_together(
    ranks: range,
    work: LinkedWork,
    keys: model.Operations,
    receives: _Receives,
    recorded: RecordedCollectives,
    kernel_kinds: _KernelKinds,
) -> RanksWork:
    """Measure a group of ranks together, on one line of time; see :func:`record_ranks`.

    Args:
        ranks: Consecutive ranks.
        work: Work of these ranks, with the operations that own it.
        keys: Operations of these ranks.
        receives: Receives inside these operations.
        recorded: Recorded collectives of the profile.
        kernel_kinds: Kinds of kernels by name.

    Returns:
        The results. Tables refer to operations of these ranks, numbered from 0.
    """
    point_to_point, kinds = kernel_kinds
    line = _make_line(ranks, work, keys)
    work = line.place_columns(work, work.rank, *_TIMES)
    keys_on_line = line.place_columns(keys, keys.rank, *_HOST_TIMES)
    waits = line.place_columns(receives, keys.rank[receives.operation], *_TIMES)
    waiting = model.BusyIntervals(waits.operation, waits.start_ns, waits.end_ns)
    operations, busy, times = measure_operations(keys_on_line, work, waiting, ranks)
    launched_ns, thread = work.find_launches(times.first)
    last = _find_last_receive(operations.received_ns, waits)
    operations = operations.replace_columns(
        launched_ns=launched_ns,
        receive_start_ns=np.append(receives.start_ns, NONE)[last],
        receive_launched_ns=np.append(receives.launched_ns, NONE)[last],
    )
    operations = line.place_columns(operations, keys.rank, *_LAUNCH_TIMES)
    rows = np.flatnonzero(work.communication)
    transfer = point_to_point[work.name_id[rows]]
    rows = rows[~(transfer | is_owned_by(keys, work.operation[rows], TRANSFERS))]
    collecting = intervals.union(work.start_ns[rows], work.end_ns[rows])
    operating = merge_busy_times(keys, busy, COMPUTE)
    active, running = measure_active_time(operations, times, busy, operating, collecting)
    running = replace(running, rank=line.find_ranks(running.start_ns))
    interval_parts = zip(operating, times.unattributed, strict=True)
    start_ns, end_ns = map(np.concatenate, interval_parts)
    computed = intervals.union(start_ns, end_ns)
    exposed = intervals.difference(collecting, computed)
    launched_ns = line.place(work.rank[rows], work.get_launch_times(rows), NEVER)
    collectives, first_kernel = build_collective_intervals(
        keys_on_line, work, rows, launched_ns, exposed, kinds, recorded
    )
    launched_ns, by_thread = work.find_launches(first_kernel)
    launched_ns = line.place(collectives.rank, launched_ns, NONE)
    collectives, late_collectives = find_late_collectives(
        collectives, launched_ns, by_thread, (computed, exposed), line.get_starts(collectives.rank)
    )
    of_operations = find_late_operations(operations, thread, computed, line.get_starts(keys.rank))
    late_launches = join_tables([of_operations, late_collectives, find_stalls(operations, thread)])
    tables = {
        "operations": line.convert_columns(
            operations, keys.rank, *_TIMES, *_HOST_TIMES, *_LAUNCH_TIMES, "received_ns"
        ),
        "busy": line.convert_columns(busy, keys.rank[busy.operation], *_TIMES),
        "active": active,
        "running": line.convert_columns(running, running.rank, *_TIMES),
        "unattributed": line.convert_intervals(times.unattributed),
        "exposed": line.convert_intervals(exposed),
        "collectives": line.convert_columns(collectives, collectives.rank, *_TIMES),
        "late": line.convert_columns(late_launches, late_launches.rank, "since_ns", "until_ns"),
    }
    return (
        tables,
        make_rank_coverages(ranks, times.spent_ns),
        list(find_unattributed_kernels(work, times.loose)),
    )


def _make_line(ranks: range, work: LinkedWork, keys: model.Operations) -> Line:
    """Return a line of time on which each rank has a separate section.

    A section is long enough for the work of the rank, its launches and its ranges on the host.

    Args:
        ranks: Consecutive ranks of a profile.
        work: Work of these ranks.
        keys: Operations of these ranks.
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
    """Return the receive inside each operation that ended last, or -1 if there is none.

    If several receives end at the same time, the first of them is returned.

    Args:
        received_ns: End of the last receive inside each operation.
        receives: The receives, with times on the same line.
    """
    last = np.full(len(received_ns), NONE, np.int64)
    is_last = receives.end_ns == received_ns[receives.operation]
    # With several rows of an operation, the smallest index is assigned last.
    rows = np.flatnonzero(is_last)[::-1]
    last[receives.operation[rows]] = rows
    return last
