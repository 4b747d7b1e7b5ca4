"""Unrecorded work: launches whose kernels the profile lacks, and the idle time around them.

A kernel that was launched and not recorded ran after what its thread launched before it had ended,
and before what the thread launched next began, so the device may have been busy there::

    launches    │ a   b   c                │
    kernels     │   ├ a ┤           ├ c ┤  │      b was not recorded
    unknown     │       ├───────────┤      │
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.kinds import GRAPH_LAUNCHES
from bubbleviz.interpret.damaged_work import (
    launched_before,
    recorded_until,
    until_recording_stopped,
)
from bubbleviz.interpret.late_launches import Launches
from bubbleviz.model import intervals
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, joined
from bubbleviz.model.grouping import begins, distinct, rows_by_value, sorted_rows
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankIntervals

#: Minimum part of the graph launches of a file, or of a device's span, that makes ratios wrong.
_NOTICEABLE = 0.01
#: Maximum time from the start of the capture to a launch that work from before it may hold up: in
#: general, and as a part of the time for which the launched work waited.
_EARLY_NS, _EARLY_PART = 10_000_000, 0.5
#: Minimum unexplained waits of first work: if they take a large part of the span, and in general.
_MIN_WAIT_NS, _LONG_WAIT_NS = 100_000, 5_000_000
#: Part of the span of a device that is large.
_LARGE = 0.1
#: Maximum idle time of a wait that is usual, as a multiple of the longest before other queued work.
_USUAL = 2
#: Maximum number of streams whose first work is looked at.
_MAX_STREAMS = 64


@dataclass(frozen=True)
class LostGraphs:
    """Graph launches of processes whose kernels were recorded.

    Attributes:
        calls: Launches without recorded work.
        n_launches: Number of all launches of these processes.
        with_work: Calls with recorded work, by row.
        partial: Those of which some kernels were recorded and others were not.
    """

    calls: model.Calls
    n_launches: int
    with_work: model.Calls
    partial: model.Calls

    @property
    def lost(self) -> model.Calls:
        """The launches of which kernels were not recorded."""
        return joined([self.calls, self.partial])

    def limitations(self, source: model.Source, unknown: RankIntervals) -> Iterator[Limitation]:
        """Yield the limitation that counts the launches without work, if there are any.

        Args:
            source: Source of the profile.
            unknown: When ranks may have run the work of these launches.
        """
        n_lost = len(self.lost)
        if n_lost == 0:
            return
        evidence = "the kernels of the others" if len(self.with_work) else "other kernels"
        remedy = "profile with larger buffers or for a shorter time"
        if len(self.with_work) == 0 and source.format == "nsys":
            remedy = f"record graphs' work with nsys profile --cuda-graph-trace=node, or {remedy}"
        reason = (
            f"{source.path}: {evidence} are recorded, so idle time around these launches is "
            f"unknown; {remedy}"
        )
        is_noticeable = n_lost >= _NOTICEABLE * self.n_launches
        kind = LimitationKind.GRAPHS_LOST if is_noticeable else LimitationKind.COSTS
        yield Limitation(
            self._counts(),
            reason,
            n_lost,
            kind,
            times_ns=self.lost.start_ns,
            # Without any, only the times of the launches are known.
            unknown_ns=(unknown.start_ns, unknown.end_ns) if len(unknown) else None,
            noticeable_kind=LimitationKind.GRAPHS_LOST,
        )

    def _counts(self) -> str:
        """Return how many launches lack kernels, in words."""
        n_lost, n_partial = len(self.calls), len(self.partial)
        of_all = f" of {self.n_launches:,} graph launches"
        if n_lost == 0:
            return f"only some kernels of {n_partial:,}{of_all} are recorded"
        verb = "has" if n_lost == 1 else "have"
        what = f"{n_lost:,}{of_all} {verb} no recorded kernels"
        return f"{what}, and {n_partial:,} only some" if n_partial else what


def find_lost_graphs(
    calls: model.CallLog,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> LostGraphs:
    """Return the graph launches without work in processes whose kernels were recorded.

    Launches that failed, and launches whose work may not have run when the capture ended, are not
    lost.

    Args:
        calls: All calls of the profile.
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
    """
    every_launch = calls.at(calls.named(GRAPH_LAUNCHES))
    none = every_launch.take(np.empty(0, np.int64))
    if len(every_launch) == 0:
        return LostGraphs(none, 0, none, none)
    has_work = launches.have_work(every_launch)
    with_work = every_launch.take(has_work)
    every_launch, has_work = _outermost(every_launch, has_work)
    process = model.process_of(every_launch.thread)
    is_recorded = np.isin(process, _recorded_processes(process, has_work, launches, activities))
    without_work = every_launch.take(is_recorded & ~has_work)
    if len(without_work):
        without_work = without_work.take(~calls.failed(without_work.row))
        until_ns = recorded_until(launches, activities, of_launch)
        until_ns = until_recording_stopped(
            without_work, until_ns, launches, activities, of_launch, calls
        )
        without_work = launched_before(without_work, until_ns, of_launch[1])
    return LostGraphs(without_work, int(is_recorded.sum()), with_work, none)


def _recorded_processes(
    process: Ints, has_work: Bools, launches: Launches, activities: model.Activities
) -> Ints:
    """Return the processes of which the work of graph launches should be recorded.

    If no graph launch of a process has work, some of its kernels may be work of graphs without a
    recorded launch. A graph has at least one kernel, so these are no fewer than the graph launches.

    Args:
        process: Process of each graph launch.
        has_work: Mask of graph launches that share their id with work.
        launches: Launches of all activities.
        activities: Kernels, then copies.
    """
    with_work = distinct(process[has_work])
    processes = [with_work]
    is_linked = launches.call[: activities.kernels] != NONE
    # Processes without any recorded graph are few.
    for number, graph_launches in rows_by_value(process[~np.isin(process, with_work)]):
        is_of_process = activities.ranks[:, 0] == number
        kernels = np.flatnonzero(is_of_process[activities.rank[: activities.kernels]])
        n_linked = int(is_linked[kernels].sum())
        n_unlinked = len(kernels) - n_linked
        if n_linked and n_unlinked < len(graph_launches):
            processes.append(np.array([number], np.int64))
    return distinct(*processes)


def _outermost(calls: model.Calls, has_work: Bools) -> tuple[model.Calls, Bools]:
    """Return the calls that lie in no other one of their thread, and which of them have work.

    A profile may hold the call of the runtime API and that of the driver API inside it. They are
    one launch, and only one of them has its correlation id on the work.

    Args:
        calls: Graph launches, at least one.
        has_work: Mask of those that share their id with work.
    """
    order = sorted_rows(calls.thread, calls.start_ns, -calls.end_ns)
    calls = calls.take(order)
    is_outermost = begins(calls.thread)
    is_outermost[1:] |= calls.start_ns[1:] >= calls.end_ns[:-1]
    launch = np.cumsum(is_outermost) - 1
    works = np.bincount(launch, has_work[order]) > 0
    outermost = calls.take(is_outermost)
    # Calls can be looked up by ascending rows only.
    by_row = np.argsort(outermost.row)
    return outermost.take(by_row), works[by_row]


def unknown_times(
    lost: model.Calls,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> RankIntervals:
    """Return when each rank may have run work that was launched and not recorded.

    Work of a thread without any recorded kernels may have run on any device of its process.

    Args:
        lost: Launches whose kernels were not recorded.
        launches: Launches of all activities.
        activities: Kernels, then copies.
        of_launch: For each activity the row of its launch's thread, undefined if its launch is
            unknown, and the threads that made calls.
    """
    ranks, starts, ends = ([np.empty(0, np.int64)] for _ in range(3))
    n_kernels = activities.kernels if len(lost) else 0
    kernels = np.flatnonzero(launches.call[:n_kernels] != NONE)
    thread_of_kernel = of_launch[1][of_launch[0][kernels]]
    # Threads that lost work, and devices, are few.
    for thread, rows in rows_by_value(lost.thread):
        is_near = thread_of_kernel == thread
        if not is_near.any():
            # Nothing shows on which device its work ran.
            is_near = model.process_of(thread_of_kernel) == thread >> 24
        near = kernels[is_near]
        for rank, of_rank in rows_by_value(activities.rank[near]):
            start_ns, end_ns = _between_kernels(
                lost.start_ns[rows], launches.start_ns, activities, near[of_rank]
            )
            ranks.append(np.full(len(start_ns), rank, np.int64))
            starts.append(start_ns)
            ends.append(end_ns)
    columns = (np.concatenate(column) for column in (ranks, starts, ends))
    return join_intervals([RankIntervals(*columns)], len(activities.ranks))


def join_intervals(tables: Sequence[RankIntervals], n_ranks: int) -> RankIntervals:
    """Return the union of intervals, which may overlap, rank by rank in order of time."""
    every_table = joined(tables)
    times = every_table.start_ns, every_table.end_ns
    return RankIntervals(*intervals.group_union(every_table.rank, n_ranks, *times))


def _between_kernels(
    launch_ns: Ints, launched_ns: Ints, activities: model.Activities, kernels: Ints
) -> tuple[Ints, Ints]:
    """Return from when to when lost work may have run, by the recorded kernels of its thread.

    Args:
        launch_ns: When the lost work was launched.
        launched_ns: When each activity was launched.
        activities: Kernels, then copies.
        kernels: Rows of the kernels that the thread, or its process, launched on one device, at
            least one.

    Returns:
        start_ns: Start of the time of each piece of lost work.
        end_ns: End of that time, later than its start.
    """
    start_ns, end_ns = times_around(launch_ns, launched_ns, activities, kernels)
    is_open = end_ns > start_ns
    return start_ns[is_open], end_ns[is_open]


def times_around(
    launch_ns: Ints, launched_ns: Ints, activities: model.Activities, kernels: Ints
) -> tuple[Ints, Ints]:
    """Return from when to when the work of launches may run, by the kernels before and after it.

    Args:
        launch_ns: When the work was launched.
        launched_ns: When each activity was launched.
        activities: Kernels, then copies.
        kernels: Rows of kernels that were launched on one device, at least one.

    Returns:
        start_ns: When the work was launched, or later: when all kernels launched before had ended.
        end_ns: When the first kernel launched afterwards began, or earlier than the start if the
            work had no time. Without such a kernel, when the last of the work was launched.
    """
    order = kernels[np.argsort(launched_ns[kernels], kind="stable")]
    times_ns = launched_ns[order]
    latest_end_ns = np.maximum.accumulate(activities.end_ns[order])
    earliest_start_ns = np.minimum.accumulate(activities.start_ns[order][::-1])[::-1]
    n_before = np.searchsorted(times_ns, launch_ns)
    n_up_to = np.searchsorted(times_ns, launch_ns, side="right")
    previous_end_ns = np.where(n_before > 0, latest_end_ns[n_before - 1], launch_ns)
    start_ns = np.maximum(launch_ns, previous_end_ns)
    end_ns = np.append(earliest_start_ns, launch_ns.max(initial=0))[n_up_to]
    return start_ns, end_ns


# Work from before the capture: it kept a stream busy until the first recorded work on it began.
#
# ::
#
#     capture               │
#     launches       x      │  a    b
#     recorded              │  ├ a ┤                ├──── b ────┤     the first on its stream
#     device         ├──────── x ────────────────────┤                 launched earlier: unknown
#     unknown               │   ├────────────────────┤


def times_before_first_work(
    activities: model.Activities,
    first: Ints,
    call: Codes,
    launched_ns: Ints,
    calls: model.CallLog,
    capture_start_ns: int,
) -> RankIntervals:
    """Return when ranks may have run work that was launched before the capture.

    The first work on a stream begins as soon as it was launched. If it was launched early in the
    capture, or soon after its start against the time that it waited, and no recorded work explains
    the wait, earlier work held it up. The wait shows nothing if the device idled about as long
    before work that was launched by then and is not the first on its stream.

    Args:
        activities: Kernels, then copies.
        first: Row of the first work on each stream.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of that call, undefined if the call is unknown.
        calls: All calls of the profile.
        capture_start_ns: Start of the capture.
    """
    is_queued = call != NONE
    is_queued[first] = False
    first = first[call[first] != NONE]
    waited_ns = activities.start_ns[first] - launched_ns[first]
    launched_after_ns = launched_ns[first] - capture_start_ns
    is_early = launched_after_ns <= np.maximum(_EARLY_NS, _EARLY_PART * waited_ns)
    first = first[is_early & (waited_ns > _MIN_WAIT_NS)]
    usual_ns = {
        rank: _longest_gap(activities, rank, is_queued, launched_ns)
        for rank in distinct(activities.rank[first]).tolist()
    }
    ranks, starts, ends = [], [], []
    # Streams whose first work waited are few.
    for row in first[np.argsort(activities.start_ns[first], kind="stable")][:_MAX_STREAMS].tolist():
        returned_ns = int(calls.at(np.array([call[row]], np.int64)).end_ns[0])
        due_ns = max(returned_ns, int(launched_ns[row]))
        rank = int(activities.rank[row])
        if _is_unexplained(activities, row, due_ns, usual_ns[rank]):
            ranks.append(rank)
            starts.append(due_ns)
            ends.append(int(activities.start_ns[row]))
    columns = (np.array(column, np.int64) for column in (ranks, starts, ends))
    return join_intervals([RankIntervals(*columns)], len(activities.ranks))


def _longest_gap(
    activities: model.Activities, rank: int, is_queued: Bools, launched_ns: Ints
) -> int:
    """Return the longest time for which a device idled although its next work had been launched.

    Args:
        activities: Kernels, then copies.
        rank: The device.
        is_queued: Mask of the work that is considered, whose launches are known.
        launched_ns: When it was launched.
    """
    rows = np.flatnonzero(activities.rank == rank)
    rows = rows[np.argsort(activities.start_ns[rows], kind="stable")]
    ended_ns = np.maximum.accumulate(activities.end_ns[rows])
    idle_since_ns = np.maximum(ended_ns[:-1], launched_ns[rows[1:]])
    gap_ns = activities.start_ns[rows[1:]] - idle_since_ns
    return int(gap_ns[is_queued[rows[1:]]].max(initial=0))


def _is_unexplained(activities: model.Activities, row: int, due_ns: int, usual_ns: int) -> bool:
    """Return whether no recorded work explains why the first work on a stream began late.

    Work on any device that ended just before it may have held it up. Otherwise the device must have
    been idle for long, after it had run something, and for longer than is usual.

    Args:
        activities: Kernels, then copies.
        row: Row of the work.
        due_ns: Time from which it could have begun.
        usual_ns: Longest time for which the device idled before other work that had been launched.
    """
    start_ns = int(activities.start_ns[row])
    ended_ns = activities.end_ns[activities.start_ns < start_ns]
    if ((ended_ns > start_ns - _MIN_WAIT_NS) & (ended_ns <= start_ns + _MIN_WAIT_NS)).any():
        return False
    is_of_rank = activities.rank == activities.rank[row]
    starts_ns, ends_ns = activities.start_ns[is_of_rank], activities.end_ns[is_of_rank]
    span_start_ns, span_end_ns = int(starts_ns.min()), int(ends_ns.max())
    begin_ns = max(due_ns, span_start_ns)
    if begin_ns >= start_ns:
        return False
    busy = intervals.within(intervals.union(starts_ns, ends_ns), begin_ns, start_ns)
    idle_ns = start_ns - begin_ns - intervals.measure(busy)
    longest_ns = (np.append(busy[0], start_ns) - np.append(begin_ns, busy[1])).max()
    if longest_ns <= _USUAL * usual_ns:
        return False
    return _is_long(idle_ns, idle_ns / (span_end_ns - span_start_ns))


def _is_long(time_ns: int, share: float) -> bool:
    """Return whether an unexplained time is so long that ratios are off.

    Args:
        time_ns: The time.
        share: The part of the device's span that it takes.
    """
    return (time_ns > _MIN_WAIT_NS and share >= _LARGE) or (
        time_ns > _LONG_WAIT_NS and share >= _NOTICEABLE
    )


def limitation_before_capture(path: str, times: RankIntervals) -> tuple[Limitation, ...]:
    """Return the limitation for work from before the capture, if there is any."""
    if len(times) == 0:
        return ()
    longest_ms = (times.end_ns - times.start_ns).max() / 1e6
    reason = (
        f"{path}: the first work on a stream was launched as the capture began, and started up to "
        f"{longest_ms:,.3f} ms later with nothing recorded in between, so the device was busy with "
        "work that was launched before; this idle time is unknown; start the capture while the "
        "devices are idle (torch.cuda.synchronize() before it)"
    )
    what = "devices that ran work from before the capture"
    kind = LimitationKind.WORK_BEFORE_CAPTURE
    n_devices = len(distinct(times.rank))
    unknown_ns = times.start_ns, times.end_ns
    return (Limitation(what, reason, n_devices, kind, unknown_ns=unknown_ns),)
