"""Gathers evidence: everything in a profile that explains why its devices were idle."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bubbleviz.analyses.idle import held_back, host, waits
from bubbleviz.analyses.idle.gaps import Device, Launches, find_devices
from bubbleviz.conventions import host_activities as known
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.errors import NothingToAnalyzeError, ProfileError
from bubbleviz.interpret import communication, linking, start_skew
from bubbleviz.interpret.collectives import rename_vague_kernels
from bubbleviz.interpret.process_steps import find_main_thread, find_process_steps
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Codes, Ints, join_tables, make_constant
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import find_distinct, find_positions, subtract_values
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.numbering import Numbering
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.profile import Activities, Calls, Profile, Ranges
from bubbleviz.model.synchronization import EventRecords, Synchronization
from bubbleviz.model.window import Window
from bubbleviz.sources.in_memory import make_no_ranges


@dataclass(frozen=True)
class IdleOptions:
    """Options for the analysis of idle time.

    Attributes:
        shortest_ns: Length below which gaps are kernel-to-kernel gaps.
        step: Pattern for the names of step ranges, or None to recognize steps automatically.
        activities: Rules that classify host ranges and calls as activities, based on their names.
        kinds: Name patterns that identify communication kernels.
        window: The part of the run to analyze, or None for the complete run.
    """

    shortest_ns: int
    step: re.Pattern[str] | None
    activities: known.ActivityList
    kinds: Kinds
    window: Window | None = None


@dataclass(frozen=True)
class Evidence:
    """Everything in a profile that explains idle time.

    Attributes:
        devices: The devices and their gaps.
        activities: Kernels, followed by copies. Kernels for sends and receives are named after the
            operations that they perform.
        calls: Calls that launched the work after long gaps, and long calls in gaps, sorted by row.
        call: For each kernel or copy, the row of the API call that launched it, or -1 if unknown.
        ranges: Host ranges that overlap idle time, excluding steps.
        host: Host ranges and calls, classified as activities.
        steps: Steps of the training loop, keyed by process.
        lead: For each rank, the thread that launched the work after most of its long gaps, or -1 if
            unknown.
        numbers: Integer ids of the activity names.
        launched_ns: Launch time of each kernel or copy, which is undefined if the call is unknown.
        waiting: Waits by streams and hosts that the profile proves.
        held_back: Communication kernels that were ready, but started only with another kernel.
        are_events_recorded: Whether the profile contains CUDA events and synchronizations. If not,
            ``held_back`` may contain kernels that waited for an event.
        unrecorded: Times at which devices may have run work that was launched but not recorded.
        limitations: Descriptions of what is missing from the profile, and of what the analysis left
            out.
        copies: Details of the copies, or None if the profile records none.
        recorded: For each device, when its recording started, and its first and its longest
            communication kernel.
    """

    devices: tuple[Device, ...]
    activities: Activities
    calls: Calls
    call: Codes
    ranges: Ranges
    host: host.HostEvents
    steps: Mapping[int, Steps]
    lead: Mapping[int, int]
    numbers: Numbering[str]
    launched_ns: Ints
    waiting: waits.Waiting
    held_back: held_back.HeldBack
    are_events_recorded: bool
    unrecorded: RankIntervals
    limitations: tuple[Limitation, ...]
    copies: Copies | None
    recorded: tuple[start_skew.RecordedDevice, ...]

    def find_launches(self, device: Device) -> Launches:
        """Return, for each gap of a device, the call that launched the work after it."""
        return _find_launches(device.gaps.after, self.calls, self.call)


def gather_evidence(profile: Profile, options: IdleOptions) -> tuple[Profile, Evidence]:
    """Link the work of a profile to its calls, and gather the evidence for idle time.

    Args:
        profile: The profile, as the reader returned it.
        options: Options of the analysis.

    Returns:
        profile: The profile, reduced to the work that can be analyzed.
        evidence: The evidence.

    Raises:
        NothingToAnalyzeError: All kernels and copies have zero duration.
        UsageError: No range matches the step name that the user gave.
    """
    synchronization, unread = waits.read_synchronization(profile)
    linked, devices = _link(profile, options)
    evidence = _find_evidence(linked, devices, options, synchronization)
    limitations = (
        *unread,
        *linked.limitations,
        *communication.check_communication(linked.profile, options.kinds),
        *evidence.limitations,
    )
    return linked.profile, replace(evidence, limitations=limitations)


def _link(profile: Profile, options: IdleOptions) -> tuple[linking.LinkedProfile, list[Device]]:
    """Link the work in a profile to the calls that launched it, and find the devices.

    Raises:
        NothingToAnalyzeError: All kernels and copies have zero duration.
    """
    linked = linking.link(communication.add_communication(profile, options.kinds), make_no_ranges())
    # No ranges are linked, so most columns of the work table have a single value.
    linked = replace(linked, work=linked.work.compact())
    devices = list(find_devices(linked.profile, linked.unrecorded, options.shortest_ns))
    if not devices:
        raise NothingToAnalyzeError(
            f"{profile.source.path}: all kernels and copies have zero duration; profile some "
            "training steps"
        )
    return linked, devices


def _find_evidence(
    linked: linking.LinkedProfile,
    devices: Sequence[Device],
    options: IdleOptions,
    synchronization: Synchronization | None = None,
) -> Evidence:
    """Gather the evidence for the idle time of devices.

    Args:
        linked: The profile, with its work linked to calls.
        devices: Devices in the profile.
        options: Options of the analysis.
        synchronization: Synchronization events in the profile, or None if there are none.

    Raises:
        UsageError: No range matches the step name that the user gave.
    """
    profile, call = linked.profile, linked.work.call
    idle = _find_idle_times(devices)
    next_work = np.concatenate([device.long_gaps.after for device in devices])
    launching_calls = find_distinct(call[next_work].astype(np.int64))
    records = synchronization.records if synchronization else EventRecords.make_empty()
    calls, recording_calls, shortest_ns = host.collect_gap_calls(
        profile, launching_calls[launching_calls != NONE], idle, records
    )
    waiting = waits.Waiting()
    if synchronization:
        waiting = _find_waiting(linked, synchronization, recording_calls, options.kinds)
    lead, threads = _find_threads(profile, devices, calls, call)
    lookup, numbers = options.activities.copy(), Numbering[str]()
    spans_ns = [(device.process, *device.span_ns) for device in devices]
    steps = find_process_steps(profile, spans_ns, threads, lookup, options.step)
    ranges = host.collect_host_ranges(profile, idle, threads, steps, options.shortest_ns)
    lookup.cache[host.ON_DEVICE] = known.DEVICE, known.KNOWN
    long_calls = calls.take(calls.end_ns - calls.start_ns >= shortest_ns)
    events = host.collect_host_events(
        ranges, long_calls, call, profile, idle, lookup, numbers, waiting.hosts
    )
    # Kernels for sends and receives are named after the operations in records and ranges.
    renamed = rename_vague_kernels(linked)
    held = held_back.HeldBack.make_empty()
    if profile.launches_known:
        held = held_back.find_held_back(
            renamed,
            partial(_read_known_streams, profile),
            call,
            linked.work.launched_ns,
            partial(_read_return_times, profile),
            waiting.events if synchronization else None,
            options.kinds,
        )
    return Evidence(
        devices=tuple(devices),
        activities=renamed,
        calls=calls,
        call=call,
        ranges=ranges,
        host=events,
        steps=steps,
        lead=lead,
        numbers=numbers,
        launched_ns=linked.work.launched_ns,
        waiting=waiting,
        held_back=held,
        are_events_recorded=synchronization is not None,
        unrecorded=linked.unrecorded,
        limitations=_note_short_calls(profile, shortest_ns),
        copies=None if profile.copies is None else profile.copies(),
        recorded=start_skew.find_recorded_devices(linked, renamed, options.kinds),
    )


def _find_idle_times(devices: Sequence[Device]) -> dict[int, intervals.Intervals]:
    """Return, keyed by process, the union of the long gaps on the process's devices."""
    idle = {}
    for process in {device.process for device in devices}:
        gaps = join_tables([device.long_gaps for device in devices if device.process == process])
        idle[process] = intervals.union(gaps.start_ns, gaps.end_ns)
    return idle


