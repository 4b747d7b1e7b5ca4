"""Late launches: what was launched while the GPU had run dry, and what the host did meanwhile.

::

    device     ████ F0 ████│           │████ F1 ████       ████ F2 ██│      │██
    host                       launch F1                         stall
                           ├───┤  late: long calls and ranges of the launching thread in here
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.model import grouping, intervals
from bubbleviz.model import profile as model
from bubbleviz.model.collectives import CollectiveIntervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table, constant, joined, stretch_of
from bubbleviz.model.operations import HostActivities, Operations
from bubbleviz.model.phase_masks import among
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


def late_launches(
    operations: Operations, thread: Ints, computed: intervals.Intervals, first_ns: Ints
) -> LateLaunches:
    """Return the operations of ranks that the host launched while these had nothing to run.

    Args:
        operations: of ranks, side by side.
        thread: that launched each; -1 unknown.
        computed: when the ranks computed.
        first_ns: before which nothing is of an operation's rank.
    """
    compute = among(operations.phase, COMPUTE)
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
    rows, kind = rows[late], constant(_OPERATION, int(late.sum()))
    rank = operations.rank[rows]
    return LateLaunches(kind, rank, rows, thread[rows], since_ns[late], launched_ns[late])


def late_launched(
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
        constant(_COLLECTIVE, len(known)),
        collectives.rank[known],
        constant(NONE, len(known)),
        thread[known],
        since_ns[known],
        until_ns[known],
    )
    return collectives.changed(late_ns=late_ns), launches


def stalls(operations: Operations, thread: Ints) -> LateLaunches:
    """Return the operations of ranks inside which the GPU ran dry for far longer than in others.

    Args:
        operations: of ranks.
        thread: that launched each; -1 unknown.
    """
    timed = among(operations.phase, COMPUTE) & (operations.has_span == 1) & (thread != NONE)
    rows = np.flatnonzero(timed)
    dry_ns = (operations.busy_ns - operations.active_ns)[rows]
    usual_ns = _medians(
        dry_ns, grouping.groups_of(operations.rank[rows], operations.phase[rows]).of_row
    )
    stalled = (dry_ns > 2 * usual_ns) & (3 * dry_ns > operations.busy_ns[rows])
    rows = rows[stalled & (dry_ns > _SHORTEST_NS)]
    return LateLaunches(
        constant(_STALL, len(rows)),
        operations.rank[rows],
        constant(NONE, len(rows)),
        thread[rows],
        operations.start_ns[rows],
        operations.end_ns[rows],
    )


def _medians(values: Ints, group: Ints) -> Ints:
    """Return for each value the (upper) median of its group."""
    order = np.lexsort((values, group))
    count = np.bincount(group)
    middle = np.cumsum(count) - count + count // 2
    return np.asarray(values[order[middle]][group], np.int64)


def longest(late: LateLaunches) -> LateLaunches:
    """Return what of several ranks is worth a look, of each kind the longest, in their order."""
    chosen = []
    for kind in (_OPERATION, _COLLECTIVE, _STALL):
        of_kind = late.take(late.kind == kind)
        length_ns = of_kind.until_ns - of_kind.since_ns
        least_ns = max(_SHORTEST_NS, int(length_ns.max(initial=0)) // _SHARE)
        rows = np.flatnonzero(length_ns >= least_ns)
        order = np.argsort(-length_ns[rows], kind="stable")[:_MOST]
        chosen.append(of_kind.take(np.sort(rows[order])))
    return joined(chosen)


def with_host_activities(
    operations: Operations,
    late: LateLaunches,
    long_calls: model.Calls | None,
    profile: model.Profile,
) -> tuple[Operations, HostActivities]:
    """Return operations with more names, and the host's activities before late launches.

    Args:
        operations: of one profile.
        late: what was launched late; see :func:`longest`.
        long_calls: calls in which a thread spent real time; None for none.
        profile: the profile.
    """
    if len(late) == 0:
        return operations, HostActivities.none()
    names = grouping.Numbering(operations.names)
    threads, delays = grouping.distinct(late.thread), (late.since_ns, late.until_ns, late.thread)
    ranges = profile.every_range.lasting(_SHORTEST_NS, threads, *delays)
    found = [HostActivities.none()]
    for events in (long_calls, ranges):
        if events is None:
            continue
        delay, row = _overlapping(late, events.thread, events.start_ns, events.end_ns)
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
    return replace(operations, names=names.values), joined(found)


def _overlapping(
    late: LateLaunches, thread: Ints, start_ns: Ints, end_ns: Ints
) -> tuple[Ints, Ints]:
    """Return (delay, row): what of the launching thread takes most of each delay, longest first."""
    delays, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for owner, on_thread in grouping.rows_by_value(thread):
        of_thread = np.flatnonzero(late.thread == owner)
        order = on_thread[np.argsort(start_ns[on_thread], kind="stable")]
        # Those before have all ended by then, those behind begin later.
        latest_ns = np.maximum.accumulate(end_ns[order])
        low = np.searchsorted(latest_ns, late.since_ns[of_thread], side="right")
        high = np.searchsorted(start_ns[order], late.until_ns[of_thread])
        pair, place = grouping.expanded(low, np.maximum(high, low))
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


# Launches: the call that launched each activity, and what calls alone tell, block by block.
#
# A kernel's launching call has its correlation id and its process. Calls come in blocks and are not
# kept, but for those in which a thread spent real time.


#: A call is long from here on, as long as there are not too many; a launch takes some us.
_LONG_NS = 20_000
#: So many long calls are kept at most, give or take a block: 7 MB.
_MOST_LONG = 1 << 18
#: So many calls without work are kept, or, of more, about half as many.
_MOST_WORKLESS = 1 << 16


class Launches:
    """The launching call of each activity.

    Of several calls with one id (runtime API and driver API) the one that began first counts; of
    two that began together the earlier row.

    Attributes:
        call: row of the call of each activity; -1 unknown.
        start_ns: when that began.
        ids: their correlation ids.
        by_id: rows of the activities, process by process, in order of these ids.
        processes: of the activities, ascending.
        begin: where the rows of each begin; one more for the end.
        known: how many rows of each have an id; they come first.
        sharing: rows of the same process that have one id, ascending.
    """

    def __init__(self, activities: model.Activities) -> None:
        self.call: Codes = np.full(len(activities), NONE, np.int32)
        self.start_ns = np.zeros(len(activities), np.int64)
        self.ids = activities.correlation_id
        # One column for all processes, which goes back to the system as a whole.
        self.by_id: Codes = np.empty(len(activities), np.int32)
        self.processes = grouping.distinct(activities.ranks[:, 0])
        self.begin = np.zeros(len(self.processes) + 1, np.int64)
        self.known = np.zeros(len(self.processes), np.int64)
        sharing = [np.empty(0, np.int32)]
        at, rows_of = 0, activities.rows_by_rank()
        for place, process in enumerate(self.processes.tolist()):
            ranks = np.flatnonzero(activities.ranks[:, 0] == process)
            of_ranks = [rows_of(rank) for rank in ranks.tolist()]
            rows = np.sort(np.concatenate(of_ranks)) if len(of_ranks) > 1 else of_ranks[0]
            ids = self.ids[stretch_of(rows)]
            if not (ids[1:] >= ids[:-1]).all():
                order = np.argsort(ids, kind="stable")
                rows, ids = rows[order], ids[order]
            self.by_id[at : at + len(rows)] = rows
            at = self.begin[place + 1] = at + len(rows)
            known = int(np.searchsorted(ids, np.uint32(model.UNCORRELATED)))
            self.known[place] = known
            same = np.flatnonzero(ids[1:known] == ids[: max(known, 1) - 1])
            sharing.extend((rows[same], rows[same + 1]))
        self.sharing: Codes = grouping.distinct(*sharing)

    def of(self, calls: model.Calls) -> tuple[Codes, Ints, Codes]:
        """Return (activity, call): what some calls (at least one) launch.

        And a row of what each earlier call loses to them, which has no work after all.
        """
        of_process = grouping.rows_by_value(model.process_of(calls.thread))
        pairs = [self._pairs(process, rows, calls) for process, rows in of_process]
        activity, call = (np.concatenate(column) for column in zip(*pairs, strict=True))
        taken = self.call[activity] != NONE
        wins = ~taken | (calls.start_ns[call] < self.start_ns[activity])
        lost = activity[taken & wins]
        lost = lost[np.unique(self.call[lost], return_index=True)[1]]
        return activity[wins], call[wins], lost

    def have_work(self, calls: model.Calls) -> Bools:
        """Tell which of some calls share their id with anything that was launched."""
        worked = np.zeros(len(calls), bool)
        for process, rows in grouping.rows_by_value(model.process_of(calls.thread)):
            activities = self._of_process(process)
            worked[rows] = np.isin(calls.correlation_id[rows], self.ids[activities])
        return worked

    def _of_process(self, process: int) -> Codes:
        """Return the activities of a process that have an id, in the order of these."""
        place = int(grouping.found_in(self.processes, np.array([process]))[0])
        first = self.begin[place]
        return self.by_id[first : first + self.known[place]] if place != NONE else self.by_id[:0]

    def _pairs(self, process: int, rows: Ints, calls: model.Calls) -> tuple[Codes, Ints]:
        """Return pairs (activity, row of its call) of the calls of one process."""
        activities = self._of_process(process)
        ids = calls.correlation_id[rows]
        # Where the thread that calls is the only one of its process, ids ascend already.
        if not (ids[1:] > ids[:-1]).all():
            first = grouping.first_of_each(ids.astype(np.int64), calls.start_ns[rows])
            rows, ids = rows[first], ids[first]
        low = bisect_left(activities, ids[0], key=self.ids.__getitem__)
        within = activities[low : bisect_right(activities, ids[-1], key=self.ids.__getitem__)]
        at = grouping.found_in(ids, self.ids[within])
        return within[at != NONE], rows[at[at != NONE]]


class LongCalls:
    """Collects the calls in which a thread spent real time; of too many, only the longer ones."""

    def __init__(self) -> None:
        self._shortest_ns = _LONG_NS
        self._blocks: list[model.Calls] = []
        self._count = 0

    def add(self, calls: model.Calls) -> None:
        """Keep those of some calls that are long."""
        some = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
        if len(some) == 0:
            return
        self._blocks.append(some)
        self._count += len(some)
        while self._count > _MOST_LONG:
            self._shortest_ns *= 2
            calls = joined(self._blocks)
            calls = calls.take(calls.end_ns - calls.start_ns >= self._shortest_ns)
            self._blocks, self._count = [calls], len(calls)

    def collected(self) -> model.Calls | None:
        """Return the long calls in the order in which they came; None where there are none."""
        return joined(self._blocks) if self._blocks else None


class WorklessRows:
    """Rows of calls without work; of many, those with the lowest hashes.

    Training repeats itself, so that each second or fourth call may be of one kind.

    Attributes:
        step: how many calls each of them stands for.
    """

    def __init__(self, most: int = _MOST_WORKLESS) -> None:
        self._most = most
        self.step = 1
        self._blocks: list[Ints] = []
        self._kept = 0

    def add(self, row: Ints) -> None:
        """Note the rows of some calls without work."""
        chosen = _sampled(row, self.step)
        self._blocks.append(chosen)
        self._kept += len(chosen)
        while self._kept > self._most:
            self.step *= 2
            self._blocks = [_sampled(np.concatenate(self._blocks), self.step)]
            self._kept = len(self._blocks[0])

    def sample(self, most: int = _MOST_WORKLESS) -> tuple[Ints, int]:
        """Return the rows, ascending, or a part of them of about so many; and its step."""
        step = self.step
        while self._kept * self.step > most * step:
            step *= 2
        blocks = [_sampled(block, step) for block in self._blocks]
        return grouping.distinct(np.empty(0, np.int64), *blocks), step


def _sampled(row: Ints, step: int) -> Ints:
    """Return one row of ``step``, whatever the distances between them."""
    if step == 1:
        return row
    # Two rounds of multiplication, with constants of MurmurHash3; the high bits are mixed best.
    mixed = row.astype(np.uint32)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0xC2B2AE35)
    chosen: Ints = row[mixed < np.uint32((1 << 32) // step)]
    return chosen
