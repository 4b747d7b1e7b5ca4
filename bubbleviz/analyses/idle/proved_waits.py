"""Sums the proved waits of streams and hosts by waiter and awaited work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bubbleviz.analyses.idle.gaps import Device
from bubbleviz.analyses.idle.host import HostEvents
from bubbleviz.analyses.idle.waits import BLOCKED, KIND_NAMES, DelayedWork, Waiting, classify_work
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints, Table, join_tables, make_constant
from bubbleviz.model.grouping import Groups, find_positions, group_rows
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import Activities, Profile
from bubbleviz.model.texts import truncate_for_document
from bubbleviz.report.idle_summary import ProvedWait

#: Display name for copies and memsets, which have no name in profiles.
COPY_NAME = "copy or memset"


def get_work_name(activities: Activities, row: int) -> str:
    """Return the name of a kernel or copy, or ``COPY_NAME`` if it has no name."""
    name = int(activities.name_id[row])
    return COPY_NAME if name == NONE else truncate_for_document(activities.names[name])


@dataclass(frozen=True, eq=False, repr=False)
class ProvedWaits(Table):
    """Stream waits, and pieces of a device's idle time during which a host waited, one row each.

    Attributes:
        start_ns: Start time of the wait.
        end_ns: End time of the wait.
        by_host: 1 if a host waited, 0 if a stream waited.
        waiting: If a stream waited, the stream number. If a host waited, the index of the call name
            in ``HostEvents.calls``.
        delayed_work: Row of the activity that the stream ran after the wait, or -1 if a host
            waited.
        awaited: Row of the awaited activity.
        kind: Kind of the awaited activity, as an index into ``KIND_NAMES``.
        count: 1, or 0 for the second and later pieces of the same host call.
        without_compute_ns: Part of the wait during which the device ran no compute kernel.
        idle_ns: Idle time of the device that is attributed to the wait.
    """

    start_ns: Ints
    end_ns: Ints
    by_host: Ints
    waiting: Ints
    delayed_work: Ints
    awaited: Ints
    kind: Ints
    count: Ints
    without_compute_ns: Ints
    idle_ns: Ints


def find_proved_waits(
    device: Device,
    times: Mapping[str, intervals.Intervals],
    profile: Profile,
    waiting: Waiting,
    host: HostEvents,
    idle: IdleIntervals,
    numbers: Numbering[str],
    kinds: Kinds,
) -> tuple[tuple[ProvedWait, ...], int, int]:
    """Sum a device's stream waits, and the host waits while it was idle, by waiter and work.

    Only proved waits are included: CUDA events show which work the stream or host waited for.

    Args:
        device: The device that the waits delayed.
        times: Times at which the device ran each kind of work; see :func:`.gaps.measure_times`.
        profile: The profile of the device.
        waiting: The waits that the profile proves.
        host: Ranges and API calls recorded on the host threads.
        idle: Attributed idle time of the device.
        numbers: Maps activity names to integer ids. A new name gets the next free id.
        kinds: Name patterns that identify communication kernels.

    Returns:
        waits: The summed waits, sorted by :meth:`.ProvedWait.order`.
        awaited_communication_ns: Exposed communication that a stream waited for.
        awaited_copy_ns: Exposed copies that a stream waited for.
    """
    is_blocking = np.array([name in BLOCKED for name in numbers.values], bool)
    blocked = idle.take(is_blocking[idle.activity])
    of_streams = _collect_stream_waits(
        device, times["compute"], profile.activities, waiting, blocked
    )
    of_hosts = _collect_host_waits(profile.activities, host, idle, kinds)
    waits = _add_up_waits(join_tables([of_streams, of_hosts]), device, profile, waiting, host)
    return (
        tuple(sorted(waits, key=ProvedWait.order)),
        _measure_awaited(times["exposed_communication"], of_streams, "communication"),
        _measure_awaited(times["exposed_copy"], of_streams, "copy"),
    )


def _collect_stream_waits(
    device: Device,
    compute: intervals.Intervals,
    activities: Activities,
    waiting: Waiting,
    blocked: IdleIntervals,
) -> ProvedWaits:
    """Collect the waits that delayed a kernel or copy of a device, clipped to the device's span.

    There is one row per wait. Waits outside the span are left out.

    Args:
        device: The device.
        compute: Times at which the device ran compute kernels.
        activities: All kernels in the profile, followed by all copies.
        waiting: The waits that the profile proves.
        blocked: Idle time of the device that is attributed to waits for events.
    """
    delayed_work = waiting.delayed_work
    start_ns, end_ns = (
        np.clip(time, *device.span_ns) for time in (delayed_work.start_ns, delayed_work.end_ns)
    )
    is_of_device = activities.rank[delayed_work.work] == device.rank
    rows = np.flatnonzero(is_of_device & (end_ns > start_ns))
    start_ns, end_ns = start_ns[rows], end_ns[rows]
    computing_ns = intervals.measure_within(compute, start_ns, end_ns)
    return ProvedWaits(
        start_ns=start_ns,
        end_ns=end_ns,
        by_host=make_constant(0, len(rows)),
        waiting=waiting.streams[delayed_work.work[rows]],
        delayed_work=delayed_work.work[rows],
        awaited=delayed_work.by[rows],
        kind=delayed_work.kind[rows],
        count=make_constant(1, len(rows)),
        without_compute_ns=end_ns - start_ns - computing_ns,
        idle_ns=_sum_blocked(delayed_work, blocked)[rows],
    )


def _sum_blocked(delayed_work: DelayedWork, blocked: IdleIntervals) -> Ints:
    """Return the idle time in ns that was attributed to the wait in each row of ``delayed_work``.

    An idle interval is attributed to a wait if both conditions are met:

    - The activity that waited is the first activity after the interval.
    - The interval starts before the wait ends.

    Args:
        delayed_work: Work that waited for an event.
        blocked: Idle time of a device that is attributed to waits for events.
    """
    row = find_positions(delayed_work.work, blocked.after)
    is_before_event = blocked.start_ns < np.append(delayed_work.end_ns, NONE)[row]
    pieces = np.flatnonzero((row != NONE) & is_before_event)
    idle_ns = np.zeros(len(delayed_work), np.int64)
    np.add.at(idle_ns, row[pieces], blocked.end_ns[pieces] - blocked.start_ns[pieces])
    return idle_ns


def _collect_host_waits(
    activities: Activities, host: HostEvents, idle: IdleIntervals, kinds: Kinds
) -> ProvedWaits:
    """Return the pieces of a device's idle time during which a host waited, one row each.

    Pieces whose awaited work is unknown are left out. A call that waits during several gaps is
    counted as one wait.
    """
    pieces = idle.take(idle.host_call != NONE)
    call = pieces.host_call
    # A call that extends over several gaps is still only one wait.
    count = np.zeros(len(pieces), np.int64)
    count[np.unique(call, return_index=True)[1]] = 1
    length_ns = pieces.end_ns - pieces.start_ns
    return ProvedWaits(
        start_ns=pieces.start_ns,
        end_ns=pieces.end_ns,
        by_host=make_constant(1, len(pieces)),
        waiting=host.call[call],
        delayed_work=make_constant(NONE, len(pieces)),
        awaited=host.by[call],
        kind=classify_work(activities, host.by[call], kinds),
        count=count,
        without_compute_ns=length_ns,
        idle_ns=length_ns,
    )


def _add_up_waits(
    waits: ProvedWaits, device: Device, profile: Profile, waiting: Waiting, host: HostEvents
) -> list[ProvedWait]:
    """Add up the waits that have the same waiter and the same awaited work.

    The waiter is a stream, or all host calls with the same name. Awaited work is the same if its
    name, kind and stream are equal.
    """
    activities = profile.activities
    groups = _group_waits(waits, activities, waiting.streams)
    columns = (
        waits.count,
        waits.end_ns - waits.start_ns,
        waits.without_compute_ns,
        waits.idle_ns,
    )
    sums = [intervals.group_sum(groups.of_row, len(groups), column).tolist() for column in columns]

    def describe_stream(row: int) -> str:
        """Describe an activity's stream, and name its device if that is another device."""
        text, rank = f"stream {int(waiting.streams[row])}", int(activities.rank[row])
        if rank == device.rank:
            return text
        return f"{profile.source.place(int(activities.ranks[rank, 1]))} {text}"

    # A file may assign several numbers to one name, so waits with identical texts are added up.
    by_text: dict[tuple[str, str, str, str], list[int]] = {}
    for first, *spent in zip(groups.first.tolist(), *sums, strict=True):
        awaited = int(waits.awaited[first])
        who = f"host, {host.calls[int(waits.waiting[first])]}" if waits.by_host[first] else ""
        key = (
            who or describe_stream(int(waits.delayed_work[first])),
            describe_stream(awaited),
            get_work_name(activities, awaited),
            KIND_NAMES[int(waits.kind[first])],
        )
        earlier = by_text.get(key, [0] * len(spent))
        by_text[key] = [total + more for total, more in zip(earlier, spent, strict=True)]
    return [ProvedWait(*key, *spent) for key, spent in by_text.items()]


def _group_waits(waits: ProvedWaits, activities: Activities, streams: Ints) -> Groups:
    """Group the waits by waiter and by the awaited work's rank, stream, name and kind."""
    awaited_rank = activities.rank[waits.awaited].astype(np.int64)
    awaited_name = activities.name_id[waits.awaited].astype(np.int64)
    return group_rows(
        waits.by_host,
        waits.waiting,
        awaited_rank,
        streams[waits.awaited],
        awaited_name,
        waits.kind,
    )


def _measure_awaited(exposed: intervals.Intervals, waits: ProvedWaits, kind: str) -> int:
    """Return the time in ns for which exposed work of one kind ran while a stream waited for it.

    Args:
        exposed: Times at which work of this kind was exposed.
        waits: Stream waits.
        kind: Kind of the work, one of ``KIND_NAMES``.
    """
    of_kind = waits.take(waits.kind == KIND_NAMES.index(kind))
    waited = intervals.union(of_kind.start_ns, of_kind.end_ns)
    unawaited = intervals.difference(exposed, waited)
    return intervals.measure(exposed) - intervals.measure(unawaited)
