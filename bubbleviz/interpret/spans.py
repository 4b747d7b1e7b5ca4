"""Spans: when operations kept their device busy, by the kernels and copies they own.

All is worked out rank by rank: what a rank ran stays in the cache, and little memory is used.
"""

from __future__ import annotations

import numpy as np

from bubbleviz.interpret.device_work import DeviceWork, RankWork
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import groups_of
from bubbleviz.model.operations import (
    BusyIntervals,
    OperationKeys,
    OperationSpans,
    RankOperations,
)
from bubbleviz.model.phases import COMMUNICATION, COMPUTE, WORK, Phase
from bubbleviz.model.values import frozen


@frozen
class ActiveTime(Table):
    """How long a rank computed and communicated in an iteration, by lengths of unions of kernels.

    Attributes:
        rank: the rank.
        iteration: the rank's iteration.
        active_ns: how long compute kernels of its work ran.
        communication_ns: how long communication kernels ran between its first start and last end.
        overlapped_ns: how long compute kernels of any kind ran beside these.
        kernel_ns: how long any kernel ran in the same time.
        gap_ns: how long none ran while its work kept the GPU busy: launch gaps.
        collective_gap_ns: how long a collective ran, and no compute kernel, while an operation kept
            the GPU busy.
    """

    rank: Ints
    iteration: Ints
    active_ns: Ints
    communication_ns: Ints
    overlapped_ns: Ints
    kernel_ns: Ints
    gap_ns: Ints
    collective_gap_ns: Ints


def owned_by(operations: OperationKeys, owner: Codes, phases: tuple[Phase, ...]) -> Bools:
    """Tell for each activity whether an operation of one of these phases owns it."""
    # The last place is that of no operation (-1).
    of_phase: Bools = np.append(np.isin(operations.phase, phases), False)
    return of_phase[owner]


def spans_of(keys: OperationKeys, ran: RankWork) -> tuple[OperationSpans, BusyIntervals, Codes]:
    """Return the spans and busy intervals of operations, and the rows of ``work`` these begin with.

    Compute kernels make the span (of a communication operation: its communication kernels);
    where there are none, copies do. An operation without GPU work has no span.

    Args:
        keys: of the operations of a rank.
        ran: all that ran on it.
    """
    count, work, owner = len(keys), ran.work, ran.owner
    owned = owner >= 0
    is_communication = owned_by(keys, owner, COMMUNICATION)
    compute, communication = owned & work.compute, owned & work.communication
    first_choice = np.where(is_communication, communication, compute)
    second_choice = is_communication & compute
    spanning = np.zeros(len(work), bool)
    for choice in (first_choice, second_choice, owned & work.copy):
        covered = np.zeros(count, bool)
        covered[owner[spanning]] = True
        spanning |= choice & ~np.append(covered, False)[owner]
    start_ns, end_ns = intervals.group_extents(
        owner[spanning], count, work.start_ns[spanning], work.end_ns[spanning]
    )
    has_span = np.bincount(owner[spanning], minlength=count) > 0
    active = intervals.group_union(
        owner[compute], count, work.start_ns[compute], work.end_ns[compute]
    )
    busy = _busy(start_ns, end_ns, has_span, active, ran)
    spans = OperationSpans(
        start_ns=np.where(has_span, start_ns, NONE),
        end_ns=np.where(has_span, end_ns, NONE),
        has_span=has_span.astype(np.int64),
        kernels=np.bincount(owner[compute], minlength=count).astype(np.int64),
        active_ns=intervals.group_sum(active[0], count, active[2] - active[1]),
        busy_ns=intervals.group_sum(busy[0], count, busy[2] - busy[1]),
        received_ns=_received(count, work.end_ns[ran.received], ran.around),
    )
    first = np.full(count, NONE, np.int32)
    # The first of several that begin together is the last to be set.
    begin = np.flatnonzero(spanning & (work.start_ns == np.append(start_ns, 0)[owner]))[::-1]
    first[owner[begin]] = begin
    return spans, BusyIntervals(*busy), first


def _received(count: int, end_ns: Ints, around: Ints) -> Ints:
    """Return for each operation the latest end of the receives launched inside it; -1 none."""
    # Times can lie before 0, so the largest of them is not found by starting from -1.
    never = np.iinfo(np.int64).min
    latest = np.full(count, never)
    inside = around >= 0
    np.maximum.at(latest, around[inside], end_ns[inside])
    return np.where(latest == never, NONE, latest)