def _find_waiting(
    linked: linking.LinkedProfile,
    synchronization: Synchronization,
    recording_calls: Calls,
    kinds: Kinds,
) -> waits.Waiting:
    """Find the stream and host waits that a profile's synchronization events prove.

    Args:
        linked: The profile, with its work linked to calls.
        synchronization: Synchronization events in the profile.
        recording_calls: Calls that recorded events.
        kinds: Name patterns that identify communication kernels.
    """
    profile = linked.profile
    return waits.find_waiting(
        synchronization,
        recording_calls,
        profile.activities,
        _read_streams(profile),
        linked.work.call,
        linked.work.launched_ns,
        partial(_read_return_times, profile),
        kinds,
    )


def _read_return_times(profile: Profile, rows: Ints) -> Ints:
    """Return the end of each call, given distinct, ascending rows, or -1 if it is unknown."""
    returned = profile.calls.at(rows)
    return np.append(returned.end_ns, NONE)[find_positions(returned.row, rows)]


def _find_threads(
    profile: Profile, devices: Sequence[Device], calls: Calls, call: Codes
) -> tuple[dict[int, int], Ints]:
    """Find the launching threads and the main threads in a profile.

    Args:
        profile: The profile.
        devices: Devices in the profile.
        calls: Calls that launched the work after gaps, sorted by row.
        call: For each kernel or copy, the row of the API call that launched it, or -1 if unknown.

    Returns:
        lead: For each rank, the thread that launched the work after most of its long gaps, or -1 if
            unknown. On ties, the smallest thread number wins.
        threads: All launching threads and each process's main thread, distinct and ascending.
    """
    lead, launching_threads = {}, []
    for device in devices:
        thread = _find_launches(device.gaps.after, calls, call).thread
        launching_threads += [thread, _find_launches(device.after_short, calls, call).thread]
        thread = thread[~device.is_short & (thread != NONE)]
        candidates, count = np.unique(thread, return_counts=True)
        lead[device.rank] = int(candidates[count.argmax()]) if len(candidates) else NONE
    processes = find_distinct(profile.activities.ranks[:, 0]).tolist()
    main = [find_main_thread(process, profile.threads) for process in processes]
    threads = find_distinct(np.array([*main, *lead.values()], np.int64), *launching_threads)
    return lead, subtract_values(threads, np.array([NONE]))


