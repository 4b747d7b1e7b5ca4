"""Work: what ran on the ranks of a table, as if each operation were one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bubbleviz.interpret.device_work import DeviceWork, RankWork
from bubbleviz.interpret.spans import ActiveTime, active_time, busy_times
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints
from bubbleviz.model.operation_table import OperationTable, RowIntervals
from bubbleviz.model.operations import (
    BusyIntervals,
    RankCoverage,
    RankIntervals,
    RankOperations,
    RunningTimes,
)
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.model.values import frozen


@frozen
class RankTimes:
    """When one rank of a table did what."""

    active: ActiveTime
    running: RunningTimes
    exposed: RankIntervals
    coverage: RankCoverage


def of_ranks(times: RowIntervals, rank: Ints, count: int) -> RankIntervals:
    """Return times of rows as disjoint times of their ranks.

    Args:
        times: by row.
        rank: of each row.
        count: how many ranks there are.
    """
    owner = rank[times.row]
    return RankIntervals(*intervals.group_union(owner, count, times.start_ns, times.end_ns))


def busy_of(operations: RankOperations, waits: RowIntervals) -> BusyIntervals:
    """Return when operations kept their GPU busy: spans less their waits.

    Args:
        operations: with their spans.
        waits: of these rows.
    """
    spanned = np.flatnonzero((operations.has_span == 1) & (operations.end_ns > operations.start_ns))
    start_ns, end_ns = operations.start_ns[spanned], operations.end_ns[spanned]
    if len(waits) == 0:
        return BusyIntervals(spanned, start_ns, end_ns)
    low_ns = np.where(operations.has_span == 1, operations.start_ns, 0)
    high_ns = np.where(operations.has_span == 1, operations.end_ns, 0)
    packing = intervals.Packing.of(low_ns, high_ns)
    inside = operations.has_span[waits.row] == 1
    row = waits.row[inside]
    first_ns = np.clip(waits.start_ns[inside], low_ns[row], high_ns[row])
    last_ns = np.clip(waits.end_ns[inside], low_ns[row], high_ns[row])
    holes = intervals.union(packing.place(row, first_ns), packing.place(row, last_ns))
    line = packing.place(spanned, start_ns), packing.place(spanned, end_ns)
    return BusyIntervals(*packing.unpack(intervals.difference(intervals.union(*line), holes)))


def times_of(
    table: OperationTable,
    operations: RankOperations,
    busy: BusyIntervals,
    unattributed: RankIntervals,
    exposed: RankIntervals,
) -> Iterator[RankTimes]:
    """Yield what each rank did.

    Args:
        table: as read.
        operations: of it, in order of rank.
        busy: of these.
        unattributed: when ranks computed outside operations.
        exposed: when the table tells that only collectives ran.
    """
    told = "exposed" in table.told
    count = len(table.places)
    rows = np.searchsorted(operations.rank, np.arange(count + 1)).tolist()
    pieces = np.searchsorted(busy.operation, rows).tolist()
    for rank in range(count):
        own = operations.take(slice(rows[rank], rows[rank + 1]))
        own_busy = busy.take(slice(pieces[rank], pieces[rank + 1]))
        own_busy = replace(own_busy, operation=own_busy.operation - rows[rank])
        loose, given = _of_rank(unattributed, rank), _of_rank(exposed, rank)
        ran, collective = _rank_work(rank, own, own_busy, loose, given)
        yield _rank_times(own, ran, own_busy, loose, collective, given if told else None)


def _rank_times(
    operations: RankOperations,
    ran: RankWork,
    busy: BusyIntervals,
    loose: intervals.Intervals,
    collective: Bools,
    exposed: intervals.Intervals | None,
) -> RankTimes:
    """Return what one rank did; ``exposed`` is None where the table does not tell it."""
    at, operating = np.flatnonzero(collective), busy_times(operations, busy, COMPUTE)
    if exposed is None:
        computed = intervals.union(
            np.concatenate((operating[0], loose[0])), np.concatenate((operating[1], loose[1]))
        )
        together = intervals.union(ran.work.start_ns[at], ran.work.end_ns[at])
        exposed = intervals.difference(together, computed)
    # Of a table an operation is as good as a kernel.
    each = operations.changed(kernels=operations.has_span.copy())
    active, running = active_time(each, ran, busy, operating, at)
    alone = RankIntervals(np.full(len(exposed[0]), ran.rank), *exposed)
    return RankTimes(active, running, alone, _coverage(ran.rank, ran))


def _of_rank(times: RankIntervals, rank: int) -> intervals.Intervals:
    low, high = np.searchsorted(times.rank, (rank, rank + 1)).tolist()
    return times.start_ns[low:high], times.end_ns[low:high]


def _rank_work(
    rank: int,
    operations: RankOperations,
    busy: BusyIntervals,
    loose: intervals.Intervals,
    collectives: intervals.Intervals,
) -> tuple[RankWork, Bools]:
    """Return what ran on a rank, and which of it is communication not between two ranks.

    Args:
        rank: the rank.
        operations: of it.
        busy: of these.
        loose: when it computed outside them.
        collectives: when the table tells that only collectives ran.
    """
    start_ns = np.concatenate((busy.start_ns, loose[0], collectives[0]))
    end_ns = np.concatenate((busy.end_ns, loose[1], collectives[1]))
    owner = np.full(len(start_ns), NONE, np.int64)
    owner[: len(busy)] = busy.operation
    communication = np.zeros(len(start_ns), bool)
    communicates = np.isin(operations.phase, COMMUNICATION)
    communication[: len(busy)] = communicates[busy.operation]
    first = len(busy) + len(loose[0])
    communication[first:] = True
    collective = communication.copy()
    collective[: len(busy)] = operations.phase[busy.operation] == Phase.COLLECTIVE
    of_rank, never = np.full(len(start_ns), rank, np.int32), np.zeros(len(start_ns), bool)
    work = DeviceWork(start_ns, end_ns, of_rank, owner.copy(), ~communication, communication, never)
    none = np.empty(0, np.int64)
    rows = np.arange(len(start_ns))
    return RankWork(
        rank, rows, work, np.full(len(rows), NONE, np.int64), owner, none, none
    ), collective


def _coverage(rank: int, ran: RankWork) -> RankCoverage:
    """Return how long a rank computed and communicated, as far as the table tells."""
    work = ran.work
    length_ns = work.end_ns - work.start_ns
    owned = ran.owner != NONE
    return RankCoverage(
        rank,
        gpu_ns=int(length_ns[work.compute].sum()),
        attributed_gpu_ns=int(length_ns[work.compute & owned].sum()),
        comm_ns=int(length_ns[work.communication].sum()),
        attributed_comm_ns=int(length_ns[work.communication & owned].sum()),
        copy_ns=0,
    )
