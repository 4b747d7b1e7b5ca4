"""Late launches: what was launched while the GPU had run dry, and what the host did meanwhile.

::

    device     ████ F0 ████│           │████ F1 ████       ████ F2 ██│      │██
    host                       launch F1                         stall
                           ├───┤  late: long calls and ranges of the launching thread in here
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

#: Shorter delays, and shorter calls and ranges, are launch overhead.
_SHORTEST_NS = 20_000
#: Delays that are so much shorter than the longest are not looked into, nor more than so many.
_SHARE, _MOST = 20, 2000
#: Of each delay, so many calls and so many ranges are kept: those that take most of it.
_KEPT = 8
#: Kinds of what is launched late.
_OPERATION, _COLLECTIVE, _STALL = range(3)


@dataclass(frozen=True, eq=False, repr=False)
class LateLaunches(Table):
    """What was launched after its GPU, and its last receive, had come to an end.

    Attributes:
        kind: what it is, by number: an operation, a collective, or an operation inside which the
            GPU ran dry for long.
        rank: the rank.
        operation: row of the operations; -1 for what is of another kind.
        thread: thread that launched it.
        since_ns: when there was nothing more to wait for on the device.
        until_ns: when it was launched.
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
    """Return the operations of ranks that the host launched while these had nothing to run.

    Args:
        operations: of ranks, side by side.
        thread: that launched each; -1 unknown.
        computed: when the ranks computed.
        first_ns: before which nothing is of an operation's rank.
    """
    compute = mask_phases(operations.phase, COMPUTE)
    rows = np.flatnonzero(compute & (operations.has_span == 1) & (thread != NONE))
    at = np.searchsorted(computed[0], operations.start_ns[rows]) - 1
    ran = at >= 0
    ran[ran] = computed[0][at[ran]] >= first_ns[rows[ran]]
    rows, at = rows[ran], at[ran]
    launched_ns, received_ns = operations.launched_ns[rows], operations.received_ns[rows]
    since_ns = computed[1][at]
    waited = (received_ns != NONE) & (received_ns < launched_ns)
    since_ns = np.where(waited, np.maximum(since_ns, received_ns), since_ns)
    late = since_ns < launched_ns
    rows, kind = rows[late], make_constant(_OPERATION, int(late.sum()))
    rank = operations.rank[rows]
    return LateLaunches(kind, rank, rows, thread[rows], since_ns[late], launched_ns[late])


def find_late_collectives(
    collectives: CollectiveIntervals,
    launched_ns: Ints,
    thread: Ints,
    running: Sequence[intervals.Intervals],
    first_ns: Ints,
) -> tuple[CollectiveIntervals, LateLaunches]:
    """Return the collectives of ranks with how late they were launched, and those that were.

    Args:
        collectives: of ranks, side by side.
        launched_ns: when the host launched each; -1 unknown.
        thread: that launched each; -1 unknown.
        running: when the ranks computed, and when only collectives ran.
        first_ns: before which nothing is of a collective's rank.
    """
    since_ns = np.full(len(collectives), NONE, np.int64)
    dry = launched_ns != NONE
    for start_ns, end_ns in running:
        if len(start_ns):
            at = np.searchsorted(start_ns, launched_ns, side="right") - 1
            before = (at >= 0) & (start_ns[at] >= first_ns)
            ended_ns = np.where(before, end_ns[at], NONE)
            dry &= ended_ns <= launched_ns
            since_ns = np.maximum(since_ns, ended_ns)
    until_ns = np.minimum(launched_ns, collectives.start_ns)
    late = np.flatnonzero(dry & (since_ns != NONE) & (until_ns > since_ns))
    late_ns = collectives.late_ns.copy()
    late_ns[late] = (until_ns - since_ns)[late]
    known = late[thread[late] != NONE]
    launches = LateLaunches(
        make_constant(_COLLECTIVE, len(known)),
        collectives.rank[known],
        make_constant(NONE, len(known)),
        thread[known],
        since_ns[known],
        until_ns[known],
    )
    return collectives.replace_columns(late_ns=late_ns), launches


