"""Finds communication kernels that were ready to start, but started only with another kernel.

A kernel is ready once its launch is done, the earlier work on its stream has ended, and the events
that its stream waits for have completed. Streams share hardware queues. With
``CUDA_DEVICE_MAX_CONNECTIONS=1`` there is a single queue, so a kernel starts only after all work
that the host launched earlier has started, even on other streams::

    host           launch P   launch X   launch C
    stream 7    ├───────── P ─────────┤├──── X ────┤
    stream 20                  · · · · ├─ C ─┤
    held back                  ├──────┤              C was ready, but started only with X
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from bubbleviz.analyses.idle.gaps import LATENCY_NS, Device
from bubbleviz.analyses.idle.proved_waits import get_work_name
from bubbleviz.analyses.idle.waits import (
    FOREVER,
    NEVER,
    SLACK_NS,
    EventTimes,
    find_ready_times,
)
from bubbleviz.conventions.kinds import Kinds, match_any
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, Table
from bubbleviz.model.grouping import find_positions, group_rows
from bubbleviz.model.profile import Activities
from bubbleviz.report.idle_summary import HeldBackCommunication

#: Maximum time in ns from the start or end of a kernel to the start of the work that it held back.
_REACTION_NS = 10_000
#: Maximum number of kernels that are examined as the reason for one late start.
_MAX_CANDIDATES = 4
#: Number of activities that are examined at a time.
_BLOCK_ROWS = 1 << 16
#: Whether the work started at the start or at the end of the kernel that held it back.
MOMENTS = ("start", "end")


@dataclass(frozen=True, eq=False, repr=False)
class HeldBack(Table):
    """Communication kernels that another kernel held back, one per row, sorted by ``work``.

    Attributes:
        work: Row of the communication kernel in the activities.
        ready_ns: Time at which the communication kernel was ready.
        start_ns: Time at which it started.
        behind: Row of the kernel on another stream that held it back.
        moment: What that kernel did when the communication started, as an index into
            :data:`MOMENTS`.
        stream: Stream of the communication kernel.
        behind_stream: Stream of the kernel that held it back.
    """

    work: Ints
    ready_ns: Ints
    start_ns: Ints
    behind: Ints
    moment: Ints
    stream: Ints
    behind_stream: Ints


def find_held_back(
    activities: Activities,
    read_streams: Callable[[], Ints],
    call: Codes,
    launched_ns: Ints,
    returned_ns: Callable[[Ints], Ints],
    events: EventTimes | None,
    kinds: Kinds,
) -> HeldBack:
    """Find the communication kernels that were ready, but started only with another kernel.

    A kernel is examined if its stream and its launching call are known, the call launched nothing
    else, and all events that its stream waited for are known. It was held back if it was ready at
    least ``LATENCY_NS`` before its start, and a kernel of another stream explains the start:

    - A kernel that was launched earlier started at the same time, and the next work on its stream
      was launched later. In a shared queue, all work that was launched earlier starts first.
    - Otherwise, a kernel that was launched earlier ended at the same time. This is no evidence if
      no events were recorded, because the end of a kernel may complete an event.

    Args:
        activities: All kernels in the profile, followed by all copies.
        read_streams: Function that returns the stream of each activity, numbered per rank, or -1 if
            unknown. It is called only if any communication started late.
        call: Launching call of each activity, or -1 if unknown.
        launched_ns: Start time of the launching call, undefined if the call is unknown.
        returned_ns: Function that returns the end of each call, given distinct, ascending rows.
        events: Events that work waited for, or None if the profile records no events. All results
            are then upper bounds.
        kinds: Name patterns that identify communication kernels.
    """
    work = _list_candidates(activities, call, launched_ns, kinds)
    if not len(work):
        return HeldBack.make_empty()
    streams = read_streams()
    work = work[streams[work] != NONE]
    awaited = EventTimes.make_empty() if events is None else events
    ready_ns = np.maximum.reduce(
        (
            find_ready_times(work, call, launched_ns, returned_ns),
            _find_previous_ends(activities, streams, work),
            np.append(awaited.completed_ns, NEVER)[find_positions(awaited.work, work)],
        )
    )
    is_late = activities.start_ns[work] - ready_ns >= LATENCY_NS
    work, ready_ns = work[is_late], ready_ns[is_late]
    launched = _LaunchedKernels(
        activities, streams, launched_ns, (call != NONE) & (streams != NONE)
    )
    behind, moment = _explain_starts(launched, work, are_events_known=events is not None)
    is_explained = behind != NONE
    work, behind = work[is_explained], behind[is_explained]
    return HeldBack(
        work,
        ready_ns[is_explained],
        activities.start_ns[work],
        behind,
        moment[is_explained],
        streams[work],
        streams[behind],
    )


def _list_candidates(activities: Activities, call: Codes, launched_ns: Ints, kinds: Kinds) -> Ints:
    """Return the communication kernels that started late after a launch of their own, ascending."""
    name, n_kernels = activities.name_id[: activities.kernels], activities.kernels
    is_communication = np.append(match_any(activities.names, kinds.communication), False)[name]
    is_known = is_communication & (call[:n_kernels] != NONE)
    waited_ns = activities.start_ns[:n_kernels] - launched_ns[:n_kernels]
    rows: Ints = np.flatnonzero(is_known & (waited_ns >= LATENCY_NS))
    if not len(rows):
        return rows
    # A CUDA graph launches several kernels, whose dependencies are not recorded.
    return np.asarray(rows[_count_launched(call, call[rows].astype(np.int64)) == 1], np.int64)


def _count_launched(call: Codes, wanted: Ints) -> Ints:
    """Return the number of activities that each of the wanted calls launched."""
    distinct, position = np.unique(wanted, return_inverse=True)
    count = np.zeros(len(distinct), np.int64)
    for block in _list_blocks(len(call)):
        index = find_positions(distinct, call[block].astype(np.int64))
        count += np.bincount(index[index != NONE], minlength=len(distinct))
    return np.asarray(count[position], np.int64)


def _list_blocks(n_rows: int) -> Iterator[slice]:
    """Yield slices that cover all rows. Working in blocks limits the memory of large profiles."""
    for start in range(0, n_rows, _BLOCK_ROWS):
        yield slice(start, start + _BLOCK_ROWS)


def _find_previous_ends(activities: Activities, streams: Ints, work: Ints) -> Ints:
    """Return, for each of ``work``, when the previous work on its stream ended, or ``NEVER``."""
    rows = np.flatnonzero(np.isin(streams, streams[work]))
    rank, start_ns = activities.rank[rows].astype(np.int64), activities.start_ns[rows]
    stream_id = group_rows(rank, streams[rows]).of_row
    query = np.searchsorted(rows, work)
    last = intervals.find_last_before(stream_id, start_ns, stream_id[query], start_ns[query])
    return np.asarray(np.append(activities.end_ns[rows], NEVER)[last], np.int64)


@dataclass(frozen=True)
class _LaunchedKernels:
    """The activities of a profile and their launches.

    Attributes:
        activities: All kernels in the profile, followed by all copies.
        streams: Stream of each activity, numbered per rank, or -1 if unknown.
        launched_ns: Start time of each activity's launching call, undefined if the call is unknown.
        is_known: Mask of the activities whose launching call and stream are known.
    """

    activities: Activities
    streams: Ints
    launched_ns: Ints
    is_known: Bools


def _explain_starts(
    launched: _LaunchedKernels, work: Ints, *, are_events_known: bool
) -> tuple[Ints, Ints]:
    """Find the kernel of another stream that explains each late start.

    Kernels that started late themselves are no reason for another late start.

    Args:
        launched: The activities and their launches.
        work: Rows of the communication kernels that started late.
        are_events_known: Whether the end of a kernel is evidence, as well as its start.

    Returns:
        behind: Row of the kernel that explains each start, or -1 if there is none.
        moment: What that kernel did, as an index into :data:`MOMENTS`.
    """
    activities = launched.activities
    is_reason = launched.is_known.copy()
    is_reason[activities.kernels :] = False
    is_reason[work] = False
    behind = np.full(len(work), NONE, np.int64)
    moment = np.zeros(len(work), np.int64)
    times = (activities.start_ns, activities.end_ns)
    for number, time_ns in enumerate(times if are_events_known else times[:1]):
        rows = np.flatnonzero(behind == NONE)
        is_start = time_ns is activities.start_ns
        behind[rows] = _find_reasons(launched, is_reason, time_ns, work[rows], is_start=is_start)
        moment[rows] = number
    return behind, moment


def _find_reasons(
    launched: _LaunchedKernels, is_reason: Bools, time_ns: Ints, work: Ints, *, is_start: bool
) -> Ints:
    """Return the kernel of another stream that explains each late start, or -1 if none does.

    The reason was launched before the work, and its start or end is at most ``_REACTION_NS`` before
    the start of the work. A start is a reason only if the next work on the stream was launched
    after the late work. The latest such time wins.

    Args:
        launched: The activities and their launches.
        is_reason: Mask of the kernels that may be the reason.
        time_ns: Start or end of each activity.
        work: Rows of the work that started late.
        is_start: Whether ``time_ns`` contains starts.
    """
    rank, started_ns = launched.activities.rank, launched.activities.start_ns[work]
    latest_ns = started_ns + SLACK_NS
    near = intervals.union(started_ns - _REACTION_NS, latest_ns + 1)
    is_near = [
        intervals.mask_overlapping(time_ns[block], time_ns[block] + 1, near)
        for block in _list_blocks(len(time_ns))
    ]
    reasons = np.flatnonzero(is_reason & np.concatenate(is_near))
    reasons = reasons[np.lexsort((time_ns[reasons], rank[reasons]))]
    last = intervals.find_last_before(
        rank[reasons].astype(np.int64),
        time_ns[reasons],
        rank[work].astype(np.int64),
        latest_ns,
        or_at=True,
    )
    next_launch_ns = np.full(len(reasons), FOREVER, np.int64)
    if is_start:
        next_launch_ns = _find_next_launches(launched, reasons)
    behind = np.full(len(work), NONE, np.int64)
    for back in range(_MAX_CANDIDATES):
        position = np.where(last >= back, last - back, NONE)
        reason = np.append(reasons, NONE)[position]
        is_match = (behind == NONE) & (reason != NONE) & (rank[reason] == rank[work])
        is_match &= launched.streams[reason] != launched.streams[work]
        is_match &= launched.launched_ns[reason] < launched.launched_ns[work]
        is_match &= started_ns - time_ns[reason] <= _REACTION_NS
        is_match &= np.append(next_launch_ns, FOREVER)[position] >= launched.launched_ns[work]
        behind[is_match] = reason[is_match]
    return behind


def _find_next_launches(launched: _LaunchedKernels, rows: Ints) -> Ints:
    """Return the launch time of the next activity on the stream of each row.

    Activities whose launch is unknown are skipped. The time is :data:`FOREVER` for the last
    activity of a stream.
    """
    activities, streams = launched.activities, launched.streams
    known = np.flatnonzero(launched.is_known & np.isin(streams, streams[rows]))
    stream_id = group_rows(activities.rank[known].astype(np.int64), streams[known]).of_row
    order = np.lexsort((activities.start_ns[known], stream_id))
    in_order, stream_id = known[order], stream_id[order]
    next_launch_ns = np.full(len(known), FOREVER, np.int64)
    has_next = stream_id[1:] == stream_id[:-1]
    next_launch_ns[:-1][has_next] = launched.launched_ns[in_order[1:]][has_next]
    of_known = np.empty_like(next_launch_ns)
    of_known[order] = next_launch_ns
    return np.asarray(of_known[find_positions(known, rows)], np.int64)


def sum_held_back(
    held_back: HeldBack, activities: Activities, device: Device
) -> tuple[tuple[HeldBackCommunication, ...], int]:
    """Sum the held-back communication of a device by kernel names, streams and moment.

    Only communication that started in the device's span counts.

    Args:
        held_back: Communication that was held back, on all devices.
        activities: All kernels in the profile, followed by all copies.
        device: The device.

    Returns:
        sums: The sums, longest first. On ties, they are sorted by name.
        held_ns: Time during which at least one communication kernel was held back.
    """
    is_inside: Bools = (activities.rank[held_back.work] == device.rank) & (
        held_back.start_ns >= device.span_ns[0]
    )
    is_inside &= held_back.start_ns < device.span_ns[1]
    rows = held_back.take(is_inside)
    times = intervals.union(rows.ready_ns, rows.start_ns)
    name = activities.name_id.astype(np.int64)
    groups = group_rows(
        name[rows.work], rows.stream, name[rows.behind], rows.behind_stream, rows.moment
    )
    count = np.bincount(groups.of_row, minlength=len(groups)).tolist()
    held_ns = intervals.group_sum(groups.of_row, len(groups), rows.start_ns - rows.ready_ns)
    sums = [
        HeldBackCommunication(
            communication=get_work_name(activities, int(rows.work[row])),
            stream=f"stream {int(rows.stream[row])}",
            behind=get_work_name(activities, int(rows.behind[row])),
            behind_stream=f"stream {int(rows.behind_stream[row])}",
            moment=MOMENTS[int(rows.moment[row])],
            count=count[group],
            held_ns=int(held_ns[group]),
        )
        for group, row in enumerate(groups.first.tolist())
    ]
    ordered = tuple(sorted(sums, key=HeldBackCommunication.order))
    return ordered, intervals.measure(intervals.clip_intervals(times, *device.span_ns))
