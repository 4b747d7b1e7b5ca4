"""Start skew: the time before all processes were recorded, in which collectives only wait.

A profiler may start later on one rank than on others. A collective of the others then waits until
the late rank enters it, which is no fault of the run::

    rank 0   ├──────── all-reduce ────────┤├ kernels ...
    rank 1   not recorded yet         ├────┤├ kernels ...
             ├──── skew ──────────────┤
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.interpret.linking import NEVER, LinkedProfile
from bubbleviz.model import profile as model
from bubbleviz.model.columns import Ints, flags_of
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.profile import Activities, Profile, Ranges

#: Part of a device's span that a collective takes at least if it waits for a late recording.
_LONG_WAIT = 0.05


@dataclass(frozen=True)
class RecordedDevice:
    """When the recording of a device began, and what it waited in.

    Times are in ns, on UTC or on the clock of a run if that is known, or else on the profile's own
    clock.

    Attributes:
        path: Path of its profile.
        has_common_clock: Whether the times can be compared to those of other profiles.
        begin_ns: Start of the first call, range or work of the recording.
        span_ns: Start of its first work and end of the last.
        wait_ns: Start and end of its longest communication kernel, or an empty interval.
        first_wait_ns: Start and end of its first communication kernel, or an empty interval.
    """

    path: str
    has_common_clock: bool
    begin_ns: int
    span_ns: tuple[int, int]
    wait_ns: tuple[int, int]
    first_wait_ns: tuple[int, int]

    def moved(self, by_ns: int, *, has_common_clock: bool) -> RecordedDevice:
        """Return the device with its times on a clock that is ahead by some time.

        Args:
            by_ns: The time by which the clock is ahead.
            has_common_clock: Whether other profiles have times on that clock.
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
        """Return whether its longest communication takes a large part of its time."""
        start_ns, end_ns = self.wait_ns
        return end_ns - start_ns > _LONG_WAIT * (self.span_ns[1] - self.span_ns[0])

    def has_long_first_wait(self) -> bool:
        """Return whether its first communication is the longest, and a large part of its time."""
        return self.wait_ns == self.first_wait_ns and self.has_long_wait()

    def waits_for(self, begin_ns: int, long_ns: int | None = None) -> bool:
        """Return whether the longest communication waited mostly before a later recording began.

        Args:
            begin_ns: When the recording began.
            long_ns: Minimum length of the communication, or None for a part of the device's span.
        """
        start_ns, end_ns = self.wait_ns
        is_long = self.has_long_wait() if long_ns is None else end_ns - start_ns > long_ns
        is_mostly_before = begin_ns - start_ns > (end_ns - start_ns) // 2
        return is_long and self.begin_ns < begin_ns <= end_ns and is_mostly_before

    def recorded_before(self) -> int:
        """Return for how long the device was recorded when it left its first communication."""
        return self.first_wait_ns[1] - self.begin_ns

    def may_wait_for(self, other: RecordedDevice) -> bool:
        """Return whether it may have waited for another recording, without a common clock.

        All ranks leave a collective at about the same time. The other rank was recorded while this
        one waited if its recording is long enough when it leaves its first collective.
        """
        if other.path == self.path or (self.has_common_clock and other.has_common_clock):
            return False
        if not self.has_long_first_wait():
            return False
        has_communication = other.first_wait_ns[1] > other.first_wait_ns[0]
        is_late = other.recorded_before() < (self.wait_ns[1] - self.wait_ns[0]) // 2
        return has_communication and is_late


def recorded_devices(
    linked: LinkedProfile, activities: Activities, kinds: Kinds
) -> tuple[RecordedDevice, ...]:
    """Return when the devices of a profile were recorded.

    Call it while the file is open.

    Args:
        linked: The profile, linked to its calls.
        activities: Its kernels, then copies, named after the operations that they carry out.
        kinds: Kinds of kernels, by name.
    """
    source = linked.profile.source
    utc_ns = source.session_utc_ns or 0
    is_communication = np.zeros(len(activities), bool)
    kernels = slice(activities.kernels)
    by_name = matching(activities.names, kinds.communication)
    is_communication[kernels] = flags_of(activities.name_id[kernels], by_name)
    devices, processes = [], []
    for rank, process in enumerate(activities.ranks[:, 0].tolist()):
        rows = np.flatnonzero(activities.rank == rank)
        if len(rows) == 0:
            continue
        first_ns = utc_ns + int(activities.start_ns[rows].min())
        last_ns = utc_ns + int(activities.end_ns[rows].max())
        waits = rows[is_communication[rows]]
        longest_ns, earliest_ns = _longest_and_first(
            utc_ns + activities.start_ns[waits], utc_ns + activities.end_ns[waits]
        )
        processes.append(process)
        devices.append(
            RecordedDevice(
                path=source.path,
                has_common_clock=source.session_utc_ns is not None,
                begin_ns=first_ns,
                span_ns=(first_ns, last_ns),
                wait_ns=longest_ns,
                first_wait_ns=earliest_ns,
            )
        )
    begins = _begin_by_process(linked, processes, [d.begin_ns - utc_ns for d in devices])
    return tuple(
        replace(device, begin_ns=utc_ns + begins[process])
        for device, process in zip(devices, processes, strict=True)
    )


