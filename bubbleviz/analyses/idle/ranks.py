"""Ranks: the devices of one profile, with their idle time attributed and summed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.idle.attribution import AttributedIdle, attribute
from bubbleviz.analyses.idle.blocked_gaps import blocked_gaps_of, kinds_of
from bubbleviz.analyses.idle.devices import DeviceTime, devices_of
from bubbleviz.analyses.idle.evidence import IdleEvidence, IdleOptions, evidence_of, linked_profile
from bubbleviz.analyses.idle.examples import Examples
from bubbleviz.analyses.idle.gaps import migrations_of
from bubbleviz.analyses.idle.host_ranges import main_thread
from bubbleviz.analyses.idle.host_record import host_of_rank
from bubbleviz.analyses.idle.proved_waits import RankWaits, WaitNames
from bubbleviz.analyses.idle.report import Chunks, IdleGaps, RankIdle
from bubbleviz.analyses.idle.stream_numbers import synchronisation_of, with_streams_of
from bubbleviz.analyses.idle.totals import by_activity, by_step, main_activity, step_at, strip_of
from bubbleviz.analyses.idle.waits import COPY
from bubbleviz.conventions.host_activities import UNLINKED, UNTRACED
from bubbleviz.errors import InputError, NothingToAnalyseError
from bubbleviz.interpret.communication_candidates import candidates_of
from bubbleviz.interpret.steps import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE
from bubbleviz.model.grouping import distinct
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Profile, pid_of
from bubbleviz.model.window import Window


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
    linked = linked_profile(profile, options.kinds)
    found = found and with_streams_of(linked.profile.activities, found, profile.activities)
    profile = linked.profile
    devices = _devices(profile, options)
    evidence, lost = evidence_of(linked, devices, options, found)
    if options.window is not None:
        low_ns, high_ns = _extent(profile, options.window, evidence.steps)
        parts = [device.within(low_ns, high_ns, options.shortest_ns) for device in devices]
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
        evidence, lost = evidence_of(linked, devices, options, whole=whole)
    ranks = tuple(_rank(device, evidence, options) for device in devices)
    candidates = candidates_of(profile, options.kinds)
    losses = (*profile.limitations, *unread, *linked.limitations, *candidates, *lost)
    return ranks, (*losses, *_limitations(evidence, ranks))


def window_extent(profile: Profile, window: Window, options: IdleOptions) -> tuple[int, int]:
    """Return the start and end of a window on the profile's clock, in ns.

    Raises:
        InputError: no step lies in it.
        NothingToAnalyseError: no work took any time.
    """
    linked = linked_profile(profile, options.kinds)
    evidence, _ = evidence_of(linked, _devices(linked.profile, options), options)
    return _extent(linked.profile, window, evidence.steps)


def _devices(profile: Profile, options: IdleOptions) -> tuple[DeviceTime, ...]:
    devices = tuple(devices_of(profile.activities, options.kinds, options.shortest_ns))
    if not devices:
        raise NothingToAnalyseError(
            f"{profile.source.path}: no kernel or copy took any time; profile the training itself"
        )
    return devices


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


def _rank(device: DeviceTime, evidence: IdleEvidence, options: IdleOptions) -> RankIdle:
    profile, launches = evidence.profile, evidence.launches[device.rank]
    lead, main = evidence.lead[device.rank], main_thread(device.process, profile.threads)
    others = list(dict.fromkeys((lead, main)))
    threads = distinct(np.append(launches.thread, others))
    overheads = profile.overheads.take(profile.overheads.process == device.process)
    numbers = evidence.numbers
    proved = _proved(device, evidence, options)
    blocked = blocked_gaps_of(device.gaps, evidence.waiting.held, proved.kind)
    idle = attribute(
        device.gaps,
        launches,
        blocked,
        host_of_rank(evidence.host, profile.activities, device.rank, threads, numbers),
        others,
        intervals.union(overheads.start_ns, overheads.end_ns),
        options.shortest_ns,
        numbers,
        migrations_of(profile.activities)[device.gaps.after],
    )
    names, steps = numbers.values, evidence.steps[device.process]
    gaps, chunks = _gap_tables(device, evidence, idle, steps)
    activities = by_activity(idle, names, Examples(device, evidence, idle, others).of)
    process, device_id = profile.activities.ranks[device.rank].tolist()
    pid = pid_of(process)
    # A device is described for a process, or for all of them.
    models = [d.name for d in profile.devices if d.device_id == device_id and d.pid in (pid, None)]
    return RankIdle(
        label=f"{profile.source.host} pid {pid} {profile.source.place(device_id)}",
        path=profile.source.path,
        host=profile.source.host,
        pid=pid,
        device_id=device_id,
        place=profile.source.place(device_id),
        on_host=profile.source.on_host,
        single=device.single and not profile.source.on_host,
        gpu=models[0] if models and models[0] else None,
        breakdown=device.breakdown(),
        activities=activities,
        steps=by_step(idle, device.busy.any_ns, steps, device.span_ns, names),
        steps_by=steps.by,
        gaps=gaps,
        chunks=chunks,
        strip=strip_of(idle, device.exposed(), activities, numbers, device.span_ns),
        format=profile.source.format,
        waits=proved.waits(blocked, idle),
        awaited=proved.awaited(),
    )


def _proved(device: DeviceTime, evidence: IdleEvidence, options: IdleOptions) -> RankWaits:
    """Return the waits of a device's streams, and of hosts while it was idle."""
    profile, waiting, calls = evidence.profile, evidence.waiting, evidence.host.synchronised
    return RankWaits(
        device,
        waiting,
        kinds_of(profile.activities, waiting.held.by, options.kinds),
        kinds_of(profile.activities, calls.by, options.kinds),
        calls,
        WaitNames(profile.activities, waiting.streams, profile.source, device.rank),
    )


def _gap_tables(
    device: DeviceTime, evidence: IdleEvidence, idle: AttributedIdle, steps: Steps
) -> tuple[IdleGaps, Chunks]:
    """Return the gaps that are attributed, and these cut by activity."""
    rows = np.flatnonzero(~device.short)
    gaps, activities = device.gaps.take(rows), evidence.profile.activities
    place = np.full(len(device.short), NONE, np.int64)
    place[rows] = np.arange(len(rows))
    pieces = idle.take(place[idle.gap] != NONE)
    chunks = Chunks(place[pieces.gap], pieces.start_ns, pieces.end_ns, pieces.activity)
    works = (*activities.names, COPY)
    work_ids = [activities.name_id[column].astype(np.int64) for column in (gaps.before, gaps.after)]
    before, after = (np.where(ids == NONE, len(works) - 1, ids) for ids in work_ids)
    table = IdleGaps(
        start_ns=gaps.start_ns,
        end_ns=gaps.end_ns,
        before=before,
        after=after,
        activity=main_activity(idle, len(device.short))[rows],
        step=step_at(steps, gaps.start_ns).astype(np.int64),
        works=works,
        activities=evidence.numbers.values,
    )
    return table, chunks


def _limitations(evidence: IdleEvidence, ranks: Sequence[RankIdle]) -> Iterator[Limitation]:
    """Yield why idle time could not be attributed."""
    path = evidence.profile.source.path
    single = sum(rank.single for rank in ranks)
    if single:
        yield Limitation(
            "duty cycle",
            f"{path}: a device ran a single kernel or copy, which gives no window to be idle in; "
            "it counts in no sum",
            single,
        )
    waiting = evidence.waiting
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
