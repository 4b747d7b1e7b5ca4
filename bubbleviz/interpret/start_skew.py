"""Start skew: the time before the profilers of all processes had started.

A profiler may start later on one rank than on others. The other ranks then wait for that rank in
their first collective. This wait is an effect of profiling, not a bubble of the run::

    rank 0   ├──────── all-reduce ────────┤├ kernels ...
    rank 1   not recorded yet         ├────┤├ kernels ...
             ├──── skew ──────────────┤
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.conventions.kinds import Kinds, match_any
from bubbleviz.interpret.linking import NEVER, LinkedProfile
from bubbleviz.model import profile as model
from bubbleviz.model.columns import Bools, Codes, Ints, get_flags, to_slice
from bubbleviz.model.grouping import find_distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, Profile, Ranges

#: Minimum share of a device's span that a collective takes to count as a wait for a recording.
_LONG_WAIT = 0.05


@dataclass(frozen=True)
class RecordedDevice:
    """Start of the recording of a device, and the communication kernels that it may have waited in.

    Times are in ns: on UTC or the clock of the run if known, otherwise on the profile's clock.

    Attributes:
        path: Path of the profile.
        has_common_clock: Whether the times can be compared with the times of other profiles.
        begin_ns: Start of the first call, range or work of the recording.
        span_ns: Start of the first work and end of the last work.
        wait_ns: Start and end of the longest communication kernel, or an empty interval if there is
            none.
        first_wait_ns: Start and end of the first communication kernel, or an empty interval if
            there is none.
    """

    path: str
    has_common_clock: bool
    begin_ns: int
    span_ns: tuple[int, int]
    wait_ns: tuple[int, int]
    first_wait_ns: tuple[int, int]

    def shift(self, by_ns: int, *, has_common_clock: bool) -> RecordedDevice:
        """Return the device with its times converted to another clock.

        Args:
            by_ns: Time to add to all times.
            has_common_clock: Whether other profiles have times on the new clock.
        """
        span, wait, first_wait = (
            (start_ns + by_ns, end_ns + by_ns)
            for start_ns, end_ns in (self.span_ns, self.wait_ns, self.first_wait_ns)
        )
        return replace(
            self,
            has_common_clock=has_common_clock,
            begin_ns=self.begin_ns + by_ns,
            span_ns=span,
            wait_ns=wait,
            first_wait_ns=first_wait,
        )

    def has_long_wait(self) -> bool:
        """Return whether its longest communication kernel takes more than 5 % of its span."""
        start_ns, end_ns = self.wait_ns
        return end_ns - start_ns > _LONG_WAIT * (self.span_ns[1] - self.span_ns[0])

    def has_long_first_wait(self) -> bool:
        """Return whether its first communication kernel is the longest, and a long wait."""
        return self.wait_ns == self.first_wait_ns and self.has_long_wait()

    def waits_long_for(self, begin_ns: int, long_ns: int | None = None) -> bool:
        """Return whether most of the longest communication kernel is before a recording began.

        Args:
            begin_ns: Start of the recording of another device.
            long_ns: Minimum length of the kernel, or None for 5 % of the device's span.
        """
        start_ns, end_ns = self.wait_ns
        is_long = self.has_long_wait() if long_ns is None else end_ns - start_ns > long_ns
        is_mostly_before = begin_ns - start_ns > (end_ns - start_ns) // 2
        return is_long and self.begin_ns < begin_ns <= end_ns and is_mostly_before

    def measure_recorded_time(self) -> int:
        """Return the time from the start of the recording to the end of its first communication."""
        return self.first_wait_ns[1] - self.begin_ns

    def may_be_waiting_for(self, awaited: RecordedDevice) -> bool:
        """Return whether this device may have waited for the recording of another device to start.

        It is False for devices of the same file, and for devices that both have a common clock.

        All ranks leave a collective at about the same time. If the recording of the other device is
        long enough at the end of its first collective, it had started before this device waited.

        Args:
            awaited: The device that this one may have waited for.
        """
        if awaited.path == self.path or (self.has_common_clock and awaited.has_common_clock):
            return False
        if not self.has_long_first_wait():
            return False
        start_ns, end_ns = awaited.first_wait_ns
        is_late = awaited.measure_recorded_time() < (self.wait_ns[1] - self.wait_ns[0]) // 2
        return end_ns > start_ns and is_late


def find_recorded_devices(
    linked: LinkedProfile, activities: Activities, kinds: Kinds
) -> tuple[RecordedDevice, ...]:
    """Find the start of the recording, and the communication, of each device with work.

    The file of the profile must still be open.

    Args:
        linked: The profile, its work linked to API calls and ranges.
        activities: Kernels, then copies of the profile. Kernels have the names of the operations
            that they carry out.
        kinds: Name patterns that classify kernels.
    """
    source = linked.profile.source
    utc_ns = source.session_utc_ns or 0
    is_communication = _mask_communication(activities, kinds)
    devices, processes = [], []
    rows_of_rank = activities.make_rank_lookup()
    for rank, process in enumerate(activities.ranks[:, 0].tolist()):
        rows = rows_of_rank(rank)
        if len(rows):
            processes.append(process)
            devices.append(_measure_device(source, activities, rows, is_communication))
    work_ns = [device.begin_ns - utc_ns for device in devices]
    start_of_process = _find_recording_starts(linked, processes, work_ns)
    return tuple(
        replace(device, begin_ns=utc_ns + start_of_process[process])
        for device, process in zip(devices, processes, strict=True)
    )


def _mask_communication(activities: Activities, kinds: Kinds) -> Bools:
    """Return a mask of the kernels whose names match the patterns of communication."""
    is_communication = np.zeros(len(activities), bool)
    kernels = slice(activities.kernels)
    by_name = match_any(activities.names, kinds.communication)
    is_communication[kernels] = get_flags(activities.name_id[kernels], by_name)
    return is_communication


def _measure_device(
    source: model.Source, activities: Activities, rows: Codes, is_communication: Bools
) -> RecordedDevice:
    """Measure the span of a device and its waits. ``begin_ns`` is the start of its first work.

    Args:
        source: Source of the profile.
        activities: Kernels, then copies of the profile.
        rows: Rows of the device, at least one.
        is_communication: Mask of the communication kernels.
    """
    utc_ns = source.session_utc_ns or 0
    # The rows of a rank mostly follow each other, so they need not be copied.
    selection = to_slice(rows)
    first_ns = utc_ns + int(activities.start_ns[selection].min())
    last_ns = utc_ns + int(activities.end_ns[selection].max())
    waits = rows[is_communication[selection]]
    longest_ns, earliest_ns = _find_two_waits(
        utc_ns + activities.start_ns[waits], utc_ns + activities.end_ns[waits]
    )
    return RecordedDevice(
        path=source.path,
        has_common_clock=source.session_utc_ns is not None,
        begin_ns=first_ns,
        span_ns=(first_ns, last_ns),
        wait_ns=longest_ns,
        first_wait_ns=earliest_ns,
    )


def _find_two_waits(start_ns: Ints, end_ns: Ints) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (start, end) of the longest and of the first interval, or (0, 0) without intervals."""
    if len(start_ns) == 0:
        return (0, 0), (0, 0)
    longest, first = (end_ns - start_ns).argmax(), start_ns.argmin()
    return (
        (int(start_ns[longest]), int(end_ns[longest])),
        (int(start_ns[first]), int(end_ns[first])),
    )


