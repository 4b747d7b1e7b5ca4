"""Ranks: the devices of one profile, with their idle time attributed and summed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bubbleviz.analyses.idle.attribution import AttributedIdle, attribute
from bubbleviz.analyses.idle.evidence import IdleEvidence, IdleOptions, evidence_of, linked_profile
from bubbleviz.analyses.idle.gap_calls import (
    KIND_NAMES,
    BlockedGaps,
    Kind,
    blocked_gaps_of,
    kinds_of,
)
from bubbleviz.analyses.idle.gaps import migrations_of
from bubbleviz.analyses.idle.held_work import HeldWork, Waiting
from bubbleviz.analyses.idle.host_record import (
    ON_DEVICE,
    SynchronisedCalls,
    host_of_rank,
    main_thread,
    names_around,
)
from bubbleviz.analyses.idle.report import Chunks, Example, IdleGaps, RankIdle
from bubbleviz.analyses.idle.stream_order import (
    COPY,
    Awaited,
    ProvedWait,
    order_of,
    synchronisation_of,
    with_streams_of,
)
from bubbleviz.analyses.idle.totals import (
    DeviceTime,
    by_activity,
    by_step,
    devices_of,
    main_activity,
    step_at,
    strip_of,
)
from bubbleviz.conventions.host_activities import SHORT, UNLINKED, UNTRACED
from bubbleviz.errors import InputError, NothingToAnalyseError
from bubbleviz.interpret.communication_candidates import candidates_of
from bubbleviz.interpret.iterations import Steps
from bubbleviz.model import intervals
from bubbleviz.model.columns import NONE, Ints
from bubbleviz.model.grouping import distinct, groups_of
from bubbleviz.model.limitations import Limitation
from bubbleviz.model.profile import Activities, Profile, Source, pid_of
from bubbleviz.model.values import frozen
from bubbleviz.model.window import Window

# Examples: where the longest gap of an activity is, and what the host did around it.


#: Of the ranges around an example, so many of the innermost are shown.
_WHERE = 6


class Examples:
    """Describes gaps of one device."""

    def __init__(
        self,
        device: DeviceTime,
        evidence: IdleEvidence,
        idle: AttributedIdle,
        others: Sequence[int],
    ) -> None:
        """Take a device.

        Args:
            device: whose gaps they are.
            evidence: for its idle time.
            idle: its idle time, attributed.
            others: threads to look at where nothing is recorded of the launching one.
        """
        self._device = device
        self._evidence = evidence
        self._idle = idle
        self._others = others

    def of(self, gap: int, activity: str) -> Example | None:
        """Return a gap of which an activity took a part; None of a kernel-to-kernel gap."""
        if activity == SHORT:
            return None
        evidence = self._evidence
        steps = evidence.steps[self._device.process]
        gaps = self._device.gaps
        start_ns, end_ns = int(gaps.start_ns[gap]), int(gaps.end_ns[gap])
        step = int(step_at(steps, np.array([start_ns]))[0])
        number = evidence.numbers.number(activity)
        return Example(
            start_ns=start_ns,
            end_ns=end_ns,
            before=self._work(int(gaps.before[gap])),
            after=self._work(int(gaps.after[gap])),
            step=None if step == NONE else steps.names[int(steps.name_id[step])],
            where=self._where(gap, self._middle_ns(gap, number)),
        )

    def _work(self, row: int) -> str:
        """Return the name of an activity of the device."""
        activities = self._evidence.profile.activities
        name = int(activities.name_id[row])
        return COPY if name == NONE else activities.names[name]

    def _where(self, gap: int, time_ns: int) -> tuple[str, ...]:
        """Return the ranges of the host around a time of a gap.

        Once the work after it is launched, the time of that call counts.
        """
        launches = self._evidence.launches[self._device.rank]
        thread = int(launches.thread[gap])
        if thread == NONE:
            return ()
        time_ns = min(time_ns, int(launches.call_start_ns[gap]))
        for candidate in (thread, *self._others):
            around = names_around(self._evidence.ranges, candidate, time_ns)
            names = tuple(name for name in around if name != ON_DEVICE)
            if names:
                return names[-_WHERE:]
        return ()

    def _middle_ns(self, gap: int, activity: int) -> int:
        """Return the middle of the longest piece of an activity in a gap."""
        idle = self._idle
        low, high = np.searchsorted(idle.gap, (gap, gap + 1)).tolist()
        start_ns, end_ns = idle.start_ns[low:high], idle.end_ns[low:high]
        length_ns = np.where(idle.activity[low:high] == activity, end_ns - start_ns, NONE)
        longest = int(length_ns.argmax())
        return int(start_ns[longest] + end_ns[longest]) // 2


# Proved waits: what streams and hosts waited for, summed by who waited and for which work.


@frozen
class WaitNames:
    """Writes what waits name: streams, and work.

    Attributes:
        activities: of the profile.
        streams: of each activity.
        source: of the profile.
        rank: of the device that waits.
    """

    activities: Activities
    streams: Ints
    source: Source
    rank: int

    def stream(self, row: int) -> str:
        """Return the stream of an activity, with its device where that is another."""
        text = f"stream {int(self.streams[row])}"
        rank = int(self.activities.rank[row])
        if rank == self.rank:
            return text
        return f"{self.source.place(int(self.activities.ranks[rank, 1]))} {text}"

    def work(self, row: int) -> str:
        """Return the name of an activity."""
        name = int(self.activities.name_id[row])
        return COPY if name == NONE else self.activities.names[name]


@frozen
class RankWaits:
    """The waits of a device's streams, and of hosts while it was idle.

    Attributes:
        device: that they delayed.
        waiting: what the profile proves of waiting.
        kind: code of :class:`Kind` of what held work waited for.
        call_kind: of what the synchronised calls of hosts waited for.
        calls: synchronised calls of hosts.
        names: write what they name.
    """

    device: DeviceTime
    waiting: Waiting
    kind: Ints
    call_kind: Ints
    calls: SynchronisedCalls
    names: WaitNames

    def waits(self, blocked: BlockedGaps, idle: AttributedIdle) -> tuple[ProvedWait, ...]:
        """Return the waits, those with most time without compute first.

        Args:
            blocked: how long the stream of the work after each gap waited.
            idle: the device's idle time, attributed.
        """
        found = [*self._of_streams(blocked, idle), *self._of_hosts(idle)]
        return tuple(sorted(found, key=order_of))

    def awaited(self) -> Awaited:
        """Return how much of the exposed communication and copies streams waited for."""
        held, low_ns, high_ns = self._held()
        _, communication, copies = self.device.exposed()

        def shared(part: intervals.Intervals, kind: Kind) -> int:
            rows = self.kind[held] == kind
            waits = intervals.union(low_ns[rows], high_ns[rows])
            return intervals.measure(part) - intervals.measure(intervals.difference(part, waits))

        return Awaited(shared(communication, Kind.COMMUNICATION), shared(copies, Kind.COPY))

    def _held(self) -> tuple[Ints, Ints, Ints]:
        """Return the rows of the held work of the device, from when and until when it waited."""
        held: HeldWork = self.waiting.held
        rows = np.flatnonzero(self.names.activities.rank[held.work] == self.device.rank)
        low_ns = np.clip(held.start_ns[rows], *self.device.span_ns)
        high_ns = np.clip(held.end_ns[rows], *self.device.span_ns)
        lasting = high_ns > low_ns
        return rows[lasting], low_ns[lasting], high_ns[lasting]

    def _of_streams(self, blocked: BlockedGaps, idle: AttributedIdle) -> Iterator[ProvedWait]:
        held, low_ns, high_ns = self._held()
        if len(held) == 0:
            return
        table, activities = self.waiting.held, self.names.activities
        work, by = table.work[held], table.by[held]
        each = groups_of(
            self.waiting.streams[work],
            activities.rank[by].astype(np.int64),
            self.waiting.streams[by],
            activities.name_id[by].astype(np.int64),
            self.kind[held],
        )
        blocked_ns = intervals.group_sum(each.of_row, len(each), high_ns - low_ns)
        computing_ns = intervals.measure_within(self.device.busy.compute_ns, low_ns, high_ns)
        computing_ns = intervals.group_sum(each.of_row, len(each), computing_ns)
        idle_ns = self._idle_by_held(blocked, idle)[held]
        idle_ns = intervals.group_sum(each.of_row, len(each), idle_ns)
        count = np.bincount(each.of_row, minlength=len(each))
        columns = (each.first, count, blocked_ns, blocked_ns - computing_ns, idle_ns)
        for first, waits, spent, without_compute, idled in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield ProvedWait(
                waiting=self.names.stream(int(work[first])),
                stream=self.names.stream(int(by[first])),
                work=self.names.work(int(by[first])),
                kind=KIND_NAMES[Kind(int(self.kind[held[first]]))],
                waits=waits,
                blocked_ns=spent,
                without_compute_ns=without_compute,
                idle_ns=idled,
            )

    def _idle_by_held(self, blocked: BlockedGaps, idle: AttributedIdle) -> Ints:
        """Return the idle time that is attributed to each held work's wait."""
        held = blocked.held[idle.gap]
        begun_ns, until_ns = idle.start_ns, blocked.until_ns[idle.gap]
        rows = np.flatnonzero((held != NONE) & idle.blocked & (begun_ns < until_ns))
        spent_ns = np.zeros(len(self.waiting.held), np.int64)
        np.add.at(spent_ns, held[rows], idle.end_ns[rows] - idle.start_ns[rows])
        return spent_ns

    def _of_hosts(self, idle: AttributedIdle) -> Iterator[ProvedWait]:
        rows = np.flatnonzero(idle.synchronised != NONE)
        if len(rows) == 0:
            return
        calls, activities = self.calls, self.names.activities
        call = idle.synchronised[rows]
        by = calls.by[call]
        each = groups_of(
            calls.name_id[call],
            activities.rank[by].astype(np.int64),
            self.waiting.streams[by],
            activities.name_id[by].astype(np.int64),
            self.call_kind[call],
        )
        spent_ns = idle.end_ns[rows] - idle.start_ns[rows]
        spent_ns = intervals.group_sum(each.of_row, len(each), spent_ns)
        # A call may be in several gaps.
        pairs = groups_of(each.of_row, call)
        count = np.bincount(each.of_row[pairs.first], minlength=len(each))
        for first, waits, spent in zip(
            each.first.tolist(), count.tolist(), spent_ns.tolist(), strict=True
        ):
            yield ProvedWait(
                waiting=f"host, {calls.names[int(calls.name_id[call[first]])]}",
                stream=self.names.stream(int(by[first])),
                work=self.names.work(int(by[first])),
                kind=KIND_NAMES[Kind(int(self.call_kind[call[first]]))],
                waits=waits,
                blocked_ns=spent,
                without_compute_ns=spent,
                idle_ns=spent,
            )


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
