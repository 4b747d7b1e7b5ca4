"""Work: what ran on the ranks of a table, as if each operation were one kernel."""

from __future__ import annotations

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
from bubbleviz.model.phase_masks import among
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, Phase
from bubbleviz.model.values import frozen


@frozen
class RanksTimes:
    """When the ranks of a table did what."""

    active: ActiveTime
    running: RunningTimes
    exposed: RankIntervals
    coverage: tuple[RankCoverage, ...]


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
) -> RanksTimes:
    """Return what the ranks did.

    The ranks are laid side by side on one line, where they are worked out like a single one.

    Args:
        table: as read.
        operations: of it, in order of rank.
        busy: of these.
        unattributed: when ranks computed outside operations.
        exposed: when the table tells that only collectives ran.
    """
    count = len(table.places)
    packing = _packing(operations, (unattributed, exposed), count)
    spanned = operations.has_span == 1

    def placed(time_ns: Ints) -> Ints:
        return np.where(spanned, packing.place(operations.rank, time_ns), NONE)

    # Of a table an operation is as good as a kernel.
    on_line = operations.changed(
        start_ns=placed(operations.start_ns),
        end_ns=placed(operations.end_ns),
        kernels=operations.has_span.copy(),
    )
    owner = operations.rank[busy.operation]
    busy = replace(
        busy,
        start_ns=packing.place(owner, busy.start_ns),
        end_ns=packing.place(owner, busy.end_ns),
    )
    loose, given = _placed(unattributed, packing), _placed(exposed, packing)
    ran, collective = _work(on_line, busy, loose, given)
    at, operating = np.flatnonzero(collective), busy_times(on_line, busy, COMPUTE)
    alone = given if "exposed" in table.told else _alone(ran.work, at, operating, loose)
    active, running = active_time(on_line, ran, busy, operating, at)
    rank, start_ns, end_ns = packing.unpack((running.start_ns, running.end_ns))
    return RanksTimes(
        active,
        replace(running, rank=rank, start_ns=start_ns, end_ns=end_ns),
        RankIntervals(*packing.unpack(alone)),
        _coverages(packing.groups(ran.work.start_ns), ran, count),
    )


def _packing(
    operations: RankOperations, times: tuple[RankIntervals, ...], count: int
) -> intervals.Packing:
    """Return the packing of ranks by the extents of what they did."""
    spanned = np.flatnonzero(operations.has_span == 1)
    rank = [operations.rank[spanned], *(each.rank for each in times)]
    start_ns = [operations.start_ns[spanned], *(each.start_ns for each in times)]
    end_ns = [operations.end_ns[spanned], *(each.end_ns for each in times)]
    low_ns, high_ns = intervals.group_extents(
        np.concatenate(rank), count, np.concatenate(start_ns), np.concatenate(end_ns)
    )
    return intervals.Packing.of(low_ns, np.maximum(low_ns, high_ns))


def _placed(times: RankIntervals, packing: intervals.Packing) -> intervals.Intervals:
    return packing.place(times.rank, times.start_ns), packing.place(times.rank, times.end_ns)


def _alone(
    work: DeviceWork, collectives: Ints, operating: intervals.Intervals, loose: intervals.Intervals
) -> intervals.Intervals:
    """Return when only collectives ran.

    Args:
        work: all that ran.
        collectives: its rows that are communication, and not between two ranks.
        operating: when compute operations kept the GPU busy.
        loose: when it computed outside them.
    """
    computed = intervals.union(
        np.concatenate((operating[0], loose[0])), np.concatenate((operating[1], loose[1]))
    )
    together = intervals.union(work.start_ns[collectives], work.end_ns[collectives])
    return intervals.difference(together, computed)


def _work(
    operations: RankOperations,
    busy: BusyIntervals,
    loose: intervals.Intervals,
    collectives: intervals.Intervals,
) -> tuple[RankWork, Bools]:
    """Return what ran, and which of it is communication not between two ranks.

    Args:
        operations: of all ranks, on the line.
        busy: of these.
        loose: when ranks computed outside them.
        collectives: when the table tells that only collectives ran.
    """
    start_ns = np.concatenate((busy.start_ns, loose[0], collectives[0]))
    end_ns = np.concatenate((busy.end_ns, loose[1], collectives[1]))
    owner = np.full(len(start_ns), NONE, np.int64)
    owner[: len(busy)] = busy.operation
    communication = np.zeros(len(start_ns), bool)
    communicates = among(operations.phase, COMMUNICATION)
    communication[: len(busy)] = communicates[busy.operation]
    first = len(busy) + len(loose[0])
    communication[first:] = True
    collective = communication.copy()
    collective[: len(busy)] = operations.phase[busy.operation] == Phase.COLLECTIVE
    of_rank, never = np.zeros(len(start_ns), np.int32), np.zeros(len(start_ns), bool)
    work = DeviceWork(start_ns, end_ns, of_rank, owner.copy(), ~communication, communication, never)
    none = np.empty(0, np.int64)
    rows = np.arange(len(start_ns))
    return RankWork(
        range(1), rows, work, np.full(len(rows), NONE, np.int64), owner, none, none
    ), collective


def _coverages(rank: Ints, ran: RankWork, count: int) -> tuple[RankCoverage, ...]:
    """Return how long ranks computed and communicated, as far as the table tells.

    Args:
        rank: of each row of the work.
        ran: the work.
        count: how many ranks there are.
    """
    work = ran.work
    length_ns = work.end_ns - work.start_ns
    owned = ran.owner != NONE

    def total(rows: Bools) -> list[int]:
        sums: list[int] = intervals.group_sum(rank[rows], count, length_ns[rows]).tolist()
        return sums

    columns = (
        total(work.compute),
        total(work.compute & owned),
        total(work.communication),
        total(work.communication & owned),
    )
    return tuple(
        RankCoverage(
            index,
            gpu_ns=gpu_ns,
            attributed_gpu_ns=own_ns,
            comm_ns=comm_ns,
            attributed_comm_ns=own_comm_ns,
            copy_ns=0,
        )
        for index, (gpu_ns, own_ns, comm_ns, own_comm_ns) in enumerate(zip(*columns, strict=True))
    )
