"""Launches whose kernels are missing from the profile, and when those kernels may have run.

An unrecorded kernel started after the previous kernels of its thread ended, and ended before the
next kernel of its thread started. The device may have been busy in between::

    launches    │ a   b   c                │
    kernels     │   ├ a ┤           ├ c ┤  │      b was not recorded
    unknown     │       ├───────────┤      │
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.conventions.kinds import GRAPH_LAUNCHES
from bubbleviz.interpret.damaged_work import (
    find_recorded_until,
    find_recording_stops,
    select_launched_before,
)
from bubbleviz.interpret.launches import Launches
from bubbleviz.model import intervals
from bubbleviz.model import profile as model
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, join_tables
from bubbleviz.model.grouping import find_distinct, list_rows_by_value, mask_run_starts, sort_rows
from bubbleviz.model.limitations import LEFT_OUT, Limitation, LimitationKind
from bubbleviz.model.operations import RankIntervals

#: Ratios are marked as uncertain if at least this share of the graph launches, or of a device's
#: span, is affected. The error of a ratio is then 1 % or more.
_NOTICEABLE = 0.01
#: Work from before the capture can delay only work that is launched early in the capture. The limit
#: is the maximum time from the start of the capture to the launch, in ns and as a fraction of the
#: time that the launched work waited. The larger limit applies.
_EARLY_NS, _EARLY_PART = 10_000_000, 0.5
#: Minimum unexplained wait in ns. The first value applies to waits that take at least ``_LARGE`` of
#: the device's span, the second to waits that take at least ``_NOTICEABLE`` of it.
_MIN_WAIT_NS, _LONG_WAIT_NS = 100_000, 5_000_000
#: A short wait (above ``_MIN_WAIT_NS``) is reported if it takes at least this share of the device's
#: span.
_LARGE = 0.1
#: A wait is normal if its length is at most this multiple of the longest idle time before other
#: queued work.
_USUAL = 2
#: Substrings in the names of CUDA and HIP API calls that queue a host function on a stream.
_HOST_FUNCTIONS = ("LaunchHostFunc", "StreamAddCallback")
#: Maximum number of streams whose first work is checked.
_MAX_STREAMS = 64


@dataclass(frozen=True)
class LostGraphs:
    """Graph launches of processes whose kernels were recorded.

    Attributes:
        calls: Graph launches without any recorded work, although it should have been recorded.
        n_launches: Total number of graph launches made by these processes.
        with_work: Graph launches with recorded work, sorted by row.
        partial: Graph launches whose kernels were only partially recorded.
    """

    calls: model.Calls
    n_launches: int
    with_work: model.Calls
    partial: model.Calls

    @property
    def lost(self) -> model.Calls:
        """Graph launches with unrecorded kernels: ``calls``, then ``partial``."""
        return join_tables([self.calls, self.partial])

    def limitations(self, source: model.Source, unknown: RankIntervals) -> Iterator[Limitation]:
        """Yield a limitation that reports the launches with unrecorded kernels, if there are any.

        Its kind is ``GRAPHS_LOST`` if at least ``_NOTICEABLE`` of all launches lack kernels,
        otherwise ``COSTS``.

        Args:
            source: Source of the profile.
            unknown: Intervals in which ranks may have run the unrecorded kernels.
        """
        n_lost = len(self.lost)
        if n_lost == 0:
            return
        evidence = "the kernels of the other launches" if len(self.with_work) else "other kernels"
        remedy = "profile with larger buffers or for a shorter time"
        if len(self.with_work) == 0 and source.format == "nsys":
            remedy = f"record graph kernels with nsys profile --cuda-graph-trace=node, or {remedy}"
        reason = (
            f"{source.path}: {evidence} are recorded, so idle time around these launches is "
            f"unknown; {remedy}"
        )
        is_noticeable = n_lost >= _NOTICEABLE * self.n_launches
        kind = LimitationKind.GRAPHS_LOST if is_noticeable else LimitationKind.COSTS
        yield Limitation(
            self._describe_counts(),
            reason,
            n_lost,
            kind,
            times_ns=self.lost.start_ns,
            # Without unknown times, only the times of the launches are known.
            unknown_ns=(unknown.start_ns, unknown.end_ns) if len(unknown) else None,
            noticeable_kind=LimitationKind.GRAPHS_LOST,
        )

    def _describe_counts(self) -> str:
        """Return a clause with the number of launches that lack kernels."""
        n_lost, n_partial = len(self.calls), len(self.partial)
        of_all = f" of {self.n_launches:,} graph launches"
        if n_lost == 0:
            return f"only some kernels of {n_partial:,}{of_all} are recorded"
        verb = "has" if n_lost == 1 else "have"
        text = f"{n_lost:,}{of_all} {verb} no recorded kernels"
        return f"{text}, and {n_partial:,} only some" if n_partial else text


def find_lost_graphs(
    calls: model.CallLog,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
) -> LostGraphs:
    """Find the graph launches without recorded work in processes whose kernels were recorded.

    Launches are left out if they failed, or if their work may have run only after the end of the
    capture. A graph launch call inside another graph launch call belongs to the same launch. The
    field ``partial`` of the result is empty. Callers fill it with
    :func:`~bubbleviz.interpret.partial_replays.find_partial_replays`.

    Args:
        calls: All API calls of the profile.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
    """
    graph_calls = calls.at(calls.named(GRAPH_LAUNCHES))
    none = graph_calls.take(np.empty(0, np.int64))
    if len(graph_calls) == 0:
        return LostGraphs(none, 0, none, none)
    has_work = launches.find_calls_with_work(graph_calls)
    with_work = graph_calls.take(has_work)
    graph_launches, has_work = _merge_nested_calls(graph_calls, has_work)
    process = model.process_of(graph_launches.thread)
    recorded_processes = _find_recorded_processes(process, has_work, launches, activities)
    is_recorded = np.isin(process, recorded_processes)
    without_work = graph_launches.take(is_recorded & ~has_work)
    if len(without_work):
        without_work = without_work.take(~calls.mask_failed(without_work.row))
        until_ns = find_recorded_until(launches, activities, of_launch)
        until_ns = find_recording_stops(
            without_work, until_ns, launches, activities, of_launch, calls
        )
        without_work = select_launched_before(without_work, until_ns, of_launch[1])
    return LostGraphs(without_work, int(is_recorded.sum()), with_work, none)


def _find_recorded_processes(
    process: Ints, has_work: Bools, launches: Launches, activities: model.Activities
) -> Ints:
    """Return the processes whose graph launches should have recorded work, ascending.

    A process is included in two cases:

    - Any of its graph launches has recorded work.
    - Some of its kernels are linked to calls, and it has fewer unlinked kernels than graph
      launches. Each graph runs at least one kernel, so the unlinked kernels cannot be the work of
      all graph launches.

    Args:
        process: Process of each graph launch.
        has_work: Mask of the graph launches that have recorded work.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
    """
    with_work = find_distinct(process[has_work])
    processes = [with_work]
    is_linked = launches.call[: activities.kernels] != NONE
    # The loop is short: there are few processes without a recorded graph.
    for number, graph_launches in list_rows_by_value(process[~np.isin(process, with_work)]):
        is_of_process = activities.ranks[:, 0] == number
        kernels = np.flatnonzero(is_of_process[activities.rank[: activities.kernels]])
        n_linked = int(is_linked[kernels].sum())
        n_unlinked = len(kernels) - n_linked
        if n_linked and n_unlinked < len(graph_launches):
            processes.append(np.array([number], np.int64))
    return find_distinct(*processes)


def _merge_nested_calls(calls: model.Calls, has_work: Bools) -> tuple[model.Calls, Bools]:
    """Merge nested calls, so that each graph launch is one call.

    A profile may contain a runtime API call and the driver API call inside it. The two calls are
    one launch, but the kernels have the correlation id of only one call.

    Args:
        calls: Calls that launch graphs, at least one.
        has_work: Mask of the calls that share their correlation id with recorded work.

    Returns:
        outermost: The calls that are not inside another call of their thread, sorted by row.
        has_work: Mask of the outermost calls that have recorded work, or contain a call that does.
    """
    order = sort_rows(calls.thread, calls.start_ns, -calls.end_ns)
    calls = calls.take(order)
    is_outermost = mask_run_starts(calls.thread)
    is_outermost[1:] |= calls.start_ns[1:] >= calls.end_ns[:-1]
    launch = np.cumsum(is_outermost) - 1
    is_worked = np.bincount(launch, has_work[order]) > 0
    outermost = calls.take(is_outermost)
    # Later lookups need ascending rows.
    by_row = np.argsort(outermost.row)
    return outermost.take(by_row), is_worked[by_row]


def find_unknown_times(
    lost_launches: model.Calls,
    launches: Launches,
    activities: model.Activities,
    of_launch: tuple[Codes, Ints],
    is_timed: Bools | None = None,
) -> RankIntervals:
    """Return the intervals in which each rank may have run work that was launched but not recorded.

    The work of a launch ran between the kernels that the same thread launched before and after; see
    :func:`find_times_between_kernels`. This gives one interval for each rank on which the thread
    launched kernels. If the thread launched no recorded kernels, the kernels of all threads of its
    process are used. Overlapping intervals of a rank are merged.

    Args:
        lost_launches: Launches with unrecorded kernels.
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        of_launch: Pair (index, threads). ``threads[index[i]]`` is the id of the thread that
            launched activity ``i``. It is undefined if the launch is unknown.
        is_timed: Mask of the activities whose times are valid, or None if all are valid.
    """
    parts = [RankIntervals.make_empty()]
    kernels = np.empty(0, np.int64)
    if len(lost_launches):
        kernels = _select_timed_kernels(launches, activities, is_timed)
    thread_of_kernel = of_launch[1][of_launch[0][kernels]]
    # The loops are short: there are few threads with unrecorded work, and few devices.
    for thread, rows in list_rows_by_value(lost_launches.thread):
        launched = kernels[_mask_nearest_kernels(thread_of_kernel, thread)]
        for rank, of_rank in list_rows_by_value(activities.rank[launched]):
            start_ns, end_ns = _find_open_times(
                lost_launches.start_ns[rows], launches.start_ns, activities, launched[of_rank]
            )
            parts.append(RankIntervals(np.full(len(start_ns), rank, np.int64), start_ns, end_ns))
    return join_intervals(parts, len(activities.ranks))


def _select_timed_kernels(
    launches: Launches, activities: model.Activities, is_timed: Bools | None
) -> Ints:
    """Return the rows of the kernels whose launch is known and whose times are valid.

    Args:
        launches: Launching calls of all activities.
        activities: GPU activities of the profile, kernels before copies.
        is_timed: Mask of the activities whose times are valid, or None if all are valid.
    """
    is_linked = launches.call[: activities.kernels] != NONE
    if is_timed is not None:
        is_linked &= is_timed[: activities.kernels]
    return np.flatnonzero(is_linked)


def _mask_nearest_kernels(thread_of_kernel: Ints, thread: int) -> Bools:
    """Return a mask of the kernels that a thread launched.

    If the thread launched no kernel, the mask contains the kernels of all threads in its process.

    Args:
        thread_of_kernel: Id of the thread that launched each kernel.
        thread: Id of the thread.
    """
    is_launched: Bools = thread_of_kernel == thread
    if not is_launched.any():
        # The device that the thread uses is unknown.
        is_launched = model.process_of(thread_of_kernel) == thread >> 24
    return is_launched


def locate_untimed(
    notes: Sequence[Limitation], calls: model.Calls, unknown: RankIntervals
) -> list[Limitation]:
    """Add to limitations the times at which work with invalid times may have run.

    ``unknown_ns`` is set on the limitations whose kind is in ``LEFT_OUT``. It contains the
    intervals of ``unknown`` and an empty interval at each launch. All other limitations are left
    unchanged. Without calls, all limitations are left unchanged.

    Args:
        notes: Limitations of any kind.
        calls: Launching calls of the work with invalid times.
        unknown: Intervals in which ranks may have run the work with invalid times.

    Returns:
        One limitation for each of ``notes``, in the same order.
    """
    # If ``unknown`` has no interval for some work, its launch time still locates the work.
    start_ns = np.concatenate((unknown.start_ns, calls.start_ns))
    end_ns = np.concatenate((unknown.end_ns, calls.start_ns))
    kind = LimitationKind.KERNELS_IMPOSSIBLE
    return [
        replace(note, unknown_ns=(start_ns, end_ns), noticeable_kind=kind)
        if note.kind in LEFT_OUT and len(calls)
        else note
        for note in notes
    ]


def join_intervals(tables: Sequence[RankIntervals], n_ranks: int) -> RankIntervals:
    """Return the union of the intervals of several tables, sorted by (rank, start)."""
    joint = join_tables(tables)
    times = joint.start_ns, joint.end_ns
    return RankIntervals(*intervals.group_union(joint.rank, n_ranks, *times))


def _find_open_times(
    launch_ns: Ints, launched_ns: Ints, activities: model.Activities, kernels: Ints
) -> tuple[Ints, Ints]:
    """Return the nonempty intervals that :func:`find_times_between_kernels` finds.

    Args:
        launch_ns: Time of each launch whose kernels are not recorded.
        launched_ns: Launch time of each activity.
        activities: GPU activities of the profile, kernels before copies.
        kernels: Rows of the recorded kernels that the thread or its process launched on one device,
            at least one.

    Returns:
        start_ns: Start of each interval.
        end_ns: End of each interval, later than its start.
    """
    start_ns, end_ns = find_times_between_kernels(launch_ns, launched_ns, activities, kernels)
    is_open = end_ns > start_ns
    return start_ns[is_open], end_ns[is_open]


def find_times_between_kernels(
    launch_ns: Ints, launched_ns: Ints, activities: model.Activities, kernels: Ints
) -> tuple[Ints, Ints]:
    """Return the interval in which the work of each launch may have run.

    The recorded kernels that were launched before and after the launch bound the interval.

    Args:
        launch_ns: Time of each launch.
        launched_ns: Launch time of each activity.
        activities: GPU activities of the profile, kernels before copies.
        kernels: Rows of the recorded kernels that were launched on one device, at least one.

    Returns:
        start_ns: Start of each interval: the time of the launch or the latest end of the kernels
            launched before it, whichever is later.
        end_ns: End of each interval: the earliest start of the kernels launched after it. This may
            be before ``start_ns``. If no kernel was launched later, it is the maximum of
            ``launch_ns``.
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


