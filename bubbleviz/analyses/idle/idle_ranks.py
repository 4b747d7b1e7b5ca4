"""Idle ranks: the devices of a profile, how they spent their time, and why they were idle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from bubbleviz.analyses.idle.attribution import (
    ActivityNumbers,
    Attributed,
    Host,
    attribute,
    doings_for,
    host_of,
    names_around,
)
from bubbleviz.analyses.idle.call_notes import GRAIN_NS, CallNotes, notes_of
from bubbleviz.analyses.idle.idle_gaps import Busy, Gaps, Launched, busy_of, gaps_of, launched_by
from bubbleviz.analyses.idle.idle_parts import by_step, main_activity, parts_of, step_at, strip_of
from bubbleviz.analyses.idle.idle_time import Breakdown, Chunks, Example, IdleGaps, RankIdle
from bubbleviz.conventions.host_activities import (
    DEVICE,
    KNOWN,
    SHORT,
    UNLINKED,
    UNTRACED,
    ActivityList,
    ActivityLookup,
)
from bubbleviz.conventions.kinds import Kinds, matching
from bubbleviz.conventions.range_names import bare_name
from bubbleviz.errors import InputError, NothingToAnalyseError, UsageError
from bubbleviz.interpret.link import link
from bubbleviz.interpret.steps import Steps, frequent_names, steps_of
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Bools, Ints, joined
from bubbleviz.model.operations import Limitation
from bubbleviz.model.profile import (
    DEVICE_THREAD,
    Activities,
    Profile,
    Ranges,
    Thread,
    impossible_times,
    pid_of,
    process_of,
)
from bubbleviz.model.window import Window
from bubbleviz.sources.in_memory import no_ranges

#: What work is called that has no name.
_COPY = "copy or fill"
#: Steps are no shorter than this part of a device's time.
_SHORTEST_STEP = 20_000
#: What XLA's profiler names the thread that runs the program, whose number it does not tell.
_PYTHON = re.compile(r"(?:python[0-9.]*|main(?:[ _]?thread)?)\Z", re.IGNORECASE)
#: What XLA runs on a device, and what is said where a device's own thread tells of it.
_XLA = re.compile(r"(?:XlaModule|Thunk):#")
_ON_DEVICE = "a module runs on the device"
#: Of the ranges around an example the innermost are told, so many.
_WHERE = 6


@dataclass(frozen=True)
class Asked:
    """What is asked of profiles.

    Attributes:
        shortest_ns: shorter gaps are short ones.
        step: names of the ranges that are steps; None to tell them.
        activities: what hosts do, by name.
        kinds: what kernels are, by name.
        window: the part of the run that is looked at; None for all of it.
    """

    shortest_ns: int
    step: re.Pattern[str] | None
    activities: ActivityList
    kinds: Kinds
    window: Window | None = None


@dataclass(frozen=True)
class _Device:
    """A device of a process, when it was busy, and its gaps.

    Attributes:
        rank: row of the profile's ranks.
        process: of it.
        busy: when it was.
        gaps: all of them.
        short: which are short.
        span_ns: from the start of its first work to the end of its last, inside the window.
    """

    rank: int
    process: int
    busy: Busy
    gaps: Gaps
    short: Bools
    span_ns: tuple[int, int]

    def within(self, low_ns: int, high_ns: int, shortest_ns: int) -> _Device | None:
        """Return the device between two instants; None where that is none of its span."""
        low_ns, high_ns = max(low_ns, self.span_ns[0]), min(high_ns, self.span_ns[1])
        if high_ns <= low_ns:
            return None
        gaps = self.gaps.within(low_ns, high_ns)
        short = np.asarray(gaps.end_ns - gaps.start_ns < shortest_ns, bool)
        busy = self.busy.within(low_ns, high_ns)
        return _Device(self.rank, self.process, busy, gaps, short, (low_ns, high_ns))


@dataclass(frozen=True)
class _Read:
    """What was read of a profile to tell its idle time.

    Attributes:
        profile: itself.
        launched: who launched the work after each gap, by rank.
        ranges: that tell what hosts did, without steps.
        host: what they did.
        steps: by process.
        lead: the thread that launched the work after most gaps of the whole run, by rank.
        numbers: of activities.
    """

    profile: Profile
    launched: Mapping[int, Launched]
    ranges: Ranges
    host: Host
    steps: Mapping[int, Steps]
    lead: Mapping[int, int]
    numbers: ActivityNumbers


def ranks_of(profile: Profile, asked: Asked) -> tuple[tuple[RankIdle, ...], tuple[Limitation, ...]]:
    """Return the devices of a profile with their idle time, and what could not be told.

    Raises:
        NothingToAnalyseError: no work took any time.
        UsageError: no range has a name that was given for steps.
    """
    devices = tuple(_devices(profile.activities, asked))
    if not devices:
        raise NothingToAnalyseError(
            f"{profile.source.path}: no kernel or copy took any time; profile the training itself"
        )
    read, lost = _read(profile, devices, asked)
    if asked.window is not None:
        low_ns, high_ns = _extent(profile, asked.window, read.steps)
        cut = [device.within(low_ns, high_ns, asked.shortest_ns) for device in devices]
        devices = tuple(device for device in cut if device is not None)
        if not devices:
            raise NothingToAnalyseError(
                f"{profile.source.path}: no device has any work in --window {asked.window.text}; "
                "give another, or none"
            )
        steps = {process: own.within(low_ns, high_ns) for process, own in read.steps.items()}
        read, lost = _read(profile, devices, asked, replace(read, steps=steps))
    found = tuple(_rank(device, read, asked) for device in devices)
    return found, (*profile.limitations, *lost, *_untold(read, found))


def _extent(profile: Profile, window: Window, steps: Mapping[int, Steps]) -> tuple[int, int]:
    """Return the start and end of a window on the profile's clock.

    Raises:
        InputError: no step lies in it.
    """
    if window.times_ns is not None:
        return window.times_ns
    numbers = [number for own in steps.values() for number in own.numbers()]
    tables = tuple(steps.values())
    start_ns, end_ns = (
        np.concatenate([getattr(own, column) for own in tables])
        for column in ("start_ns", "end_ns")
    )
    try:
        held = window.holds(numbers, start_ns, end_ns)
    except InputError as error:
        raise InputError(f"{profile.source.path}: {error}") from error
    return int(start_ns[held].min()), int(end_ns[held].max())


def window_extent(profile: Profile, window: Window, asked: Asked) -> tuple[int, int]:
    """Return the start and end of a window on the profile's clock.

    Raises:
        InputError: no step lies in it.
        NothingToAnalyseError: no work took any time.
    """
    devices = tuple(_devices(profile.activities, asked))
    if not devices:
        raise NothingToAnalyseError(f"{profile.source.path}: no kernel or copy took any time")
    read, _ = _read(profile, devices, asked)
    return _extent(profile, window, read.steps)


def _devices(activities: Activities, asked: Asked) -> Iterator[_Device]:
    communication = matching(activities.names, asked.kinds.communication)
    for rank, process in enumerate(activities.ranks[:, 0].tolist()):
        rows = np.flatnonzero(activities.rank == rank)
        busy = busy_of(activities, rows, communication)
        if len(busy.any_ns[0]):
            gaps = gaps_of(activities, rows)
            short = np.asarray(gaps.end_ns - gaps.start_ns < asked.shortest_ns, bool)
            span_ns = int(busy.any_ns[0][0]), int(busy.any_ns[1][-1])
            yield _Device(rank, process, busy, gaps, short, span_ns)


def _read(
    profile: Profile,
    devices: Sequence[_Device],
    asked: Asked,
    whole: _Read | None = None,
) -> tuple[_Read, tuple[Limitation, ...]]:
    """Return what tells the idle time of devices, and what could not be told.

    Args:
        profile: to be read.
        devices: of it, or parts of them.
        asked: what is asked.
        whole: where devices are parts, what was read of the whole, with the steps of the parts.
    """
    none = np.empty(0, np.int64)
    linked = link(
        profile.activities,
        profile.calls,
        no_ranges(),
        none,
        profile.threads,
        (),
        cross_thread=False,
    )
    call, idle = linked.links.call, _idle(devices)
    after = [call[own.gaps.after[~own.short]].astype(np.int64) for own in devices]
    wanted = np.unique(np.concatenate(after))
    notes = notes_of(profile.calls, call, wanted[wanted != NONE], idle)
    kernels = profile.activities.kernels
    launched = {own.rank: launched_by(own.gaps, call, notes.calls, kernels) for own in devices}
    lead = {own.rank: _lead(launched[own.rank].thread[~own.short]) for own in devices}
    lead = lead if whole is None else dict(whole.lead)
    threads = _threads(profile, launched.values(), lead.values())
    lookup, numbers = asked.activities.lookup(), ActivityNumbers()
    steps = whole.steps if whole else _steps(profile, devices, threads, lookup, asked)
    ranges = _of_devices(_telling(profile, idle, threads, steps, asked), profile.threads)
    lookup.known[_ON_DEVICE] = DEVICE, KNOWN
    host = host_of(ranges, notes, profile.calls, lookup, numbers)
    lost = {"CUDA API calls": linked.impossible}
    return (
        _Read(profile, launched, ranges, host, steps, lead, numbers),
        (*impossible_times(profile.source.path, lost), *_left_out(profile, notes)),
    )


def _idle(devices: Sequence[_Device]) -> dict[int, intervals.Intervals]:
    """Return when a device of each process was idle, short gaps left aside."""
    found = {}
    for process in {own.process for own in devices}:
        gaps = [own.gaps.take(~own.short) for own in devices if own.process == process]
        start_ns = np.concatenate([own.start_ns for own in gaps])
        found[process] = intervals.union(start_ns, np.concatenate([own.end_ns for own in gaps]))
    return found


def _threads(profile: Profile, launched: Iterable[Launched], lead: Iterable[int]) -> Ints:
    """Return the threads that tell of gaps: those that launch, and main ones."""
    processes = np.unique(profile.activities.ranks[:, 0]).tolist()
    main = np.array([_main(process, profile.threads) for process in processes], np.int64)
    leading = np.array(list(lead), np.int64)
    return np.setdiff1d(np.concatenate((main, leading, *(own.thread for own in launched))), [NONE])


def _steps(
    profile: Profile,
    devices: Sequence[_Device],
    threads: Ints,
    lookup: ActivityLookup,
    asked: Asked,
) -> dict[int, Steps]:
    """Return the steps of each process.

    Raises:
        UsageError: no range has a name that was given for them.
    """
    since, until = (np.array(column) for column in zip(*(o.span_ns for o in devices), strict=True))
    shortest_ns = max(int((until - since).min()) // _SHORTEST_STEP, 1)
    first, last = np.array([since.min()]), np.array([until.max()])
    ranges = profile.every_range.lasting(shortest_ns, threads, first, last)
    steps = {
        process: steps_of(ranges, process, int(first[0]), int(last[0]), lookup, asked.step)
        for process in sorted({own.process for own in devices})
    }
    if asked.step is not None and not any(len(own) for own in steps.values()):
        raise UsageError(
            f"--step: no range of a launching thread in {profile.source.path} has such a name; the "
            f"longer ones are {frequent_names(ranges)}"
        )
    return steps


def _telling(
    profile: Profile,
    idle: Mapping[int, intervals.Intervals],
    threads: Ints,
    steps: Mapping[int, Steps],
    asked: Asked,
) -> Ranges:
    """Return the ranges that tell what hosts did while devices were idle, without steps."""
    since, until = (np.concatenate(c) for c in zip(*idle.values(), strict=True))
    shortest_ns = max(GRAIN_NS, asked.shortest_ns)
    logs = [log for log in (profile.every_range, profile.system_calls) if log is not None]
    ranges = _together([log.lasting(shortest_ns, threads, since, until) for log in logs])
    process = process_of(ranges.thread)
    keep = np.zeros(len(ranges), bool)
    for own, (since, until) in idle.items():
        rows = np.flatnonzero(process == own)
        before = np.searchsorted(until, ranges.start_ns[rows], side="right")
        keep[rows] = before < np.searchsorted(since, ranges.end_ns[rows])
    return _named(ranges.take(keep), {name for own in steps.values() for name in own.names})


def _of_devices(ranges: Ranges, threads: Iterable[Thread]) -> Ranges:
    """Return ranges in which those that lie on a device's own thread say that it was at work.

    There, modules and instructions that a trace tells in the device's time are no host's doing.
    """
    own = [one.thread for one in threads if one.name.startswith(DEVICE_THREAD)]
    there = np.isin(ranges.thread, own)
    if not there.any():
        return ranges
    works = np.array([_XLA.match(name) is not None for name in ranges.names], bool)
    name_id = np.where(there, len(ranges.names), ranges.name_id)
    kept = ~there | works[ranges.name_id]
    return replace(ranges, name_id=name_id, names=(*ranges.names, _ON_DEVICE)).take(kept)


def _together(found: Sequence[Ranges]) -> Ranges:
    """Return ranges of several logs as one."""
    names = tuple(name for own in found for name in own.names)
    first = np.cumsum([0, *(len(own.names) for own in found)]).tolist()
    numbered = (
        replace(own, name_id=own.name_id + at) for own, at in zip(found, first, strict=False)
    )
    return replace(joined(tuple(numbered)), names=names)


def _named(ranges: Ranges, left_out: Set[str]) -> Ranges:
    """Return ranges without those of some names, and with names as conventions take them."""
    used, of_used = np.unique(ranges.name_id, return_inverse=True)
    number: dict[str, int] = {}
    texts = (bare_name(ranges.names[name]) for name in used.tolist())
    of_name = np.array(
        [NONE if text in left_out else number.setdefault(text, len(number)) for text in texts],
        np.int64,
    )
    name_id = of_name[of_used]
    return replace(ranges, name_id=name_id, names=tuple(number)).take(name_id != NONE)


def _rank(device: _Device, read: _Read, asked: Asked) -> RankIdle:
    profile, launched = read.profile, read.launched[device.rank]
    lead = read.lead[device.rank]
    others = [lead, *(own for own in [_main(device.process, profile.threads)] if own != lead)]
    some = np.unique(np.append(launched.thread, others))
    held = profile.overheads.take(profile.overheads.process == device.process)
    found = attribute(
        device.gaps,
        launched,
        doings_for(read.host, profile.activities, device.rank, some, read.numbers),
        others,
        intervals.union(held.start_ns, held.end_ns),
        asked.shortest_ns,
        read.numbers,
    )
    names, steps = read.numbers.names(), read.steps[device.process]
    gaps, chunks = _listed(device, read, found, names, steps)

    def example(gap: int, activity: str) -> Example | None:
        if activity == SHORT:
            return None
        time_ns = _longest_piece(found, gap, read.numbers.of(activity))
        return _example(gap, time_ns, others, device, read, steps)

    parts = parts_of(found, names, example)
    process, device_id = profile.activities.ranks[device.rank].tolist()
    gpu = [d.name for d in profile.devices if d.device_id == device_id and d.pid in _of(process)]
    return RankIdle(
        label=f"{profile.source.host} pid {pid_of(process)} GPU {device_id}",
        path=profile.source.path,
        host=profile.source.host,
        pid=pid_of(process),
        device_id=device_id,
        gpu=gpu[0] if gpu and gpu[0] else None,
        breakdown=_breakdown(device),
        parts=parts,
        steps=by_step(found, device.busy.any_ns, steps, device.span_ns, names),
        steps_by=steps.by,
        gaps=gaps,
        chunks=chunks,
        strip=strip_of(found, _exposed(device.busy), parts, read.numbers.numbers, device.span_ns),
    )


def _of(process: int) -> tuple[int | None, ...]:
    """Return the processes for which a device is described."""
    return (pid_of(process), None)


def _main(process: int, threads: Iterable[Thread]) -> int:
    """Return the main thread of a process: its first one, or else one named as Python's is."""
    first = (process << 24) + pid_of(process)
    own = {one.thread: one.name for one in threads if one.thread >> 24 == process}
    named = sorted(thread for thread, name in own.items() if _PYTHON.match(name))
    return named[0] if named and first not in own else first


