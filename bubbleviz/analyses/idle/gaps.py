"""Device gaps: the times during which a device runs nothing, and the work before and after them.

::

    device     ████████│ gap                        │████
    host         ...... doing something  │ launch() ...
                       ├─── host ────────┤├ launch ─┤
    device     ████████│ gap       │████                    launched long before: a dependency
    host       launch()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bubbleviz.conventions.kinds import Kinds, match_any
from bubbleviz.explain.idle import BusyTimes, IdleIntervals
from bubbleviz.model import intervals
from bubbleviz.model.columns import Bools, Codes, Ints, Table, make_constant, narrow
from bubbleviz.model.intervals import Intervals
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.profile import Activities, Profile

#: Maximum launch latency in ns, from the start of the launching call to the start of the work. On
#: an idle device, the launch latency is 5 to 10 us. With a clock error of 1 us or a slow host, the
#: measured latency is up to 20 us. Work that starts even later was waiting for something else.
LATENCY_NS = 20_000


@dataclass(frozen=True, eq=False, repr=False)
class Launches(Table):
    """For each gap of a device, the call that launched the work after it.

    Attributes:
        thread: Thread that made the call, or -1 if the call is unknown.
        start_ns: Start time of the call, or -1 if the call is unknown.
        end_ns: End time of the call, or -1 if the call is unknown.
    """

    thread: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class Device:
    """A device used by a process, and the gaps of the device.

    There can be millions of short gaps, for example between the kernels of a full launch queue. A
    short gap has a row in ``gaps`` only if it overlaps profiler overhead or unrecorded time.

    Attributes:
        rank: Index of the device in :attr:`.Activities.ranks`.
        process: Process of the device.
        gaps: The gaps, one row each. The columns ``before`` and ``after`` are rows of the
            activities.
        shortest_ns: Length below which a gap is short.
        after_short: For each short gap without a row, the row of the first activity after it.
        longest_short_ns: Length of the longest short gap without a row, or 0 if there is none.
        overhead: Disjoint intervals in which the profiler delayed the process.
        unrecorded: Intervals in which the device may have run work that was not recorded.
        span_ns: Start of the first work and end of the last work, clipped to the window.
        is_single: Whether the device ran only one kernel or copy.
    """

    rank: int
    process: int
    gaps: IdleIntervals
    shortest_ns: int
    after_short: Codes
    longest_short_ns: int
    overhead: Intervals
    unrecorded: Intervals
    span_ns: tuple[int, int]
    is_single: bool

    @property
    def is_short(self) -> Bools:
        """Mask of the short gaps in ``gaps``."""
        return np.asarray(self.gaps.end_ns - self.gaps.start_ns < self.shortest_ns, bool)

    @property
    def long_gaps(self) -> IdleIntervals:
        """The gaps that are not short. Only long gaps are attributed to what the host did."""
        return self.gaps.take(~self.is_short)


def find_devices(
    profile: Profile,
    unrecorded: RankIntervals,
    shortest_ns: int,
    window_ns: tuple[int, int] | None = None,
) -> Iterator[Device]:
    """Yield the devices that ran work with a nonzero duration, along with their gaps.

    Args:
        profile: The profile.
        unrecorded: Times at which ranks may have run work that was not recorded, disjoint and
            ascending within each rank.
        shortest_ns: Length below which a gap is short. Short gaps are not listed, unless they
            overlap profiler overhead or unrecorded time.
        window_ns: Start and end of the window, or None for the complete profile. Devices that run
            no work in the window are left out.
    """
    activities = profile.activities
    is_lasting = activities.end_ns > activities.start_ns
    for rank in range(len(activities.ranks)):
        is_of_rank = activities.rank == rank
        work = _find_work(activities, rank, np.flatnonzero(is_of_rank & is_lasting))
        span_ns = _find_span(work, window_ns)
        if span_ns is not None:
            missing = unrecorded.take(unrecorded.rank == rank)
            is_single = int(is_of_rank.sum()) == 1
            yield _make_device(
                profile, rank, work, span_ns, missing, shortest_ns, is_single=is_single
            )


def _make_device(
    profile: Profile,
    rank: int,
    work: BusyTimes,
    span_ns: tuple[int, int],
    missing: RankIntervals,
    shortest_ns: int,
    *,
    is_single: bool,
) -> Device:
    """Build a device by finding the gaps between its work and the profiler overhead in its process.

    Args:
        profile: The profile.
        rank: Index of the device in the profile's ranks.
        work: Work of the device, sorted by start.
        span_ns: Start and end of the device's span.
        missing: Times at which the device may have run work that was not recorded.
        shortest_ns: Length below which a gap is short. A short gap gets no row, unless it overlaps
            profiler overhead or ``missing``.
        is_single: Whether the device ran only one kernel or copy.
    """
    process = int(profile.activities.ranks[rank, 0])
    delays = profile.overheads.take(profile.overheads.process == process)
    overhead = intervals.union(delays.start_ns, delays.end_ns)
    uncertain = intervals.union(
        np.append(overhead[0], missing.start_ns), np.append(overhead[1], missing.end_ns)
    )
    start_ns, end_ns = work.find_gaps((np.array(span_ns[:1]), np.array(span_ns[1:])))
    length_ns = end_ns - start_ns
    is_uncertain = intervals.mask_overlapping(start_ns, end_ns, uncertain)
    has_row = (length_ns >= shortest_ns) | is_uncertain
    listed_gaps = start_ns[has_row], end_ns[has_row]
    first_after = np.searchsorted(work.start_ns, end_ns[~has_row])
    return Device(
        rank=rank,
        process=process,
        gaps=work.describe_gaps(make_constant(rank, len(listed_gaps[0])), listed_gaps),
        shortest_ns=shortest_ns,
        after_short=work.row[first_after],
        longest_short_ns=int(length_ns[~has_row].max(initial=0)),
        overhead=overhead,
        unrecorded=(missing.start_ns, missing.end_ns),
        span_ns=span_ns,
        is_single=is_single,
    )


def _find_work(activities: Activities, rank: int, rows: Ints) -> BusyTimes:
    """Return one busy interval per given activity, sorted by start."""
    return BusyTimes(
        make_constant(rank, len(rows)),
        narrow(rows, len(activities)),
        activities.start_ns[rows],
        activities.end_ns[rows],
    ).sort_by_start()


def _find_span(work: BusyTimes, window_ns: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the first work's start and the last work's end, clipped to a window.

    The result is None if there is no work, or if the clipped span is empty.
    """
    if not len(work):
        return None
    start_ns, end_ns = int(work.start_ns[0]), int(work.end_ns.max())
    if window_ns is not None:
        start_ns, end_ns = max(start_ns, window_ns[0]), min(end_ns, window_ns[1])
    return (start_ns, end_ns) if end_ns > start_ns else None