# Work from before the capture kept a stream busy until the first recorded kernel on it started.
#
# ::
#
#     capture               │
#     launches       x      │  a    b
#     recorded              │  ├ a ┤                ├──── b ────┤     b is the first on its stream
#     device         ├──────── x ────────────────────┤                 x was not recorded
#     unknown               │   ├────────────────────┤


def find_times_before_first_work(
    activities: model.Activities,
    first: Ints,
    call: Codes,
    launched_ns: Ints,
    calls: model.CallLog,
    capture_start_ns: int,
) -> RankIntervals:
    """Return the intervals in which ranks may have run work that was launched before the capture.

    The first activity on a stream usually starts as soon as it is launched. If the activity waited
    instead, it must have been delayed by work from before the capture, provided that all of the
    following conditions hold:

    - The first activity was launched early in the capture; see :func:`_select_waiting_work`.
    - No recorded work explains the wait, and the wait is unusually long for the device; see
      :func:`_is_unexplained`.
    - The launching thread had not queued a host function; see :func:`_has_host_function`.

    The interval starts when the launching call returns, and ends when the first activity starts.
    Only the ``_MAX_STREAMS`` streams whose waiting first activities start earliest are checked.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        first: Row of the first activity on each stream.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of each activity's launching call, undefined if unknown.
        calls: All API calls of the profile.
        capture_start_ns: Start of the capture.

    Returns:
        Intervals of all ranks, merged and sorted by (rank, start).
    """
    is_queued = call != NONE
    is_queued[first] = False
    first = _select_waiting_work(
        activities, first[call[first] != NONE], launched_ns, capture_start_ns
    )
    usual_ns = {
        rank: _measure_longest_gap(activities, rank, is_queued, launched_ns)
        for rank in find_distinct(activities.rank[first]).tolist()
    }
    ranks, starts, end_parts = [], [], []
    # The first activity waited only on a few streams.
    for row in first[np.argsort(activities.start_ns[first], kind="stable")][:_MAX_STREAMS].tolist():
        returned_ns = int(calls.at(np.array([call[row]], np.int64)).end_ns[0])
        due_ns = max(returned_ns, int(launched_ns[row]))
        rank = int(activities.rank[row])
        is_unexplained = _is_unexplained(activities, row, due_ns, usual_ns[rank])
        if is_unexplained and not _has_host_function(calls, int(call[row])):
            ranks.append(rank)
            starts.append(due_ns)
            end_parts.append(int(activities.start_ns[row]))
    columns = (np.array(column, np.int64) for column in (ranks, starts, end_parts))
    return join_intervals([RankIntervals(*columns)], len(activities.ranks))


