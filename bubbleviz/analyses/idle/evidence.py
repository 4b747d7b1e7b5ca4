"""Evidence: all that a profile holds to explain the idle time of its devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bubbleviz.analyses.idle.gap_calls import GRAIN_NS, GapCalls, gap_calls_of
from bubbleviz.analyses.idle.gaps import GapLaunches, launches_of
from bubbleviz.analyses.idle.held_work import (
    Launched,
    RecordTimes,
    Waiting,
    nothing_proved,
    waiting_of,
)
from bubbleviz.analyses.idle.host_record import (
    ON_DEVICE,
    HostRecord,
    host_ranges_of,
    host_record_of,
    main_thread,
)
from bubbleviz.analyses.idle.totals import DeviceTime, idle_by_process
from bubbleviz.conventions.host_activities import DEVICE, KNOWN, ActivityList, ActivityLookup
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.errors import UsageError
from bubbleviz.interpret.added_communication import with_added_communication
from bubbleviz.interpret.iterations import Steps, frequent_names, steps_of
from bubbleviz.interpret.linking import link
from bubbleviz.model.collectives import Synchronisation
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import Numbering, distinct, found_in, without
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Profile, Ranges
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window
from bubbleviz.sources.in_memory import no_ranges

#: Steps are no shorter than this part of a device's time.
_SHORTEST_STEP = 20_000


@frozen
class IdleOptions:
    """How idle time is analysed.

    Attributes:
        shortest_ns: shorter gaps are kernel-to-kernel gaps.
        step: names of the ranges that are steps; None to recognise them.
        activities: what hosts do, by name.
        kinds: what kernels are, by name.
        window: the part of the run to analyse; None for all of it.
    """

    shortest_ns: int
    step: re.Pattern[str] | None
    activities: ActivityList
    kinds: Kinds
    window: Window | None = None


@frozen
class IdleEvidence:
    """All that a profile holds to explain idle time.

    Attributes:
        profile: as read.
        launches: the call that launched the work after each gap, by rank.
        ranges: what hosts did, without steps.
        host: what hosts did, as activities.
        steps: by process.
        lead: the thread that launched the work after most gaps of the whole run, by rank.
        numbers: of the activities' names.
        waiting: what streams and hosts are proved to have waited for.
    """

    profile: Profile
    launches: Mapping[int, GapLaunches]
    ranges: Ranges
    host: HostRecord
    steps: Mapping[int, Steps]
    lead: Mapping[int, int]
    numbers: Numbering[str]
    waiting: Waiting


@frozen
class LinkedProfile:
    """A profile with the work whose times can be.

    Attributes:
        profile: itself.
        call: row of the launching call of each kernel and copy; -1 unknown.
        launched_ns: when that began; means nothing where there is none.
        limitations: what is lost.
    """

    profile: Profile
    call: Codes
    launched_ns: Ints
    limitations: tuple[Limitation, ...]


def linked_profile(profile: Profile, kinds: Kinds) -> LinkedProfile:
    """Return a profile with the work whose times can be, and its launching calls.

    Args:
        profile: as read.
        kinds: lists of what kernels are.
    """
    profile = with_added_communication(profile, kinds)
    linked = link(profile, no_ranges())
    links = linked.links
    return LinkedProfile(linked.profile, links.call, links.launched_ns, linked.limitations)


def evidence_of(
    linked: LinkedProfile,
    devices: Sequence[DeviceTime],
    options: IdleOptions,
    found: Synchronisation | None = None,
    whole: IdleEvidence | None = None,
) -> tuple[IdleEvidence, tuple[Limitation, ...]]:
    """Return the evidence for the idle time of devices, and its limitations.

    Args:
        linked: with work whose times can be.
        devices: of it, or parts of them.
        options: of the analysis.
        found: what the profile holds of waiting.
        whole: where devices are parts, the evidence for the whole, with the steps of the parts.

    Raises:
        UsageError: no range has the name of a step that the user gave.
    """
    profile, call = linked.profile, linked.call
    idle = idle_by_process(devices)
    launching = distinct(
        np.concatenate([call[device.long_gaps.after].astype(np.int64) for device in devices])
    )
    records = RecordTimes(found.records) if found else None
    gap_calls = gap_calls_of(profile.calls, call, launching[launching != NONE], idle, records)
    waiting = whole.waiting if whole else nothing_proved()
    if found and records:
        waiting = waiting_of(found, records, _launched(linked))
    kernels = profile.activities.kernels
    launches = {
        device.rank: launches_of(device.gaps, call, gap_calls.calls, kernels) for device in devices
    }
    lead = (
        {device.rank: _lead(launches[device.rank].thread[~device.short]) for device in devices}
        if whole is None
        else dict(whole.lead)
    )
    threads = _threads(profile, launches.values(), lead.values())
    lookup, numbers = options.activities.lookup(), Numbering[str]()
    steps = whole.steps if whole else _steps(profile, devices, threads, lookup, options.step)
    ranges = host_ranges_of(profile, idle, threads, steps, options.shortest_ns)
    lookup.known[ON_DEVICE] = DEVICE, KNOWN
    host = host_record_of(ranges, gap_calls, profile.calls, lookup, numbers, waiting.host)
    return (
        IdleEvidence(profile, launches, ranges, host, steps, lead, numbers, waiting),
        _short_calls(profile, gap_calls),
    )


def _launched(linked: LinkedProfile) -> Launched:
    """Return the work of a profile with its launches."""
    profile = linked.profile

    def returned_ns(rows: Ints) -> Ints:
        calls = profile.calls.at(rows)
        return np.append(calls.end_ns, NONE)[found_in(calls.row, rows)]

    return Launched(profile.activities, linked.call, linked.launched_ns, returned_ns)


def _lead(threads: Ints) -> int:
    """Return the thread that launched the work after most gaps; -1 where none is known."""
    known, count = np.unique(threads[threads != NONE], return_counts=True)
    return int(known[count.argmax()]) if len(known) else NONE


def _threads(profile: Profile, launches: Iterable[GapLaunches], lead: Iterable[int]) -> Ints:
    """Return the threads to look at: those that launch, and main ones."""
    processes = distinct(profile.activities.ranks[:, 0]).tolist()
    main = np.array([main_thread(process, profile.threads) for process in processes], np.int64)
    leading = np.array(list(lead), np.int64)
    launching = (table.thread for table in launches)
    threads: Ints = distinct(main, leading, *launching)
    return without(threads, np.array([NONE]))


def _steps(
    profile: Profile,
    devices: Sequence[DeviceTime],
    threads: Ints,
    lookup: ActivityLookup,
    pattern: re.Pattern[str] | None,
) -> dict[int, Steps]:
    """Return the steps of each process.

    Raises:
        UsageError: no range has the name of a step that the user gave.
    """
    since, until = (np.array(time) for time in zip(*(d.span_ns for d in devices), strict=True))
    shortest_ns = max(int((until - since).min()) // _SHORTEST_STEP, 1)
    first, last = np.array([since.min()]), np.array([until.max()])
    ranges = profile.every_range.lasting(shortest_ns, threads, first, last)
    steps = {
        process: steps_of(ranges, process, int(first[0]), int(last[0]), lookup, pattern)
        for process in sorted({device.process for device in devices})
    }
    if pattern is not None and not any(len(table) for table in steps.values()):
        raise UsageError(
            f"--step: no range of a launching thread in {profile.source.path} has this name; the "
            f"longer ones are {frequent_names(ranges)}"
        )
    return steps


def _short_calls(profile: Profile, gap_calls: GapCalls) -> tuple[Limitation, ...]:
    if gap_calls.shortest_ns <= GRAIN_NS:
        return ()
    reason = (
        f"{profile.source.path}: they are too many; those of less than "
        f"{gap_calls.shortest_ns:,} ns count as part of what is around them"
    )
    return (Limitation(f"short {profile.source.api} API calls in gaps", reason),)
