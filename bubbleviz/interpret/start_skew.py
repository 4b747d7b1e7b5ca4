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

#: A collective may be a wait for another recording if it takes more than this share of the device's
#: span.
_LONG_WAIT = 0.05


@dataclass(frozen=True)
class RecordedDevice:
    """The start of a device's recording, and the communication kernels in which it may have waited.

    Times are in ns. They are UTC or on the run's clock if known, otherwise on the profile's clock.

    Attributes:
        path: Path of the profile.
        has_common_clock: Whether the times can be compared with the times of other profiles.
        begin_ns: Start of the first call, range, kernel or copy of the recording.
        span_ns: Start of the first kernel or copy, and end of the last one.
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
            by_ns: Time in ns to add to all times.
            has_common_clock: Whether other profiles use the new clock, too.
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
        """Return whether the longest communication kernel takes more than 5 % of the span."""
        start_ns, end_ns = self.wait_ns
        return end_ns - start_ns > _LONG_WAIT * (self.span_ns[1] - self.span_ns[0])

    def has_long_first_wait(self) -> bool:
        """Return whether the first communication kernel is also the longest, and is a long wait."""
        return self.wait_ns == self.first_wait_ns and self.has_long_wait()

    def waits_long_for(self, begin_ns: int, long_ns: int | None = None) -> bool:
        """Return whether the longest communication kernel waited for another recording to start.

        All of the following must hold:

        - The kernel is longer than ``long_ns``.
        - The recording of this device started before ``begin_ns``.
        - The kernel ends at or after ``begin_ns``, and more than half of it is before ``begin_ns``.

        Args:
            begin_ns: Time when the recording of another device started.
            long_ns: Length in ns that the kernel must exceed, or None for 5 % of the device's span.
        """
        start_ns, end_ns = self.wait_ns
        is_long = self.has_long_wait() if long_ns is None else end_ns - start_ns > long_ns
        is_mostly_before = begin_ns - start_ns > (end_ns - start_ns) // 2
        return is_long and self.begin_ns < begin_ns <= end_ns and is_mostly_before

    def measure_recorded_time(self) -> int:
        """Return the time from the start of the recording to the end of the first communication."""
        return self.first_wait_ns[1] - self.begin_ns

    def may_be_waiting_for(self, awaited: RecordedDevice) -> bool:
        """Return whether this device may have waited for the recording of another device to start.

        All ranks leave a collective at about the same time. Therefore, all of the following must
        hold:

        - The first communication kernel of this device is a long wait.
        - The other device ran communication. It was recorded for less than half of that time before
          the end of its first communication kernel (see :meth:`measure_recorded_time`). Otherwise,
          its recording had started before this device waited.
        - The devices are in different files, and their clocks cannot be compared.

        Args:
            awaited: The device for which this device may have waited.
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
    """Find when the recording of each device began, and its longest and first communication kernel.

    Devices that ran no work are left out.

    Args:
        linked: The profile with its work linked to API calls and ranges. Its file must still be
            open.
        activities: Kernels and copies of the profile. Kernels with vague names are renamed after
            the collectives that they run.
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
    """Return a mask of the activities that are communication kernels according to their names."""
    is_communication = np.zeros(len(activities), bool)
    kernels = slice(activities.kernels)
    by_name = match_any(activities.names, kinds.communication)
    is_communication[kernels] = get_flags(activities.name_id[kernels], by_name)
    return is_communication


def _measure_device(
    source: model.Source, activities: Activities, rows: Codes, is_communication: Bools
) -> RecordedDevice:
    """Measure the span and the communication kernels of a device.

    ``begin_ns`` of the result is the start of the first kernel or copy.

    Args:
        source: Source of the profile.
        activities: GPU activities of the profile, kernels before copies.
        rows: Rows of the device's activities, at least one.
        is_communication: Mask of the communication kernels among the activities.
    """
    utc_ns = source.session_utc_ns or 0
    # The rows of a rank are usually consecutive, so a slice avoids a copy.
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
    """Return (start, end) of the longest and of the earliest interval, or (0, 0) if there are none.

    Ties are resolved in favor of the smaller index.
    """
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
    """Return when the recording of each process that ran work began, on the profile's clock.

    This is the earliest start of any call, kernel, copy or range. A profiler starts to record all
    processes of its session at the same time, so all processes get the same start. If the file
    merges several recordings, each process gets the start of its own recording.

    Args:
        linked: The profile with its work linked to API calls and ranges.
        processes: Process of each device.
        work_ns: Start of the first kernel or copy of each device.

    Returns:
        Start of the recording in ns, keyed by process.
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
    """Return the start of the first call of each process, or ``NEVER`` if it made no calls."""
    start_of_process = dict.fromkeys(processes, NEVER)
    for calls in profile.calls.blocks():
        process_of_call = model.process_of(calls.thread)
        for process, begin_ns in start_of_process.items():
            first_ns = calls.start_ns[process_of_call == process].min(initial=begin_ns)
            start_of_process[process] = int(first_ns)
    return start_of_process