def _note_short_calls(profile: Profile, shortest_ns: int) -> tuple[Limitation, ...]:
    """Return the limitation that short calls were left out, or () if all calls were kept.

    Args:
        profile: The profile.
        shortest_ns: Minimum length of the calls that were kept, which exceeds ``GRAIN_NS`` if there
            were too many calls.
    """
    if shortest_ns <= host.GRAIN_NS:
        return ()
    return (
        Limitation(
            f"short {profile.source.api} API calls in gaps",
            f"{profile.source.path}: there are too many calls to attribute each of them, so calls "
            f"shorter than {shortest_ns:,} ns count as part of the surrounding range",
            kind=LimitationKind.CAUSES_UNKNOWN,
        ),
    )


def _read_known_streams(profile: Profile) -> Ints:
    """Read the stream of each activity, or -1 if unknown. Damaged streams are unknown."""
    try:
        return _read_streams(profile)
    except ProfileError:
        return make_constant(NONE, len(profile.activities))


def _read_streams(profile: Profile) -> Ints:
    """Read the stream of each activity, or -1 if unknown."""
    if profile.streams is None:
        return make_constant(NONE, len(profile.activities))
    return profile.streams().astype(np.int64)


def _find_launches(next_work: Codes, calls: Calls, call: Codes) -> Launches:
    """Return, for each gap of a device, the call that launched the work after it.

    All columns are -1 for gaps whose launching call is unknown or not among ``calls``.

    Args:
        next_work: Row of the activity that follows each gap.
        calls: Relevant calls in the profile, sorted by row.
        call: For each kernel or copy, the row of the API call that launched it, or -1 if unknown.
    """
    index = find_positions(calls.row, call[next_work].astype(np.int64))
    columns = calls.thread, calls.start_ns, calls.end_ns
    return Launches(*(np.append(column, NONE)[index] for column in columns))