@dataclass(frozen=True, eq=False, repr=False)
class KindsOfWork(Table):
    """The work of a device, with a mask per kind of work.

    Attributes:
        row: Row of the kernel or copy in the activities.
        start_ns: Start of the work.
        end_ns: End of the work.
        is_compute: Mask of the kernels that are not communication.
        is_communication: Mask of the communication kernels.
        is_point_to_point: Mask of the kernels that send or receive.
        is_copy: Mask of the copies and memsets.
    """

    row: Ints
    start_ns: Ints
    end_ns: Ints
    is_compute: Bools
    is_communication: Bools
    is_point_to_point: Bools
    is_copy: Bools


def select_kinds(device: Device, activities: Activities, kinds: Kinds) -> KindsOfWork:
    """Return the work of a device, in the order of the activities, with a mask per kind of work."""
    rows = np.flatnonzero(activities.rank == device.rank)
    name, is_copy = activities.name_id[rows], rows >= activities.kernels
    # Copies have no name. Their name index is -1, which selects the last element.
    is_communication, is_point_to_point = (
        np.append(match_any(activities.names, patterns), False)[name] & ~is_copy
        for patterns in (kinds.communication, kinds.point_to_point)
    )
    return KindsOfWork(
        row=rows,
        start_ns=activities.start_ns[rows],
        end_ns=activities.end_ns[rows],
        is_compute=~is_communication & ~is_copy,
        is_communication=is_communication,
        is_point_to_point=is_communication & is_point_to_point,
        is_copy=is_copy,
    )


