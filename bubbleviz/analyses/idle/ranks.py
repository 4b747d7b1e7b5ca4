"""Ranks: the devices of one profile, with their idle time attributed and summed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.idle.attribution import (
    COPY_NAME,
    attribute,
    by_activity,
    by_step,
    proved_waits,
    strip_of,
    work_name,
)
from bubbleviz.analyses.idle.gaps import Device, devices_of, holding, idle_by_process
from bubbleviz.analyses.idle.host import (
    GRAIN_NS,
    ON_DEVICE,
    HostEvents,
    gap_calls_of,
    host_events_of,
    host_ranges_of,
    main_thread,
    names_around,
)
from bubbleviz.analyses.idle.report import AttributedIdle, Example, IdleGaps, RankIdle
from bubbleviz.analyses.idle.waits import (
    RecordTimes,
    Waiting,
    nothing_proved,
    synchronisation_of,
    waiting_of,
    with_streams_of,
)
from bubbleviz.conventions.host_activities import (
    DEVICE,
    KNOWN,
    SHORT,
    UNLINKED,
    UNTRACED,
    ActivityList,
    ActivityLookup,
)
from bubbleviz.conventions.kinds import Kinds
from bubbleviz.errors import InputError, NothingToAnalyseError, UsageError
from bubbleviz.interpret.communication import candidates_of, with_added_communication
from bubbleviz.interpret.iterations import Steps, frequent_names, steps_of
from bubbleviz.interpret.linking import link
from bubbleviz.model import intervals
from bubbleviz.model.collectives import Synchronisation
from bubbleviz.model.columns import NONE, Codes, Ints
from bubbleviz.model.grouping import Numbering, distinct, found_in, without
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Profile, Ranges, pid_of
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window
from bubbleviz.sources.in_memory import no_ranges

#: Steps are no shorter than this part of a device's time.
_SHORTEST_STEP = 20_000
#: Of the ranges around an example, so many of the innermost are shown.
_WHERE = 6


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
class _Linked:
    """A profile with the work whose times can be, and its devices.

    Attributes:
        profile: itself.
        call: row of the launching call of each kernel and copy; -1 unknown.
        launched_ns: when that began; means nothing where there is none.
        devices: on which work took any time.
        limitations: what is lost.
    """

    profile: Profile
    call: Codes
    launched_ns: Ints
    devices: tuple[Device, ...]
    limitations: tuple[Limitation, ...]


@frozen
class _Evidence:
    """All that a profile holds to explain idle time.

    Attributes:
        devices: with the calls that launched the work after their gaps.
        ranges: what hosts did, without steps.
        host: what hosts did, as activities.
        steps: by process.
        lead: the thread that launched the work after most gaps of the whole run, by rank.
        numbers: of the activities' names.
        waiting: what streams and hosts are proved to have waited for.
        limitations: what is left out.
    """

    devices: tuple[Device, ...]
    ranges: Ranges
    host: HostEvents
    steps: Mapping[int, Steps]
    lead: Mapping[int, int]
    numbers: Numbering[str]
    waiting: Waiting
    limitations: tuple[Limitation, ...]


def ranks_of(
    profile: Profile, options: IdleOptions
) -> tuple[tuple[RankIdle, ...], tuple[Limitation, ...]]:
    """Return the devices of a profile with their idle time, and what could not be measured.

    Raises:
        InputError: no step lies in the window.
        NothingToAnalyseError: no work took any time, or none of it is in the window.
        UsageError: no range has the name of a step that the user gave.
    """
    found, unread = synchronisation_of(profile)
    linked = _linked(profile, options)
    found = found and with_streams_of(linked.profile.activities, found, profile.activities)
    profile = linked.profile
    evidence = _evidence_of(linked, options, found)
    if options.window is not None:
        low_ns, high_ns = _extent(profile, options.window, evidence.steps)
        parts = [device.within(low_ns, high_ns, options.shortest_ns) for device in linked.devices]
        devices = tuple(device for device in parts if device is not None)
        if not devices:
            raise NothingToAnalyseError(
                f"{profile.source.path}: no device has any work in --window {options.window.text}; "
                "give another, or none"
            )
        steps = {
            process: table.within(low_ns, high_ns) for process, table in evidence.steps.items()
        }
        whole = replace(evidence, steps=steps)
        evidence = _evidence_of(replace(linked, devices=devices), options, whole=whole)
    ranks = tuple(_rank(device, profile, evidence, options) for device in evidence.devices)
    losses = (
        *profile.limitations,
        *unread,
        *linked.limitations,
        *candidates_of(profile, options.kinds),
        *evidence.limitations,
    )
    return ranks, (*losses, *_limitations(profile, evidence, ranks))


def window_extent(profile: Profile, window: Window, options: IdleOptions) -> tuple[int, int]:
    """Return the start and end of a window on the profile's clock, in ns.

    Raises:
        InputError: no step lies in it.
        NothingToAnalyseError: no work took any time.
    """
    linked = _linked(profile, options)
    return _extent(linked.profile, window, _evidence_of(linked, options).steps)


def _linked(profile: Profile, options: IdleOptions) -> _Linked:
    linked = link(with_added_communication(profile, options.kinds), no_ranges())
    profile = linked.profile
    devices = tuple(devices_of(profile.activities, options.kinds, options.shortest_ns))
    if not devices:
        raise NothingToAnalyseError(
            f"{profile.source.path}: no kernel or copy took any time; profile the training itself"
        )
    links = linked.links
    return _Linked(profile, links.call, links.launched_ns, devices, linked.limitations)


def _extent(profile: Profile, window: Window, steps: Mapping[int, Steps]) -> tuple[int, int]:
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
    linked: _Linked,
    options: IdleOptions,
    found: Synchronisation | None = None,
    whole: _Evidence | None = None,
) -> _Evidence:
    """Return the evidence for the idle time of devices.

    Args:
        linked: a profile with its devices, or parts of them.
        options: of the analysis.
        found: what the profile holds of waiting.
        whole: where devices are parts, the evidence for the whole, with the steps of the parts.

    Raises:
        UsageError: no range has the name of a step that the user gave.
    """
    profile, call = linked.profile, linked.call
    idle = idle_by_process(linked.devices)
    launching = distinct(
        np.concatenate([call[d.long_gaps.after].astype(np.int64) for d in linked.devices])
    )
    records = RecordTimes(found.records) if found else None
    calls, shortest_ns = gap_calls_of(profile.calls, launching[launching != NONE], idle, records)
    waiting = whole.waiting if whole else nothing_proved()
    if found and records:

        def returned_ns(rows: Ints) -> Ints:
            returned = profile.calls.at(rows)
            return np.append(returned.end_ns, NONE)[found_in(returned.row, rows)]

        waiting = waiting_of(
            found,
            records,
            profile.activities,
            call,
            linked.launched_ns,
            returned_ns,
            options.kinds,
        )
    devices = tuple(replace(d, gaps=d.gaps.launched_by(call, calls)) for d in linked.devices)
    lead = whole.lead if whole else {device.rank: _lead(device) for device in devices}
    processes = distinct(profile.activities.ranks[:, 0]).tolist()
    main = [main_thread(process, profile.threads) for process in processes]
    threads = without(
        distinct(
            np.array([*main, *lead.values()], np.int64), *(device.gaps.thread for device in devices)
        ),
        np.array([NONE]),
    )
    lookup, numbers = options.activities.lookup(), Numbering[str]()
    steps = whole.steps if whole else _steps(profile, devices, threads, lookup, options.step)
    ranges = host_ranges_of(profile, idle, threads, steps, options.shortest_ns)
    lookup.known[ON_DEVICE] = DEVICE, KNOWN
    host = host_events_of(
        ranges, calls, shortest_ns, call, profile.calls, lookup, numbers, waiting.hosts
    )
    lost = Limitation(
        f"short {profile.source.api} API calls in gaps",
        f"{profile.source.path}: they are too many; those of less than {shortest_ns:,} ns count as "
        "part of what is around them",
    )
    limitations = (lost,) if shortest_ns > GRAIN_NS else ()
    return _Evidence(devices, ranges, host, steps, lead, numbers, waiting, limitations)


def _lead(device: Device) -> int:
    """Return the thread that launched the work after most gaps; -1 where none is known."""
    threads = device.long_gaps.thread
    known, count = np.unique(threads[threads != NONE], return_counts=True)
    return int(known[count.argmax()]) if len(known) else NONE


def _steps(
    profile: Profile,
    devices: Sequence[Device],
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


def _rank(device: Device, profile: Profile, evidence: _Evidence, options: IdleOptions) -> RankIdle:
    activities, source, numbers = profile.activities, profile.source, evidence.numbers
    lead, main = evidence.lead[device.rank], main_thread(device.process, profile.threads)
    others = list(dict.fromkeys((lead, main)))
    threads = distinct(np.append(device.gaps.thread, others))
    overheads = profile.overheads.take(profile.overheads.process == device.process)
    host = evidence.host.seen_from(activities, device.rank, threads, numbers)
    idle = attribute(
        device.gaps,
        activities,
        evidence.waiting.held,
        host,
        others,
        intervals.union(overheads.start_ns, overheads.end_ns),
        numbers,
    )
    steps = evidence.steps[device.process]

    def example(gap: int, number: int) -> Example | None:
        if numbers.values[number] == SHORT:
            return None
        return _example(device, profile, evidence, idle, others, gap, number)

    totals, most = by_activity(idle, len(device.gaps), numbers.values, example)
    gaps, chunks = _gap_tables(device, profile, idle, most, steps, numbers.values)
    waits, awaited_communication_ns, awaited_copy_ns = proved_waits(
        device, profile, evidence.waiting, host, idle, numbers, options.kinds
    )
    process, device_id = activities.ranks[device.rank].tolist()
    pid = pid_of(process)
    # A device is described for a process, or for all of them.
    models = [d.name for d in profile.devices if d.device_id == device_id and d.pid in (pid, None)]
    return RankIdle(
        label=f"{source.host} pid {pid} {source.place(device_id)}",
        path=source.path,
        host=source.host,
        pid=pid,
        device_id=device_id,
        place=source.place(device_id),
        on_host=source.on_host,
        single=device.single and not source.on_host,
        gpu=models[0] if models and models[0] else None,
        breakdown=device.breakdown(),
        activities=totals,
        steps=by_step(idle, device, steps, numbers.values),
        steps_by=steps.by,
        gaps=gaps,
        chunks=chunks,
        strip=strip_of(idle, device, totals, numbers),
        format=source.format,
        waits=waits,
        awaited_communication_ns=awaited_communication_ns,
        awaited_copy_ns=awaited_copy_ns,
    )


def _example(
    device: Device,
    profile: Profile,
    evidence: _Evidence,
    idle: AttributedIdle,
    others: Sequence[int],
    gap: int,
    number: int,
) -> Example:
    """Return where a gap is, and what the host did around the longest piece of an activity."""
    gaps, steps = device.gaps, evidence.steps[device.process]
    step = int(holding(steps.start_ns, steps.end_ns, gaps.start_ns[gap : gap + 1])[0])
    low, high = np.searchsorted(idle.gap, (gap, gap + 1)).tolist()
    start_ns, end_ns = idle.start_ns[low:high], idle.end_ns[low:high]
    length_ns = np.where(idle.activity[low:high] == number, end_ns - start_ns, NONE)
    longest = int(length_ns.argmax())
    # Once the work after it is launched, the time of that call counts.
    middle_ns = int(start_ns[longest] + end_ns[longest]) // 2
    time_ns = min(middle_ns, int(gaps.call_start_ns[gap]))
    thread = int(gaps.thread[gap])
    where: tuple[str, ...] = ()
    for candidate in () if thread == NONE else (thread, *others):
        around = names_around(evidence.ranges, candidate, time_ns)
        where = tuple(name for name in around if name != ON_DEVICE)[-_WHERE:]
        if where:
            break
    return Example(
        start_ns=int(gaps.start_ns[gap]),
        end_ns=int(gaps.end_ns[gap]),
        before=work_name(profile.activities, int(gaps.before[gap])),
        after=work_name(profile.activities, int(gaps.after[gap])),
        step=None if step == NONE else steps.names[int(steps.name_id[step])],
        where=where,
    )


def _gap_tables(
    device: Device,
    profile: Profile,
    idle: AttributedIdle,
    most: Ints,
    steps: Steps,
    names: tuple[str, ...],
) -> tuple[IdleGaps, AttributedIdle]:
    """Return the gaps that are attributed, and these cut by activity.

    Args:
        device: whose gaps they are.
        profile: with its work.
        idle: its idle time, attributed.
        most: the activity with most of each gap.
        steps: of its process.
        names: of activities.
    """
    gaps, activities = device.long_gaps, profile.activities
    place = np.where(device.gaps.short, NONE, np.cumsum(~device.gaps.short) - 1)
    pieces = idle.take(place[idle.gap] != NONE)
    works = (*activities.names, COPY_NAME)
    work_ids = [activities.name_id[column].astype(np.int64) for column in (gaps.before, gaps.after)]
    before, after = (np.where(ids == NONE, len(works) - 1, ids) for ids in work_ids)
    table = IdleGaps(
        start_ns=gaps.start_ns,
        end_ns=gaps.end_ns,
        before=before,
        after=after,
        activity=most[~device.gaps.short],
        step=holding(steps.start_ns, steps.end_ns, gaps.start_ns).astype(np.int64),
        works=works,
        activities=names,
    )
    return table, replace(pieces, gap=place[pieces.gap])


def _limitations(
    profile: Profile, evidence: _Evidence, ranks: Sequence[RankIdle]
) -> Iterator[Limitation]:
    """Yield why idle time could not be attributed."""
    path, waiting = profile.source.path, evidence.waiting
    single = sum(rank.single for rank in ranks)
    if single:
        yield Limitation(
            "duty cycle",
            f"{path}: a device ran a single kernel or copy, which gives no window to be idle in; "
            "it counts in no sum",
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
    unlinked = [total for total in totals if total.activity == UNLINKED]
    if unlinked:
        yield Limitation(
            "who launched the work after gaps",
            f"{path}: the calls that launched it are not in the profile (API calls not "
            "recorded, or cut off); its idle time is not attributed",
            sum(total.gaps for total in unlinked),
        )
    untraced = any(total.activity == UNTRACED for total in totals)
    if untraced and len(evidence.ranges) == 0:
        yield Limitation(
            "what hosts did outside of API calls",
            f"{path}: no range of a launching thread touches idle time (NVTX, ROCTx, "
            "record_function, operators); such time counts as no host trace",
        )