def find_stalls(operations: Operations, thread: Ints) -> LateLaunches:
    """Return the operations of ranks inside which the GPU ran dry for far longer than in others.

    Args:
        operations: of ranks.
        thread: that launched each; -1 unknown.
    """
    timed = mask_phases(operations.phase, COMPUTE) & (operations.has_span == 1) & (thread != NONE)
    rows = np.flatnonzero(timed)
    dry_ns = (operations.busy_ns - operations.active_ns)[rows]
    usual_ns = _compute_group_medians(
        dry_ns, grouping.group_rows(operations.rank[rows], operations.phase[rows]).of_row
    )
    stalled = (dry_ns > 2 * usual_ns) & (3 * dry_ns > operations.busy_ns[rows])
    rows = rows[stalled & (dry_ns > _SHORTEST_NS)]
    return LateLaunches(
        make_constant(_STALL, len(rows)),
        operations.rank[rows],
        make_constant(NONE, len(rows)),
        thread[rows],
        operations.start_ns[rows],
        operations.end_ns[rows],
    )


def _compute_group_medians(values: Ints, group: Ints) -> Ints:
    """Return for each value the (upper) median of its group."""
    order = np.lexsort((values, group))
    count = np.bincount(group)
    middle = np.cumsum(count) - count + count // 2
    return np.asarray(values[order[middle]][group], np.int64)


def select_longest(late: LateLaunches) -> LateLaunches:
    """Return what of several ranks is worth a look, of each kind the longest, in their order."""
    chosen = []
    for kind in (_OPERATION, _COLLECTIVE, _STALL):
        of_kind = late.take(late.kind == kind)
        length_ns = of_kind.until_ns - of_kind.since_ns
        least_ns = max(_SHORTEST_NS, int(length_ns.max(initial=0)) // _SHARE)
        rows = np.flatnonzero(length_ns >= least_ns)
        order = np.argsort(-length_ns[rows], kind="stable")[:_MOST]
        chosen.append(of_kind.take(np.sort(rows[order])))
    return join_tables(chosen)


def add_host_activities(
    operations: Operations,
    late: LateLaunches,
    long_calls: model.Calls | None,
    profile: model.Profile,
) -> tuple[Operations, HostActivities]:
    """Return operations with more names, and the host's activities before late launches.

    Args:
        operations: of one profile.
        late: what was launched late; see :func:`select_longest`.
        long_calls: calls in which a thread spent real time; None for none.
        profile: the profile.
    """
    if len(late) == 0:
        return operations, HostActivities.make_empty()
    names = Numbering(operations.names)
    threads, delays = (
        grouping.find_distinct(late.thread),
        (late.since_ns, late.until_ns, late.thread),
    )
    ranges = profile.all_ranges.lasting(_SHORTEST_NS, threads, *delays)
    found = [HostActivities.make_empty()]
    for events in (long_calls, ranges):
        if events is None:
            continue
        delay, row = _find_overlapping(late, events.thread, events.start_ns, events.end_ns)
        if len(row) == 0:
            continue
        if isinstance(events, model.Calls):
            numbers, of_row = np.unique(events.row[row], return_inverse=True)
            texts = profile.calls.names(numbers)
            known = np.array([text != "" for text in texts], bool)[of_row]
            delay, row, of_row = delay[known], row[known], of_row[known]
        else:
            texts, of_row = events.names, events.name_id[row]
        own = late.take(delay)
        call = np.full(len(row), isinstance(events, model.Calls), np.int64)
        name = names.numbers([texts[at] for at in of_row.tolist()])
        times = events.start_ns[row], events.end_ns[row]
        found.append(HostActivities(own.rank, own.operation, *times, call, name))
    return replace(operations, names=names.values), join_tables(found)


def _find_overlapping(
    late: LateLaunches, thread: Ints, start_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints]:
    """Return (delay, row): what of the launching thread takes most of each delay, longest first."""
    delays, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for owner, on_thread in grouping.list_rows_by_value(thread):
        of_thread = np.flatnonzero(late.thread == owner)
        order = on_thread[np.argsort(start_ns[on_thread], kind="stable")]
        # Those before have all ended by then, those behind begin later.
        latest_ns = np.maximum.accumulate(end_ns[order])
        low = np.searchsorted(latest_ns, late.since_ns[of_thread], side="right")
        high = np.searchsorted(start_ns[order], late.until_ns[of_thread])
        pair, place = grouping.expand_ranges(low, np.maximum(high, low))
        delays.append(of_thread[pair])
        rows.append(order[place])
    delay, row = np.concatenate(delays), np.concatenate(rows)
    spent_ns = np.minimum(end_ns[row], late.until_ns[delay])
    spent_ns -= np.maximum(start_ns[row], late.since_ns[delay])
    order = np.lexsort((row, -spent_ns, delay))
    order = order[spent_ns[order] > 0]
    delay, row = delay[order], row[order]
    kept = np.arange(len(delay)) - np.searchsorted(delay, delay) < _KEPT
    return delay[kept], row[kept]