def measure_times(device: Device, work: KindsOfWork) -> dict[str, intervals.Intervals]:
    """Return the times at which each kind of work ran on a device.

    Compute is every kernel that is not communication. Communication is exposed if no compute kernel
    runs at the same time. Point-to-point communication consists of send and receive kernels. A copy
    is exposed if no kernel runs at the same time.

    Args:
        device: The device. Times are clipped to its span.
        work: Work of the device.

    Returns:
        Disjoint, ascending intervals, keyed by kind of time: ``busy``, ``compute``,
        ``communication``, ``copy``, ``exposed_communication``, ``exposed_point_to_point`` and
        ``exposed_copy``. With the suffix ``_ns``, the keys are fields of
        :class:`.report.RankIdle`.
    """
    busy, compute, communication, point_to_point, copies = (
        intervals.clip_intervals(
            intervals.union(work.start_ns[mask], work.end_ns[mask]), *device.span_ns
        )
        for mask in (
            slice(None),
            work.is_compute,
            work.is_communication,
            work.is_point_to_point,
            work.is_copy,
        )
    )
    return {
        "busy": busy,
        "compute": compute,
        "communication": communication,
        "copy": copies,
        "exposed_communication": intervals.difference(communication, compute),
        "exposed_point_to_point": intervals.difference(point_to_point, compute),
        "exposed_copy": intervals.difference(intervals.difference(copies, compute), communication),
    }


@dataclass(frozen=True, eq=False, repr=False)
class LaneIntervals(Table):
    """Times during which one kind of work ran on a device. Shorter interruptions are filled.

    Attributes:
        start_ns: Start of each interval, ascending.
        end_ns: End of each interval.
        work: First kernel or copy of each interval.
    """

    start_ns: Ints
    end_ns: Ints
    work: Ints


def list_lanes(
    device: Device, work: KindsOfWork, times: Mapping[str, Intervals]
) -> tuple[LaneIntervals, LaneIntervals, LaneIntervals]:
    """Return the times of compute, communication and copies on a device, one table per kind.

    Interruptions shorter than ``device.shortest_ns`` are part of the interval.

    Args:
        device: The device.
        work: Work of the device. The lanes' ``work`` contains values of ``work.row``.
        times: Times at which the device ran each kind of work; see :func:`measure_times`.
    """
    return (
        _make_lane(times["compute"], work, work.is_compute, device.shortest_ns),
        _make_lane(times["communication"], work, work.is_communication, device.shortest_ns),
        _make_lane(times["copy"], work, work.is_copy, device.shortest_ns),
    )


def _make_lane(times: Intervals, work: KindsOfWork, mask: Bools, shortest_ns: int) -> LaneIntervals:
    """Make the lane of a kind of work from the times at which it ran.

    Args:
        times: Disjoint, ascending intervals.
        work: Work of the device.
        mask: Mask of the work that ran at these times.
        shortest_ns: Length below which an interruption is filled.
    """
    start_ns, end_ns = times
    if len(start_ns) == 0:
        return LaneIntervals.make_empty()
    is_separate = start_ns[1:] - end_ns[:-1] >= shortest_ns
    start_ns, end_ns = start_ns[np.append(True, is_separate)], end_ns[np.append(is_separate, True)]
    rows, work_start_ns = work.row[mask], work.start_ns[mask]
    order = np.argsort(work_start_ns, kind="stable")
    first_work = np.searchsorted(work_start_ns[order], start_ns, side="right") - 1
    return LaneIntervals(start_ns, end_ns, rows[order[first_work]])
