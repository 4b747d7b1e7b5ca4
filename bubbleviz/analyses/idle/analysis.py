"""The analysis of idle time, from profiles to a report. It never prints."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bubbleviz.align.waiting_kernels import waiting_names
from bubbleviz.analyses.idle import attribution, host, waits
from bubbleviz.analyses.idle import report as measured
from bubbleviz.analyses.idle.copies import totals_of
from bubbleviz.analyses.idle.gaps import Device, Launches, find_devices, times_of
from bubbleviz.analyses.idle.report import ActivityIdle, Example, RankIdle, title_of
from bubbleviz.conventions import convention_file, kinds
from bubbleviz.conventions import host_activities as known
from bubbleviz.conventions.kinds import OPERATION_GLOBS, Kinds
from bubbleviz.errors import InputError, NothingToAnalyseError, UsageError
from bubbleviz.explain.idle import IdleIntervals
from bubbleviz.interpret import communication, linking, record, start_skew
from bubbleviz.interpret.collectives import named_as_told
from bubbleviz.interpret.fleet.run_recordings import Fleet, refuse_same_content
from bubbleviz.interpret.recording import UnknownKernels
from bubbleviz.interpret.steps import Steps, frequent_names, pattern_of, steps_of
from bubbleviz.model import choices, collectives, intervals
from bubbleviz.model.columns import NONE, Bools, Codes, Ints, constant, joined
from bubbleviz.model.copies import Copies
from bubbleviz.model.grouping import Numbering, distinct, found_in, without
from bubbleviz.model.limitations import Limitation, LimitationKind
from bubbleviz.model.operations import RankIntervals
from bubbleviz.model.profile import PAGE_MIGRATION, Activities, Calls, Profile, Ranges, pid_of
from bubbleviz.model.texts import printed_part
from bubbleviz.model.window import FOREVER_NS, Window, parse_window
from bubbleviz.progress import Progress, Watch
from bubbleviz.sources.in_memory import no_ranges
from bubbleviz.sources.paths import find_profiles, read_each, strip_profile_suffix

#: Gaps of a rank that the JSON of :meth:`IdleReport.save` lists.
_LONGEST = 12


class IdleReport(measured.IdleReport):  # noqa: D101 - help() shows that of its base
    # What notebooks show and what saves it; drawing code is loaded when it is called.

    def __repr__(self) -> str:
        """Return the report in a line; ``print`` and the prompt show no table of a million gaps."""
        return f"<IdleReport: {title_of(self)}>"

    def save(self, path: str | Path) -> None:
        """Write picture (``.svg``), page (``.html``), report (``.json``) or gaps (``.csv``).

        The file is written whole or not at all.

        Args:
            path: of the file, which is replaced.

        Raises:
            UsageError: it has another suffix.
            OutputError: it cannot be written.
        """
        from bubbleviz.analyses.idle.page import written
        from bubbleviz.render.files import write_outputs
        from bubbleviz.render.formats import suffixed

        name = suffixed(str(path), ("svg", "html", "json", "csv"))
        write_outputs({str(path): written(self, name, _LONGEST)}, force=True)

    def _repr_html_(self) -> str:
        """Return shares of devices, activities of hosts, picture and advice as HTML."""
        from bubbleviz.analyses.idle.outputs import notebook

        return notebook(self)

    def _repr_svg_(self) -> str:
        """Return the picture as an SVG document."""
        from bubbleviz.analyses.idle.picture import draw_idle

        return draw_idle(self)


# The analysis of all profiles.


def idle(
    paths: str | Path | Sequence[str | Path],
    *,
    step: str | None = None,
    shortest_us: float = choices.SHORTEST_US,
    activities: str | Path | None = None,
    convention: str | Path | Sequence[str | Path] = (),
    window: str | Window | None = None,
    keep_export: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> IdleReport:
    """Return the busy and idle time of devices, with idle time attributed to what hosts did.

    Args:
        paths: profiles of any kind; a directory stands for those in it, a pattern for its matches.
        step: name of the ranges that are steps, or a regex on the whole name; recognised if not
            given.
        shortest_us: shorter gaps are kernel-to-kernel gaps, and are not attributed.
        activities: a TOML file of host activities, matched before the built-in ones.
        convention: conventions whose lists of communication kernels extend the built-in one: names,
            or paths of TOML files.
        window: the part of the run to analyse, of steps by their numbers, or of time on each
            profile's own clock, as the option ``--window`` has it; None for all.
        keep_export: leave the exports made of ``.nsys-rep`` reports beside them.
        jobs: threads that read a profile.
        progress: receives how much of each profile has been read.

    Raises:
        BubblevizError: what, where and what to do next; see :mod:`bubbleviz.errors`.
    """
    if not 0 <= shortest_us < 1e12:
        raise UsageError(f"--shortest {shortest_us:g}: give microseconds, 0 or more")
    window = parse_window(window) if isinstance(window, str) else window
    builtin = known.default_activities()
    options = IdleOptions(
        shortest_ns=round(shortest_us * 1000),
        step=None if step is None else pattern_of(step),
        activities=builtin if activities is None else builtin.extended(activities),
        kinds=convention_file.extended_kinds(convention_file.find_conventions(convention)),
        window=window,
    )
    inputs = [paths] if isinstance(paths, (str, Path)) else paths
    files = find_profiles([str(path) for path in inputs])
    refuse_same_content(Fleet(jobs), [file.path for file in files])

    def read(path: str, watch: Watch, *, since_ns: int | None = None) -> _MeasuredProfile:
        with record.opened_profile(path, jobs, watch, keep_export=keep_export) as (file, export):
            profile = file.read(OPERATION_GLOBS, partial=True)
            chosen = options
            utc_ns = profile.source.session_utc_ns
            # The times of a single file are compared on its own clock, if UTC is unknown.
            is_timed = utc_ns is not None or len(files) == 1
            if since_ns is not None and is_timed:
                chosen = replace(options, window=_window_since(since_ns - (utc_ns or 0)))
            of_profile = _measure(profile, chosen)
        # A temporary export goes by its report's name.
        return replace(
            of_profile,
            ranks=tuple(replace(rank, path=path) for rank in of_profile.ranks),
            limitations=record.renamed_limitations(of_profile.limitations, export, path),
        )

    profiles, unreadable = read_each(files, read, progress)
    recorded = [device for profile in profiles for device in profile.recorded]
    start_ns = None if window is not None else start_skew.find_common_start(recorded)
    skew = start_skew.find_unclear_waits(recorded) if window is None else ()
    if start_ns is not None:
        profiles, unreadable = read_each(files, partial(read, since_ns=start_ns), progress)
        excluded = start_skew.describe_skew(recorded, start_ns, "{} before that are left out")
        skew = (excluded, *skew)
    ranks = _labelled([rank for profile in profiles for rank in profile.ranks])
    waiting = _find_waiting_names(profiles)
    lost = [note for profile in profiles for note in profile.limitations]
    counts: Counter[tuple[str, str, LimitationKind]] = Counter()
    for limitation in (*unreadable, *skew, *waiting, *lost):
        counts[limitation.what, limitation.reason, limitation.kind] += limitation.count
    totals = _summed(ranks)
    named = [a for total in totals if (a := options.activities.named(total.activity))]
    return IdleReport(
        ranks=ranks,
        activities=totals,
        shortest_ns=options.shortest_ns,
        advice={activity.name: activity.advice for activity in named if activity.advice},
        meaning={activity.name: activity.meaning for activity in named if activity.meaning},
        limitations=tuple(
            Limitation(what, reason, count, kind) for (what, reason, kind), count in counts.items()
        ),
        window=None if window is None else window.text,
    )


def _window_since(start_ns: int) -> Window:
    """Return the window from a time on a profile's clock to the end of all time."""
    return Window(f"time:{max(start_ns, 0)}ns-", times_ns=(start_ns, FOREVER_NS))