def _longest_and_first(start_ns: Ints, end_ns: Ints) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return start and end of the longest and of the first interval; empty ones of no interval."""
    if len(start_ns) == 0:
        return (0, 0), (0, 0)
    longest, first = (end_ns - start_ns).argmax(), start_ns.argmin()
    return (
        (int(start_ns[longest]), int(end_ns[longest])),
        (int(start_ns[first]), int(end_ns[first])),
    )


def _begin_by_process(
    linked: LinkedProfile, processes: Sequence[int], work_ns: Sequence[int]
) -> dict[int, int]:
    """Return when the recording of each process with work began, on the profile's clock.

    A profiler records all processes of its session from the same moment on. In a file that joins
    several recordings, each process has a recording of its own.

    Args:
        linked: The profile, linked to its calls.
        processes: Process of each device.
        work_ns: When the first work of each device began.
    """
    begins = dict.fromkeys(processes, linked.start_ns)
    if linked.profile.is_merged:
        begins = _first_calls(linked.profile, begins)
    for process, begin_ns in zip(processes, work_ns, strict=True):
        begins[process] = min(begins[process], begin_ns)
    early = _early_ranges(linked, list(begins), max(begins.values(), default=0))
    process_of_range = model.process_of(early.thread)
    for process, begin_ns in begins.items():
        first_ns = early.start_ns[process_of_range == process].min(initial=begin_ns)
        begins[process] = min(begin_ns, int(first_ns))
    if linked.profile.is_merged:
        return begins
    return dict.fromkeys(begins, min(begins.values(), default=0))


def _first_calls(profile: Profile, processes: Iterable[int]) -> dict[int, int]:
    """Return when the first call of each of some processes began, or the end of time."""
    begins = dict.fromkeys(processes, NEVER)
    for calls in profile.calls.blocks():
        process_of_call = model.process_of(calls.thread)
        for process, begin_ns in begins.items():
            first_ns = calls.start_ns[process_of_call == process].min(initial=begin_ns)
            begins[process] = int(first_ns)
    return begins


def _early_ranges(linked: LinkedProfile, processes: Sequence[int], until_ns: int) -> Ranges:
    """Return the ranges that begin before a time, of the threads that are likely to have some."""
    main = [(process << 24) + model.pid_of(process) for process in processes]
    named = [thread.thread for thread in linked.profile.threads]
    threads = distinct(np.array([*main, *named], np.int64), linked.links.threads)
    since = np.array([-model.IMPOSSIBLE_NS], np.int64)
    until = np.array([until_ns], np.int64)
    return linked.profile.every_range.lasting(0, threads, since, until, None)


def common_start(devices: Sequence[RecordedDevice], long_ns: int | None = None) -> int | None:
    """Return when the recording of the last device began that another one waited for.

    Args:
        devices: The devices of all profiles.
        long_ns: Minimum length of a wait, or None for a part of the span of the device that waits.

    Returns:
        The time on their common clock in ns, or None if nothing waited for a recording to begin.
    """
    timed = _comparable(devices)
    begins_ns = distinct(np.array([device.begin_ns for device in timed], np.int64))
    awaited_ns = [
        int(begins_ns[n_until - 1])
        for device in timed
        if (n_until := int(np.searchsorted(begins_ns, device.wait_ns[1], side="right")))
        and device.waits_for(int(begins_ns[n_until - 1]), long_ns)
    ]
    return max(awaited_ns, default=None)


def _comparable(devices: Sequence[RecordedDevice]) -> list[RecordedDevice]:
    """Return the devices whose times can be compared: all of one file, or those of one clock."""
    if len({device.path for device in devices}) == 1:
        return list(devices)
    return [device for device in devices if device.has_common_clock]


def skew_limitation(
    devices: Sequence[RecordedDevice], start_ns: int, consequence: str
) -> Limitation:
    """Return the limitation for the time before all devices were recorded.

    Args:
        devices: The devices of all profiles.
        start_ns: When the recording of the last of them began, on their common clock.
        consequence: What that means for the numbers, a clause with a place for milliseconds.
    """
    recorded_ns = [device.span_ns[0] for device in _comparable(devices)]
    early = [start_ns - first_ns for first_ns in recorded_ns if first_ns < start_ns]
    skew = f"up to {max(early) / 1e6:,.1f} ms"
    reason = (
        f"communication waited until the recording of the last device began, so "
        f"{consequence.format(skew)}; start all profilers before the first collective"
    )
    return Limitation("devices recorded before others", reason, len(early))


def unclear_waits(devices: Sequence[RecordedDevice]) -> tuple[Limitation, ...]:
    """Return the limitation for waits that a late recording may explain, if there are any.

    Args:
        devices: The devices of all profiles.
    """
    if len(_comparable(devices)) == len(devices):
        return ()
    # Few were recorded for so short a time that they need to be compared.
    communicating = [
        device for device in devices if device.first_wait_ns[1] > device.first_wait_ns[0]
    ]
    others = sorted(communicating, key=RecordedDevice.recorded_before)
    waits_ns = []
    for device in filter(RecordedDevice.has_long_first_wait, devices):
        length_ns = device.wait_ns[1] - device.wait_ns[0]
        late = takewhile(lambda other: other.recorded_before() < length_ns // 2, others)  # noqa: B023
        if any(device.may_wait_for(other) for other in late):
            waits_ns.append(length_ns)
    if not waits_ns:
        return ()
    reason = (
        f"the first collective took {max(waits_ns) / 1e6:,.1f} ms, and without a common clock of "
        "the files nobody can tell whether it waited for another rank or for the recording of that "
        "rank to begin; leave it out with --window, or record UTC (baseTimeNanoseconds in PyTorch "
        "traces, the session's start in nsys exports)"
    )
    what = "devices that may have waited for other recordings"
    return (Limitation(what, reason, len(waits_ns), LimitationKind.WAITS_UNCLEAR),)
