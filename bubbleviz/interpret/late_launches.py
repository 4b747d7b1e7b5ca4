"""Late launches: operations launched while the GPU had run dry, and what the host did meanwhile.

::

    device     ████ F0 ████│           │████ F1 ████
    host                       launch F1
                           ├───┤  late: long calls and ranges of the launching thread in here
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table
from bubbleviz.model.grouping import distinct, expanded, rows_by_value
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import HostActivities, RankOperations
from bubbleviz.model.phases import COMPUTE
from bubbleviz.model.profile import CallLog, Calls, Profile, Ranges
from bubbleviz.model.values import frozen

#: Shorter delays, and shorter calls and ranges, are launch overhead.
_SHORTEST_NS = 20_000
#: Delays that are so much shorter than the longest are not looked into, nor more than so many.
_SHARE, _MOST = 20, 2000
#: Of each delay, so many calls and so many ranges are kept: those that take most of it.
_KEPT = 8


@frozen
class LateLaunches(Table):
    """Operations that were launched after their GPU, and their last receive, had come to an end.

    Attributes:
        operation: row of the operations.
        thread: thread that launched it.
        since_ns: when there was nothing more to wait for on the device.
        until_ns: when it was launched.
    """

    operation: Ints
    thread: Ints
    since_ns: Ints
    until_ns: Ints


def late_launches(
    operations: RankOperations, thread: Ints, computed: intervals.Intervals
) -> LateLaunches:
    """Return the operations of a rank that the host launched while it had nothing to run.

    Args:
        operations: of one rank.
        thread: that launched each; -1 unknown.
        computed: when the rank computed.
    """
    compute = np.isin(operations.phase, COMPUTE)
    rows = np.flatnonzero(compute & (operations.has_span == 1) & (thread != NONE))
    at = np.searchsorted(computed[0], operations.start_ns[rows]) - 1
    rows, at = rows[at >= 0], at[at >= 0]
    launched_ns, received_ns = operations.launched_ns[rows], operations.received_ns[rows]
    since_ns = computed[1][at]
    waited = (received_ns != NONE) & (received_ns < launched_ns)
    since_ns = np.where(waited, np.maximum(since_ns, received_ns), since_ns)
    late = since_ns < launched_ns
    return LateLaunches(rows[late], thread[rows[late]], since_ns[late], launched_ns[late])


def with_host_activities(
    operations: RankOperations, late: LateLaunches, long_calls: Calls | None, profile: Profile
) -> tuple[RankOperations, HostActivities]:
    """Return operations with more names, and the host's activities before late launches.

    Args:
        operations: of one profile.
        late: those that were launched late.
        long_calls: calls in which a thread spent real time; None for none.
        profile: the profile.
    """
    late = _longest(late)
    none = np.empty(0, np.int64)
    if len(late) == 0:
        return operations, HostActivities(*(none.copy() for _ in range(5)))
    names = Numbering(operations.names)
    rows = [*_calls(late, long_calls, profile.calls), *_ranges(late, profile)]
    table = np.array([(*row[:4], names.number(row[4])) for row in rows], np.int64).reshape(-1, 5)
    return (
        replace(operations, names=names.values),
        HostActivities(*(column.copy() for column in table.T)),
    )


def _longest(late: LateLaunches) -> LateLaunches:
    """Return the delays that are worth a look, in order of the operations."""
    length_ns = late.until_ns - late.since_ns
    least_ns = max(_SHORTEST_NS, int(length_ns.max(initial=0)) // _SHARE)
    rows = np.flatnonzero(length_ns >= least_ns)
    order = np.argsort(-length_ns[rows], kind="stable")[:_MOST]
    return late.take(np.sort(rows[order]))


_Row = tuple[int, int, int, int, str]


def _calls(late: LateLaunches, long_calls: Calls | None, calls: CallLog) -> list[_Row]:
    """Return (operation, start, end, 1, name) of the long calls in each delay."""
    if long_calls is None:
        return []
    delay, row = _overlapping(late, long_calls.thread, long_calls.start_ns, long_calls.end_ns)
    if len(row) == 0:
        return []
    numbers, of_row = np.unique(long_calls.row[row], return_inverse=True)
    names = calls.names(numbers)
    columns = late.operation[delay], long_calls.start_ns[row], long_calls.end_ns[row], of_row
    return [
        (operation, start, end, 1, names[at])
        for operation, start, end, at in zip(*(c.tolist() for c in columns), strict=True)
        if names[at]
    ]


def _ranges(late: LateLaunches, profile: Profile) -> list[_Row]:
    """Return (operation, start, end, 0, name) of the ranges in each delay."""
    ranges: Ranges = profile.every_range.lasting(
        _SHORTEST_NS, distinct(late.thread), late.since_ns, late.until_ns
    )
    delay, row = _overlapping(late, ranges.thread, ranges.start_ns, ranges.end_ns)
    columns = late.operation[delay], ranges.start_ns[row], ranges.end_ns[row], ranges.name_id[row]
    return [
        (operation, start, end, 0, ranges.names[name])
        for operation, start, end, name in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _overlapping(
    late: LateLaunches, thread: Ints, start_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints]:
    """Return (delay, row): what of the launching thread takes most of each delay, longest first."""
    delays, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for owner, on_thread in rows_by_value(thread):
        of_thread = np.flatnonzero(late.thread == owner)
        order = on_thread[np.argsort(start_ns[on_thread], kind="stable")]
        # Those before have all ended by then, those behind begin later.
        latest_ns = np.maximum.accumulate(end_ns[order])
        low = np.searchsorted(latest_ns, late.since_ns[of_thread], side="right")
        high = np.searchsorted(start_ns[order], late.until_ns[of_thread])
        pair, place = expanded(low, np.maximum(high, low))
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