def _read_early_ranges(linked: LinkedProfile, processes: Sequence[int], until_ns: int) -> Ranges:
    """Return the ranges that start before ``until_ns`` on threads that are likely to have ranges.

    These threads are the main thread of each process, the named threads, and the threads that made
    calls.
    """
    main = [(process << 24) + model.get_pid(process) for process in processes]
    named_threads = [thread.thread for thread in linked.profile.threads]
    threads = find_distinct(np.array([*main, *named_threads], np.int64), linked.work.threads)
    low_ns = np.array([-model.IMPOSSIBLE_NS], np.int64)
    high_ns = np.array([until_ns], np.int64)
    return linked.profile.all_ranges.lasting(0, threads, low_ns, high_ns, None)


def find_common_start(devices: Sequence[RecordedDevice], long_ns: int | None = None) -> int | None:
    """Return the latest start of a recording that another device waited for, or None.

    See :func:`find_common_starts`.
    """
    return max(find_common_starts(devices, long_ns), default=None)


def find_common_starts(devices: Sequence[RecordedDevice], long_ns: int | None = None) -> list[int]:
    """Return the starts of the recordings that other devices waited for, ascending.

    A device may have waited in its longest communication kernel. Only the last recording that
    started at or before the end of this kernel is checked; see
    :meth:`RecordedDevice.waits_long_for`. Devices in different files are compared only if they have
    a common clock.

    Args:
        devices: Devices of all profiles.
        long_ns: Length in ns that a wait must exceed, or None for 5 % of the waiting device's span.

    Returns:
        Times on the common clock in ns. Empty if no device waited for a recording.
    """
    timed = _select_comparable(devices)
    begins_ns = find_distinct(np.array([device.begin_ns for device in timed], np.int64)).tolist()
    awaited_ns = []
    for device in timed:
        # The last recording that started at or before the end of the wait.
        n_until = bisect_right(begins_ns, device.wait_ns[1])
        if n_until and device.waits_long_for(begins_ns[n_until - 1], long_ns):
            awaited_ns.append(begins_ns[n_until - 1])
    return sorted(set(awaited_ns))


def _select_comparable(devices: Sequence[RecordedDevice]) -> list[RecordedDevice]:
    """Return all devices if they are in one file, otherwise only devices with a common clock."""
    if len({device.path for device in devices}) == 1:
        return list(devices)
    return [device for device in devices if device.has_common_clock]


def describe_skew(devices: Sequence[RecordedDevice], start_ns: int, consequence: str) -> Limitation:
    """Return the limitation that reports the time before all devices were recorded.

    Args:
        devices: Devices of all profiles.
        start_ns: Result of :func:`find_common_start` for the same devices.
        consequence: Clause that describes the effect on the results. ``{}`` is replaced by the
            longest skew, for example ``up to 12.5 ms``.
    """
    recorded_ns = [device.span_ns[0] for device in _select_comparable(devices)]
    early = [start_ns - first_ns for first_ns in recorded_ns if first_ns < start_ns]
    skew = f"up to {max(early) / 1e6:,.1f} ms"
    reason = (
        f"communication waited until the last device was being recorded, so "
        f"{consequence.format(skew)}; start all profilers before the first collective"
    )
    return Limitation("devices recorded before others", reason, len(early))


def find_unclear_waits(devices: Sequence[RecordedDevice]) -> tuple[Limitation, ...]:
    """Return a limitation on waits that may only be due to a late recording, or () if none.

    A wait is unclear if it is a long wait in the first collective of a device, and if no common
    clock shows when other recordings began; see :meth:`RecordedDevice.may_be_waiting_for`. The
    result contains at most one limitation.

    Args:
        devices: Devices of all profiles.
    """
    if len(_select_comparable(devices)) == len(devices):
        return ()
    candidates = [device for device in devices if device.first_wait_ns[1] > device.first_wait_ns[0]]
    # Sorting avoids comparing all pairs, because few devices were recorded for only a short time.
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
        f"the first collective took {max(waits_ns) / 1e6:,.1f} ms. It may have waited for another "
        "rank, or only for the recording of that rank to begin, but the files share no clock that "
        "would show which; leave it out with --window, or record UTC times (baseTimeNanoseconds in "
        "PyTorch traces, the session start in nsys exports)"
    )
    subject = "devices that may have waited for other recordings"
    return (Limitation(subject, reason, len(waits_ns), LimitationKind.WAITS_UNCLEAR),)