def _busy(
    start_ns: Ints,
    end_ns: Ints,
    has_span: Bools,
    active: tuple[Ints, Ints, Ints],
    ran: RankWork,
) -> tuple[Ints, Ints, Ints]:
    """Return (operation, start_ns, end_ns): spans less the holes in which own receives spin."""
    packing = intervals.Packing.of(np.where(has_span, start_ns, 0), np.where(has_span, end_ns, 0))
    at = np.flatnonzero(has_span)
    spans = intervals.union(packing.place(at, start_ns[at]), packing.place(at, end_ns[at]))
    known = (ran.around >= 0) & np.append(has_span, False)[ran.around]
    rows, spin = ran.received[known], ran.around[known]
    low = np.clip(ran.work.start_ns[rows], start_ns[spin], end_ns[spin])
    high = np.clip(ran.work.end_ns[rows], start_ns[spin], end_ns[spin])
    waiting = intervals.union(packing.place(spin, low), packing.place(spin, high))
    running = intervals.union(
        packing.place(active[0], active[1]), packing.place(active[0], active[2])
    )
    holes = intervals.difference(waiting, running)
    return packing.unpack(intervals.difference(spans, holes))


def _near(work: DeviceWork, times: intervals.Intervals) -> Bools:
    """Tell which work may overlap a set of times; all that does is included."""
    latest_ns = np.maximum.accumulate(work.end_ns)
    if len(times[0]) == 0 or not (work.start_ns[1:] >= work.start_ns[:-1]).all():
        return np.full(len(work), len(times[0]) > 0)
    change = np.zeros(len(work) + 1, np.int64)
    np.add.at(change, np.searchsorted(latest_ns, times[0], side="right"), 1)
    np.add.at(change, np.searchsorted(work.start_ns, times[1]), -1)
    return np.asarray(np.cumsum(change[:-1]) > 0, bool)


def active_time(
    operations: RankOperations, ran: RankWork, busy: BusyIntervals, collectives: Ints
) -> ActiveTime:
    """Return how long compute and communication kernels ran in each iteration of a rank.

    Args:
        operations: of the rank.
        ran: all that ran on it.
        busy: when each operation kept the GPU busy.
        collectives: rows of its work that are communication, and not between two ranks.
    """
    work, owner = ran.work, ran.owner
    rows = np.flatnonzero(work.compute & owned_by(operations, owner, WORK))
    of = np.flatnonzero(np.bincount(owner[rows], minlength=len(operations)))
    groups = groups_of(operations.rank[of], operations.iteration[of])
    group = np.full(len(operations), NONE, np.int64)
    group[of] = groups.of_row
    active_ns = intervals.group_measure(
        group[owner[rows]], len(groups), work.start_ns[rows], work.end_ns[rows]
    )
    low_ns, high_ns = intervals.group_extents(
        groups.of_row, len(groups), operations.start_ns[of], operations.end_ns[of]
    )
    communicating = intervals.union(
        work.start_ns[work.communication], work.end_ns[work.communication]
    )
    # Most kernels run far from any communication, and need not be looked at twice.
    beside = work.compute & _near(work, communicating)
    computing = intervals.union(work.start_ns[beside], work.end_ns[beside])
    alone = intervals.difference(communicating, computing)
    communication_ns = intervals.measure_within(communicating, low_ns, high_ns)
    overlapped_ns = communication_ns - intervals.measure_within(alone, low_ns, high_ns)
    of = of[groups.first]
    rank, iteration = operations.rank[of], operations.iteration[of]
    kernels = work.compute | work.communication
    running = intervals.union(work.start_ns[kernels], work.end_ns[kernels])
    of_work = np.isin(operations.phase[busy.operation], WORK)
    occupied = intervals.union(busy.start_ns[of_work], busy.end_ns[of_work])
    collecting = intervals.union(work.start_ns[collectives], work.end_ns[collectives])
    uncovered = intervals.difference(collecting, computing)
    in_gaps = intervals.difference(
        uncovered, intervals.difference(uncovered, _computing(operations, busy))
    )
    return ActiveTime(
        rank=rank,
        iteration=iteration,
        active_ns=active_ns,
        communication_ns=communication_ns,
        overlapped_ns=overlapped_ns,
        kernel_ns=intervals.measure_within(running, low_ns, high_ns),
        gap_ns=intervals.measure_within(intervals.difference(occupied, running), low_ns, high_ns),
        collective_gap_ns=intervals.measure_within(in_gaps, low_ns, high_ns),
    )


def _computing(operations: RankOperations, busy: BusyIntervals) -> intervals.Intervals:
    """Return when compute operations kept the GPU busy, those beyond an iteration's work too."""
    rows = np.isin(operations.phase[busy.operation], COMPUTE)
    return intervals.union(busy.start_ns[rows], busy.end_ns[rows])