def _lead(threads: Ints) -> int:
    """Return the thread that launched the work after most gaps; -1 where none is known."""
    known, count = np.unique(threads[threads != NONE], return_counts=True)
    return int(known[count.argmax()]) if len(known) else NONE


def _exposed(
    busy: Busy,
) -> tuple[intervals.Intervals, intervals.Intervals, intervals.Intervals]:
    """Return when a device computed, communicated and nothing else, copied and nothing else."""
    kernels = intervals.union(
        *(np.concatenate(c) for c in zip(busy.compute_ns, busy.communication_ns, strict=True))
    )
    return (
        busy.compute_ns,
        intervals.difference(busy.communication_ns, busy.compute_ns),
        intervals.difference(busy.copy_ns, kernels),
    )


def _breakdown(device: _Device) -> Breakdown:
    busy, (start_ns, end_ns) = device.busy, device.span_ns
    _, talking, copying = _exposed(busy)
    return Breakdown(
        start_ns=start_ns,
        end_ns=end_ns,
        busy_ns=intervals.measure(busy.any_ns),
        compute_ns=intervals.measure(busy.compute_ns),
        communication_ns=intervals.measure(busy.communication_ns),
        copy_ns=intervals.measure(busy.copy_ns),
        exposed_communication_ns=intervals.measure(talking),
        exposed_copy_ns=intervals.measure(copying),
    )


