"""Placed tables: those of the joined recordings in the order of the ranks of the run.

Each rank has a place in the report; rows follow these, and on a rank their start.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.align.iteration_pairs import paired
from bubbleviz.align.merge import JoinedRecordings
from bubbleviz.align.staging import Staging
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import places_in
from bubbleviz.model.operations import (
    BusyIntervals,
    HostActivities,
    Operations,
    RankIntervals,
    RunningTimes,
)
from bubbleviz.model.sorting import sorted_rows


def placed_active(joined: JoinedRecordings, place: Ints, staging: Staging, time_ns: Ints) -> Ints:
    """Return a column of the joined active times, shape (iterations, ranks); 0 where none is."""
    active_ns = np.zeros((len(staging.pairing.names), len(place)), np.int64)
    table = joined.active
    iteration = paired(staging.pairing, table.rank, table.iteration)
    known = iteration >= 0
    active_ns[iteration[known], place[table.rank[known]]] = time_ns[known]
    return active_ns


def placed_intervals(intervals: RankIntervals, place: Ints) -> RankIntervals:
    """Return intervals of ranks in the order of their ranks' places, and of their starts."""
    rank = place[intervals.rank]
    order = sorted_rows(rank, intervals.start_ns)
    return RankIntervals(rank[order], intervals.start_ns[order], intervals.end_ns[order])


def placed_collectives(
    collectives: CollectiveIntervals, place: Ints, row: Ints
) -> CollectiveIntervals:
    """Return collectives with ranks in their places, and the rows of the run's operations."""
    collectives = collectives.changed(
        rank=place[collectives.rank], operation=np.append(row, NONE)[collectives.operation]
    )
    return collectives.take(sorted_rows(collectives.rank, collectives.start_ns))


def placed_times(times: RunningTimes, place: Ints) -> RunningTimes:
    """Return running times, likewise."""
    times = replace(times, rank=place[times.rank])
    return times.take(sorted_rows(times.rank, times.start_ns))


def placed_operations(
    operations: Operations, busy: BusyIntervals, hosts: HostActivities
) -> tuple[Operations, BusyIntervals, HostActivities, Ints]:
    """Return operations by (rank, start), those without a span by their host start.

    With them come their busy intervals, what launching threads did before them, and the new row of
    each operation.

    Args:
        operations: with ranks in their places.
        busy: when they keep their ranks busy.
        hosts: with ranks in their places.
    """
    spanned = operations.has_span == 1
    start = operations.start_ns
    if not spanned.all():
        start = np.where(spanned, start, operations.host_start_ns)
    order = _nearly_sorted(operations.rank, start, operations.host_start_ns)
    place = places_in(order)
    operations = operations.take(order).lighter()
    if np.array_equal(busy.operation, np.arange(len(order))):
        rows, owner = order, busy.operation
    else:
        moved = place[busy.operation]
        rows = _nearly_sorted(moved, busy.start_ns)
        owner = moved[rows]
    sorted_busy = BusyIntervals(owner, busy.start_ns[rows], busy.end_ns[rows])
    sorted_busy = sorted_busy.sharing_with(operations)
    hosts = replace(hosts, operation=np.append(place, NONE)[hosts.operation])
    return operations, sorted_busy, hosts.take(sorted_rows(hosts.operation)), place


def _nearly_sorted(first: Ints, *then: Ints) -> Ints:
    """Return the rows in the order of columns, mostly sorted already where the first one agrees."""
    order = sorted_rows(first)
    ordered = first[order]
    same = ordered[1:] == ordered[:-1]
    for column in {id(column): column for column in then}.values():
        values = column[order]
        if (same & (values[1:] < values[:-1])).any():
            return sorted_rows(first, *then)
        same &= values[1:] == values[:-1]
    return order
