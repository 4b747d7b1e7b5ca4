"""Attribution of idle time: what the host was doing while a device was idle.

A gap is divided into pieces, and each piece gets one activity. The first rule that applies decides:

1. ``profiler``: the profiler itself delayed the process.
2. ``work not recorded``: the device may have run work that was launched but not recorded.
3. ``kernel-to-kernel gaps``: the gap is too short to be attributed.
4. ``page migration``: the next work migrates pages of managed memory, which no call launches.
   ``launch not recorded``: the launching call of the next work is unknown for another reason.
5. Until the launching call starts: what the host was doing. The launching thread is considered
   first, then the thread that launches the most work, then the process's main thread. If nothing
   was recorded on these threads: ``no host trace``.
6. During the launching call and the launch latency: ``launch``, or ``transfer`` if the next work is
   a copy.
7. Afterwards, as long as the work's stream is proved to be waiting for an event: ``blocked by
   communication``, ``blocked by copies`` or ``blocked by compute``.
8. Until the work starts: ``stream or rank dependency``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.align.arrivals import NEVER
from bubbleviz.analyses.idle.gaps import LATENCY_NS, Device, Launches
from bubbleviz.analyses.idle.host import HostEvents, find_events_around
from bubbleviz.analyses.idle.waits import BLOCKED, DelayedWork
from bubbleviz.conventions import host_activities
from bubbleviz.explain.idle import (
    IdleIntervals,
    Wait,
    mark_inside,
    merge_pieces,
    split_at_waits,
)
from bubbleviz.model.columns import NONE, Bools, Ints, join_tables, make_constant
from bubbleviz.model.grouping import find_positions, sort_rows
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.profile import PAGE_MIGRATION, Activities


def attribute_idle(
    device: Device,
    launches: Launches,
    activities: Activities,
    delayed_work: DelayedWork,
    host: HostEvents,
    fallback_threads: Sequence[int],
    numbers: Numbering[str],
) -> IdleIntervals:
    """Attribute the gaps of a device to what its host did.

    The rules are listed at the beginning of this module.

    Args:
        device: The device.
        launches: For each gap, the call that launched the work after it.
        activities: All kernels in the profile, followed by all copies.
        delayed_work: Kernels and copies that waited for an event.
        host: Ranges and API calls recorded on the host threads.
        fallback_threads: Threads to use, in order, if the launching thread recorded no event.
        numbers: Maps activity names to integer ids. A new name gets the next free id.

    Returns:
        Pieces of the gaps, each with one activity, sorted by start. ``interval`` is the row of the
        gap. If the host waited for known work in a call, ``host_call`` is the row of the call in
        ``host``, otherwise -1.
    """
    waits = _list_waits(device, launches, activities, delayed_work, numbers)
    idle = _name_host_activity(
        split_at_waits(device.gaps, waits), launches, host, fallback_threads, numbers
    )
    # Later marks replace earlier ones, so the profiler's overhead takes precedence.
    for times, name in (
        (device.unrecorded, host_activities.UNRECORDED),
        (device.overhead, host_activities.PROFILER),
    ):
        if len(times[0]):
            idle = mark_inside(idle, times, activity=numbers.number(name))
    return merge_pieces(idle, "interval", "activity", "host_call")


def _list_waits(
    device: Device,
    launches: Launches,
    activities: Activities,
    delayed_work: DelayedWork,
    numbers: Numbering[str],
) -> tuple[Wait, ...]:
    """List the four consecutive waits in each gap of a device.

    The waits end when the launching call starts, when the launch is complete, when the awaited
    event completes, and at the end of the gap. The activity of the first wait is filled in later,
    based on what the host did. If a gap cannot be attributed to the host, the first wait fills the
    gap and gets its activity here::

        gap     ├── host ──┤├── launch ──┤├── blocked ──┤├── device ──┤
                            call starts   under way   event completes

    Args:
        device: The device.
        launches: For each gap, the call that launched the work after it.
        activities: All kernels in the profile, followed by all copies.
        delayed_work: Kernels and copies that waited for an event.
        numbers: Maps activity names to integer ids. A new name gets the next free id.
    """
    gaps, is_short = device.gaps, device.is_short
    is_linked = ~is_short & (launches.thread != NONE)
    is_copy = gaps.after >= activities.kernels
    unattributed = _number_unattributed(gaps, is_short, is_copy, activities, numbers)
    transfer, launch = map(numbers.number, (host_activities.TRANSFER, host_activities.LAUNCH))
    dependency = numbers.number(host_activities.DEVICE)
    under_way_ns = np.maximum(launches.end_ns, launches.start_ns + LATENCY_NS)
    delayed_row = find_positions(delayed_work.work, gaps.after)
    completed_ns = np.append(delayed_work.end_ns, NEVER)[delayed_row]
    return (
        Wait.of(
            np.where(is_linked, launches.start_ns, gaps.end_ns),
            activity=np.where(is_linked, NONE, unattributed),
        ),
        Wait.of(under_way_ns, activity=np.where(is_copy, transfer, launch)),
        Wait.of(completed_ns, activity=_number_blocking(delayed_work, delayed_row, numbers)),
        Wait.of(make_constant(NEVER, len(gaps)), activity=dependency),
    )


def _number_unattributed(
    gaps: IdleIntervals,
    is_short: Bools,
    is_copy: Bools,
    activities: Activities,
    numbers: Numbering[str],
) -> Ints:
    """Return, for each gap, the activity id to use if the gap cannot be attributed to the host.

    The activity is ``SHORT`` for short gaps, ``MIGRATION`` for other gaps before a page migration,
    and ``UNLINKED`` for all remaining gaps.

    Args:
        gaps: The gaps of a device.
        is_short: Mask of the short gaps.
        is_copy: Mask of the gaps before a copy.
        activities: All kernels in the profile, followed by all copies.
        numbers: Maps activity names to integer ids. A new name gets the next free id.
    """
    migrates = np.array([*(name == PAGE_MIGRATION for name in activities.names), False], bool)
    is_migration = migrates[activities.name_id[gaps.after]] & is_copy
    unlinked = numbers.number(host_activities.UNLINKED)
    migration = numbers.number(host_activities.MIGRATION) if is_migration.any() else unlinked
    short = numbers.number(host_activities.SHORT)
    return np.where(is_short, short, np.where(is_migration, migration, unlinked))


def _number_blocking(delayed_work: DelayedWork, delayed_row: Ints, numbers: Numbering[str]) -> Ints:
    """Return, for each gap, the activity id for the kind of work that delayed the next work.

    The activity is ``blocked by compute``, ``blocked by communication`` or ``blocked by copies``.

    Args:
        delayed_work: Kernels and copies that waited for an event.
        delayed_row: Row in ``delayed_work`` of the work after each gap, or -1 if it did not wait.
        numbers: Maps activity names to integer ids. A new name gets the next free id.

    Returns:
        For each gap, an activity id, or -1 if the work after the gap did not wait.
    """
    kind = np.append(delayed_work.kind, NONE)[delayed_row]
    is_present = np.isin(np.arange(len(BLOCKED)), kind)
    number_of_kind = np.array(
        [
            numbers.number(name) if present else NONE
            for name, present in zip(BLOCKED, is_present.tolist(), strict=True)
        ],
        np.int64,
    )
    number: Ints = np.append(number_of_kind, NONE)[kind]
    return number


def _name_host_activity(
    idle: IdleIntervals,
    launches: Launches,
    host: HostEvents,
    fallback_threads: Sequence[int],
    numbers: Numbering[str],
) -> IdleIntervals:
    """Fill in the missing activities of idle intervals, based on what the host threads did.

    At any given time, the event on the launching thread determines the activity. If that thread has
    no event, the first fallback thread that has one is used. If no thread has an event, the
    activity is ``UNTRACED``. Intervals are split where the event that determines the activity
    changes.

    Args:
        idle: Idle time of a device.
        launches: For each gap, the call that launched the work after it.
        host: Ranges and API calls recorded on the host threads.
        fallback_threads: Threads to use, in order, if the launching thread recorded no event.
        numbers: Maps activity names to integer ids. A new name gets the next free id.

    Returns:
        Pieces of all idle intervals, each with an activity, sorted by start.
    """
    untraced = numbers.number(host_activities.UNTRACED)
    is_named = idle.activity != NONE
    pieces = idle.take(~is_named)
    parts = [idle.take(is_named)]
    for other in (None, *fallback_threads):
        launching = launches.thread[pieces.interval]
        thread = launching if other is None else np.full(len(pieces), other, np.int64)
        pieces, is_seen = _split_at_events(pieces, thread, host, untraced)
        parts.append(pieces.take(is_seen))
        pieces = pieces.take(~is_seen)
    idle = join_tables([*parts, pieces])
    return idle.take(sort_rows(idle.start_ns))


def _split_at_events(
    idle: IdleIntervals, thread: Ints, host: HostEvents, untraced: int
) -> tuple[IdleIntervals, Bools]:
    """Split idle intervals at the events of a thread, and name what the thread did in each piece.

    If a piece is inside several events, the strongest event decides; see
    :func:`.host.find_events_around`.

    Args:
        idle: Idle intervals.
        thread: Thread whose events are used for each interval.
        host: Ranges and API calls recorded on the host threads.
        untraced: Id of the activity used for times without an event.

    Returns:
        pieces: The pieces, each with the activity of the strongest event around it. If this event
            is a call that waited for known work, ``host_call`` is the row of the event, otherwise
            -1.
        is_seen: Mask of the pieces that are inside an event.
    """
    row, start_ns, end_ns, event = find_events_around(host, thread, idle.start_ns, idle.end_ns)
    # The appended entry, at index -1, means that there is no event.
    waits_for_work = np.append(host.by, NONE)[event] != NONE
    pieces = replace(
        idle.take(row),
        start_ns=start_ns,
        end_ns=end_ns,
        activity=np.append(host.activity, untraced)[event],
        host_call=np.where(waits_for_work, event, NONE),
    )
    return pieces, event != NONE