def _listed(
    device: _Device, read: _Read, found: Attributed, names: tuple[str, ...], steps: Steps
) -> tuple[IdleGaps, Chunks]:
    """Return the gaps that are not short, and what they are made of."""
    rows = np.flatnonzero(~device.short)
    gaps, activities = device.gaps.take(rows), read.profile.activities
    place = np.full(len(device.short), NONE, np.int64)
    place[rows] = np.arange(len(rows))
    pieces = found.take(place[found.gap] != NONE)
    chunks = Chunks(place[pieces.gap], pieces.start_ns, pieces.end_ns, pieces.activity)
    works = (*activities.names, _COPY)
    of_work = [activities.name_id[column].astype(np.int64) for column in (gaps.before, gaps.after)]
    before, after = (np.where(own == NONE, len(works) - 1, own) for own in of_work)
    main = main_activity(found, len(device.short))[rows]
    step = step_at(steps, gaps.start_ns).astype(np.int64)
    return IdleGaps(gaps.start_ns, gaps.end_ns, before, after, main, step, works, names), chunks


def _longest_piece(found: Attributed, gap: int, activity: int) -> int:
    """Return the middle of the longest piece of an activity in a gap."""
    low, high = np.searchsorted(found.gap, (gap, gap + 1)).tolist()
    start_ns, end_ns = found.start_ns[low:high], found.end_ns[low:high]
    longest = int(np.where(found.activity[low:high] == activity, end_ns - start_ns, NONE).argmax())
    return int(start_ns[longest] + end_ns[longest]) // 2