def _select_waiting_work(
    activities: model.Activities, rows: Ints, launched_ns: Ints, capture_start_ns: int
) -> Ints:
    """Select the activities that were launched early in the capture and waited before they started.

    The wait from launch to start must exceed ``_MIN_WAIT_NS``. The launch is early if it is at most
    ``max(_EARLY_NS, _EARLY_PART * wait)`` after the start of the capture.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        rows: Rows to select from. The launches of the selected activities must be known.
        launched_ns: Launch time of each activity.
        capture_start_ns: Start of the capture.
    """
    waited_ns = activities.start_ns[rows] - launched_ns[rows]
    launched_after_ns = launched_ns[rows] - capture_start_ns
    is_early = launched_after_ns <= np.maximum(_EARLY_NS, _EARLY_PART * waited_ns)
    waiting: Ints = rows[is_early & (waited_ns > _MIN_WAIT_NS)]
    return waiting


def _has_host_function(calls: model.CallLog, row: int) -> bool:
    """Return whether the thread that made a launch had queued a host function before.

    Work launched later on the stream waits until the function returns. No profile records when it
    returns::

        launches    │ function   a
        recorded    │                          ├ a ┤
        function    │    ├────────────────────┤

    Args:
        calls: All API calls of the profile.
        row: Row of the launching call.
    """
    launch = calls.at(np.array([row], np.int64))
    rows = (calls.find_containing(name) for name in _HOST_FUNCTIONS)
    functions = calls.at(find_distinct(*rows))
    is_before = functions.start_ns < launch.start_ns[0]
    return bool((is_before & (functions.thread == launch.thread[0])).any())


