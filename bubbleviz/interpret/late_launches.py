"""Late launches: work that was launched only after the GPU had run out of work.

This module also finds what the host did until the launch::

    device     ████ F0 ████│           │████ F1 ████       ████ F2 ██│      │██
    host                       launch F1                         stall
                           ├───┤  delay: long calls and ranges of the launching thread are kept
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.model import grouping, intervals
from bubbleviz.model import profile as model
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Ints, Table, join_tables, make_constant
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import HostActivities, Operations
from bubbleviz.model.phase_masks import mask_phases
from bubbleviz.model.phases import COMPUTE

#: Minimum length of delays, calls and ranges; shorter ones are launch overhead.
_SHORTEST_NS = 20_000
#: Delays are examined only if they have at least 1 / _MIN_FRACTION of the longest delay's length.
_MIN_FRACTION = 20
#: Maximum number of delays per kind that are examined.
_MAX_DELAYS = 2000
#: Maximum number of calls, and of ranges, that are kept for each delay.
_MAX_ACTIVITIES = 8
#: Kinds of late launches.
_OPERATION, _COLLECTIVE, _STALL = range(3)


@dataclass(frozen=True, eq=False, repr=False)
class LateLaunches(Table):
    """Delays before launches on ranks that had nothing left to run.

    Attributes:
        kind: What was delayed: ``_OPERATION`` for an operation, ``_COLLECTIVE`` for a collective,
            or ``_STALL`` if the GPU ran out of work for long inside an operation.
        rank: Index of the rank.
        operation: Row of the late operation, or -1 for collectives and stalls.
        thread: Id of the thread that launched the operation or collective.
        since_ns: Start of the delay. For a late launch, this is when the device ran out of work and
            had nothing left to wait for. For a stall, it is the start of the operation.
        until_ns: End of the delay: the late launch, or the end of the stalled operation.
    """

    kind: Ints
    rank: Ints
    operation: Ints
    thread: Ints
    since_ns: Ints
    until_ns: Ints


def find_late_operations(
    operations: Operations, thread: Ints, computed: intervals.Intervals, first_ns: Ints
) -> LateLaunches:
    """Find operations that were launched only after their rank had run out of work.

    An operation is late if the previous compute operation on its rank ended before the operation
    was launched. The previous compute operation is the last interval in ``computed`` that starts
    before the operation. An operation without a previous compute operation is not late. The delay
    lasts from the end of the previous compute operation to the launch. If ``received_ns`` is later
    than that end but before the launch, the delay starts at ``received_ns``.

    Only compute operations that have GPU work and a known launching thread are considered.

    Args:
        operations: Operations of several ranks, shifted onto one time axis so that ranks do not
            overlap.
        thread: Id of the thread that launched each operation, or -1 if unknown.
        computed: Start and end of the intervals in which the ranks computed, sorted and disjoint.
        first_ns: For each operation, the start of its rank on the time axis. Earlier compute
            belongs to another rank and is ignored.

    Returns:
        One row per late operation, in the order of ``operations``.
    """
    is_candidate = (
        mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1) & (thread != NONE)
    )
    rows = np.flatnonzero(is_candidate)
    previous = np.searchsorted(computed[0], operations.start_ns[rows]) - 1
    has_previous = previous >= 0
    start_ns = computed[0][previous[has_previous]]
    has_previous[has_previous] = start_ns >= first_ns[rows[has_previous]]
    rows, previous = rows[has_previous], previous[has_previous]

    launched_ns, received_ns = operations.launched_ns[rows], operations.received_ns[rows]
    since_ns = computed[1][previous]
    has_received = (received_ns != NONE) & (received_ns < launched_ns)
    since_ns = np.where(has_received, np.maximum(since_ns, received_ns), since_ns)
    is_late = since_ns < launched_ns
    rows = rows[is_late]
    return LateLaunches(
        kind=make_constant(_OPERATION, len(rows)),
        rank=operations.rank[rows],
        operation=rows,
        thread=thread[rows],
        since_ns=since_ns[is_late],
        until_ns=launched_ns[is_late],
    )


def find_late_collectives(
    collectives: CollectiveIntervals,
    launched_ns: Ints,
    thread: Ints,
    running: Sequence[intervals.Intervals],
    first_ns: Ints,
) -> tuple[CollectiveIntervals, LateLaunches]:
    """Find collectives that were launched only after everything before them had ended.

    In each set of ``running``, the last interval that starts at or before the launch is examined. A
    collective is late if all examined intervals have ended by the launch. ``late_ns`` is then the
    time from their latest end to the launch, or to the start of the collective if that is earlier.
    For all other collectives, ``late_ns`` does not change.

    Args:
        collectives: Collectives of several ranks, shifted onto one time axis so that ranks do not
            overlap.
        launched_ns: Launch time of each collective, or -1 if unknown.
        thread: Id of the thread that launched each collective, or -1 if unknown.
        running: Sets of sorted disjoint intervals: times when the ranks computed, and times when
            only collectives ran.
        first_ns: For each collective, the start of its rank on the time axis. Earlier intervals
            belong to another rank and are ignored.

    Returns:
        collectives: The collectives with ``late_ns`` set.
        late: One row per late collective whose launching thread is known.
    """
    since_ns = np.full(len(collectives), NONE, np.int64)
    is_idle = launched_ns != NONE
    for start_ns, end_ns in running:
        if len(start_ns):
            last = np.searchsorted(start_ns, launched_ns, side="right") - 1
            is_of_rank = (last >= 0) & (start_ns[last] >= first_ns)
            last_end_ns = np.where(is_of_rank, end_ns[last], NONE)
            is_idle &= last_end_ns <= launched_ns
            since_ns = np.maximum(since_ns, last_end_ns)
    until_ns = np.minimum(launched_ns, collectives.start_ns)
    late = np.flatnonzero(is_idle & (since_ns != NONE) & (until_ns > since_ns))
    late_ns = collectives.late_ns.copy()
    late_ns[late] = (until_ns - since_ns)[late]
    rows = late[thread[late] != NONE]
    launches = LateLaunches(
        kind=make_constant(_COLLECTIVE, len(rows)),
        rank=collectives.rank[rows],
        operation=make_constant(NONE, len(rows)),
        thread=thread[rows],
        since_ns=since_ns[rows],
        until_ns=until_ns[rows],
    )
    return collectives.replace_columns(late_ns=late_ns), launches


def find_stalls(operations: Operations, thread: Ints) -> LateLaunches:
    """Find operations in which the GPU ran out of work for far longer than in similar operations.

    The time without compute kernels is ``busy_ns - active_ns``. It must exceed three limits:

    - Twice the median over the operations of the same rank and phase.
    - A third of ``busy_ns``.
    - ``_SHORTEST_NS``.

    Only compute operations that have GPU work and a known launching thread are considered.

    Args:
        operations: Operations of the ranks.
        thread: Id of the thread that launched each operation, or -1 if unknown.

    Returns:
        One row per stall. It lasts from the start to the end of the operation.
    """
    is_candidate = (
        mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1) & (thread != NONE)
    )
    rows = np.flatnonzero(is_candidate)
    gap_ns = (operations.busy_ns - operations.active_ns)[rows]
    groups = grouping.group_rows(operations.rank[rows], operations.phase[rows])
    usual_ns = _compute_group_medians(gap_ns, groups.of_row)
    is_stall = (gap_ns > 2 * usual_ns) & (3 * gap_ns > operations.busy_ns[rows])
    rows = rows[is_stall & (gap_ns > _SHORTEST_NS)]
    return LateLaunches(
        kind=make_constant(_STALL, len(rows)),
        rank=operations.rank[rows],
        operation=make_constant(NONE, len(rows)),
        thread=thread[rows],
        since_ns=operations.start_ns[rows],
        until_ns=operations.end_ns[rows],
    )


def _compute_group_medians(values: Ints, group: Ints) -> Ints:
    """Return the median of each value's group.

    If a group has an even number of values, the upper of the two middle values is used.
    """
    order = np.lexsort((values, group))
    count = np.bincount(group)
    middle = np.cumsum(count) - count + count // 2
    return np.asarray(values[order[middle]][group], np.int64)


def select_longest(late: LateLaunches) -> LateLaunches:
    """Select the longest delays of each kind, up to ``_MAX_DELAYS`` per kind.

    A delay must last at least ``_SHORTEST_NS``, and at least 1 / ``_MIN_FRACTION`` of the longest
    delay of its kind. If delays are equally long, the earlier row wins. The result contains the
    operations, then the collectives, then the stalls, each in the original order.
    """
    selected = []
    for kind in (_OPERATION, _COLLECTIVE, _STALL):
        of_kind = late.take(late.kind == kind)
        length_ns = of_kind.until_ns - of_kind.since_ns
        min_length_ns = max(_SHORTEST_NS, int(length_ns.max(initial=0)) // _MIN_FRACTION)
        rows = np.flatnonzero(length_ns >= min_length_ns)
        longest = np.argsort(-length_ns[rows], kind="stable")[:_MAX_DELAYS]
        selected.append(of_kind.take(np.sort(rows[longest])))
    return join_tables(selected)


def add_host_activities(
    operations: Operations,
    late: LateLaunches,
    long_calls: model.Calls | None,
    profile: model.Profile,
) -> tuple[Operations, HostActivities]:
    """Determine what the launching threads did during the delays before late launches.

    Calls and ranges of the launching thread are kept if they overlap a delay. If there are more
    than ``_MAX_ACTIVITIES`` calls, or more than ``_MAX_ACTIVITIES`` ranges, those with the longest
    overlaps are kept. Ranges shorter than ``_SHORTEST_NS`` and calls without a name are left out.

    Args:
        operations: Operations of one profile.
        late: Delays before late launches of the profile, as selected by :func:`select_longest`.
        long_calls: Calls that took at least 20 us, or None if there are none.
        profile: The profile. Its file must still be open.

    Returns:
        operations: The operations. The names of the activities are appended to their ``names``.
        activities: All calls, followed by all ranges. Both are sorted by delay, longest overlap
            first.
    """
    if len(late) == 0:
        return operations, HostActivities.make_empty()
    names = Numbering(operations.names)
    threads = grouping.find_distinct(late.thread)
    ranges = profile.all_ranges.lasting(
        _SHORTEST_NS, threads, late.since_ns, late.until_ns, late.thread
    )
    activities = [HostActivities.make_empty()]
    for events in (long_calls, ranges):
        if events is None:
            continue
        is_call = isinstance(events, model.Calls)
        delay, row = _find_overlapping_events(late, events.thread, events.start_ns, events.end_ns)
        if len(row) == 0:
            continue
        texts = _read_names(events, row, profile)
        has_name = np.array([text != "" for text in texts], bool)
        if is_call:
            delay, row = delay[has_name], row[has_name]
            texts = [text for text in texts if text]
        launches = late.take(delay)
        activities.append(
            HostActivities(
                launches.rank,
                launches.operation,
                events.start_ns[row],
                events.end_ns[row],
                np.full(len(row), is_call, np.int64),
                names.numbers(texts),
            )
        )
    return replace(operations, names=names.values), join_tables(activities)


def _read_names(
    events: model.Calls | model.Ranges, rows: Ints, profile: model.Profile
) -> list[str]:
    """Return the names of calls or ranges, or "" for calls without a name.

    Args:
        events: Calls or ranges of the profile.
        rows: Rows of ``events`` whose names are returned.
        profile: The profile from which the names of calls are read.
    """
    if isinstance(events, model.Ranges):
        return [events.names[name] for name in events.name_id[rows].tolist()]
    numbers, of_row = np.unique(events.row[rows], return_inverse=True)
    names = profile.calls.names(numbers)
    return [names[index] for index in of_row.tolist()]


def _find_overlapping_events(
    late: LateLaunches, thread: Ints, start_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints]:
    """Find the events of the launching thread that overlap each delay the longest.

    Up to ``_MAX_ACTIVITIES`` events are returned for each delay. If overlaps are equally long, the
    smaller row wins.

    Args:
        late: Delays before late launches.
        thread: Thread of each event.
        start_ns: Start of each event.
        end_ns: End of each event.

    Returns:
        delay: For each pair of a delay and an event, the row of the delay in ``late``, ascending.
        row: For each pair, the row of the event. Within a delay, the longest overlap comes first.
    """
    delays, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for owner, on_thread in grouping.list_rows_by_value(thread):
        of_thread = np.flatnonzero(late.thread == owner)
        order = on_thread[np.argsort(start_ns[on_thread], kind="stable")]
        # Events before ``low`` ended before the delay; events from ``high`` on start after it.
        latest_ns = np.maximum.accumulate(end_ns[order])
        low = np.searchsorted(latest_ns, late.since_ns[of_thread], side="right")
        high = np.searchsorted(start_ns[order], late.until_ns[of_thread])
        pair, position = grouping.expand_ranges(low, np.maximum(high, low))
        delays.append(of_thread[pair])
        rows.append(order[position])
    return _select_longest_overlaps(
        late, np.concatenate(delays), np.concatenate(rows), start_ns, end_ns
    )


def _select_longest_overlaps(
    late: LateLaunches, delay: Ints, row: Ints, start_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints]:
    """Select the events that overlap each delay the longest.

    Up to ``_MAX_ACTIVITIES`` events are selected for each delay. If overlaps are equally long, the
    smaller row wins.

    Args:
        late: Delays before late launches.
        delay: For each pair of a delay and an event, the row of the delay in ``late``.
        row: For each pair, the row of the event. The event need not overlap the delay.
        start_ns: Start of each event.
        end_ns: End of each event.

    Returns:
        delay: For each selected pair, the row of the delay, in ascending order.
        row: For each selected pair, the row of the event. Within a delay, the longest overlap comes
            first.
    """
    overlap_ns = np.minimum(end_ns[row], late.until_ns[delay])
    overlap_ns -= np.maximum(start_ns[row], late.since_ns[delay])
    order = np.lexsort((row, -overlap_ns, delay))
    order = order[overlap_ns[order] > 0]
    delay, row = delay[order], row[order]
    position_in_delay = np.arange(len(delay)) - np.searchsorted(delay, delay)
    is_among_longest = position_in_delay < _MAX_ACTIVITIES
    return delay[is_among_longest], row[is_among_longest]