def _labelled(ranks: Sequence[RankIdle]) -> tuple[RankIdle, ...]:
    """Return ranks with the shortest labels that differ."""
    # A trace without a host goes by its file, whose suffixes tell devices apart no better.
    hosts = [
        strip_profile_suffix(rank.host) if rank.host == Path(rank.path).name else rank.host
        for rank in ranks
    ]
    labels = [f"{host} {rank.place}" for host, rank in zip(hosts, ranks, strict=True)]
    for wheres in (hosts, [Path(rank.path).name for rank in ranks], [rank.path for rank in ranks]):
        if len(set(labels)) < len(labels):
            pairs = zip(wheres, ranks, strict=True)
            labels = [f"{where} pid {rank.pid} {rank.place}" for where, rank in pairs]
    return tuple(replace(rank, label=label) for rank, label in zip(ranks, labels, strict=True))


def _summed(ranks: Sequence[RankIdle]) -> tuple[ActivityIdle, ...]:
    """Return the idle time of all devices by activity, the longest first."""
    by_activity: dict[str, list[ActivityIdle]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        for total in () if rank.on_host else rank.activities:
            by_activity[total.activity].append(replace(total, rank=index))
    summed = (
        replace(
            max(totals, key=lambda total: total.longest_ns),
            idle_ns=sum(total.idle_ns for total in totals),
            gaps=sum(total.gaps for total in totals),
        )
        for totals in by_activity.values()
    )
    return tuple(sorted(summed, key=ActivityIdle.order))


# Ranks: the devices of one profile, with their idle time attributed and summed.


#: Steps are no shorter than this part of a device's time.
_SHORTEST_STEP = 20_000
#: Minimum share of the work of a device whose launch must be known to measure the queue.
_MIN_LAUNCHED = 0.1
#: Maximum part of a device's time before the first recorded launch, or after the last launched work
#: started, in which work without a recorded launch runs.
_MAX_UNRECORDED_TIME = 0.25
#: Slices of a picture: about as many as it has pixels.
SLICES = 960
#: Of the ranges around an example, so many of the innermost are shown.
_WHERE = 6


@dataclass(frozen=True)
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
    activities: known.ActivityList
    kinds: Kinds
    window: Window | None = None


@dataclass(frozen=True)
class _Evidence:
    """All that a profile holds to explain idle time.

    Attributes:
        devices: The devices with their gaps.
        activities: Kernels and copies. Kernels that are named after sends and receives have the
            names of the operations that they carry out.
        calls: Calls that launched the work after long gaps, and long calls in gaps, by row.
        call: Row of the call that launched each kernel and copy, or -1 if unknown.
        ranges: what hosts did, without steps.
        host: what hosts did, as activities.
        steps: by process.
        lead: the thread that launched the work after most gaps of the whole run, by rank.
        numbers: of the activities' names.
        launched_ns: Launch time of each kernel and copy, undefined if the call is unknown.
        waiting: what streams and hosts are proved to have waited for.
        unrecorded: Times at which devices may have run work that was launched but not recorded.
        limitations: what is left out.
        copies: Details of the copies, or None if the profile records none.
        recorded: Start of the recording, and communication, of each device.
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
    unrecorded: RankIntervals
    limitations: tuple[Limitation, ...]
    copies: Copies | None
    recorded: tuple[start_skew.RecordedDevice, ...]

    def launches_of(self, device: Device) -> Launches:
        """Return the calls that launched the work after each gap of a device."""
        return _launches_of(device.gaps.after, self.calls, self.call)


def ranks_of(
    profile: Profile, options: IdleOptions
) -> tuple[tuple[RankIdle, ...], tuple[Limitation, ...]]:
    """Return the devices of a profile with their idle time, and what could not be measured.

    Raises:
        InputError: no step lies in the window.
        NothingToAnalyseError: no work took any time, or none of it is in the window.
        UsageError: no range has the name of a step that the user gave.
    """
    of_profile = _measure(profile, options)
    return of_profile.ranks, of_profile.limitations


@dataclass(frozen=True)
class _MeasuredProfile:
    """Measurements of a profile.

    Attributes:
        ranks: Devices of the profile with their idle time.
        limitations: Limitations of the measurements.
        recorded: Start of the recording, and communication, of each device.
        unknown_kernels: Kernels with unknown names, on UTC if known.
        has_utc: Whether UTC is known.
    """

    ranks: tuple[RankIdle, ...]
    limitations: tuple[Limitation, ...]
    recorded: tuple[start_skew.RecordedDevice, ...]
    unknown_kernels: tuple[UnknownKernels, ...]
    has_utc: bool


def _find_waiting_names(profiles: Sequence[_MeasuredProfile]) -> Iterator[Limitation]:
    """Yield the limitations for kernels that wait for each other but count as compute.

    Profiles without UTC have no common clock, so each of them is checked separately.
    """
    timed = [profile for profile in profiles if profile.has_utc]
    groups = [timed, *([profile] for profile in profiles if not profile.has_utc)]
    for group in groups:
        kernels = (kernel for profile in group for kernel in profile.unknown_kernels)
        yield from waiting_names(kernels, "exposed communication is too small")


def _find_unknown_kernels(
    profile: Profile, kinds: Kinds, window_ns: tuple[int, int] | None
) -> tuple[UnknownKernels, ...]:
    """Return the kernels with unknown names in a window, on UTC if known."""
    activities = profile.activities
    if window_ns is not None:
        is_inside = (activities.start_ns >= window_ns[0]) & (activities.end_ns <= window_ns[1])
        profile = replace(profile, activities=activities.chosen(is_inside))
    utc_ns = profile.source.session_utc_ns or 0
    return tuple(
        replace(kernels, start_ns=kernels.start_ns + utc_ns, end_ns=kernels.end_ns + utc_ns)
        for kernels in communication.unknown_kernels_of(profile, kinds)
    )


def _measure(profile: Profile, options: IdleOptions) -> _MeasuredProfile:
    """Measure the idle time of the devices of a profile, and the start of their recordings.

    Raises:
        InputError: no step lies in the window.
        NothingToAnalyseError: no work took any time, or none of it is in the window.
        UsageError: no range has the name of a step that the user gave.
    """
    profile, evidence = _gather_evidence(profile, options)
    losses = *profile.limitations, *evidence.limitations
    window_ns = None
    if options.window is not None:
        window_ns = low_ns, high_ns = _extent(profile, options.window, evidence.steps)
        inside = find_devices(profile, evidence.unrecorded, options.shortest_ns, window_ns)
        evidence = replace(
            evidence,
            devices=tuple(inside),
            steps={p: table.within(low_ns, high_ns) for p, table in evidence.steps.items()},
        )
        if not evidence.devices:
            raise NothingToAnalyseError(
                f"{profile.source.path}: no device has any work in --window {options.window.text}; "
                "give another, or none"
            )
        longest_ns = _measure_longest_queueing(profile.activities, evidence)
        losses = tuple(note.outside(low_ns, high_ns, longest_ns) for note in losses)
    if any(note.times_ns is not None for note in losses):
        # Losses before the measured time change no busy or idle time.
        first_ns = min(device.span_ns[0] for device in evidence.devices)
        longest_ns = _measure_longest_queueing(profile.activities, evidence)
        losses = tuple(
            note.outside(first_ns, FOREVER_NS, longest_ns, where="the measured time")
            for note in losses
        )
    ranks = tuple(_rank(device, profile, evidence, options) for device in evidence.devices)
    return _MeasuredProfile(
        ranks=ranks,
        limitations=(*losses, *_limitations(profile, evidence, ranks)),
        recorded=evidence.recorded,
        unknown_kernels=_find_unknown_kernels(profile, options.kinds, window_ns),
        has_utc=profile.source.session_utc_ns is not None,
    )


def _measure_longest_queueing(activities: Activities, evidence: _Evidence) -> int:
    """Return the longest time from a launch to the start of its work in ns, or 0 if unknown."""
    is_launched = evidence.call != NONE
    waited_ns = activities.start_ns[is_launched] - evidence.launched_ns[is_launched]
    return max(int(waited_ns.max(initial=0)), 0)


def _gather_evidence(profile: Profile, options: IdleOptions) -> tuple[Profile, _Evidence]:
    """Link the work of a profile to its calls, and gather the evidence for idle time.

    Args:
        profile: The profile as read.
        options: Options of the analysis.

    Returns:
        The profile with the work that can be analysed, and the evidence.

    Raises:
        NothingToAnalyseError: No kernel or copy has a duration.
        UsageError: No range has the name of a step that the user gave.
    """
    found, unread = waits.synchronisation_of(profile)
    linked, devices = _linked(profile, options)
    evidence = _evidence_of(linked, devices, options, found)
    limitations = (
        *unread,
        *linked.limitations,
        *communication.candidates_of(linked.profile, options.kinds),
        *evidence.limitations,
    )
    return linked.profile, replace(evidence, limitations=limitations)


def window_extent(profile: Profile, window: Window, options: IdleOptions) -> tuple[int, int]:
    """Return the start and end of a window on the profile's clock, in ns.

    Raises:
        InputError: no step lies in it.
        NothingToAnalyseError: no work took any time.
    """
    linked, devices = _linked(profile, options)
    return _extent(linked.profile, window, _evidence_of(linked, devices, options).steps)


def _linked(profile: Profile, options: IdleOptions) -> tuple[linking.LinkedProfile, list[Device]]:
    """Return a profile with its links, and its devices."""
    linked = linking.link(
        communication.with_added_communication(profile, options.kinds), no_ranges()
    )
    # No ranges are linked, so most columns of the links have a single value.
    linked = replace(linked, links=linked.links.compacted())
    devices = list(find_devices(linked.profile, linked.unrecorded, options.shortest_ns))
    if not devices:
        raise NothingToAnalyseError(
            f"{profile.source.path}: no kernel or copy took any time; profile the training itself"
        )
    return linked, devices


def _extent(profile: Profile, window: Window, steps: Mapping[int, Steps]) -> tuple[int, int]:
    """Return the start and end of a window, by the steps of all processes."""
    if window.times_ns is not None:
        return window.times_ns
    tables = tuple(steps.values())
    if not any(map(len, tables)):
        raise InputError(
            f"{profile.source.path}: --window {window.text}: no ranges are known as steps; name "
            "them (bubbleviz idle --step NAME), or give a time, such as --window time:1.5s-3s"
        )
    numbers = [number for table in tables for number in table.numbers()]
    start_ns = np.concatenate([table.start_ns for table in tables])
    end_ns = np.concatenate([table.end_ns for table in tables])
    try:
        inside = window.holds(numbers, start_ns, end_ns)
    except InputError as error:
        raise InputError(f"{profile.source.path}: {error}") from error
    return int(start_ns[inside].min()), int(end_ns[inside].max())


def _evidence_of(
    linked: linking.LinkedProfile,
    devices: Sequence[Device],
    options: IdleOptions,
    found: collectives.Synchronisation | None = None,
) -> _Evidence:
    """Return the evidence for the idle time of devices.

    Args:
        linked: a profile.
        devices: its devices.
        options: of the analysis.
        found: what the profile holds of waiting.

    Raises:
        UsageError: no range has the name of a step that the user gave.
    """
    profile, call = linked.profile, linked.links.call
    idle = {}
    for process in {device.process for device in devices}:
        gaps = joined([device.long_gaps for device in devices if device.process == process])
        idle[process] = intervals.union(gaps.start_ns, gaps.end_ns)
    after = np.concatenate([device.long_gaps.after for device in devices])
    launching = distinct(call[after].astype(np.int64))
    records = found.records if found else collectives.EventRecords.none()
    calls, made, shortest_ns = host.gap_calls_of(
        profile, launching[launching != NONE], idle, records
    )
    waiting = waits.Waiting()
    if found:

        def returned_ns(rows: Ints) -> Ints:
            returned = profile.calls.at(rows)
            return np.append(returned.end_ns, NONE)[found_in(returned.row, rows)]

        waiting = waits.waiting_of(
            found,
            made,
            profile.activities,
            _read_streams(profile),
            call,
            linked.links.launched_ns,
            returned_ns,
            options.kinds,
        )

    lead, launching_threads = {}, []
    for device in devices:
        thread = _launches_of(device.gaps.after, calls, call).thread
        launching_threads += [thread, _launches_of(device.after_short, calls, call).thread]
        thread = thread[~device.is_short & (thread != NONE)]
        launching, count = np.unique(thread, return_counts=True)
        lead[device.rank] = int(launching[count.argmax()]) if len(launching) else NONE
    processes = distinct(profile.activities.ranks[:, 0]).tolist()
    main = [host.main_thread(process, profile.threads) for process in processes]
    threads = without(
        distinct(np.array([*main, *lead.values()], np.int64), *launching_threads),
        np.array([NONE]),
    )
    lookup, numbers = options.activities.lookup(), Numbering[str]()
    steps = _steps(profile, devices, threads, lookup, options.step)
    ranges = host.host_ranges_of(profile, idle, threads, steps, options.shortest_ns)
    lookup.known[host.ON_DEVICE] = known.DEVICE, known.KNOWN
    long_calls = calls.take(calls.end_ns - calls.start_ns >= shortest_ns)
    events = host.host_events_of(ranges, long_calls, call, profile, lookup, numbers, waiting.hosts)
    lost = Limitation(
        f"short {profile.source.api} API calls in gaps",
        f"{profile.source.path}: too many to attribute; those under {shortest_ns:,} ns count as "
        "part of what surrounds them",
    )
    limitations = (lost,) if shortest_ns > host.GRAIN_NS else ()
    launched_ns = linked.links.launched_ns
    # Sends and receives are named after the operations in records and ranges.
    named = named_as_told(linked)
    return _Evidence(
        devices=tuple(devices),
        activities=named,
        calls=calls,
        call=call,
        ranges=ranges,
        host=events,
        steps=steps,
        lead=lead,
        numbers=numbers,
        launched_ns=launched_ns,
        waiting=waiting,
        unrecorded=linked.unrecorded,
        limitations=limitations,
        copies=None if profile.copies is None else profile.copies(),
        recorded=start_skew.find_recorded_devices(linked, named, options.kinds),
    )


def _read_streams(profile: Profile) -> Ints:
    """Return the stream of each activity, or -1 if unknown."""
    if profile.streams is None:
        return constant(NONE, len(profile.activities))
    return profile.streams().astype(np.int64)


def _launches_of(after: Codes, calls: Calls, call: Codes) -> Launches:
    """Return the calls that launched the work after each gap of a device.

    Args:
        after: Row of the work after each gap.
        calls: Some calls of the profile, by row.
        call: Row of the call that launched each kernel and copy, or -1 if unknown.
    """
    at = found_in(calls.row, call[after].astype(np.int64))
    columns = calls.thread, calls.start_ns, calls.end_ns
    return Launches(*(np.append(column, NONE)[at] for column in columns))


def _steps(
    profile: Profile,
    devices: Sequence[Device],
    threads: Ints,
    lookup: known.ActivityList,
    pattern: re.Pattern[str] | None,
) -> dict[int, Steps]:
    """Return the steps of each process.

    Raises:
        UsageError: no range has the name of a step that the user gave.
    """
    since, until = (np.array(time) for time in zip(*(d.span_ns for d in devices), strict=True))
    shortest_ns = max(int((until - since).min()) // _SHORTEST_STEP, 1)
    first, last = np.array([since.min()]), np.array([until.max()])
    ranges = profile.every_range.lasting(shortest_ns, threads, first, last, None)
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


def _rank(device: Device, profile: Profile, evidence: _Evidence, options: IdleOptions) -> RankIdle:
    """Return a device with its idle time attributed and summed."""
    activities, source, numbers = profile.activities, profile.source, evidence.numbers
    steps, gaps = evidence.steps[device.process], device.gaps
    # If the work was not launched by a host, its calls represent the work itself.
    call = evidence.call if profile.launches_known else constant(NONE, len(activities))
    queue = _queue(activities, device, call, evidence.launched_ns)
    lead = evidence.lead[device.rank], host.main_thread(device.process, profile.threads)
    others = list(dict.fromkeys(lead))
    launches = evidence.launches_of(device)
    threads = distinct(np.append(launches.thread, others))
    events = evidence.host.seen_from(activities, device.rank, threads, numbers)
    idle = attribution.attribute(
        device, launches, activities, evidence.waiting.held, events, others, numbers
    )
    step_of_gap = intervals.covering(steps.start_ns, steps.end_ns, gaps.start_ns)

    def example(gap: int, number: int) -> Example | None:
        """Return where a gap is, and what the host did around its longest piece of an activity."""
        if numbers.values[number] == known.SHORT:
            return None
        low, high = np.searchsorted(idle.interval, (gap, gap + 1)).tolist()
        start_ns, end_ns = idle.start_ns[low:high], idle.end_ns[low:high]
        length_ns = np.where(idle.activity[low:high] == number, end_ns - start_ns, NONE)
        longest = int(length_ns.argmax())
        # Once the work after it is launched, the time of that call counts.
        middle_ns = int(start_ns[longest] + end_ns[longest]) // 2
        time_ns = min(middle_ns, int(launches.start_ns[gap]))
        thread = int(launches.thread[gap])
        where: tuple[str, ...] = ()
        for candidate in () if thread == NONE else (thread, *others):
            around = host.names_around(evidence.ranges, candidate, time_ns)
            where = tuple(name for name in around if name != host.ON_DEVICE)[-_WHERE:]
            if where:
                break
        step = int(step_of_gap[gap])
        return Example(
            start_ns=int(gaps.start_ns[gap]),
            end_ns=int(gaps.end_ns[gap]),
            before=attribution.work_name(activities, int(gaps.before[gap])),
            after=attribution.work_name(activities, int(gaps.after[gap])),
            step=None if step == NONE else steps.names[int(steps.name_id[step])],
            where=where,
        )

    times = times_of(device, evidence.activities, options.kinds)
    totals = attribution.by_activity(idle, device, times["busy"], numbers.values, example)
    waits, awaited_communication_ns, awaited_copy_ns = attribution.proved_waits(
        device, times, profile, evidence.waiting, events, idle, numbers, options.kinds
    )
    works = (*map(printed_part, activities.names), attribution.COPY_NAME)
    # What a picture shows of each slice of time.
    start_ns, end_ns = device.span_ns
    edges = start_ns + (end_ns - start_ns) * np.arange(SLICES + 1) // SLICES
    shown = ("compute", "exposed_communication", "exposed_copy")
    slice_ns = [intervals.measure_within(times[name], edges[:-1], edges[1:]) for name in shown]
    numbers_shown = [numbers.number(total.activity) for total in totals]
    short = numbers.number(known.SHORT)
    slice_ns += _slice_idle(idle, times["busy"], numbers_shown, short, edges)
    process, device_id = activities.ranks[device.rank].tolist()
    pid, place_text = pid_of(process), profile.place(process, device_id)
    # A device is described for a process, or for all of them.
    models = [d.name for d in profile.devices if d.device_id == device_id and d.pid in (pid, None)]
    lengths: dict[str, Any] = {
        f"{name}_ns": intervals.measure(time) for name, time in times.items()
    }
    return RankIdle(
        label=f"{source.host} pid {pid} {place_text}",
        path=source.path,
        host=source.host,
        pid=pid,
        device_id=device_id,
        place=place_text,
        on_host=source.on_host,
        single=device.is_single and not source.on_host,
        gpu=models[0] if models and models[0] else None,
        start_ns=start_ns,
        end_ns=end_ns,
        **lengths,
        activities=totals,
        steps=attribution.by_step(idle, device, times["busy"], steps, numbers.values),
        steps_by=steps.by,
        idle=replace(
            idle,
            before=_number_works(activities, idle.before, works),
            after=_number_works(activities, idle.after, works),
        ).compacted(),
        works=works,
        activity_names=numbers.values,
        slice_ns=np.stack(slice_ns),
        format=source.format,
        waits=waits,
        awaited_communication_ns=awaited_communication_ns,
        awaited_copy_ns=awaited_copy_ns,
        work=_work(activities, device, works, options.kinds),
        copies=totals_of(evidence.copies, activities, device),
        **queue,
    )


def _number_works(activities: Activities, rows: Ints, works: Sequence[str]) -> Ints:
    """Return the rows of ``works`` with the names of some activities.

    Args:
        activities: Kernels and copies.
        rows: Rows of the activities.
        works: Names of kernels, then that of copies.
    """
    name = activities.name_id[rows].astype(np.int64)
    return np.where(name == NONE, len(works) - 1, name)


def _slice_idle(
    idle: IdleIntervals,
    busy: intervals.Intervals,
    shown: Sequence[int],
    short: int,
    edges_ns: Ints,
) -> list[Ints]:
    """Return the idle time in each slice of a device's time, one column per activity.

    Args:
        idle: Attributed idle time of the device. All other idle time is in short gaps.
        busy: When any kernel or copy ran on it.
        shown: Numbers of the activities.
        short: Number of the activity of short gaps.
        edges_ns: Bounds of the slices.
    """
    low_ns, high_ns = edges_ns[:-1], edges_ns[1:]

    def measure(rows: Bools | slice) -> Ints:
        pieces = idle.start_ns[rows], idle.end_ns[rows]
        return intervals.measure_within(pieces, low_ns, high_ns)

    idle_ns = high_ns - low_ns - intervals.measure_within(busy, low_ns, high_ns)
    short_ns = idle_ns - measure(slice(None))
    columns = {number: measure(idle.activity == number) for number in shown}
    if short in columns:
        columns[short] = columns[short] + short_ns
    return list(columns.values())


def _work(
    activities: Activities, device: Device, works: Sequence[str], named: Kinds
) -> tuple[tuple[str, str, int, int], ...]:
    """Return name and class of work inside the span of a device, how often and how long it ran.

    Args:
        activities: kernels and copies.
        device: that ran them.
        works: their names, and behind these that of copies.
        named: what kernels are, by name.
    """
    rows = np.flatnonzero(activities.rank == device.rank)
    start_ns, end_ns = (
        np.clip(time[rows], *device.span_ns) for time in (activities.start_ns, activities.end_ns)
    )
    name = activities.name_id[rows].astype(np.int64)
    name = np.where(name == NONE, len(works) - 1, name)[end_ns > start_ns]
    work_ns = np.zeros(len(works), np.int64)
    np.add.at(work_ns, name, (end_ns - start_ns)[end_ns > start_ns])
    count = np.bincount(name, minlength=len(works))
    # Page migrations count as copies, although they have a name like kernels.
    classes = [
        measured.COPIES if name == PAGE_MIGRATION else of
        for name, of in zip(
            activities.names, kinds.kernel_classes(activities.names, named), strict=True
        )
    ] + [measured.COPIES]
    # A file may contain the same name several times.
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for text, of, ran, ns in zip(works, classes, count.tolist(), work_ns.tolist(), strict=True):
        n_before, before_ns = sums.get((text, of), (0, 0))
        sums[text, of] = n_before + ran, before_ns + ns
    return tuple((*key, *total) for key, total in sums.items() if total[0])


def _queue(
    activities: Activities, device: Device, call: Codes, launched_ns: Ints
) -> dict[str, Any]:
    """Measure the launch queue of a device: work that was launched but has not started.

    Args:
        activities: Kernels and copies of the profile.
        device: The device.
        call: Row of the call that launched each activity, or -1 if unknown.
        launched_ns: Start of that call, undefined if the call is unknown.

    Returns:
        Fields of :class:`.report.RankIdle` about the queue. The mean is None if fewer than 10 % of
        the work have a known launch, or if no launch was recorded for a quarter of the time at the
        start or at the end. Page migrations are ignored, because no call launches them.
    """
    is_migration = np.array([*(name == PAGE_MIGRATION for name in activities.names), False], bool)
    is_launched = (activities.rank == device.rank) & ~is_migration[activities.name_id]
    rows = np.flatnonzero(is_launched)
    is_known = (call[rows] != NONE) & (launched_ns[rows] <= activities.start_ns[rows])
    n_known = int(is_known.sum())
    unknown = {"queued": None, "queued_most": 0, "queue_empty_ns": 0}
    if n_known == 0 or n_known < _MIN_LAUNCHED * len(rows):
        return unknown
    low_ns, high_ns = device.span_ns
    unlaunched_ns = activities.start_ns[rows[~is_known]]
    rows = rows[is_known]
    # Work may have been queued while launches were not recorded.
    first_ns, last_ns = launched_ns[rows].min(), activities.start_ns[rows].max()
    before_ns = unlaunched_ns[unlaunched_ns < first_ns]
    after_ns = unlaunched_ns[unlaunched_ns > last_ns]
    limit_ns = _MAX_UNRECORDED_TIME * (high_ns - low_ns)
    if len(before_ns) and first_ns - max(before_ns.min(), low_ns) > limit_ns:
        return unknown
    if len(after_ns) and high_ns - max(after_ns.min(), low_ns) > limit_ns:
        return unknown
    times = np.concatenate((launched_ns[rows], activities.start_ns[rows]))
    change = np.repeat((1, -1), n_known)
    # Of one instant, launches come first: the sort is stable.
    order = np.argsort(times, kind="stable")
    depth = np.cumsum(change[order])
    times = np.clip(times[order], low_ns, high_ns)
    length_ns = np.diff(np.append(times, high_ns))
    return {
        "queued": float((depth * length_ns).sum() / (high_ns - low_ns)),
        "queued_most": int(depth[length_ns > 0].max(initial=0)),
        "queue_empty_ns": high_ns - low_ns - int(length_ns[depth > 0].sum()),
    }


def _limitations(
    profile: Profile, evidence: _Evidence, ranks: Sequence[RankIdle]
) -> Iterator[Limitation]:
    """Yield why idle time could not be attributed."""
    path, waiting = profile.source.path, evidence.waiting
    single = sum(rank.single for rank in ranks)
    if single:
        yield Limitation(
            "duty cycle",
            f"{path}: a device ran a single kernel or copy, so it has no window and is in no sum",
            single,
        )
    if 2 * waiting.unrecorded > waiting.asked:
        yield Limitation(
            "what streams waited for",
            f"{path}: most of their waits are for events whose record is not in the profile; such "
            "idle time counts as stream or rank dependency",
            waiting.unrecorded,
        )
    totals = [total for rank in ranks for total in rank.activities]
    unlinked = [total for total in totals if total.activity == known.UNLINKED]
    if unlinked:
        yield Limitation(
            "launches after gaps",
            f"{path}: the launching calls are not in the profile, so this idle time is not "
            "attributed",
            sum(total.gaps for total in unlinked),
        )
    untraced = any(total.activity == known.UNTRACED for total in totals)
    if untraced and len(evidence.ranges) == 0:
        yield Limitation(
            "what hosts did outside of API calls",
            f"{path}: no range (NVTX, ROCTx, record_function, operators) touches idle time, which "
            "counts as no host trace",
        )