def _measure_longest_gap(
    activities: model.Activities, rank: int, is_queued: Bools, launched_ns: Ints
) -> int:
    """Return the longest time in ns that a device idled although its next work had been launched.

    The gap before an activity is ``start - max(launch, end)``, where ``end`` is the latest end of
    all earlier activities on the device. The result is 0 if there is no positive gap.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        rank: Index of the rank that uses the device.
        is_queued: Mask of the activities before which idle time is measured. Their launches must be
            known.
        launched_ns: Launch time of each activity, undefined if unknown.
    """
    rows = np.flatnonzero(activities.rank == rank)
    rows = rows[np.argsort(activities.start_ns[rows], kind="stable")]
    ended_ns = np.maximum.accumulate(activities.end_ns[rows])
    idle_since_ns = np.maximum(ended_ns[:-1], launched_ns[rows[1:]])
    gap_ns = activities.start_ns[rows[1:]] - idle_since_ns
    return int(gap_ns[is_queued[rows[1:]]].max(initial=0))


def _is_unexplained(activities: model.Activities, row: int, due_ns: int, usual_ns: int) -> bool:
    """Return whether no recorded work explains why the first activity on a stream started late.

    The wait is unexplained if all of the following conditions hold:

    - The activity did not wait for other recorded work: no activity on any device started earlier
      and ended within ``_MIN_WAIT_NS`` before or after the start.
    - The device idled for long in total during the wait; see :func:`_is_long_wait`.
    - Its longest idle interval during the wait exceeds ``_USUAL`` times ``usual_ns``.

    Time before the first activity on the device is ignored.

    Args:
        activities: GPU activities of the profile, kernels before copies.
        row: Row of the first activity on the stream.
        due_ns: Earliest time at which the activity could have started.
        usual_ns: Longest time that the device idled before other work although the work had been
            launched.
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
    busy = intervals.clip_intervals(intervals.union(starts_ns, ends_ns), begin_ns, start_ns)
    idle_ns = start_ns - begin_ns - intervals.measure(busy)
    longest_ns = (np.append(busy[0], start_ns) - np.append(begin_ns, busy[1])).max()
    if longest_ns <= _USUAL * usual_ns:
        return False
    return _is_long_wait(idle_ns, idle_ns / (span_end_ns - span_start_ns))


def _is_long_wait(time_ns: int, idle_share: float) -> bool:
    """Return whether an unexplained wait is long enough to report.

    One of two conditions must hold. Either the wait exceeds ``_MIN_WAIT_NS`` and its share is at
    least ``_LARGE``, or the wait exceeds ``_LONG_WAIT_NS`` and its share is at least
    ``_NOTICEABLE``.

    Args:
        time_ns: Idle time during the wait, in ns.
        idle_share: Idle time as a fraction of the device's span.
    """
    return (time_ns > _MIN_WAIT_NS and idle_share >= _LARGE) or (
        time_ns > _LONG_WAIT_NS and idle_share >= _NOTICEABLE
    )


def describe_work_before_capture(path: str, times: RankIntervals) -> tuple[Limitation, ...]:
    """Return the limitation on work from before the capture, or () if there was no such work.

    Args:
        path: Path of the profile.
        times: Intervals in which ranks may have run work from before the capture.
    """
    if len(times) == 0:
        return ()
    longest_ms = (times.end_ns - times.start_ns).max() / 1e6
    reason = (
        f"{path}: the first work on a stream was launched as the capture began and started up to "
        f"{longest_ms:,.3f} ms later, although nothing was recorded in between. The device was "
        "therefore busy with work launched before the capture, and this idle time is unknown; "
        "start the capture while the devices are idle (call torch.cuda.synchronize() first)"
    )
    subject = "devices that ran work from before the capture"
    kind = LimitationKind.WORK_BEFORE_CAPTURE
    n_devices = len(find_distinct(times.rank))
    unknown_ns = times.start_ns, times.end_ns
    return (Limitation(subject, reason, n_devices, kind, unknown_ns=unknown_ns),)