def _example(
    gap: int, time_ns: int, others: Sequence[int], device: _Device, read: _Read, steps: Steps
) -> Example:
    """Return what is told of a gap, and what the host was in at a time of it.

    Once the work is launched that is where its call was.
    """
    activities, launched = read.profile.activities, read.launched[device.rank]
    start_ns, end_ns = int(device.gaps.start_ns[gap]), int(device.gaps.end_ns[gap])
    step = int(step_at(steps, np.array([start_ns]))[0])
    called = launched.thread[gap] != NONE
    at_ns = min(time_ns, int(launched.call_start_ns[gap])) if called else time_ns
    threads = [int(launched.thread[gap]), *others] if called else []
    found = (names_around(read.ranges, thread, at_ns, at_ns) for thread in threads)
    told = (tuple(name for name in names if name != _ON_DEVICE) for names in found)
    where = next((names for names in told if names), ())
    before, after = (
        _COPY if name == NONE else activities.names[name]
        for name in (
            int(activities.name_id[column[gap]])
            for column in (device.gaps.before, device.gaps.after)
        )
    )
    return Example(
        start_ns=start_ns,
        end_ns=end_ns,
        before=before,
        after=after,
        step=None if step == NONE else steps.names[int(steps.name_id[step])],
        where=where[-_WHERE:],
    )


def _left_out(profile: Profile, notes: CallNotes) -> Iterator[Limitation]:
    if notes.shortest_ns > GRAIN_NS:
        reason = (
            f"{profile.source.path}: they are too many; those of less than "
            f"{notes.shortest_ns:,} ns are counted to what is around them"
        )
        yield Limitation("short CUDA API calls in gaps", reason)


def _untold(read: _Read, found: Sequence[RankIdle]) -> Iterator[Limitation]:
    """Yield why idle time is put down to nothing, where that is so."""
    path = read.profile.source.path
    unlinked = [part for rank in found for part in rank.parts if part.activity == UNLINKED]
    if unlinked:
        yield Limitation(
            "who launched the work after gaps",
            f"{path}: the calls that launched it are not in the profile (CUDA API calls not "
            "recorded, or cut off); its idle time is put down to nothing",
            sum(part.gaps for part in unlinked),
        )
    untraced = any(part.activity == UNTRACED for rank in found for part in rank.parts)
    if untraced and len(read.ranges) == 0:
        yield Limitation(
            "what hosts did outside of CUDA calls",
            f"{path}: no range of a launching thread touches idle time (NVTX, record_function, "
            "operators); such time is untraced",
        )