def _find_recording_starts(
    linked: LinkedProfile, processes: Sequence[int], work_ns: Sequence[int]
) -> dict[int, int]:
    """Return the start of the recording of each process with work, on the profile's clock.

    This is the earliest start of its calls, work and ranges.

    A profiler starts to record all processes of its session at the same time. In a file that merges
    several recordings, each process has a separate recording.

    Args:
        linked: The profile, its work linked to API calls and ranges.
        processes: Process of each device.
        work_ns: Start of the first work of each device.
    """
    start_of_process = dict.fromkeys(processes, linked.start_ns)
    if linked.profile.is_merged:
        start_of_process = _find_first_calls(linked.profile, start_of_process)
    for process, begin_ns in zip(processes, work_ns, strict=True):
        start_of_process[process] = min(start_of_process[process], begin_ns)
    early = _read_early_ranges(
        linked, list(start_of_process), max(start_of_process.values(), default=0)
    )
    process_of_range = model.process_of(early.thread)
    for process, begin_ns in start_of_process.items():
        first_ns = early.start_ns[process_of_range == process].min(initial=begin_ns)
        start_of_process[process] = min(begin_ns, int(first_ns))
    if linked.profile.is_merged:
        return start_of_process
    return dict.fromkeys(start_of_process, min(start_of_process.values(), default=0))


def _find_first_calls(profile: Profile, processes: Iterable[int]) -> dict[int, int]:
    """Return the start of the first call of each process, or ``NEVER`` without calls."""
    start_of_process = dict.fromkeys(processes, NEVER)
    for calls in profile.calls.blocks():
        process_of_call = model.process_of(calls.thread)
        for process, begin_ns in start_of_process.items():
            first_ns = calls.start_ns[process_of_call == process].min(initial=begin_ns)
            start_of_process[process] = int(first_ns)
    return start_of_process


