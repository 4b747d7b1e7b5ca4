"""Spans: when the kernels of each operation ran, and when the operation kept its device busy.

Most functions process one rank at a time, or a few ranks whose times are shifted onto one time axis
so that they do not overlap. The data of such a group fits into the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, match_any
from bubbleviz.conventions.range_names import NameMeanings
from bubbleviz.interpret.linking import LinkedWork
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, get_flags, make_mask
from bubbleviz.model.grouping import find_distinct, group_rows, sort_rows
from bubbleviz.model.operations import BusyIntervals, Operations, RunningTimes
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMMUNICATION, WORK, Phase
from bubbleviz.model.profile import Activities, Ranges
from bubbleviz.native import functions as native


def classify_work(
    work: LinkedWork,
    activities: Activities,
    named_ranges: Ranges,
    names: NameMeanings,
    kinds: Kinds,
) -> tuple[LinkedWork, Ints]:
    """Classify kernels as compute or communication, and find the kernels that receive data.

    A kernel counts as communication if its name matches ``kinds.communication``, and as compute
    otherwise. Copies are neither.

    Args:
        work: Kernels and copies of a profile, linked to ranges.
        activities: The same kernels and copies. Kernels with vague names are renamed after the
            collectives that they run.
        named_ranges: Ranges that the kernels and copies are linked to.
        names: Meanings of the range names, indexed by name id.
        kinds: Name patterns that classify kernels.

    Returns:
        work: The work with the names of ``activities``, and with the columns ``compute`` and
            ``communication`` filled in.
        receives: Rows of the kernels that receive data from another rank.
    """
    by_name, kernels = match_any(activities.names, kinds.communication), slice(activities.kernels)
    compute, communication = np.zeros(len(activities), bool), np.zeros(len(activities), bool)
    communication[kernels] = get_flags(activities.name_id[kernels], by_name)
    np.logical_not(communication[kernels], out=compute[kernels])
    work = replace(
        work,
        name_id=activities.name_id,
        names=activities.names,
        compute=compute,
        communication=communication,
    )
    return work, _find_receives(work, named_ranges, names, kinds)


def _find_receives(
    work: LinkedWork, named_ranges: Ranges, names: NameMeanings, kinds: Kinds
) -> Ints:
    """Return the rows of the communication kernels that receive data from another rank.

    If the kernel is linked to a communication range, the range name decides. Otherwise, the kernel
    name decides (``kinds.receives``).
    """
    rows = np.flatnonzero(work.communication)
    receives = match_any(work.names, kinds.receives)[work.name_id[rows]]
    of_range = work.range[rows]
    in_range = np.flatnonzero(of_range != NONE)
    name_id = named_ranges.name_id[of_range[in_range]]
    communicates = mask_phases(names.phase[name_id], COMMUNICATION)
    receives[in_range[communicates]] = names.receives[name_id[communicates]]
    return rows[receives]


@dataclass(frozen=True, eq=False, repr=False)
class ActiveTime(Table):
    """Time during which each rank ran kernels, one row per rank and iteration.

    Overlapping kernels are counted once.

    Attributes:
        rank: Index of the rank.
        iteration: Iteration of the rank.
        active_ns: Time during which operations whose phase is in ``WORK`` ran compute kernels.
        kernel_ns: Time during which any kernel or copy ran, between the first start and the last
            end of operations whose phase is in ``WORK``.
        gap_ns: Time during which no kernel or copy ran although an operation whose phase is in
            ``WORK`` kept the GPU busy (launch gaps).
        collective_gap_ns: Time during which a collective but no compute kernel ran while any
            operation kept the GPU busy.
    """

    rank: Ints
    iteration: Ints
    active_ns: Ints
    kernel_ns: Ints
    gap_ns: Ints
    collective_gap_ns: Ints


def is_owned_by(operations: Operations, owner: Codes, phases: tuple[Phase, ...]) -> Bools:
    """Return a mask of the kernels and copies owned by operations of the given phases.

    Args:
        operations: The operations.
        owner: Row of the operation that owns each kernel or copy, or -1 if there is none.
        phases: Phases to include.
    """
    # The last entry is selected by owner -1, which means no operation.
    is_of_phase: Bools = np.append(mask_phases(operations.phase, phases), False)
    return is_of_phase.take(owner)


@dataclass(frozen=True)
class WorkTimes:
    """Times and counts of the kernels and copies that operations and ranks ran. Times are in ns.

    Attributes:
        start_ns: Start of each operation's span, or 0 if it has no span.
        end_ns: End of each operation's span, or -1 if it has no span.
        kernels: Number of compute kernels in each operation.
        first: Row of the kernel or copy that starts each operation's span, or -1 if it has no span.
        active_ns: Time during which each operation ran compute kernels.
        worked_ns: For each operation, the time during which compute kernels ran in its rank and
            iteration. Only operations whose phase is in ``WORK`` are measured, and the time of all
            other operations is 0.
        loose: Mask of the compute kernels outside all compute operations, one per row of the work.
        spent_ns: Total durations, shape (ranks, 5). The columns are copies, communication inside
            ranges, communication outside ranges, compute inside compute operations, and compute
            outside them.
        running: Intervals in which any kernel or copy ran.
        communicating: Intervals in which communication kernels ran.
        computing: Intervals in which compute kernels ran.
        unattributed: Intervals in which compute kernels outside all compute operations ran.
    """

    start_ns: Ints
    end_ns: Ints
    kernels: Ints
    first: Codes
    active_ns: Ints
    worked_ns: Ints
    loose: Bools
    spent_ns: Ints
    running: intervals.Intervals
    communicating: intervals.Intervals
    computing: intervals.Intervals
    unattributed: intervals.Intervals


def measure_times(keys: Operations, work: LinkedWork, ranks: range) -> WorkTimes:
    """Measure when ranks ran their kernels and copies, and for how long.

    The span of an operation lasts from the first start to the last end of its kernels or copies of
    one kind. If it has several kinds, the first kind in this list is used::

        communication operation   communication, compute, copies
        other operation           compute, copies

    Args:
        keys: Operations of the ranks.
        work: All kernels and copies of the ranks.
        ranks: Consecutive rank indices.
    """
    count, communicates = len(keys), mask_phases(keys.phase, COMMUNICATION)
    of = np.flatnonzero(mask_phases(keys.phase, WORK))
    iterations = group_rows(keys.rank[of], keys.iteration[of])
    group = np.full(count, NONE, np.int32)
    group[of] = iterations.of_row
    is_sorted = bool((work.start_ns[1:] >= work.start_ns[:-1]).all())
    owner = work.operation.astype(np.int32, copy=False)
    of_range = work.range.astype(np.int32, copy=False)
    rank = (work.rank - ranks.start).astype(np.int32) if len(ranks) > 1 else None
    kinds = work.compute, work.communication
    measured = native.measure_work(
        work=(owner, of_range, rank, *kinds, work.start_ns, work.end_ns),
        n_rows=len(work),
        order=None if is_sorted else sort_rows(work.start_ns),
        communicates=communicates,
        group=group,
        n_groups=len(iterations),
        n_ranks=len(ranks),
    )
    if measured is None:
        return _measure_without_library(work, ranks, communicates, group, len(iterations))
    return WorkTimes(
        measured.start_ns,
        measured.end_ns,
        measured.n_kernels,
        measured.first_row,
        measured.length_ns[:count],
        np.append(measured.length_ns[count:], 0)[group],
        measured.is_loose,
        measured.spent_ns,
        *measured.sets,
    )


def _measure_without_library(
    work: LinkedWork, ranks: range, communicates: Bools, group: Codes, n_groups: int
) -> WorkTimes:
    """Do the same as :func:`measure_times`, but without the native library.

    Args:
        work: All kernels and copies of the ranks.
        ranks: Consecutive rank indices.
        communicates: Mask of the communication operations.
        group: Number of each operation's (rank, iteration) pair, or -1 if its phase is not in
            ``WORK``.
        n_groups: Number of distinct (rank, iteration) pairs.
    """
    owner, count = work.operation, len(communicates)
    is_owned, is_communication = owner >= 0, np.append(communicates, False)[owner]
    is_spanning = _mask_spanning_work(work, count, is_communication)
    start_ns, end_ns = intervals.group_extents(
        owner[is_spanning], count, work.start_ns[is_spanning], work.end_ns[is_spanning]
    )
    is_first = is_spanning & (work.start_ns == np.append(start_ns, 0)[owner])
    is_loose = work.compute & ~(is_owned & ~is_communication)
    times = (work.start_ns, work.end_ns)
    # The last entry is for work without an operation (-1).
    group_of_work = np.append(group, NONE)[owner]
    worked_ns = intervals.group_measure(
        group_of_work, n_groups, *times, work.compute & (group_of_work >= 0)
    )
    return WorkTimes(
        start_ns=start_ns,
        end_ns=end_ns,
        kernels=np.bincount(owner[is_owned & work.compute], minlength=count).astype(np.int64),
        first=_select_first_rows(is_first, owner, count),
        active_ns=intervals.group_measure(owner, count, *times, work.compute & is_owned),
        worked_ns=np.append(worked_ns, 0)[group],
        loose=is_loose,
        spent_ns=_measure_spent_times(work, ranks, is_loose),
        running=intervals.union(*times),
        communicating=intervals.union(*times, work.communication),
        computing=intervals.union(*times, work.compute),
        unattributed=intervals.union(*times, is_loose),
    )


def _mask_spanning_work(work: LinkedWork, count: int, is_communication: Bools) -> Bools:
    """Return a mask of the kernels and copies that determine the operation spans.

    The rule is given in :func:`measure_times`.

    Args:
        work: All kernels and copies of the ranks.
        count: Number of operations.
        is_communication: Mask of the kernels and copies that communication operations own.
    """
    # A lower number takes precedence: 0 is a communication operation's communication, 1 is compute,
    # and 2 is copies. Communication of other operations (3) is never part of a span.
    of_communication = np.where(work.communication, np.where(is_communication, 0, 3), 2)
    precedence = np.where(work.compute, 1, of_communication)
    lowest = np.full(count + 1, 2)
    np.minimum.at(lowest, work.operation, precedence)
    return np.asarray((work.operation >= 0) & (precedence == lowest[work.operation]), bool)


def _select_first_rows(is_first: Bools, owner: Codes, count: int) -> Codes:
    """Return the first row in the mask for each operation, or -1 if there is none.

    Args:
        is_first: Mask of the kernels and copies that start when the span of their operation starts.
        owner: Operation that owns each kernel or copy.
        count: Number of operations.
    """
    first = np.full(count, NONE, np.int32)
    # Rows are assigned in descending order, so the smallest row of an operation remains.
    rows = np.flatnonzero(is_first)[::-1]
    first[owner[rows]] = rows
    return first


def _measure_spent_times(work: LinkedWork, ranks: range, is_loose: Bools) -> Ints:
    """Return the total durations per rank and kind, as defined in ``WorkTimes.spent_ns``.

    Args:
        work: All kernels and copies of the ranks.
        ranks: Consecutive rank indices.
        is_loose: Mask of the compute kernels outside all compute operations.
    """
    is_outside = work.communication & (work.range == NONE)
    kind = 3 * work.compute + is_loose + work.communication + is_outside
    of_rank = 5 * (work.rank - np.int64(ranks.start)) + kind
    length_ns = intervals.group_sum(of_rank, 5 * len(ranks), work.end_ns - work.start_ns)
    return length_ns.reshape(-1, 5)


def _measure_communication(
    keys: Operations, work: LinkedWork, times: WorkTimes
) -> tuple[WorkTimes, Bools]:
    """Set the spans of compute operations without compute kernels to their communication kernels.

    Copies no longer belong to the span. An example is an expert-parallel operation such as
    ``dispatch(F)``.

    Args:
        keys: Operations of the ranks.
        work: All kernels and copies of the ranks.
        times: Times of the kernels and copies.

    Returns:
        times: The times with the new spans.
        only_communicates: Mask of the operations with new spans. Operations in the mask do not keep
            their GPU busy.
    """
    count = len(keys)
    may_only_communicate = (times.kernels == 0) & ~mask_phases(keys.phase, COMMUNICATION)
    # The last entry is for work without an operation (-1).
    is_candidate = np.append(may_only_communicate, False)
    rows = np.flatnonzero(work.communication & is_candidate.take(work.operation))
    if len(rows) == 0:
        return times, np.zeros(count, bool)
    owner = work.operation[rows]
    start_ns, end_ns = intervals.group_extents(owner, count, work.start_ns[rows], work.end_ns[rows])
    only_communicates = make_mask(count, owner)
    begins_span = work.start_ns[rows] == start_ns[owner]
    first = times.first.copy()
    # Rows are assigned in descending order, so the smallest row of an operation remains.
    first[owner[begins_span][::-1]] = rows[begins_span][::-1]
    spans = replace(
        times,
        start_ns=np.where(only_communicates, start_ns, times.start_ns),
        end_ns=np.where(only_communicates, end_ns, times.end_ns),
        first=first,
    )
    return spans, only_communicates


def measure_operations(
    keys: Operations, work: LinkedWork, receives: BusyIntervals, ranks: range
) -> tuple[Operations, BusyIntervals, WorkTimes]:
    """Measure the spans of operations, and when operations kept their GPU busy.

    The span of an operation lasts from the first start to the last end of:

    1. Its communication kernels if it is a communication operation, otherwise its compute kernels.
    2. If there are none, its kernels of the other kind.
    3. If there are no kernels at all, its copies.

    An operation without GPU work has no span. An operation keeps its GPU busy during its span,
    except while it waits for a receive; see :func:`find_busy_intervals`.

    Args:
        keys: Operations of the ranks.
        work: All kernels and copies of the ranks, with the operations that own them.
        receives: Intervals of the receives that were launched inside operations.
        ranks: Consecutive rank indices.

    Returns:
        operations: The operations, with the columns of their spans, kernels and receives filled in.
        busy: Intervals in which each operation kept its GPU busy.
        times: Times of the kernels and copies.
    """
    times = measure_times(keys, work, ranks)
    times, only_communicates = _measure_communication(keys, work, times)
    count, has_span = len(times.first), times.first != NONE
    active = receives
    if len(receives):
        # Only the kernels of operations with receives are needed. There are few such operations.
        owner = work.operation
        filling = work.compute & make_mask(count + 1, receives.operation).take(owner)
        of_waiting = intervals.group_union(owner, count, work.start_ns, work.end_ns, filling)
        active = BusyIntervals(*of_waiting)
    computes = has_span & ~only_communicates
    busy = find_busy_intervals(times.start_ns, times.end_ns, computes, receives, active)
    operations = keys.replace_columns(
        start_ns=np.where(has_span, times.start_ns, NONE),
        end_ns=np.where(has_span, times.end_ns, NONE),
        has_span=has_span.astype(np.int64),
        kernels=times.kernels,
        active_ns=times.active_ns,
        busy_ns=intervals.group_sum(busy.operation, count, busy.end_ns - busy.start_ns),
        received_ns=intervals.group_extents(
            receives.operation, count, receives.start_ns, receives.end_ns
        )[1],
    )
    return operations, busy, times


def find_busy_intervals(
    start_ns: Ints, end_ns: Ints, has_span: Bools, waits: BusyIntervals, active: BusyIntervals
) -> BusyIntervals:
    """Return the intervals in which operations kept their GPU busy.

    These are the spans without the waits for receives. An operation waits while one of its receives
    runs but none of its compute kernels does.

    Args:
        start_ns: Start of each operation's span.
        end_ns: End of each operation's span.
        has_span: Mask of the operations that have a span.
        waits: Intervals in which each operation's receives ran.
        active: Intervals in which operations with receives ran compute kernels.

    Returns:
        Disjoint nonempty intervals, sorted by (operation, start).
    """
    rows = np.flatnonzero(has_span & (end_ns > start_ns))
    if not len(waits):
        return BusyIntervals(rows, start_ns[rows], end_ns[rows])
    packing = intervals.Packing.of(np.where(has_span, start_ns, 0), np.where(has_span, end_ns, 0))
    spans = intervals.union(packing.place(rows, start_ns[rows]), packing.place(rows, end_ns[rows]))
    waits = waits.take(has_span[waits.operation])
    owner = waits.operation
    low = np.clip(waits.start_ns, start_ns[owner], end_ns[owner])
    high = np.clip(waits.end_ns, start_ns[owner], end_ns[owner])
    waiting = intervals.union(packing.place(owner, low), packing.place(owner, high))
    active = active.take(has_span[active.operation])
    running = intervals.union(
        packing.place(active.operation, active.start_ns),
        packing.place(active.operation, active.end_ns),
    )
    holes = intervals.difference(waiting, running)
    return BusyIntervals(*packing.unpack(intervals.difference(spans, holes)))


def merge_busy_times(
    operations: Operations, busy: BusyIntervals, phases: tuple[Phase, ...]
) -> intervals.Intervals:
    """Return the union of the intervals in which operations of given phases kept the GPU busy."""
    rows = mask_phases(operations.phase, phases)[busy.operation]
    return intervals.union(busy.start_ns, busy.end_ns, rows)


def measure_active_time(
    operations: Operations,
    times: WorkTimes,
    busy: BusyIntervals,
    operating: intervals.Intervals,
    collecting: intervals.Intervals,
) -> tuple[ActiveTime, RunningTimes]:
    """Measure how long kernels ran during the iterations of ranks, and between iterations.

    Args:
        operations: Operations of the ranks, on one time axis.
        times: Times of the ranks' kernels and copies, on the same axis.
        busy: Intervals in which each operation kept the GPU busy.
        operating: Intervals in which any compute operation kept the GPU busy, including operations
            whose phase is not in ``WORK``.
        collecting: Intervals in which communication between more than two ranks ran.

    Returns:
        active: Times of each rank in each iteration that has operations with compute kernels.
        running: Running times in consecutive intervals in and between iterations. Intervals in
            which nothing ran are left out. The column ``rank`` is 0, because the position on the
            time axis determines the rank.
    """
    rows, low_ns, high_ns = _measure_iteration_extents(operations)
    # Intervals in which communication but no compute kernel ran.
    exposed = intervals.difference(times.communicating, times.computing)
    launch_gaps = intervals.difference(merge_busy_times(operations, busy, WORK), times.running)
    start_ns, end_ns = _cut_time((times.running, times.communicating, exposed), low_ns, high_ns)
    kernel_ns, running_ns = np.split(
        intervals.measure_within(
            times.running, np.append(low_ns, start_ns), np.append(high_ns, end_ns)
        ),
        [len(low_ns)],
    )
    communication_ns = intervals.measure_within(times.communicating, start_ns, end_ns)
    active = ActiveTime(
        rank=operations.rank[rows],
        iteration=operations.iteration[rows],
        active_ns=times.worked_ns[rows],
        kernel_ns=kernel_ns,
        gap_ns=intervals.measure_within(launch_gaps, low_ns, high_ns),
        collective_gap_ns=intervals.measure_within(
            _find_collective_gaps(times, operating, collecting), low_ns, high_ns
        ),
    )
    ran = RunningTimes(
        rank=np.zeros(len(start_ns), np.int64),
        start_ns=start_ns,
        end_ns=end_ns,
        running_ns=running_ns,
        communication_ns=communication_ns,
        overlapped_ns=communication_ns - intervals.measure_within(exposed, start_ns, end_ns),
    )
    return active, ran.take(running_ns > 0)


def _measure_iteration_extents(operations: Operations) -> tuple[Ints, Ints, Ints]:
    """Measure when the work of each rank and iteration started and ended.

    Only operations whose phase is in ``WORK`` and that have compute kernels are used.

    Args:
        operations: Operations of the ranks, on one time axis.

    Returns:
        row: For each rank and iteration, the row of its first operation.
        low_ns: For each rank and iteration, the earliest start of its operations' spans.
        high_ns: For each rank and iteration, the latest end of its operations' spans.
    """
    rows = np.flatnonzero(mask_phases(operations.phase, WORK) & (operations.kernels > 0))
    groups = group_rows(operations.rank[rows], operations.iteration[rows])
    low_ns, high_ns = intervals.group_extents(
        groups.of_row, len(groups), operations.start_ns[rows], operations.end_ns[rows]
    )
    return rows[groups.first], low_ns, high_ns


def _find_collective_gaps(
    times: WorkTimes, operating: intervals.Intervals, collecting: intervals.Intervals
) -> intervals.Intervals:
    """Return when a collective but no compute kernel ran while an operation kept the GPU busy.

    Args:
        times: Times of the kernels and copies of the ranks.
        operating: Intervals in which any compute operation kept the GPU busy.
        collecting: Intervals in which communication between more than two ranks ran.
    """
    uncovered = intervals.difference(collecting, times.computing)
    return intervals.difference(uncovered, intervals.difference(uncovered, operating))


def _cut_time(
    sets: Sequence[intervals.Intervals], low_ns: Ints, high_ns: Ints
) -> tuple[Ints, Ints]:
    """Cut the time axis into consecutive intervals, in and between iterations.

    The axis is cut where iterations start and end. Between iterations, it is also cut where the
    intervals in ``sets`` start and end.

    Args:
        sets: Sets of intervals on the time axis.
        low_ns: Start of the first work in each iteration.
        high_ns: End of the last work in each iteration.

    Returns:
        start_ns: Start of each interval, in ascending order.
        end_ns: End of each interval, which is the start of the next one.
    """
    sections = intervals.union(low_ns, high_ns)
    between = [intervals.difference(part, sections) for part in sets]
    bounds_ns = find_distinct(low_ns, high_ns, *(edge_ns for part in between for edge_ns in part))
    return bounds_ns[:-1], bounds_ns[1:]