def _read_early_ranges(linked: LinkedProfile, processes: Sequence[int], until_ns: int) -> Ranges:
    """Return the ranges that begin before ``until_ns`` on threads that are likely to have ranges.

    These are the main thread of each process, the named threads and the threads that made calls.
    """
    main = [(process << 24) + model.get_pid(process) for process in processes]
    named_threads = [thread.thread for thread in linked.profile.threads]
    threads = find_distinct(np.array([*main, *named_threads], np.int64), linked.work.threads)
    low_ns = np.array([-model.IMPOSSIBLE_NS], np.int64)
    high_ns = np.array([until_ns], np.int64)
    return linked.profile.all_ranges.lasting(0, threads, low_ns, high_ns, None)


def find_common_start(devices: Sequence[RecordedDevice], long_ns: int | None = None) -> int | None:
    """Return the latest start of a recording that another device waited for.

    For each device, only the last recording that began before the end of its longest communication
    kernel is checked; see :meth:`RecordedDevice.waits_long_for`.

    Args:
        devices: Devices of all profiles.
        long_ns: Minimum length of a wait, or None for 5 % of the span of the waiting device.

    Returns:
        The time on the common clock in ns, or None if no device waited for a recording.
    """
    timed = _select_comparable(devices)
    begins_ns = find_distinct(np.array([device.begin_ns for device in timed], np.int64)).tolist()
    awaited_ns = []
    for device in timed:
        # The last recording that began before the end of the wait.
        n_until = bisect_right(begins_ns, device.wait_ns[1])
        if n_until and device.waits_long_for(begins_ns[n_until - 1], long_ns):
            awaited_ns.append(begins_ns[n_until - 1])
    return max(awaited_ns, default=None)


def _select_comparable(devices: Sequence[RecordedDevice]) -> list[RecordedDevice]:
    """Return all devices if they are of one file, otherwise the devices with a common clock."""
    if len({device.path for device in devices}) == 1:
        return list(devices)
    return [device for device in devices if device.has_common_clock]


def describe_skew(devices: Sequence[RecordedDevice], start_ns: int, consequence: str) -> Limitation:
    """Return the limitation for the time before all devices were recorded.

    Args:
        devices: Devices of all profiles.
        start_ns: Result of :func:`find_common_start` for these devices.
        consequence: Clause on the effect on the numbers. ``{}`` is replaced by the time.
    """
    recorded_ns = [device.span_ns[0] for device in _select_comparable(devices)]
    early = [start_ns - first_ns for first_ns in recorded_ns if first_ns < start_ns]
    skew = f"up to {max(early) / 1e6:,.1f} ms"
    reason = (
        f"communication waited until the recording of the last device began, so "
        f"{consequence.format(skew)}; start all profilers before the first collective"
    )
    return Limitation("devices recorded before others", reason, len(early))


def find_unclear_waits(devices: Sequence[RecordedDevice]) -> tuple[Limitation, ...]:
    """Return the limitation for waits that a late recording may explain, if there are any.

    Only waits of files without a common clock are unclear. They are long waits in the first
    collective of a device; see :meth:`RecordedDevice.may_be_waiting_for`.

    Args:
        devices: Devices of all profiles.
    """
    if len(_select_comparable(devices)) == len(devices):
        return ()
    candidates = [device for device in devices if device.first_wait_ns[1] > device.first_wait_ns[0]]
    # Sorting avoids comparing every pair: few devices were recorded for a short time.
    candidates.sort(key=RecordedDevice.measure_recorded_time)
    recorded_ns = [device.measure_recorded_time() for device in candidates]
    waits_ns = []
    for device in filter(RecordedDevice.has_long_first_wait, devices):
        length_ns = device.wait_ns[1] - device.wait_ns[0]
        late_devices = candidates[: bisect_left(recorded_ns, length_ns // 2)]
        if any(device.may_be_waiting_for(awaited) for awaited in late_devices):
            waits_ns.append(length_ns)
    if not waits_ns:
        return ()
    reason = (
        f"the first collective took {max(waits_ns) / 1e6:,.1f} ms, and without a common clock of "
        "the files nobody can tell whether it waited for another rank or for the recording of that "
        "rank to begin; leave it out with --window, or record UTC (baseTimeNanoseconds in PyTorch "
        "traces, the session's start in nsys exports)"
    )
    subject = "devices that may have waited for other recordings"
    return (Limitation(subject, reason, len(waits_ns), LimitationKind.WAITS_UNCLEAR),)
